"""apache-tvm and TileLang (which bundles a TVM of its own) cannot live in one process; whoever tries is told so.

Measured with the pinned pair: TileLang first leaves its fork under the name ``tvm``, and apache-tvm's importers then run
half of each; apache-tvm first makes ``import tilelang`` die of an undefined symbol. RedFuser itself needs both, in
separate processes (:mod:`redfuser.codegen.pool`); this module is for a user's process that also imports TileLang.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from redfuser.errors import InputError

_HELP = ("compile in a process of its own (`redfuser compile MODEL -o FILE`) and `redfuser.load(FILE)` here: loading needs "
         "no TVM and lives beside TileLang")


class TwoTvmsError(InputError, ImportError):
    """RF105. Also an ImportError, so that ``try: import tilelang`` takes its other branch."""


def before_apache_tvm() -> None:
    """Call before the first ``import tvm``. Raises RF105 when TileLang is here already; else watches for it."""
    if "tilelang" in sys.modules:
        raise TwoTvmsError("RF105", "this process has imported tilelang, so RedFuser cannot compile in it",
                           why="TileLang brings a TVM of its own, which takes apache-tvm's place", help=_HELP)
    if not any(isinstance(f, _Watch) for f in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


class _Watch(MetaPathFinder):
    """Finds TileLang as the finders after it do (asking whether it is installed stays harmless) and refuses to run it."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != "tilelang":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            spec.loader = _Refuse()
        return spec


class _Refuse(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        raise TwoTvmsError("RF105", "tilelang cannot be imported here: RedFuser has compiled in this process",
                           why="TileLang brings a TVM of its own, which cannot be loaded beside apache-tvm", help=_HELP)
