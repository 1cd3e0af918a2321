"""What a group of operations reads: how many tensors, how many bytes.

    join(a[i], b[i - 4], c[i - 8])   -->   three tensors, of which an element reads one
"""

from __future__ import annotations

from math import prod

from redfuser.acrf.expr import BYTES, Expr, Load, Op, children
from redfuser.partition.drafted import Draft
from redfuser.partition.positions import axes_in

MAX_TENSORS = 8
"""Tensors that one kernel reads, at most; a prologue that would pass this stays outside."""
TOO_MANY = f"more than {MAX_TENSORS} tensors read by one kernel, three small ones as one"
SMALL = 8
"""How much smaller than the largest of them one is that counts for a third, as a number for each row or column does: chosen."""


def laden(d: Draft) -> bool:
    """Does a cascade read too many tensors?"""
    largest = max((n.bytes for n in d.external), default=0)
    return _counted(len(d.external), sum(n.bytes * SMALL < largest for n in d.external)) > MAX_TENSORS


def crowded(d: Draft) -> bool:
    """Does a group of maps read and write too many tensors? Those that an element may read count: of the pieces that are
    joined, one. Of those with one axis (a scale for each channel), three are as one."""
    read = frozenset[str]().union(*(for_one(s.value.expr) for s in d.sinks if s.value is not None))
    many = {n: places for n, places in d.external.items() if n.name in read}
    rows = sum(len({a for at in places for a in axes_in(at) if d.extents[a] > 1}) < 2 for places in many.values())
    return _counted(len(many), rows) + len(d.sinks) > MAX_TENSORS + 2


def _counted(tensors: int, small: int) -> int:
    return tensors - small + -(-small // 3)


def for_one(e: Expr) -> frozenset[str]:
    """The tensors that one element may read: where its place decides between two, those of the one that reads more."""
    found: dict[int, frozenset[str]] = {}
    todo = [e]
    while todo:  # operands first; no recursion, since an unrolled loop is as deep as it is long
        x = todo[-1]
        if id(x) in found or (missing := [k for k in children(x) if id(k) not in found]) == []:
            found[id(todo.pop())] = _own(x, [found[id(k)] for k in children(x)])
        else:
            todo += missing
    return found[id(e)]


def _own(x: Expr, of: list[frozenset[str]]) -> frozenset[str]:
    """What a node reads, where its operands read these."""
    if isinstance(x, Op) and x.name == "select" and not of[0]:
        return max(of[1:], key=len)
    return frozenset({x.tensor} if isinstance(x, Load) else ()).union(*of)


def moved(d: Draft) -> float:
    """Bytes that a group reads, each element once, and writes."""
    total = 0
    for n, places in d.external.items():
        read = sum(prod(d.extents[a] for a in axes_in(at)) for at in places)
        total += min(n.bytes, read * BYTES.get(n.dtype, 8))
    return float(total + sum(s.node.bytes for s in d.sinks))
