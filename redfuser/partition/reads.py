"""What a group of maps reads: how many tensors, how many bytes.

    join(a[i], b[i - 4], c[i - 8])   -->   three tensors, of which an element reads one
"""

from __future__ import annotations

from math import prod

from redfuser.acrf.expr import BYTES, Cast, Expr, Load, Op
from redfuser.partition.drafted import Draft
from redfuser.partition.judge import MAX_TENSORS
from redfuser.partition.positions import axes_in


def crowded(d: Draft) -> bool:
    """Does it read and write too many tensors? Those that an element may read count: of the pieces that are joined, one. Of
    those with one axis (a scale for each channel), three are as one."""
    seen: dict[int, frozenset[str]] = {}
    read = frozenset[str]().union(*(for_one(s.value.expr, seen) for s in d.sinks if s.value is not None))
    many = {n: places for n, places in d.external.items() if n.name in read}
    rows = sum(len({a for at in places for a in axes_in(at) if d.extents[a] > 1}) < 2 for places in many.values())
    return len(many) - rows + -(-rows // 3) + len(d.sinks) > MAX_TENSORS + 2


def for_one(e: Expr, seen: dict[int, frozenset[str]]) -> frozenset[str]:
    """The tensors that one element may read: where its place decides between two, those of the one that reads more."""
    if id(e) not in seen:
        match e:
            case Load(tensor=t, indices=at):
                own, parts = frozenset({t}), [for_one(i, seen) for i in at]
            case Op(name="select", args=(c, x, y)) if not (by := for_one(c, seen)):
                own, parts = by, [max(for_one(x, seen), for_one(y, seen), key=len)]
            case Op(args=args):
                own, parts = frozenset(), [for_one(x, seen) for x in args]
            case Cast(arg=x):
                own, parts = frozenset(), [for_one(x, seen)]
            case _:
                own, parts = frozenset(), []
        seen[id(e)] = own.union(*parts)
    return seen[id(e)]


def moved(d: Draft) -> float:
    """Bytes that a group reads, each element once, and writes."""
    total = 0
    for n, places in d.external.items():
        read = sum(prod(d.extents[a] for a in axes_in(at)) for at in places)
        total += min(n.bytes, read * BYTES.get(n.dtype, 8))
    return float(total + sum(s.node.bytes for s in d.sinks))
