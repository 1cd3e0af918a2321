"""Inputs that a lazy test misses, each of them once a real defect: what every check of a kernel draws.

A :class:`Draw` names a distribution per tensor. ``bands`` gives the points of one p-axis magnitudes of their own, 1e-18 to
1e20 where the dtype has them, so that a result is judged among results of its own size. Everything is a function of the
seed: the same program is checked on the same inputs everywhere.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

import ml_dtypes
import numpy as np

from redfuser.acrf.cascade import Cascade, Let, Reduce, Tensor
from redfuser.acrf.check.domains import NUMPY, Array
from redfuser.acrf.expr import FLOATS, Expr, Index, Load, Op, Ref, children, walk

_WIDE = (-18, -9, -3, 0, 2, 6, 12, 20)
BANDS = {"f64": _WIDE, "f32": _WIDE, "bf16": _WIDE, "f16": (-4, -3, -2, -1, 0, 1, 2, 3),
         "e4m3": (-1, 0, 1, 2, -1, 0, 1, 2), "e5m2": (-3, -2, -1, 0, 1, 2, 3, 4)}
"""Decimal exponents of the bands, by dtype; as many for each."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A distribution by tensor name, ``default`` for the others. wide: fit for a comparison in float64 to many digits, where
    every result is finite and none is a difference of nearly equal numbers; or, cancels, where what such differences lose is
    found out. exactly: asked for that comparison alone. deep: worth several points of every axis."""

    name: str
    default: str = "normal"
    kinds: Mapping[str, str] = field(default_factory=dict)
    wide: bool = False
    deep: bool = False
    cancels: bool = False
    exactly: bool = False

    @property
    def banded(self) -> bool:
        return self.default == "bands"


def draws(cascade: Cascade) -> Iterator[Draw]:
    """Finite ones first, then hidden rows, then NaN and infinities in each tensor by itself."""
    floats = [t.name for t in cascade.inputs if t.dtype in FLOATS]
    yield Draw("normal", wide=True, deep=True)
    yield Draw("positive", "positive", wide=True)
    yield Draw("bands of magnitude", "bands", wide=True, deep=True)
    yield Draw("small", "small", wide=True)
    yield Draw("decades within a row", "decades")
    yield Draw("far from zero", "offset", wide=True, cancels=True)
    yield Draw("ties", "ties")
    yield Draw("outlier", "outlier")
    yield Draw("ends of tiles", "ends")
    for k in range(2, 2 + _again(cascade)):
        yield Draw(f"normal, {k}", wide=True, exactly=True)
    yield Draw("rows of zeros", "zeros")
    yield Draw("large", "large")
    for n in floats:
        yield Draw(f"{n} -inf", "normal", {n: "hidden"})
        yield Draw(f"{n} least", "normal", {n: "least"})
    if len(floats) > 1:
        yield Draw("-inf jointly", "positive", {n: "hidden" for n in _along(cascade)})
    for n in floats:
        yield Draw(f"{n} nan", "normal", {n: "nan"})
        yield Draw(f"{n} inf", "normal", {n: "inf"})


def _again(cascade: Cascade) -> int:
    """Further draws where there are few rows: what happens in some rows only is to happen."""
    extents = {a.name: a.extent if isinstance(a.extent, int) else 1 for a in cascade.axes}
    rows = [prod(extents[a] for a in s.axes) for s in cascade.stmts if isinstance(s, Reduce) and s.over == cascade.raxis]
    return 2 * max(0, 5 - min(rows, default=5))


@dataclass(frozen=True, slots=True)
class Facts:
    """What draws need to know of a cascade. axis, bands: the p-axis whose points get magnitudes of their own, and the dimension
    of each tensor that it is; rows: likewise of the r-axis; limits: of integer tensors that are places; operands, terms: see
    :func:`_multiplied`."""

    axis: str | None
    bands: Mapping[str, int | None]
    rows: Mapping[str, int | None]
    limits: Mapping[str, int]
    operands: frozenset[str]
    terms: frozenset[str]


def facts(cascade: Cascade) -> Facts:
    axis = band_axis(cascade)
    bands, rows = ({t.name: _dim(cascade, t.name, a) for t in cascade.inputs} for a in (axis, cascade.raxis))
    return Facts(axis, bands, rows, _limits(cascade), _multiplied(cascade, along=False), _multiplied(cascade, along=True))


def inputs(cascade: Cascade, draw: Draw, known: Facts, seed: int = 0) -> dict[str, Array]:
    """An array per input tensor, in the tensor's dtype."""
    out = {}
    for t in cascade.inputs:
        rng = np.random.default_rng(zlib.crc32(f"{cascade.name}/{t.name}/{draw.name}/{seed}".encode()))
        shape = tuple(int(n) for n in t.shape)
        if t.dtype == "bool":
            out[t.name] = _mask(rng, shape, draw)
        elif t.dtype not in FLOATS:
            low = -3 if t.dtype == "i8" and t.name not in known.limits else 0
            out[t.name] = rng.integers(low, max(1, known.limits.get(t.name, 4)), shape).astype(NUMPY[t.dtype])
        else:
            kind = draw.kinds.get(t.name, draw.default)
            wide = t.dtype != "f16"  # products stay in range: linear ones of a contraction, squares of a row
            least = -3e-24 if wide and t.name in known.terms else -1e-3 if wide and t.name in known.operands else -1.0
            out[t.name] = _floats(rng, t, shape, kind, known.bands[t.name], known.rows[t.name], least)
    return out


def band_axis(cascade: Cascade) -> str | None:
    """The p-axis whose points get magnitudes of their own: the longest that every output carries and some tensor is indexed
    by as it is."""
    plain = {i.axis for x in _loads(cascade) for i in x.indices if isinstance(i, Index)}
    reduced = {s.over for s in cascade.stmts if isinstance(s, Reduce)}
    kept = [set(cascade.stmt(o).axes) for o in cascade.outputs]
    common = set.intersection(*kept) & plain - reduced - {cascade.raxis} if kept else set()
    extents = {a.name: a.extent if isinstance(a.extent, int) else 1 for a in cascade.axes}
    return max(sorted(common), key=lambda a: extents[a], default=None)


def _loads(cascade: Cascade) -> Iterator[Load]:
    for s in cascade.stmts:
        yield from (x for x in walk(s.expr) if isinstance(x, Load))


def _dim(cascade: Cascade, tensor: str, axis: str | None) -> int | None:
    return next((d for x in _loads(cascade) if x.tensor == tensor for d, i in enumerate(x.indices)
                 if isinstance(i, Index) and i.axis == axis), None)


def _along(cascade: Cascade) -> list[str]:
    """Float tensors that vary along the r-axis."""
    return list(dict.fromkeys(x.tensor for x in _loads(cascade) if x.dtype in FLOATS and any(
        isinstance(y, Index) and y.axis == cascade.raxis for i in x.indices for y in walk(i))))


def _multiplied(cascade: Cascade, along: bool) -> frozenset[str]:
    """Tensors that sums multiply: sums along the row, with what its statements are made of, or contractions inside it."""
    made = {n: s for s in cascade.stmts for n in s.names}
    found: set[str] = set()
    for s in cascade.stmts:
        if isinstance(s, Reduce) and s.reducer.kind == "sum" and (s.over == cascade.raxis) == along:
            todo: list[Expr] = [p for p in walk(s.expr) if isinstance(p, Op) and p.name in ("mul", "pow")]
            while todo:
                for x in walk(todo.pop()):
                    if isinstance(x, Load):
                        found.add(x.tensor)
                    elif isinstance(x, Ref) and isinstance(let := made.get(x.name), Let):
                        todo.append(let.expr)
    return frozenset(found)


def _limits(cascade: Cascade) -> dict[str, int]:
    """Integer tensors that are places: the extent of the dimension that they index, or of the axis they are compared with."""
    shapes = {t.name: t.shape for t in cascade.inputs}
    extents = {a.name: a.extent for a in cascade.axes}
    found: dict[str, int] = {}

    def least(name: str, extent: int | str) -> None:
        if isinstance(extent, int):
            found[name] = min(extent, found.get(name, extent))

    for x in _loads(cascade):
        for d, i in enumerate(x.indices):
            for y in (y for y in walk(i) if isinstance(y, Load)):
                least(y.tensor, shapes[x.tensor][d])
    for x in (x for s in cascade.stmts for x in walk(s.expr)):
        kids = children(x)
        places = [k for k in kids if isinstance(k, Load) and k.dtype in ("i64", "i32")]
        for a in (y.axis for k in kids for y in walk(k) if places and isinstance(y, Index)):
            for k in places:
                if a == cascade.raxis:
                    least(k.tensor, extents[a])
    return found


def _mask(rng: np.random.Generator, shape: tuple[int, ...], draw: Draw) -> Array:
    """Mostly true; except under the wide draws, with rows of false and first and last elements false."""
    x = rng.random(shape) < 0.75
    if draw.wide or not shape:
        return x
    x[..., :1] = False
    x[..., -1:] = False
    if len(shape) > 1:
        x[..., ::7, :] = False
    return x


def _floats(rng: np.random.Generator, t: Tensor, shape: tuple[int, ...], kind: str, band: int | None,
            along: int | None, least: float) -> Array:
    """band, along: the dimension that is the banded axis, that is the r-axis."""
    dtype = NUMPY[t.dtype]
    top = float(ml_dtypes.finfo(dtype).max)
    narrow = t.dtype in ("f16", "e4m3", "e5m2")
    normal = np.asarray(rng.standard_normal(shape) * 0.83)
    row = (*shape[:-1], 1) if shape else ()
    hidden = (rng.random(shape) < 0.4) | (rng.random(row) < 0.2)
    few = rng.random(shape) < 0.5 / max(2, shape[-1] if shape else 1)
    sign = np.where(rng.random(shape) < 0.5, 1.0, -1.0)
    match kind:
        case "positive":
            x = rng.uniform(0.3, 1.7, shape)
        case "bands":
            x = normal if band is None else normal * _magnitudes(shape, band, BANDS[t.dtype])
        case "decades":
            x = sign * 10.0 ** rng.uniform(*((-3.0, 1.5) if narrow else (-8.0, 4.0)), shape)
        case "small":
            x = normal * 0.0037
        case "offset":  # below in one row, above in the next
            each = [0 if d in (along, len(shape) - 1) else 1 for d in range(len(shape))]
            place: Array = sum((k * np.arange(n).reshape([-1 if d == at else 1 for at in range(len(shape))])
                         for d, (k, n) in enumerate(zip(each, shape, strict=True))), np.asarray(0))
            side = np.where(place % 2 == 0, -1.0, 1.0)
            x = normal + side * (100.0 if narrow or t.dtype == "bf16" else 3000.0)
        case "ends":  # the row's largest is where a segment, of whatever size, begins or ends
            x = normal if along is None else normal * _ends(shape, along)
        case "ties":
            x = rng.integers(-2, 3, shape)
        case "outlier":
            x = np.where(few, sign * min(top / 8, 3e4), normal)
        case "zeros":
            x = normal * (rng.random(row) < 0.5)
        case "large":
            x = normal * min(top / 16, 2e3)
        case "hidden":
            x = np.where(hidden, -np.inf, normal)
        case "least":
            x = np.where(hidden, np.where(rng.random(shape) < 0.3, -1e4, top * least), normal)
        case "nan":
            x = np.where(few, np.nan, normal)
        case "inf":
            x = np.where(few, sign * np.inf, normal)
        case _:
            x = normal
    with np.errstate(all="ignore"):
        x = np.asarray(x, np.float64)
        return (np.clip(x, -448.0, 448.0) if t.dtype == "e4m3" else x).astype(dtype)  # e4m3 has no infinity


def _ends(shape: tuple[int, ...], dim: int) -> Array:
    """Large along a dimension at the first and the last of sixteen, the larger the longer the segments that begin or end
    there, and at both its ends."""
    at = np.arange(shape[dim])
    power = np.maximum(at & -at, at + 1 & -(at + 1))
    power[:1] = power[-1:] = power.max(initial=16)
    sizes = np.where(power >= 16, 300.0 / 16 * np.minimum(power, 1024), 1.0)
    return sizes.reshape([-1 if d == dim else 1 for d in range(len(shape))])


def _magnitudes(shape: tuple[int, ...], dim: int, exponents: tuple[int, ...]) -> Array:
    sizes = 10.0 ** np.asarray(exponents, np.float64)[np.arange(shape[dim]) % len(exponents)]
    return sizes.reshape([-1 if d == dim else 1 for d in range(len(shape))])


def moved(given: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs in float64, each off by a few units of its last place."""
    rng = np.random.default_rng(0)
    return {n: x.astype(np.float64) * (1 + rng.integers(-8, 9, x.shape) * 2.0**-53) if x.dtype.kind in "fV" else x
            for n, x in given.items()}


__all__ = ["BANDS", "Draw", "Facts", "draws", "facts", "inputs", "moved"]
