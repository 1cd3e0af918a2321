"""Which strategy, by a small model of resources and parallelism: the untuned choice, which a tuner may overrule."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isqrt

from redfuser.acrf.cascade import Let, Reduce
from redfuser.acrf.expr import BYTES, Const, Expr, Index, Load, Op, children, indices_of, loads_of, refs_of
from redfuser.acrf.state import Fused
from redfuser.strategies.points import crossed, grid_of, number, plain, points_of, spread, weighed_alike
from redfuser.strategies.program import Strategy
from redfuser.target import Target
from redfuser.target import target as named

_MIN_RANGE = 256
"""Elements of the r-axis below which a further split costs more (partials, a second launch) than it gains."""
_BLOCKS_PER_PROCESSOR = 2
"""Blocks per processor that a split row aims at. Measured on an H200, 64 heads over 8, 32768 keys: 16, 33, 66, 132 splits
(1, 2, 4, 8 blocks per processor) take 55.5, 44.7, 51.1 and 58.0 us."""
FEW, LINE, STEP = 4, 32, 64
"""Neighbouring rows that a block reads together where the elements of a row lie apart: at least, at most, and elements of as
many at once."""
OWN = 64
"""Rows, each a thread's own, of a block where there are so many: threads read lines together and exchange nothing. Mean and
variance of 2 x 640 columns of 4096 halves on an H200, us: 9.3, by blocks that reduce tiles of 32 columns 18.9; with a sum of
two tensors that is written as well 17.2 and 59.4; of 128 columns of 262144, 69 and 319."""
ABREAST = 4
"""Threads that have such a row between them, where rows alone are too few."""
IN_TURN = 16
"""Elements that a thread adds in turn to a float32 result, at most. Each addition of equal terms errs to the same side, so that
the errors of ties add up: of a variance of .5 on an H200, 64 of five values make .24e-6 where the rule allows .17e-6 over 128
rows, and 32 make .15e-6 where it allows .13e-6 for a row alone."""
PICKED = 256
"""Elements of such a row of which a block that holds it picks the greatest with its place, at most: three numbers for each
leave no registers. On an H200 32 x 1024 x 512 numbers took 122 us so, torch's call 53."""
APART, ALIKE = 2048, 1024
"""Elements of such a row that a block holds with enough of its neighbours; and of one that all weigh alike, so many that a
block's threads may add them up (``tensorize/spaces.py: across_space``): longer ones are read twice."""
LONG = 4096
"""Elements that a block which walks a row of its own asks for at once, at most."""
ASKED = 2
"""Times as many bytes as memory needs to have been asked for: blocks ask in steps. On an H200, us, with once, twice and four
times as many splits: a sum of squares of 2^24 halves 16.2, 11.7 and 10.4, variances of 1024 columns of 16384 31.4, 25.1 and
26.9, log-sum-exp of 4096 columns of 4096 halves 20.2, 15.6 and 18.5."""
STRETCH = 1024
"""Elements of a segment on a CPU: its sums are one addition each to those of the row, however many it has, and what moves them
to another reference costs as much as many elements do."""
SEGMENTS = 64
"""Segments of a row that a CPU adds up in turn, at most; of more, splits are made, each of as many as there are splits.
Variances of 131072 numbers were off by up to 14 float32 roundoffs with 128 segments, of a million by 36; with 16 splits by 2.5
and 2.7, in the same time."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the model needs to know: independent processors, rows one block works on, bytes to hold a row in; of a processor:
    bytes of its registers, and bytes to have asked for at any time. apart: rows of a block whose float32 operands are taken
    apart, by twice the threads."""

    processors: int
    rows: int
    row_bytes: int
    registers: int = 1 << 18
    flight: float = 0.0
    apart: int = 64


CPU = Machine(processors=1, rows=1, row_bytes=1 << 18)


def machine(target: Machine | Target | str) -> Machine:
    """What a target says of itself; a string is ``cpu`` or an architecture's name."""
    if isinstance(target, Machine):
        return target
    if target == "cpu":
        return CPU
    known = named(target) if isinstance(target, str) else target
    return Machine(known.sms, 64, min(64 << 10, known.shared_bytes // 2), 4 * known.registers, known.flight,
                   128 if known.wgmma else 64)


def select(fused: Fused, target: Machine | Target | str) -> tuple[Strategy, int]:
    """(strategy, splits) for ``fused`` on ``target`` (a target, the name of one, or a :class:`Machine`).

    map where there is no state. resident where outputs carry the r-axis and a row fits on chip: it is then read once. multi
    where the grid leaves most processors idle and the r-axis is long enough to share out, or for a CPU's digits
    (:data:`SEGMENTS`). single otherwise."""
    if not fused.state.accumulators:
        return "map", 1
    m = machine(target)
    cascade = fused.cascade
    extent = number(cascade.extent(cascade.raxis))
    again = any(isinstance(s, Reduce) and s.over == cascade.raxis for s in fused.post)
    on_row = again or any(cascade.raxis in s.axes for s in fused.post)
    beside = _beside(fused) if m.processors > 1 else 0
    picks = m.processors > 1 and any(len(a.names) > 1 for a in fused.state.accumulators)
    whole = picks and not (beside and extent > PICKED)  # tiles pick the best of a whole row
    room = m.row_bytes * (2 if again and m.processors > 1 else 1)
    if (whole or (on_row and not (beside and extent > APART))) and _row_bytes(fused) * extent <= room:
        return "single" if m.processors > 1 and extent > ALIKE and weighed_alike(fused) else "resident", 1
    blocks = _blocks(fused, m)
    if beside:
        blocks = _rows(fused, points_of(fused))[0]
        line = OWN if beside >= OWN or columns(fused) else LINE
        blocks = blocks // beside * ceil(beside / line)
        columnar = {(x.tensor, x.indices): BYTES[x.dtype] for x in _of_columns(fused, points_of(fused))}
        asked = LINE * STEP * sum(columnar.values())
        splits = min(m.processors * ceil(ASKED * m.flight / asked) // blocks, extent * line // LINE // _MIN_RANGE)
        return ("multi", splits) if splits > 1 else ("single", 1)
    if m.processors > 1 and 2 * blocks <= m.processors and extent >= 2 * _MIN_RANGE:
        splits = min(_at_once(fused, m) * m.processors // blocks, extent // _MIN_RANGE)
        splits = max(splits, _whole_steps(fused, m, blocks, extent))
        if splits > 1:
            return "multi", splits
    segment = cpu_segment(fused, "multi") if m.processors == 1 else None
    if segment and extent > SEGMENTS * segment and {a.reducer.kind for a in fused.state.accumulators} & {"sum", "prod"}:
        return "multi", isqrt(extent // segment)
    return "single", 1


def alone(fused: Fused) -> int:
    """Rows that share nothing along the r-axis, and of which nothing but a few numbers is reduced, element by element;
    else 0."""
    few = not any(isinstance(s, Reduce) for s in fused.producers) and all(
        len(a.names) == 1 and spread(fused, frozenset(a.axes)) <= FEW for a in fused.state.accumulators)
    distinct, shared = _rows(fused)
    return distinct if few and shared == 1 and not _beside(fused) else 0


def columns(fused: Fused) -> bool:
    """Are numbers reduced of columns of data, side by side in memory, many enough for most threads of a block to have one?"""
    return plain(fused) and _beside(fused) > OWN // 2 and all(len(a.names) == 1 for a in fused.state.accumulators)


def on_chip(fused: Fused, target: Machine | Target | str, room: int = 0) -> bool:
    """Whether a block holds a row, in ``room`` bytes where they are given."""
    return _row_bytes(fused) * number(fused.cascade.extent(fused.cascade.raxis)) <= (room or machine(target).row_bytes)


def cpu_segment(fused: Fused, strategy: Strategy) -> int | None:
    """Elements of a segment of a row that a CPU walks; None for as many as by default, where an element is a contraction or
    more than a few numbers, which would be held for all of them."""
    few = strategy in ("single", "multi") and all(isinstance(p, Let) for p in fused.producers) and all(
        spread(fused, frozenset(x.axes)) <= FEW for x in (*fused.producers, *fused.state.accumulators))
    return STRETCH if few and isinstance(fused.cascade.extent(fused.cascade.raxis), int) else None


def _at_once(fused: Fused, m: Machine) -> int:
    """Blocks that a processor is to have: no more than may accumulate in half of its registers."""
    held = 4 * min(m.rows, _rows(fused)[1]) * sum(spread(fused, frozenset(a.axes)) for a in fused.state.accumulators)
    return max(1, min(_BLOCKS_PER_PROCESSOR, m.registers // 2 // max(1, held)))


def _whole_steps(fused: Fused, m: Machine, blocks: int, extent: int) -> int:
    """Splits of rows that share nothing, until enough bytes are asked for at once, each of them whole steps long."""
    if _rows(fused)[1] > 1 or any(spread(fused, frozenset(a.axes)) > 1 for a in fused.state.accumulators):
        return 1
    asked = LONG * sum({(x.tensor, x.indices): BYTES[x.dtype] for x in _along(fused)}.values())
    splits = ceil(ASKED * m.flight / max(1, asked)) * m.processors // blocks
    return min(1 << max(0, splits - 1).bit_length(), extent // LONG)


def _varies(index: Expr, raxis: str) -> bool:
    """From one element to the next, or nearly so?"""
    by = index.args[1] if isinstance(index, Op) and index.name == "floordiv" else None
    if isinstance(by, Const) and int(by.value) >= LINE:
        return False
    return index == Index(raxis) or any(_varies(x, raxis) for x in children(index))


def _row_bytes(fused: Fused) -> int:
    """Bytes one element of the r-axis keeps on chip: what states and ``post`` read along the row, loads and producers. Not what
    only producers read, which is gone once these are computed, nor what all rows have (weights) and what a group has
    (``w[l // 4096]``), which are read where they are needed."""
    products = [p.expr for p in fused.producers if isinstance(p, Reduce)]
    exprs = [a.contribution for a in fused.state.accumulators] + [s.expr for s in fused.post] + products
    points = weighed_alike(fused)
    alone = all(number(fused.cascade.extent(a)) == 1 for a in grid_of(fused))
    held = {(x.tensor, x.indices): BYTES[x.dtype] * spread(fused, indices_of(x) - points)
            for e in exprs for x in loads_of(e) if any(_varies(i, fused.cascade.raxis) for i in x.indices)
            and (alone or indices_of(x) - {fused.cascade.raxis})}
    read = {r for e in exprs for r in refs_of(e)}
    kept = [4 * spread(fused, frozenset(p.axes) - points) for p in fused.producers if read.intersection(p.names)]
    return sum(held.values()) + sum(kept)


def _along(fused: Fused) -> list[Load]:
    """What is read along the r-axis."""
    exprs = [s.expr for s in fused.producers] + [a.contribution for a in fused.state.accumulators]
    return [x for e in exprs for x in loads_of(e) if fused.cascade.raxis in indices_of(x)]


def _rows(fused: Fused, points: set[str] | None = None) -> tuple[int, int]:
    """Points of the grid that read other elements along the r-axis, and points for each that read the same: where they are
    multiplied as matrices, those that share an operand; else those that share all."""
    along, distinct, shared = _along(fused), 1, 1
    products = points is None and (_products(fused) or any(
        crossed(fused, a.contribution, grid_of(fused)) for a in fused.state.accumulators))
    for axis in points or grid_of(fused):
        extent = number(fused.cascade.extent(axis))
        found = [_sharing(x, axis, extent) for x in along]
        same = (max if products else min)(found, default=1)
        shared *= same
        distinct *= -(-extent // same)
    return distinct, shared


def _blocks(fused: Fused, m: Machine) -> int:
    """Blocks the grid gives when each works on up to ``rows`` points that use the same elements along the r-axis."""
    distinct, shared = _rows(fused)
    return distinct * -(-shared // (m.apart if m.processors > 1 and _multiplies_singles(fused) else m.rows))


def _products(fused: Fused) -> bool:
    """Is something multiplied as matrices inside an element, or by columns?"""
    return any(isinstance(s, Reduce) for s in fused.producers) or any(
        spread(fused, frozenset(a.axes)) > 1 for a in fused.state.accumulators)


def _multiplies_singles(fused: Fused) -> bool:
    """Are matrices of float32 multiplied?"""
    free = {a: frozenset(a.axes) - grid_of(fused) for a in fused.state.accumulators}
    found = [x for s in fused.producers if isinstance(s, Reduce) for x in loads_of(s.expr)]
    found += [x for a, own in free.items() for x in loads_of(a.contribution) if own & indices_of(x)]
    return any(x.dtype == "f32" for x in found)


def _beside(fused: Fused) -> int:
    """Rows whose elements lie side by side, as those of a row do not: reductions of the columns of a matrix. 0 for fewer than
    a block would read together, and for products."""
    grid = points_of(fused)
    own = [x.indices[-1] for x in _of_columns(fused, grid)]
    free = {a for s in (*fused.producers, *fused.state.accumulators) for a in s.axes} - {fused.cascade.raxis}
    if any(isinstance(s, Reduce) for s in fused.producers) or any(number(fused.cascade.extent(a)) > 1 for a in free - grid):
        return 0
    if len(set(own)) != 1 or not isinstance(own[0], Index) or own[0].axis not in grid:
        return 0
    n = number(fused.cascade.extent(own[0].axis))
    return n if n >= FEW else 0


def _of_columns(fused: Fused, grid: set[str]) -> list[Load]:
    """What is read along the r-axis and differs from point to point of the grid, without what all columns of a matrix share (a
    mask of its rows): of neighbours in memory along the r-axis, while others lie along the grid."""
    raxis = fused.cascade.raxis
    found = [x for x in _along(fused) if grid & indices_of(x)]
    columns = {x.indices[-1].axis for x in found if isinstance(x.indices[-1], Index)} & grid
    if len(columns) != 1 or not plain(fused):
        return found
    return [x for x in found if columns & indices_of(x) or raxis not in indices_of(x.indices[-1])]


def _sharing(load: Load, axis: str, extent: int) -> int:
    """How many neighbouring points of ``axis`` read the same elements: all where the load does not depend on it
    (queries of a head), c where it does through ``axis // c`` only (query heads of a key head)."""
    groups: list[int] = []

    def visit(e: Expr) -> None:
        match e:
            case Index(axis=a) if a == axis:
                groups.append(1)
            case Op(name="floordiv", args=(Index(axis=a), Const(value=c))) if a == axis:
                groups.append(int(c))
            case _:
                for kid in children(e):
                    visit(kid)

    for index in load.indices:
        visit(index)
    return min(groups, default=extent)
