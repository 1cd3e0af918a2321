"""How many steps a loop makes, in every block of a launch."""

from __future__ import annotations

from itertools import product

from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, walk
from redfuser.acrf.index import value
from redfuser.tensorize.ir.nodes import For, TileKernel
from redfuser.tensorize.ir.spans import spans

MOST = 1 << 14
"""Points of a grid that are looked at."""


def counts(kernel: TileKernel, loop: For) -> set[int]:
    """The numbers of steps that a loop outside of every other may make; {0} where that depends on data of which nothing is
    known, or is not known."""
    if isinstance(loop.start, Const) and (listed := _listed(kernel, loop.stop)) is not None:
        return {max(0, n - int(loop.start.value)) for n in range(listed[0], listed[1] + 1)}
    lets = dict(kernel.lets)
    grid = dict(kernel.grid)
    needed = _names((loop.start, loop.stop), lets)
    names = [v for v in grid if v in needed]
    total = 1
    for v in names:
        total *= grid[v]
    if total > MOST or needed - set(grid) - set(lets) or any(
            isinstance(x, Load) for e in (loop.start, loop.stop, *lets.values()) for x in walk(e)):
        return {0}
    found: set[int] = set()
    try:
        for point in product(*(range(grid[v]) for v in names)):
            at = dict(zip(names, point, strict=True))
            for n, e in kernel.lets:
                if n in needed:
                    at[n] = value(e, at)
            found.add(max(0, value(loop.stop, at) - value(loop.start, at)))
    except KeyError:  # an operation that indices do not have
        return {0}
    return found


def _listed(kernel: TileKernel, stop: Expr) -> tuple[int, int] | None:
    """The span of a number that is read from memory as it is."""
    match stop:
        case Cast(arg=Load(tensor=n)):
            return spans(kernel).get(n)
    return None


def _names(exprs: tuple[Expr, ...], lets: dict[str, Expr]) -> set[str]:
    found: set[str] = set()
    more = list(exprs)
    while more:
        for x in walk(more.pop()):
            if isinstance(x, Index) and x.axis not in found:
                found.add(x.axis)
                more += [lets[x.axis]] if x.axis in lets else []
    return found
