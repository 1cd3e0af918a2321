"""Measuring: every workload against what a user would run instead, in one run, checked against float64.

``build`` compiles artifacts on any machine; ``runner`` measures them, with their baselines, on the machine that has the GPU
and needs neither TVM nor TileLang. Rows are JSON lines; ``rows`` reads, compares and prints them.

The workloads are ``workloads/`` beside the package in a checkout, ``redfuser_workloads`` where a wheel was installed. Both are
imported under the name ``workloads``, which is what their own modules call themselves; a package of that name that somebody
else has on the path is not looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType


def folder() -> Path:
    """The package's folder; a checkout is told by its ``setup.py``."""
    here = Path(__file__).absolute().parents[2]
    return here / ("workloads" if (here / "setup.py").is_file() else "redfuser_workloads")


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != "workloads" or not (folder() / "__init__.py").is_file():
            return None
        return spec_from_file_location(fullname, folder() / "__init__.py", submodule_search_locations=[str(folder())])


def install() -> None:
    """Make ``import workloads`` find ours, first and once."""
    if not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


install()
