"""Where a maximum must keep NaN by itself.

A row reduction of the GPU drops NaN, as its ``max`` does. In a softmax that costs nothing: the NaN is in the sum of the
exponentials, and every result divides by that. Where a result hangs on the maximum alone, the reduction takes a second
row value along, whether a NaN was seen (:mod:`reductions`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from redfuser.acrf.cascade import Let
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Op, Ref, refs_of
from redfuser.acrf.state import Accumulator, Fused
from redfuser.tensorize.algebra import guard_of, is_const

THROUGH = frozenset({"add", "sub", "mul", "div", "neg", "abs", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh",
                     "sigmoid", "erf", "erfc", "lgamma", "atan2", "sin", "cos", "floor", "ceil", "round", "max", "min"})
"""Operations whose result is NaN whenever an operand is."""


class _Flow:
    """Which values are certainly NaN where the contribution of ``extremum`` is NaN somewhere along the row."""

    def __init__(self, fused: Fused, extremum: Accumulator) -> None:
        self.lets = {s.name: s.expr for s in fused.producers if isinstance(s, Let)}
        self.name, self.x = extremum.names[0], _bare(extremum.contribution)
        self.summed = False
        """Is it a sum over the row that is looked at? A value of one element is NaN where that element is, not in its row."""
        self.certain: set[str] = set()
        self.touched = {self.name}

    def nan(self, e: Expr) -> bool:
        if _bare(e) == self.x:
            return self.summed
        match e:
            case Ref(name=n):
                return n.partition("@")[0] in self.certain or (n in self.lets and self.nan(self.lets[n]))
            case Cast(arg=x, dtype=d):
                return d in FLOATS and self.nan(x)
            case Op(name="select", args=(c, x, y)):
                found = guard_of(c)  # select(m == -inf, 0, exp(x - m)) becomes exp(x - finite(m)): rewrite.guards
                if found and found[0] == Ref(self.name, found[0].dtype):
                    empty, full = (x, y) if found[1] else (y, x)
                    return self.nan(full) and (is_const(empty, 0.0) or self.nan(empty))
                return self.nan(x) and self.nan(y)
            case Op(name=n, args=args) if n in THROUGH:
                return any(map(self.nan, args))
        return False

    def accumulate(self, a: Accumulator) -> None:
        if not any(self.touched & _names(e) for e in (a.contribution, *a.rebase)):
            return
        self.touched |= set(a.names)
        self.summed = True
        whole = a.reducer.kind in ("sum", "prod") and self.nan(a.contribution)
        self.summed = False
        if whole:
            self.certain |= set(a.names)
            if not all(self.nan(e) for e in a.rebase):
                self.certain -= set(a.names)

    def settled(self, e: Expr) -> bool:
        """Is it what it is whatever the extremum made of the NaN: nothing of it, or NaN, or a choice of such by other data?"""
        if not self.touched & _names(e) or self.nan(e):
            return True
        match e:
            case Op(name="select", args=(c, x, y)):
                return not self.touched & _names(c) and self.settled(x) and self.settled(y)
            case Cast(arg=x):
                return self.settled(x)
        return False

    def result(self, name: str, e: Expr) -> None:
        hit, certain = not self.settled(e), self.nan(e)
        for table, member in ((self.touched, hit), (self.certain, certain)):
            table.add(name) if member else table.discard(name)


def _bare(e: Expr) -> Expr:
    """What is NaN where ``e`` is, and nowhere else. (Eight bits may be NaN where a number is too large for them.)"""
    match e:
        case Cast(arg=x, dtype="f16" | "bf16" | "f32" | "f64") if x.dtype in FLOATS:
            return _bare(x)
        case Op(name="abs" | "neg", args=(x,)):
            return _bare(x)
    return e


def _names(e: Expr) -> set[str]:
    return {n.partition("@")[0] for n in refs_of(e)}


def keeps_nan(fused: Fused, name: str) -> bool:
    """Must the maximum (or minimum) ``name`` be NaN itself where an element is? Not when every result that it touches
    is NaN there anyway."""
    extremum = next((a for a in fused.state.accumulators if name in a.names), None)
    if extremum is None:
        return True
    flow = _Flow(fused, extremum)
    for a in fused.state.accumulators:
        if a is not extremum:
            flow.accumulate(a)
    for s in (*fused.state.finalize, *fused.post):
        if isinstance(s, Let) or s.reducer.kind in ("sum", "prod"):
            flow.result(s.name, s.expr)
        else:
            flow.touched.add(s.name)
    return any(o in flow.touched and o not in flow.certain for o in fused.cascade.outputs)


def halves(e: Expr, named: Mapping[str, Expr]) -> Expr | None:
    """A number of half precision whose value is that of ``e``; None where ``e`` is of more digits. (An order of numbers is that
    of the same numbers in a wider type, so that their maximum may be taken before they are widened.) named: what a
    name stands for."""
    if e.dtype in ("f16", "bf16"):
        return e
    match e:
        case Ref(name=n) if n in named:
            return halves(named[n], named)
        case Cast(arg=x, dtype="f32" | "f64") if x.dtype in ("f16", "bf16"):
            return x
        case Op(name="abs" | "neg" as n, args=(x,)) if (narrow := halves(x, named)) is not None:
            return Op(n, (narrow,), narrow.dtype)
        case Op(name="select", args=(c, x, y)):
            for shown, hidden, order in ((x, y, 1), (y, x, -1)):  # what is hidden is the least or the greatest there is
                narrow = halves(shown, named)
                if narrow is not None and isinstance(hidden, Const) and math.isinf(float(hidden.value)):
                    return Op("select", (c, *(narrow, Const(float(hidden.value), narrow.dtype))[::order]), narrow.dtype)
    return None
