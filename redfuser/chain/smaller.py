"""The same fusion over smaller extents, so that a whole kernel runs in milliseconds on the machine that compiles it.

Only sizes change: what is computed, masks and the state stay as they are. A tensor dimension becomes what its index
expressions reach, and one of which data say what is read a hundred places; an axis read through ``// g`` or ``% g`` keeps at
least two whole groups, or one point, and large groups become small ones (:mod:`redfuser.chain.digits`); an axis whose index
expressions leave their tensor keeps its extent unless what guards them there is known, as does one whose positions are added to
data. Literals that are the row's length (LayerNorm's ``768.0``) follow it, in the program and in the state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import is_

import numpy as np

from redfuser.acrf.affine import Indices
from redfuser.acrf.cascade import Axis, Cascade, Reduce
from redfuser.acrf.check.shorten import with_lengths
from redfuser.acrf.expr import (
    COMPARISONS,
    FLOATS,
    Const,
    Expr,
    Index,
    Load,
    Op,
    Ref,
    children,
    indices_of,
    map_children,
    walk,
)
from redfuser.acrf.state import Fused
from redfuser.chain.digits import NEAR, Digits, moving
from redfuser.tensorize.ir.pointwise import ARRAY

GRAIN = 16
"""Elements that are whole 16 bytes in every type."""
_POINTS = 1 << 20
"""Points at which the range of one index expression is evaluated."""
_ROWS = 144
"""Places that are left of a dimension where data say which is read (a vocabulary has 128256): few enough to draw dozens of
times, and no power of two. Chosen, not measured."""


def smaller(fused: Fused, wanted: Mapping[str, int], tiles: Mapping[str, int] | None = None) -> Fused:
    """``fused`` with every axis named in ``wanted`` as near to that extent as its index expressions allow, never longer
    than it was. tiles: how long a kernel's tiles are, by axis. Axes of symbolic extent stay symbolic."""
    old = {a.name: a.extent for a in fused.cascade.axes if isinstance(a.extent, int)}
    new = {a: max(1, min(n, wanted.get(a, n))) for a, n in old.items()}
    parts = tuple(fused.exprs())
    digits = Digits(parts, old)
    whole = {s.axes[-1] for s in fused.cascade.stmts if isinstance(s, Reduce) and s.reducer.kind == "topk"} & set(old)
    for e in digits.nodes:
        _respect(e, old, new, digits, whole)
    new |= {a: old[a] for a in whole}
    new |= digits.shorten(new, tiles or {}, whole)
    if unguarded := _leaving(fused.cascade, digits, old) - whole:
        whole |= unguarded
        new |= {a: old[a] for a in unguarded}
        new |= digits.shorten(new, tiles or {}, whole)
    moved = tuple(map(digits.moved, parts))
    return _restated(fused, {a: n for a, n in new.items() if old[a] != n}, _shapes(fused.cascade, moved, new), old, digits)


def _respect(e: Expr, old: dict[str, int], new: dict[str, int], digits: Digits, whole: set[str]) -> None:
    """Lengthen the axes of one node where a shorter one would mean something else."""
    match e:
        case Op(name="floordiv" | "mod", args=(x, Const(value=g))) if isinstance(g, int) and g > 1:
            for a in indices_of(x) & set(old) - set(digits.cuts):
                if x != Index(a) or new[a] > 1:
                    new[a] = min(old[a], max(2 * g, -(-new[a] // g) * g))
        case Op(name=name, args=args) if name in COMPARISONS:
            sizes = [abs(int(c.value)) for x in args for c in walk(x) if isinstance(c, Const) and c.dtype == "i64"]
            near = max((n for n in sizes if n <= NEAR), default=0)
            for a in {a for x in args for a in moving(x)} - (set(digits.cuts) - digits.together):
                if a in old and near:
                    new[a] = min(old[a], max(new[a], near + near // 4 + 2))
        case Ref(indices=indices) if indices:  # a gather of a computed value: positions must stay what they are
            whole |= {a for i in indices for a in indices_of(i) if not isinstance(i, Index)} & set(old)


def _leaving(cascade: Cascade, digits: Digits, old: dict[str, int]) -> set[str]:
    """Axes whose index expressions leave their tensor, where nothing is known of what guards them."""
    shapes = {t.name: t.shape for t in cascade.inputs}
    found: set[str] = set()
    for x in digits.nodes:
        if isinstance(x, Load):
            for i, extent in zip(x.indices, shapes[x.tensor], strict=True):
                inside = span(i, old)
                if inside is None or not isinstance(extent, int) or not (inside[0] >= 0 and inside[1] < extent):
                    found |= {a for a in moving(i) & set(old) if inside is None or not digits.guarded(a)}
    return found


def _shapes(cascade: Cascade, parts: tuple[Expr, ...], new: dict[str, int]) -> dict[str, tuple[int | str, ...]]:
    """Tensor shapes under the new extents."""
    loads = {x for part in parts for x in walk(part) if isinstance(x, Load)}
    marks = {t: max(numbers, default=0) for t, numbers in compared(parts).items()}
    shapes: dict[str, tuple[int | str, ...]] = {}
    for t in cascade.inputs:
        dims: list[int | str] = []
        for d, extent in enumerate(t.shape):
            at = [x.indices[d] for x in loads if x.tensor == t.name]
            reached = [_reached(i, extent, new, marks) for i in at] if isinstance(extent, int) else [None]
            highest = [r for r in reached if r is not None]
            known = bool(reached) and len(highest) == len(reached)
            dims.append(min(int(extent), max(1, max(highest) + 1)) if known else extent)  # nothing may be left to read
        shapes[t.name] = tuple(dims)
    return shapes


def _reached(i: Expr, extent: int, extents: Mapping[str, int], marks: Mapping[str, int]) -> int | None:
    """The last place of a dimension that an index expression must have; None where it may be any. marks: by integer tensor, the
    largest number that it is compared with, which must be a place still."""
    if _within(i, extent):
        most = max([marks.get(x.tensor, 0) for x in walk(i) if isinstance(x, Load)])
        return -(-max(_ROWS, most + 2) // GRAIN) * GRAIN + extent % GRAIN - 1
    inside = span(i, extents)
    return None if inside is None else inside[1]


def compared(exprs: Iterable[Expr]) -> dict[str, set[int]]:
    """By integer tensor, the numbers that its elements are compared with."""
    found: dict[str, set[int]] = {}
    for x in (x for e in exprs for x in walk(e) if isinstance(x, Op) and x.name in COMPARISONS):
        numbers = {int(k.value) for k in x.args if isinstance(k, Const) and k.dtype not in FLOATS}
        for t in (k.tensor for k in x.args if isinstance(k, Load) and k.dtype in ("i64", "i32")):
            found.setdefault(t, set()).update(numbers)
    return found


def _within(i: Expr, extent: int) -> bool:
    """Is it a place that data say, held inside its dimension (:func:`redfuser.partition.meanings.within`)?"""
    match i:
        case Op(name="min", args=(Op(name="max", args=(x, Const(value=0))), Const(value=last))):
            return last == extent - 1 and any(isinstance(y, Load) for y in walk(x))
    return False


def _placed(e: Expr, was: Mapping[str, tuple[int | str, ...]], now: Mapping[str, tuple[int | str, ...]]) -> Expr:
    """The expression with places that data say held inside the dimensions as they are now."""
    if not isinstance(e, Load):
        return map_children(e, lambda kid: _placed(kid, was, now))
    at = []
    for i, n, m in zip(e.indices, was[e.tensor], now[e.tensor], strict=True):
        i = _placed(i, was, now)
        at.append(_sized(i, n, m) if isinstance(n, int) and isinstance(m, int) and n != m and _within(i, n) else i)
    return e if all(map(is_, at, e.indices)) else replace(e, indices=tuple(at))


def _sized(e: Expr, n: int, m: int) -> Expr:
    """An index expression of a dimension of ``m`` elements, for one of ``n``: where it ends, and how far what counts from its
    end is moved."""
    match e:
        case Const(value=v) if v in (n, n - 1):
            return replace(e, value=m if v == n else m - 1)
        case Load():
            return e
    return map_children(e, lambda kid: _sized(kid, n, m))


def span(e: Expr, extents: Mapping[str, int]) -> tuple[int, int] | None:
    """Least and greatest value of an index expression, of many points what they are within; None where data decide."""
    axes = sorted(indices_of(e))
    if any(isinstance(x, (Load, Ref)) for x in walk(e)) or any(a not in extents for a in axes):
        return None
    if math.prod(extents[a] for a in axes) > _POINTS:
        low, high = Indices(extents).range_of(e)
        return None if math.inf in (-low, high) else (int(low), int(high))
    mesh = dict(zip(axes, np.meshgrid(*(np.arange(extents[a]) for a in axes), indexing="ij", sparse=True), strict=True))
    values = np.asarray(_integer(e, mesh))
    return (int(values.min()), int(values.max())) if values.size else (0, -1)


def _integer(e: Expr, mesh: Mapping[str, np.ndarray]) -> np.ndarray:
    match e:
        case Index(axis=a):
            return mesh[a]
        case Const(value=v):
            return np.asarray(v)
        case Op(name=name, args=args) if name in ARRAY:
            return np.asarray(ARRAY[name](*(_integer(x, mesh) for x in args)))
    (kid,) = children(e)  # a cast between integers
    return _integer(kid, mesh)


def _restated(fused: Fused, changed: dict[str, int], shapes: dict[str, tuple[int | str, ...]],
              old: dict[str, int], digits: Digits) -> Fused:
    """The fusion with new extents, digits and shapes, and the literals of the row's length with them."""
    raxis = fused.cascade.raxis
    table: dict[float, float] = {}
    if raxis in changed:
        was, now = float(old[raxis]), float(changed[raxis])
        if was > 8 and now > 1:
            powers = [(a, b) for a in (-2, -1, 0, 1, 2) for b in (-1, 0, 1) if a or b]  # state has mean * mean, and n * (n - 1)
            pairs = [(was**a * (was - 1)**b, now**a * (now - 1)**b) for a, b in powers]
            table = {**{float(np.float32(a)): b for a, b in pairs}, **dict(pairs)}

    was = {t.name: t.shape for t in fused.cascade.inputs}
    found = fused.with_exprs(lambda e: with_lengths(_placed(digits.moved(e), was, shapes), table))
    return replace(found, cascade=replace(
        found.cascade, inputs=tuple(replace(t, shape=shapes[t.name]) for t in found.cascade.inputs),
        axes=tuple(Axis(a.name, changed.get(a.name, a.extent)) for a in found.cascade.axes)))
