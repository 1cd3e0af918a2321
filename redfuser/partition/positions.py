"""Positions at which tensors are read and written, as index expressions: their atoms, their order in memory, which axes turn
one position into another, and how an axis is best divided; and input tensors viewed with another shape, so that quotients and
remainders in them vanish."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import prod

from redfuser.acrf.affine import Affine, Indices, axes_of
from redfuser.acrf.expr import Const, Expr, Index, Load, Op, children, substitute, walk
from redfuser.acrf.index import i64

Shape = tuple[int, ...]


def parts(ix: Indices, e: Expr) -> list[Expr]:
    """The atoms of an index expression."""
    return [a for a, _ in ix.linear(e).terms]


def layout(ix: Indices, at: tuple[Expr, ...], shape: tuple[int, ...]) -> list[str] | None:
    """The axes of a tensor written at ``at``, slowest first, when they enumerate its elements once and in order."""
    lin = _offset(ix, at, shape)
    stride = 1
    out: list[str] = []
    for a, k in reversed(lin.terms):
        if not isinstance(a, Index) or k != stride:
            return None
        out.append(a.axis)
        stride *= ix.extents[a.axis]
    return out[::-1] if stride == prod(shape) and not lin.constant else None


def lines(ix: Indices, at: tuple[Expr, ...], shape: tuple[int, ...], axes: Iterable[str]) -> bool:
    """Do these axes, slowest first, list a stretch of a tensor as it lies?"""
    terms, stride = dict(_offset(ix, at, shape).terms), 1
    for a in reversed([a for a in axes if ix.extents[a] > 1]):
        if terms.pop(Index(a), 0) != stride:
            return False
        stride *= ix.extents[a]
    return not terms


def strided(ix: Indices, at: tuple[Expr, ...], shape: tuple[int, ...]) -> bool:
    """Are the elements at ``at`` at a constant distance from one another along each axis, as those of a view are?"""
    return all(isinstance(a, Index) and k >= 0 for a, k in _offset(ix, at, shape).terms)


def solve(ix: Indices, at: tuple[Expr, ...], other: tuple[Expr, ...], want: set[str]) -> dict[str, Expr] | None:
    """Values for axes of ``want`` that turn ``at`` into ``other``, each found in one position; None when there are none."""
    to: dict[str, Expr] = {}
    for x, y in zip(at, other, strict=True):
        gap = ix.joined(ix.linear(x) - ix.linear(y))
        mine = [(a, k) for a, k in gap.terms if isinstance(a, Index) and a.axis in want]
        if not mine:
            if gap.terms or gap.constant:
                return None
            continue
        if len(mine) != 1:
            return None
        a, k = mine[0]
        quotient, rest = divmod(gap.without(a.axis), -k)
        if rest != Affine():
            return None
        value = quotient.expr()
        if to.setdefault(a.axis, value) != value:
            return None
    return to or None


def slides(ix: Indices, e: Expr, axis: str) -> bool:
    """Is one position read at different values of ``axis`` from different points of the other axes, as ``h + c // 3`` is by a
    convolution and ``h * 64 + c`` by no head of 64?"""
    terms = ix.linear(e).terms
    if {axis in axes_of(a) for a, _ in terms} != {True, False}:
        return False
    span = 0.0
    for a, k in reversed(terms):  # the digits of a mixed-radix number, unless one is no larger than what is below it
        if abs(k) <= span:
            return True
        low, high = ix.atom_range(a)
        span += abs(k) * (high - low)
    return False


def by_data(at: Collection[Expr]) -> bool:
    """Is it a position that data say?"""
    return any(isinstance(x, Load) for e in at for x in walk(e))


def axes_in(at: Iterable[Expr]) -> set[str]:
    return {a for e in at for a in axes_of(e)}


def in_order(e: Expr) -> list[str]:
    """Axes of a mixed-radix sum, slowest first."""
    if isinstance(e, Index):
        return [e.axis]
    return [a for kid in (e.args if isinstance(e, Op) else ()) for a in in_order(kid)]


def best_split(extents: dict[str, int], a: str, seen: set[Expr]) -> int | None:
    """By what to divide the axis ``a`` so that the atoms that were ``seen`` have fewer quotients and remainders."""
    n = extents[a]
    ks = {v for x in seen for v in _divisors_in(x)}
    ks |= {v * w for v in ks for w in ks}
    best, best_cost = None, sum(_weight(x) for x in seen)
    for k in sorted(k for k in ks if 1 < k < n and n % k == 0):
        ix = Indices({**extents, "hi": n // k, "lo": k})
        whole = Op("add", (Op("mul", (Index("hi"), i64(k)), "i64"), Index("lo")), "i64")
        cost = sum(_weight(p) for x in seen for p in parts(ix, substitute(x, indices={a: whole})))
        if cost < best_cost:
            best, best_cost = k, cost
    return best


def _divisors_in(e: Expr) -> list[int]:
    if not isinstance(e, Op):
        return []
    by = e.args[1].value if e.name in ("floordiv", "mod") and isinstance(e.args[1], Const) else None
    own = [by] if isinstance(by, int) else []  # a float's remainder may be in an index too
    return own + [v for kid in e.args for v in _divisors_in(kid)]


def _weight(e: Expr) -> int:
    return 0 if not isinstance(e, Op) else (e.name in ("floordiv", "mod")) + sum(map(_weight, e.args))


def views(ix: Indices, shapes: Mapping[str, Shape], roots: Iterable[Expr]) -> dict[str, Shape]:
    """The new shape of each tensor where one view serves every load of it."""
    found: dict[str, list[Load]] = {}
    seen: set[int] = set()
    todo = list(roots)
    while todo:
        e = todo.pop()
        if id(e) in seen:
            continue
        seen.add(id(e))
        if isinstance(e, Load):
            found.setdefault(e.tensor, []).append(e)
        todo += children(e)
    chosen: dict[str, Shape] = {}
    for tensor, loads in found.items():
        if not any(isinstance(a, Op) for x in loads for i in x.indices for a in parts(ix, i)):
            continue
        fitting = {_view(ix, x, shapes[tensor]) for x in loads}
        if len(fitting) == 1 and (shape := fitting.pop()) is not None:
            chosen[tensor] = shape
    return chosen


def through_view(ix: Indices, e: Load, shape: Shape, view: Shape) -> tuple[Expr, ...]:
    """The indices of a load of a tensor of ``shape`` in its ``view``."""
    terms = _axes(ix, e, shape) or []
    return tuple([Index(a) for a, _ in terms] + [i64(0)] * (len(view) - len(terms)))


def _view(ix: Indices, e: Load, shape: Shape) -> Shape | None:
    terms = _axes(ix, e, shape)
    if not terms:
        return None
    total, out = prod(shape), []
    for axis, stride in terms:
        if total % stride or ix.extents[axis] * stride > total:
            return None
        out.append(total // stride)
        total = stride
    return tuple([*out, total]) if total > 1 else tuple(out)


def _axes(ix: Indices, e: Load, shape: Shape) -> list[tuple[str, int]] | None:
    """The offset of a load as (axis, stride) pairs, slowest first; None when it is not affine."""
    lin = _offset(ix, e.indices, shape)
    if lin.constant or len(lin.axes) < len(lin.terms) or any(k <= 0 for _, k in lin.terms):
        return None
    return [(a, lin.coefficient(a)) for a in lin.axes]


def _offset(ix: Indices, at: tuple[Expr, ...], shape: Shape) -> Affine:
    """Row-major."""
    offset: Expr = i64(0)
    for e, n in zip(at, shape, strict=True):
        offset = Op("add", (Op("mul", (offset, i64(n)), "i64"), e), "i64")
    return ix.linear(offset)
