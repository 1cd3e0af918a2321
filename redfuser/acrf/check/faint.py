"""Rows of which nothing is left but faint weights: the element that a softmax is taken about is hidden behind it.

A mask behind an exponential, or data that weights are multiplied with, may take the largest of a row away. What is left lies
then where a type has few digits, or none of its normal ones, and is made large again by a division. Which element that is
depends on the mask, and how far it has to lie above the others on everything between the inputs and the exponential: so the
program is asked, on inputs drawn as usual, and one tensor is changed at one place of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import log
from typing import Generic, TypeVar

import numpy as np

from redfuser.acrf.cascade import Cascade, Let, Reduce
from redfuser.acrf.check.domains import Array
from redfuser.acrf.check.machine import Machine
from redfuser.acrf.expr import FLOATS, Cast, Expr, Index, Load, Op, Ref, walk

GAPS = {"f32": (91.0, 98.0), "f16": (12.0, 15.0)}
"""How far the row's largest exponent lies above the others, so that their weights are subnormal in a type, with most of its
digits or with few: exp(-87.3) and exp(-9.7) are the smallest normal numbers, beyond 103.9 and 17.3 there is nothing."""
SPREAD = 0.03
"""By which part of it rows differ."""
CALM = 0.2
"""Factors of the exponents that do not run along the row are so much nearer to 1 than they were drawn."""
STEPS, NEAR = 4, 0.04
"""Secants, and the part of the gap that is near enough."""
_EXPONENTIALS = ("exp", "exp2")
_STEEP = ("div", "log", "log2", "rsqrt", "pow")


@dataclass(frozen=True, slots=True)
class Sort:
    """What a cascade of this sort has: exponents, and sums of what is left of their exponentials that something divides by."""

    exponents: tuple[Op, ...]
    sums: tuple[Reduce, ...]
    types: tuple[str, ...]


def sort(cascade: Cascade) -> Sort | None:
    """None of a cascade in which no such row could show: where sums of whole exponentials alone divide, one is 1."""
    made = {n: s for s in cascade.stmts for n in s.names}

    def reads(e: Expr) -> Iterator[Expr]:
        """With what its names stand for, but for sums over the row."""
        for x in walk(e):
            yield x
            if isinstance(x, Ref) and isinstance(s := made.get(x.name), Let):
                yield from reads(s.expr)

    def whole(e: Expr) -> bool:
        match e:
            case Cast(arg=x) | Op(name="div", args=(x, _)):
                return whole(x)
            case Ref(name=n) if isinstance(s := made.get(n), Let):
                return whole(s.expr)
        return isinstance(e, Op) and e.name in _EXPONENTIALS

    summed = [s for s in cascade.stmts if isinstance(s, Reduce) and s.reducer.kind == "sum" and s.over == cascade.raxis]
    sums = {s.names[0]: s for s in summed if not whole(s.expr)
            and any(isinstance(x, Op) and x.name in _EXPONENTIALS for x in reads(s.expr))}
    below = {x.name for s in cascade.stmts for y in walk(s.expr) if isinstance(y, Op) and y.name in _STEEP
             for x in reads(y.args[-1]) if isinstance(x, Ref)}
    found = tuple(s for n, s in sums.items() if n in below)
    exponents = tuple(dict.fromkeys(x for s in found for x in reads(s.expr) if isinstance(x, Op) and x.name in _EXPONENTIALS))
    halves = any(isinstance(x, Cast) and x.dtype == "f16" and x.arg.dtype == "f32" and any(y in exponents for y in reads(x.arg))
                 for s in cascade.stmts for x in walk(s.expr))
    return Sort(exponents, found, ("f32", "f16") if halves else ("f32",)) if exponents else None


def above(cascade: Cascade, of: Sort) -> set[str]:
    """Float tensors that the exponents are made of."""
    made = {n: s.expr for s in cascade.stmts for n in s.names}
    parts = [e for x in of.exponents for e in (x, *(made[n] for n in _read(x, cascade)))]
    return {x.tensor for e in parts for x in walk(e) if isinstance(x, Load) and x.dtype in FLOATS}


def dimension(cascade: Cascade, tensor: str) -> int | None:
    """Of a tensor, the dimension that is the row."""
    loads = (x for s in cascade.stmts for x in walk(s.expr) if isinstance(x, Load) and x.tensor == tensor)
    return next((d for x in loads for d, i in enumerate(x.indices) if isinstance(i, Index) and i.axis == cascade.raxis), None)


def far(x: Array, size: float) -> Array:
    """What stands in the place of numbers drawn about 1, in rows that differ a little."""
    return size * (1.0 + SPREAD * np.clip(np.asarray(x, np.float64) - 1.0, -1.0, 1.0))


def calm(x: Array) -> Array:
    """Numbers drawn about 1, nearer to it."""
    return np.asarray(1.0 + CALM * (np.asarray(x, np.float64) - 1.0))


T = TypeVar("T")
"""A tensor, in whatever form somebody draws it."""


@dataclass(frozen=True)
class Rows(Generic[T]):
    """Rows of this sort, made of others. on: a machine of float64 with these tensors. put: a tensor with its elements at one
    place of a dimension :func:`far` of such a size (0: zero, or false) of what they were; near: one that is :func:`calm`."""

    cascade: Cascade
    sort: Sort
    on: Callable[[Mapping[str, T]], Machine]
    put: Callable[[T, int, int, float], T]
    near: Callable[[T], T]

    def left(self, given: Mapping[str, T], gap: float, first: bool) -> dict[str, T]:
        """``given``, but that one element of the row has an exponent ``gap`` above the others': of those that fewest rows see,
        the first or the last; where all see all, what else is read there is 0, or false. As it was where no tensor's element
        goes with the exponent."""
        over = above(self.cascade, self.sort)
        dims = {n: dimension(self.cascade, n) for n in given}
        given = {n: self.near(x) if n in over and dims[n] is None else x for n, x in given.items()}
        counted = self._along(given, self.sort.sums[0].expr) != 0
        share = counted.reshape(-1, counted.shape[-1]).mean(0)
        least = np.flatnonzero(share == share.min())
        place = int(least[0 if first else -1])
        for n in given:
            if n in over and (dim := dims[n]) is not None and (x := self._raised(given, n, dim, place, gap)) is not None:
                hides = share.min() == 1.0
                return {o: x if o == n else self.put(y, d, place, 0.0) if hides and o not in over and (d := dims[o]) is not None
                        else y for o, y in given.items()}
        return dict(given)

    def _raised(self, given: Mapping[str, T], name: str, dim: int, place: int, gap: float) -> T | None:
        """The tensor with one place of its row as far from zero as lifts the exponent there by ``gap`` above the others, found
        by secants; None where that does not."""
        def changed(size: float) -> T:
            return self.put(given[name], dim, place, size)

        def lift(size: float) -> float:
            return self._gap({**given, name: changed(size)}, place)

        tried = [(size, lift(size)) for size in (1.0, -1.0)]
        for _ in range(STEPS):
            (a, x), (b, y) = tried[-2:]
            if x == y or not np.isfinite(x + y):
                return None
            size = b + (gap - y) * (b - a) / (y - x)
            tried.append((size, lift(size)))
            if abs(tried[-1][1] - gap) <= NEAR * gap:
                return changed(size)
        return None

    def _gap(self, given: Mapping[str, T], place: int) -> float:
        """How far the exponent of one place is above the others', in the middle of all rows."""
        e = self.sort.exponents[0]
        x = self._along(given, e.args[0]) * (log(2) if e.name == "exp2" else 1.0)
        with np.errstate(all="ignore"):
            others = np.delete(np.where(np.isfinite(x), x, np.nan), place, -1)
            return float(_middle((x[..., place] - _middle(others)).reshape(-1))) if x.shape[-1] > 1 else np.nan

    def _along(self, given: Mapping[str, T], e: Expr) -> Array:
        """The values of an expression at every point of its axes, the row last."""
        m, raxis = self.on(given), self.cascade.raxis
        needed = set(_read(e, self.cascade))
        with np.errstate(all="ignore"):
            for s in self.cascade.stmts:
                if not needed.isdisjoint(s.names):
                    m.statement(s)
            x = m.expr(e)
        axes = (*sorted(a for a in x.axes if a != raxis), raxis)
        return np.broadcast_to(x.aligned(axes), [len(m.ranges[a]) for a in axes])


def _read(e: Expr, cascade: Cascade) -> Iterator[str]:
    """The names that a value is made of, however far back."""
    made = {n: s.expr for s in cascade.stmts for n in s.names}
    for x in walk(e):
        if isinstance(x, Ref):
            yield x.name
            yield from _read(made[x.name], cascade)


def _middle(x: Array) -> Array:
    """The median of the numbers of each row, NaN where it has none (of which numpy's own warns)."""
    ordered, count = np.sort(x, -1), (~np.isnan(x)).sum(-1, keepdims=True)
    low, high = (np.take_along_axis(ordered, np.maximum(k, 0), -1) for k in ((count - 1) // 2, count // 2))
    return np.asarray((low + high) / 2)[..., 0]
