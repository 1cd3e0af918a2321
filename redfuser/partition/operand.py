"""Maps of a product's operand that a kernel makes once for each of its rows::

    q, k, v = parts of x;  q = q * c               torch writes c * q, and a kernel reads that beside x
    s[i, l] = sum[e] q[i, e] * k[l, e]      -->    the kernel reads x alone, and scales its rows as it loads them

They join where they make the kernel read fewer tensors. Where the kernel is modelled slower for it (its operand can no longer
be brought by copies that nobody waits for) they are maps by themselves: :func:`slower`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from redfuser.acrf.state import Fused, NotFusable
from redfuser.outline import passes
from redfuser.partition.drafted import Draft
from redfuser.partition.epilogue import moves
from redfuser.partition.graph import Node, Unit
from redfuser.partition.joins import Joining
from redfuser.partition.sets import Units
from redfuser.partition.work import REGION


def mapped(joining: Joining, d: Draft, lead: Node) -> Draft:
    """The region with such maps, ``without`` being the region as it was; else the region."""
    best = d
    for node, often in joining.reads(d.units, lead):
        maps = _chain(joining, node.unit, d.units) if often == "row" and node.unit is not None else frozenset()
        if not maps:
            continue
        units = joining.near.close(best.units | maps)
        if joining.parted(units) or not joining.near.convex(units):
            continue
        got = joining.drafted(units, lead)
        if isinstance(got, Draft) and got.loaded() < best.loaded():
            best = replace(got, without=d)
    return best


def _chain(joining: Joining, unit: Unit, units: Units) -> Units:
    """The maps that make an operand, which nothing else reads, back to what is no map."""
    found: set[Unit] = set()
    todo = [unit]
    while todo and len(found) < REGION:
        u = todo.pop(0)
        if moves(u):
            todo += u.producers
        elif u.pointwise and u.has_data and not u.gathers and not u.piecewise and u not in joining.near.claimed and (
                not joining.near.library_epilogue(u)) and all(_inside(joining, n, units.union(found)) for n in u.results):
            found.add(u)
            todo += u.producers
    return frozenset(found)


def _inside(joining: Joining, n: Node, units: Units) -> bool:
    """Do these read it, behind any views, and nothing else?"""
    return not n.escapes and all(
        c in units or (moves(c) and all(_inside(joining, m, units) for m in c.results)) for c in joining.graph.readers(n))


def slower(d: Draft, fused: Fused, state: Callable[[Draft], Fused | NotFusable],
           priced: Callable[[Fused], float | NotFusable]) -> NotFusable | None:
    """Why the maps are a kernel of their own, if they are modelled faster so; state: of a region."""
    if d.without is None or not isinstance(before := state(d.without), Fused):
        return None
    found, apart = priced(fused), priced(before)
    made = [n for n in d.without.loaded() if n.unit in d.units]
    if isinstance(apart, float):
        apart += passes(d.machine, sum(2 * n.bytes for n in made), 0)  # a launch more is nothing in a graph
    if not isinstance(apart, float) or (isinstance(found, float) and found <= apart):
        return None
    if not isinstance(found, float):
        return found
    return NotFusable("RF305", "", "a kernel that makes its product's operand is faster than one that reads it",
                      f"modelled {found * 1e6:.1f} us on {d.machine.part}, apart {apart * 1e6:.1f} us",
                      "nothing to change: the maps are a kernel of their own")
