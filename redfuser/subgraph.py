"""The per-subgraph API: define a function, bind it to shapes, look at every stage, call it.

    bound = redfuser.kernel(fn).bind(*args, target="sm_90a")
    bound.stages()      # ordered: stage -> text
    bound.source()      # the TileLang module
    bound.report()      # as of a compiled model
    bound(*args)        # runs it, on a machine that has the target
"""

from __future__ import annotations

from typing import Any

from redfuser import api
from redfuser.errors import InputError
from redfuser.plan import Produced
from redfuser.report import Report


class Bound:
    """A function bound to example inputs and a target. Building happens at the first call, not before."""

    def __init__(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], target: str | None, casts: str,
                 tuning: str | None) -> None:
        self._call = (fn, args, kwargs, target, casts, tuning)
        self._plan = api.planned(fn, args, kwargs, target, casts, tuning)
        self._compiled: Any = None

    def _produced(self, name: str | None) -> Produced:
        kernels = self._plan.produced
        alone = [n for n in kernels if n not in {r.name for r in self._plan.partition.maps}] or list(kernels)
        if name is None and len(alone) == 1:
            return kernels[alone[0]]
        if name not in kernels:
            raise InputError("RF194", f"no cascade {name!r}", help=f"there are {', '.join(kernels) or 'none'}")
        return kernels[name]

    def stages(self, name: str | None = None) -> dict[str, str]:
        """Stage -> text, in order, of the cascade or group of maps ``name``; it may be left out when there is one cascade, or
        one kernel."""
        return dict(self._produced(name).stages)

    def source(self, name: str | None = None) -> str:
        """The generated kernel: a TileLang module, or scalar TIR for the CPU target."""
        stages = self._produced(name).stages
        return stages.get("source") or stages.get("tir", "")

    def config(self, name: str | None = None) -> str:
        """The configuration and where it came from."""
        return self._produced(name).config

    def report(self) -> Report:
        """What fused and what did not, as of a compiled model."""
        return self._plan.report

    def __repr__(self) -> str:
        report = self._plan.report
        return f"Bound({report.model}, {report.target}, {len(report.fused)} of {len(report.cascades)} cascades fused)"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._compiled is None:
            fn, example, keywords, target, casts, tuning = self._call
            self._compiled = api.compile(fn, example, keywords, target=target, casts=casts, tuning=tuning)
        return self._compiled(*args, **kwargs)


class Kernel:
    """A function (or module) that is yet to be bound to shapes."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def __repr__(self) -> str:
        return f"Kernel({getattr(self.fn, '__name__', None) or type(self.fn).__name__}, to be bound: .bind(*args))"

    def bind(self, *args: Any, target: str | None = None, casts: str = "preserve", tuning: str | None = None,
             **kwargs: Any) -> Bound:
        """Import, partition and plan for these inputs; builds and measures nothing yet."""
        return Bound(self.fn, args, kwargs, target, casts, tuning)


def kernel(fn: Any) -> Kernel:
    """One subgraph, to look at and to call: ``redfuser.kernel(fn).bind(*args)``."""
    return Kernel(fn)
