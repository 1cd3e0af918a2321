"""Maps that each of their readers computes for itself: positions, and what is little work on a tensor that is read anyway."""

from __future__ import annotations

from functools import cache
from math import prod

from redfuser.acrf.expr import Load, Op, walk
from redfuser.partition.epilogue import contracts, statistic
from redfuser.partition.graph import Graph, Node, Unit
from redfuser.partition.positions import by_data

PLACED = ("i64", "i32", "bool")
LITTLE = 8
"""Operations of a map that is computed by each of its readers, at most."""


def places(graph: Graph) -> set[Unit]:
    """Maps of integers that nobody reads but as places of what is taken there: their reader computes them for itself."""
    found: set[Unit] = set()
    for u in reversed(graph.units):
        whole = u.pointwise and u.has_data and not u.gathers and all(n.dtype in PLACED and not n.escapes for n in u.results)
        if whole and u.consumers and all(c in found or (c.gathers and not tables(c) & set(u.results)) for c in u.consumers):
            found.add(u)
    return found


def again(graph: Graph) -> list[Unit]:
    """Maps of a tensor that is in memory for others too, and of little beside it, which several kernels read and no library:
    they read its operands in its stead, which are no more (``last - run``, for ``exp`` of it in two sums of a step). Not of a
    row's statistics: the kernel that has these has the row. Nor of what may be part of a kernel."""
    @cache
    def readers(n: Node) -> frozenset[Unit]:
        """Also behind maps that each reader computes for itself."""
        return frozenset(v for u in graph.readers(n) for v in (
            (w for m in u.results for w in readers(m)) if u.is_cheap else (u,)))

    @cache
    def for_kernels(n: Node) -> bool:
        return not n.escapes and all(not u.gap and not contracts(u) and (not u.is_cheap or all(map(for_kernels, u.results)))
                                     for u in graph.readers(n))

    found = []
    for u in graph.units:
        if not u.pointwise or u.is_cheap or u.gathers or not u.has_data or u.piecewise or len(u.results) != 1:
            continue
        out = u.results[0]
        data = sorted((n for n in u.args if n.unit is None or n.unit.has_data), key=lambda n: prod(n.shape))
        large, little = data[-1], sum(prod(n.shape) for n in data[:-1])
        if large.bytes > out.bytes or 8 * little > prod(out.shape) or operations(u) > LITTLE:
            continue
        kept = large.escapes or (stays(large) and readers(large) - {u})
        if kept and not any(map(statistic, data[:-1])) and len(readers(out)) > 1 and for_kernels(out):
            found.append(u)
    return found


def stays(n: Node) -> bool:
    """Is it in memory whoever reads it: an input, a scan's result or a call's? Another may be part of a kernel."""
    return n.unit is None or bool(n.unit.gap) or n.unit.scan is not None


def operations(u: Unit) -> int:
    """Arithmetic on values (index arithmetic, casts and loads are free)."""
    return sum(1 for n in u.nodes if n.stmt is not None for x in walk(n.stmt.expr) if isinstance(x, Op) and not (
        x.dtype in ("i64", "i32") and all(not isinstance(y, Load) for y in walk(x))))


def tables(u: Unit) -> set[Node]:
    """What it reads at places that data say."""
    reads = [x for n in u.nodes if n.stmt is not None for x in walk(n.stmt.expr)] if u.gathers else []
    return {u.buffers[x.tensor] for x in reads if isinstance(x, Load) and by_data(x.indices)}
