"""Which axes of a cascade are points of the grid: each has a row of its own, or shares what a product multiplies."""

from __future__ import annotations

from itertools import combinations
from math import prod

from redfuser.acrf.cascade import Extent, Reduce
from redfuser.acrf.expr import Expr, Op, indices_of, loads_of, refs_of
from redfuser.acrf.state import Fused

_SYMBOLIC = 1024
"""What a symbolic extent counts as."""


def weighed_alike(fused: Fused) -> frozenset[str]:
    """Axes of sums whose terms are weighed by what lies in memory for all of them, and by nothing that two rows share: each
    point is a row of its own (a mean of the steps that a mask shows, of every channel)."""
    grid = grid_of(fused)
    free = frozenset(x for a in fused.state.accumulators if a.reducer.kind != "topk" for x in a.axes) - grid
    if any(isinstance(s, Reduce) for s in fused.producers) or free & _joined(fused):
        return frozenset()
    for a in fused.state.accumulators:
        weights = [f for f in _factors(a.contribution) if not any(free & indices_of(x) for x in loads_of(f))]
        if free & set(a.axes) and (crossed(fused, a.contribution, grid | free) or any(refs_of(w) for w in weights)):
            return frozenset()
    return free


def _factors(e: Expr) -> list[Expr]:
    return [f for x in e.args for f in _factors(x)] if isinstance(e, Op) and e.name == "mul" else [e]


def grid_of(fused: Fused) -> set[str]:
    sets = [set(a.axes[:-1] if a.reducer.kind == "topk" else a.axes) for a in fused.state.accumulators]
    return set.intersection(*sets) - _joined(fused) if sets else set()


def _joined(fused: Fused) -> set[str]:
    """Axes along which something is reduced once the row is."""
    return {s.over for s in (*fused.state.finalize, *fused.post) if isinstance(s, Reduce)}


def spread(fused: Fused, axes: frozenset[str]) -> int:
    """Elements per grid point and element of the r-axis: the axes that are neither."""
    free = axes - grid_of(fused) - {fused.cascade.raxis}
    return prod(number(fused.cascade.extent(a)) for a in free)


def crossed(fused: Fused, e: Expr, grid: set[str]) -> bool:
    """Do two tensors that are read along the r-axis each lack an axis of the grid that the other has?"""
    raxis = fused.cascade.raxis
    known = [indices_of(x) & grid for x in loads_of(e) if raxis in indices_of(x)]
    return any(a - b and b - a for a, b in combinations(known, 2))


def points_of(fused: Fused) -> set[str]:
    """The grid, with the axes that some accumulators lack where along them run whole reductions of what lies in memory (the sum
    of a mask of rows, beside sums of columns under it): no columns of a product, which shares its weights among them."""
    grid = grid_of(fused)
    whole = grid | {x for a in fused.state.accumulators if a.reducer.kind != "topk" for x in a.axes}
    across = any(crossed(fused, a.contribution, whole) for a in fused.state.accumulators)
    return grid if across or not plain(fused) else whole


def plain(fused: Fused) -> bool:
    """Is what is reduced made of data alone, and of no result?"""
    names = {n for a in fused.state.accumulators for n in a.names}
    return not any(isinstance(s, Reduce) for s in fused.producers) and not any(
        refs_of(e) & names for e in (*(s.expr for s in fused.producers), *(a.contribution for a in fused.state.accumulators)))


def number(extent: Extent) -> int:
    return extent if isinstance(extent, int) else _SYMBOLIC
