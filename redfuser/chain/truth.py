"""What a cascade means on given inputs: exactly as far as float64 goes, and as the unfused program computes it.

``Wide`` gives the numerics rule's truth: every float of the program in float64, its roundings to half and single precision
left out; conversions to 8-bit floats and to integers choose among few values and stay. ``PROGRAM`` gives the program itself,
statement by statement in its own dtypes: what a user would run without us, and so the measure of our error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from redfuser.acrf.cascade import Cascade, Let, Reduce
from redfuser.acrf.check.domains import NUMPY, Array, Arrays, Domain
from redfuser.acrf.check.evaluate import machine, materialise
from redfuser.acrf.check.machine import Machine
from redfuser.acrf.expr import Cast, Ref

FEW = frozenset({"e4m3", "e5m2"})


class Wide(Arrays):
    """float64 throughout. ``steps``: whether roundings to 8-bit floats are taken; a fusion that moved them is compared
    with its program where both leave them out."""

    def __init__(self, steps: bool = True) -> None:
        super().__init__(program=False)
        self.steps = steps

    def enter(self, x: Array, dtype: str) -> Array:
        return x.astype(np.float64)  # in its own dtype already, or beyond it on purpose (redfuser.unseen)

    def round(self, x: Array, source: str, target: str) -> Array:
        if target not in FEW or not self.steps:
            return x
        with np.errstate(all="ignore"):
            return x.astype(NUMPY[target]).astype(np.float64)


class InTurn(Arrays):
    """The program's own dtypes, where a sum is taken one term after the other."""

    contracts = False

    def __init__(self) -> None:
        super().__init__(program=True)

    def total(self, kind: str, x: Array, dtype: str) -> Array:
        if kind != "sum" or not x.shape[-1] or x.dtype.kind != "f":
            return super().total(kind, x, dtype)
        with np.errstate(all="ignore"):
            return self._fit(np.add.accumulate(x, -1)[..., -1], dtype)


@dataclass(frozen=True)
class Truth:
    """One evaluation of a cascade: results by name, and the values that an index chooses among."""

    cascade: Cascade
    machine: Machine

    def outputs(self) -> dict[str, Array]:
        """Dimensions in the order of the statements' axes; integers and bools as they are."""
        return {n: materialise(self.machine, self.cascade, n, self.machine.values[n]) for n in self.cascade.outputs}

    def unbounded(self, output: str) -> Array:
        """Where some result over the row, at the same points, is infinite or NaN."""
        axes = self.cascade.stmt(output).axes
        found: Array = np.zeros([len(self.machine.ranges[a]) for a in axes], np.bool_)
        for s in (s for s in self.cascade.stmts if isinstance(s, Reduce) and s.over == self.cascade.raxis):
            value = self.machine.values[s.names[0]]
            if set(value.axes) <= set(axes) and value.data.dtype.kind == "f":
                found |= ~np.isfinite(value.aligned(axes))
        return found

    def ranked(self, output: str) -> Array | None:
        """Where an output is a place (argmax, argmin, topk's second): what it is a place in, the row last.
        Integers as they are."""
        name = output
        while isinstance(s := self.cascade.stmt(name), Let):
            e = s.expr.arg if isinstance(s.expr, Cast) else s.expr
            if not isinstance(e, Ref) or e.indices:
                return None
            name = e.name
        if not isinstance(s, Reduce) or s.reducer.kind not in ("argmax", "argmin", "topk") or name == s.names[0] != s.names[-1]:
            return None
        points = s.axes[:-1] if s.reducer.kind == "topk" else s.axes
        shape = [len(self.machine.ranges[a]) for a in (*points, s.over)]
        values = np.broadcast_to(self.machine.expr(s.expr).aligned((*points, s.over)), shape)
        return values if values.dtype.kind in "iu" else np.asarray(values, np.float64)


def evaluate(cascade: Cascade, inputs: Mapping[str, Array], numbers: Domain) -> Truth:
    """The program, statement after statement, in one number system: ``Wide()`` for the exact results, :data:`PROGRAM` for
    what the unfused program computes."""
    m = machine(cascade, inputs, numbers)
    with np.errstate(all="ignore"):
        for s in cascade.stmts:
            m.statement(s)
    return Truth(cascade, m)


PROGRAM = Arrays(program=True)
"""Every operation rounds to its own dtype."""
