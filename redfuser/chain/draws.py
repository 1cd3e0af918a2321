"""Inputs that a lazy test misses, each of them once a real defect: what every check of a kernel draws.

A :class:`Draw` names a kind of values per tensor (:mod:`redfuser.chain.kinds`). ``bands`` gives the points of one p-axis
magnitudes of their own, 1e-18 to 1e20 where the dtype has them, so that a result is judged among results of its own size.
Everything is a function of the seed: the same program is checked on the same inputs everywhere.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, prod

import numpy as np

from redfuser.acrf.cascade import Cascade, Let, Reduce, Tensor
from redfuser.acrf.check.domains import NUMPY, Array
from redfuser.acrf.check.faint import GAPS, above, sort
from redfuser.acrf.check.stress import BOUNDED
from redfuser.acrf.expr import COMPARISONS, FLOATS, Cast, Const, Expr, Index, Load, Op, Ref, children, walk
from redfuser.acrf.facts.algebra import PAYLOAD
from redfuser.chain import kinds
from redfuser.chain.faint import left
from redfuser.chain.kinds import PARTS, PEAKS, SINGLE, Place
from redfuser.chain.smaller import compared, span
from redfuser.dtypes import INTS

LOW = -100.0
"""Numbers below it are there to be left out: their weight is none beside a score that is not as low."""
UNPLACED = frozenset({"hidden", "least", "half", "nan", "inf"})
"""Kinds with numbers that are no place in any tensor."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A distribution by tensor name, ``default`` for the others. wide: fit for a comparison in float64 to many digits, where
    every input is finite. exactly: asked for that comparison alone. deep: worth several points of every axis. turn: of the
    first row (:mod:`redfuser.chain.kinds`). ordered: what rows and columns are told apart by grows along them, so that whole
    tiles of them have nothing in common. faint: how far an element that is hidden behind an exponential lies above all others
    (:mod:`redfuser.acrf.check.faint`), the first such in odd turns."""

    name: str
    default: str = "normal"
    kinds: Mapping[str, str] = field(default_factory=dict)
    wide: bool = False
    deep: bool = False
    exactly: bool = False
    turn: int = 0
    ordered: bool = False
    faint: float = 0.0

    @property
    def banded(self) -> bool:
        return self.default == "bands"


def draws(cascade: Cascade) -> Iterator[Draw]:
    """Finite ones first, then hidden rows, then NaN and infinities in each tensor by itself. Where there are few rows there
    are more draws: what happens in some rows only is to happen."""
    floats = [t for t in cascade.inputs if t.dtype in FLOATS]
    few, along = _rows(cascade), _along(cascade)
    yield Draw("normal", wide=True, deep=True, turn=4)
    yield Draw("positive", "positive", wide=True)
    yield Draw("bands of magnitude", "bands", wide=True, deep=True, turn=5)
    yield Draw("small", "small", wide=True)
    yield Draw("decades within a row", "decades", turn=1)
    for side in range(2 if few < PARTS else 1):
        yield Draw(f"far {'above' if side else 'below'} zero", "offset", wide=True, turn=side)
    yield Draw("ties", "ties", turn=2)
    yield Draw("outlier", "outlier", turn=3)
    yield Draw("ends of tiles", "ends", turn=4)
    for k in range(0, PEAKS, few):
        yield Draw(f"peaks, {k}", "peak", wide=True, exactly=True, turn=k)
    yield Draw("rows of zeros", "zeros", wide=True, turn=5)
    yield Draw("large", "large", turn=6)
    if _chosen(cascade):
        yield Draw("close together", "close")
    for t in floats:
        own = kinds.rows(tuple(map(int, t.shape)), _dim(cascade, t.name, cascade.raxis))
        if (own < PARTS or t.name in along) and len(floats) > 1:
            yield Draw(f"{t.name} far from zero", kinds={t.name: "offset"}, wide=True, turn=1)
        if own < PARTS and t.name in along:
            for k in range(2):
                yield Draw(f"{t.name} balanced, {k}", kinds={t.name: "balanced"}, wide=True, exactly=True)
        for k in range(0, PARTS, own) if few < PARTS else [0] if own < PARTS and len(floats) > 1 else []:
            yield Draw(f"{t.name} zeros, {k}", kinds={t.name: "zeros"}, wide=True, turn=k)
        for k in range(0, PARTS, own) if few < PARTS else [0 if own >= PARTS else 1]:
            yield Draw(f"{t.name} -inf, {k}", kinds={t.name: "hidden"}, turn=k)
            yield Draw(f"{t.name} least, {k}", kinds={t.name: "least"}, turn=k)
    if (told := _told_apart(cascade)):
        own_floats = {t.name: "ordered" for t in floats if t.name in told}
        yield Draw("in order", kinds=own_floats, wide=True, deep=True, turn=5, ordered=True)
        yield Draw("in order, ragged", kinds=own_floats, turn=5, ordered=True)
    if len(floats) > 1:
        yield Draw("-inf jointly", "positive", {n: "hidden" for n in along}, turn=0 if few >= PARTS else 1)
    if _filled(cascade):
        for n in [t.name for t in floats if t.name not in along] or along:
            yield Draw(f"{n} inf among positive", "positive", {n: "inf"})
            yield Draw(f"{n} -inf from the half on", "positive", {n: "half"}, deep=True)
            yield Draw(f"{n} -inf at the half", "positive", {n: "half"}, deep=True, turn=1)
    if (found := sort(cascade)) is not None:
        over = dict.fromkeys(above(cascade, found), "positive")
        for dtype in found.types:
            for k, gap in enumerate(GAPS[dtype]):
                yield Draw(f"faint in {dtype}, {k}", kinds=over, turn=k, faint=gap)
    for n in (t.name for t in floats):
        for k in SINGLE if few < PARTS else SINGLE[:1]:
            yield Draw(f"{n} nan, {k}", kinds={n: "nan"}, turn=k)
            yield Draw(f"{n} inf, {k}", kinds={n: "inf"}, turn=k)


def _rows(cascade: Cascade) -> int:
    """Of the result that has the fewest."""
    extents = {a.name: a.extent if isinstance(a.extent, int) else 1 for a in cascade.axes}
    return max(1, min((prod(extents[a] for a in s.axes) for s in cascade.stmts
                       if isinstance(s, Reduce) and s.over == cascade.raxis), default=PEAKS))


@dataclass(frozen=True, slots=True)
class Facts:
    """What draws need to know of a cascade. axis, bands: the p-axis whose points get magnitudes of their own, and the dimension
    of each tensor that it is; rows: likewise of the r-axis; limits: of integer tensors that are places; marks: numbers that
    integer tensors are compared with; counts: integer tensors that are numbers like others, neither compared nor an index;
    operands, terms: see :func:`_multiplied`; pointing: float tensors that places are converted from as they are."""

    axis: str | None
    bands: Mapping[str, int | None]
    rows: Mapping[str, int | None]
    limits: Mapping[str, int]
    marks: Mapping[str, tuple[int, ...]]
    counts: frozenset[str]
    operands: frozenset[str]
    terms: frozenset[str]
    pointing: frozenset[str]


def facts(cascade: Cascade) -> Facts:
    axis = band_axis(cascade)
    bands, rows = ({t.name: _dim(cascade, t.name, a) for t in cascade.inputs} for a in (axis, cascade.raxis))
    operands, terms = (_multiplied(cascade, along) for along in (False, True))
    return Facts(axis, bands, rows, _limits(cascade), _marks(cascade), _counts(cascade), operands, terms, _pointing(cascade))


def inputs(cascade: Cascade, draw: Draw, known: Facts, seed: int = 0) -> dict[str, Array]:
    """An array per input tensor, in the tensor's dtype."""
    given = {t.name: _values(cascade, t, k, draw, known, seed) for k, t in enumerate(cascade.inputs)}
    found = sort(cascade) if draw.faint else None
    return given if found is None else left(cascade, found, given, draw.faint, draw.turn % 2 == 1)


def _values(cascade: Cascade, t: Tensor, number: int, draw: Draw, known: Facts, seed: int) -> Array:
    rng = np.random.default_rng(zlib.crc32(f"{cascade.name}/{t.name}/{draw.name}/{seed}".encode()))
    shape = tuple(int(n) for n in t.shape)
    band, along = known.bands[t.name], known.rows[t.name]
    if t.dtype == "bool":
        return kinds.mask(rng, shape, draw.wide, draw.wide and not draw.deep, Place(number, band, along, draw.turn + 3))
    if t.name in known.counts:
        return kinds.counts(rng, t.dtype, shape, draw.kinds.get(t.name, draw.default), Place(number, band, along, draw.turn))
    if t.dtype not in FLOATS:
        limit = known.limits.get(t.name)
        if draw.ordered:
            x = kinds.documents(rng, shape, t.dtype) if limit is None else kinds.few_places(rng, shape, limit)
        else:
            x = kinds.labels(rng, shape, t.dtype, draw.wide) if limit is None else kinds.places(rng, shape, limit, draw.wide)
        return kinds.marked(rng, x, known.marks.get(t.name, ()), draw.wide).astype(NUMPY[t.dtype])
    kind = draw.kinds.get(t.name, draw.default)
    kind = "normal" if kind in UNPLACED and t.name in known.pointing else kind
    wide = t.dtype != "f16"  # products stay in range: linear ones of a contraction, squares of a row
    least = -3e-24 if wide and t.name in known.terms else -1e-3 if wide and t.name in known.operands else -1.0
    turn = draw.turn + (number if kind == "zeros" and not draw.kinds else 0)
    return kinds.floats(rng, t.dtype, shape, kind, Place(number, band, along, turn, least))


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
    """Tensors that sums multiply: sums along the row, with what its statements are made of (contractions inside it too, where
    their own size counts), or contractions inside it."""
    made = {n: s for s in cascade.stmts for n in s.names}

    def sized(e: Expr) -> Iterator[Expr]:
        yield e
        for k in () if isinstance(e, Op) and e.name in BOUNDED else children(e):
            yield from sized(k)

    found: set[str] = set()
    for s in cascade.stmts:
        if isinstance(s, Reduce) and s.reducer.kind == "sum" and (s.over == cascade.raxis) == along:
            todo: list[tuple[Expr, bool]] = [(p, True) for p in walk(s.expr) if isinstance(p, Op) and p.name in ("mul", "pow")]
            while todo:
                e, counts = todo.pop()
                of_size = {x.name for x in sized(e) if isinstance(x, Ref) and counts}
                for x in walk(e):
                    if isinstance(x, Load):
                        found.add(x.tensor)
                    elif isinstance(x, Ref) and (r := made.get(x.name)) is not None and (
                            isinstance(r, Let) or (along and r.over != cascade.raxis and x.name in of_size)):
                        todo.append((r.expr, x.name in of_size))
    return frozenset(found)


def _told_apart(cascade: Cascade) -> frozenset[str]:
    """Tensors of numbers that a condition compares with what varies too: with one another, or with positions."""
    found: set[str] = set()
    for x in (x for s in cascade.stmts for x in walk(s.expr) if isinstance(x, Op) and x.name in COMPARISONS):
        sides = [[k for k in walk(side) if isinstance(k, (Load, Index))] for side in x.args]
        if all(sides):
            found |= {k.tensor for side in sides for k in side if isinstance(k, Load) and k.dtype != "bool"}
    return frozenset(found)


def _filled(cascade: Cascade) -> bool:
    """Does a mask put a number in the place of what it hides? That number counts where what is left of a row is lower still:
    where an infinity meets numbers of one sign (:func:`draws`), all of a row is -inf: of every other row, of all rows of
    a tile and none of another, or of one row alone."""
    return any(isinstance(y, Const) and y.dtype in FLOATS and -inf < float(y.value) < LOW for s in cascade.stmts
               for x in walk(s.expr) if isinstance(x, Op) and x.name == "select" for y in children(x))


def _chosen(cascade: Cascade) -> bool:
    """Is there a choice among whole numbers? A kernel that makes it in float32 has one for several of them."""
    return any(isinstance(s, Reduce) and s.reducer.kind in PAYLOAD and s.expr.dtype in ("i32", "i64") for s in cascade.stmts)


def _limits(cascade: Cascade) -> dict[str, int]:
    """Integer tensors that are places: the extent of the dimension that they index, or how far what they are compared with
    goes along the r-axis. Labels, which are compared with one another, are none."""
    shapes = {t.name: t.shape for t in cascade.inputs}
    extents = {a.name: a.extent for a in cascade.axes if isinstance(a.extent, int)}
    found: dict[str, int] = {}

    def least(places: Iterable[Expr], extent: int | str) -> None:
        for x in places:
            if isinstance(x, Load) and x.dtype in ("i64", "i32") and isinstance(extent, int):
                found[x.tensor] = min(extent, found.get(x.tensor, extent))

    for x in _loads(cascade):
        for d, i in enumerate(x.indices):
            least(walk(i), shapes[x.tensor][d])
    for x in (x for s in cascade.stmts for x in walk(s.expr) if isinstance(x, Op) and x.name in COMPARISONS):
        kids = children(x)
        for k in kids:
            far = span(k, extents) if any(isinstance(y, Index) and y.axis == cascade.raxis for y in walk(k)) else None
            if far is not None:
                least((other for other in kids if other is not k), max(1, far[1] + 1))
    return found


def _marks(cascade: Cascade) -> dict[str, tuple[int, ...]]:
    """Numbers that an integer tensor is compared with (the label of what does not count); of one that indexes, none outside."""
    shapes = {t.name: t.shape for t in cascade.inputs}
    found = compared(s.expr for s in cascade.stmts)
    for x in _loads(cascade):
        for extent, i in zip(shapes[x.tensor], x.indices, strict=True):
            for y in walk(i):
                if isinstance(y, Load) and y.tensor in found:
                    found[y.tensor] &= set(range(extent)) if isinstance(extent, int) else set()
    return {t: tuple(sorted(numbers)) for t, numbers in found.items() if numbers}


def _pointing(cascade: Cascade) -> frozenset[str]:
    """What no clamp holds. An infinity is converted to whatever the machine has, and what is added to that may overflow."""
    casts = {y for x in _loads(cascade) for i in x.indices for y in walk(i) if isinstance(y, Cast) and y.dtype in INTS}
    held = {y for y in casts if isinstance(y.arg, Op) and y.arg.name in ("min", "max")}
    return frozenset(x.tensor for y in casts - held for x in walk(y) if isinstance(x, Load) and x.dtype in FLOATS)


def _counts(cascade: Cascade) -> frozenset[str]:
    indices = {y for x in _loads(cascade) for i in x.indices for y in walk(i)}
    compared = {k for s in cascade.stmts for x in walk(s.expr) if isinstance(x, Op) and x.name in COMPARISONS for k in walk(x)}
    named = {x.tensor for x in indices | compared if isinstance(x, Load)}
    return frozenset(t.name for t in cascade.inputs if t.dtype in ("i32", "i64") and t.name not in named)
