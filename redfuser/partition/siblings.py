"""Regions that nothing connects but the row they read are one region::

    y[i, l] = x[i, l] / sqrt(mean of x * x)        each has a row of its own to write: growing from one of them
    z[i, l] = exp(x[i, l] - max x) / sum           reaches no further than numbers of the row (:mod:`.joins`)

Each is grown by itself. Here they join as they are, so that the row is read once; each is what it was before where the two
together are modelled slower (:func:`slower`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from math import prod

from redfuser.acrf.state import Fused, NotFusable
from redfuser.partition import judge
from redfuser.partition.drafted import Draft, Step
from redfuser.partition.graph import Node
from redfuser.partition.joins import Joining


def joined(joining: Joining, drafts: list[Draft]) -> list[Draft]:
    """The drafts that ``joining`` has claimed, in their order, those of one row as one."""
    found = [(d, _row(d)) for d in drafts]
    while (pair := next(((a, b, both) for (a, x), (b, y) in combinations(found, 2)
                         if x & y and (both := _together(joining, a, b))), None)):
        a, b, both = pair
        joining.near.claim(both.units)
        found = [(both, _row(both)) if d is a else (d, row) for d, row in found if d is not b]
    return [d for d, _ in found]


def _together(joining: Joining, a: Draft, b: Draft) -> Draft | None:
    units, lead = a.units | b.units, a.rows[0].node
    lead = lead.lead or lead
    if joining.parted(units) or not joining.near.convex(units):
        return None
    if joining.verdict(judge.beside, units, lead) is not None:
        return None
    got = joining.drafted(units, lead)
    return replace(got, steps=(Step("beside", b.units),), parts=(a, b)) if isinstance(got, Draft) else None


def _row(d: Draft) -> set[Node]:
    """The largest of the tensors that a region without products reads, with what is more than half as large, and what it writes
    of such a size: rows with an element more than another uses."""
    if d.inner or any(i.contraction for i in d.rows):
        return set()
    some = d.loaded()
    size = max((prod(n.shape) for n in some), default=0)
    return {n for n in (*some, *(s.node for s in d.sinks)) if 2 * prod(n.shape) > size}


def slower(d: Draft, fused: Fused, state: Callable[[Draft], Fused | NotFusable],
           priced: Callable[[Fused], float | NotFusable]) -> NotFusable | None:
    """Why the two are kernels of their own, if they are modelled faster so; state: of a region."""
    if not d.parts:
        return None
    states = [state(p) for p in d.parts]
    apart = [priced(s) for s in states if isinstance(s, Fused)]
    times = [t for t in apart if isinstance(t, float)]
    found = priced(fused)
    if len(times) < len(states) or (isinstance(found, float) and found < sum(times)):
        return None
    if not isinstance(found, float):
        return found
    return NotFusable("RF305", "", "one kernel of what reads one row is faster than two",
                      f"modelled {found * 1e6:.1f} us on {d.machine.part}, apart {sum(times) * 1e6:.1f} us",
                      "nothing to change: each is a kernel of its own")
