"""Reductions across memory, along an axis that is not the fastest, with maps around them: is a kernel of them faster than
torch's reduction between kernels for the maps?

    y[b, h] = sum[s] x[b, s, h] * w[b, s]       neighbours in memory are h, of which nothing is reduced

Along memory such a kernel reads a row as torch's does, and saves what lies between. Across it, how fast it is hangs on how many
columns there are and how long they are, so that the model of resources is asked first (docs/decisions/0024).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.state import Fused, NotFusable
from redfuser.outline import passes
from redfuser.partition.about import evaluated
from redfuser.partition.drafted import Draft
from redfuser.partition.epilogue import launches, moves
from redfuser.partition.graph import Node, Unit
from redfuser.partition.sets import bits
from redfuser.partition.single import LONG

WALKED, STEP = 512, 12e-9
"""Elements that a thread of torch's kernel adds in turn, at most, and seconds for each. Float32 sums across memory on an H200,
us, and what reading takes: of 64 rows of 4096 numbers 3.0 (0.3), of 512 of 1000 8.4 (0.5) and of 8192 8.8 (4.2), of 4096 of
1000 11.7 (4.1)."""

SLOW, PLACED, LOOKED = 0.66, 2, 50e-9
"""What torch's kernel of long rows across memory reaches of its bandwidth, at most (sums of 512 columns of 32 x 1024 float32
numbers take 25.5 us, of 1024 of 16384 41.8, of 256 of 65536 77.6, where reading takes 14.4), how many times as long it
takes at least where the place of an extremum is wanted (52.8, 103, 211), and what an element takes then (300 of 512 columns
18.1 us)."""

Priced = Callable[[Fused], float | NotFusable]
"""Seconds of the kernel that a state gets, as modelled for the target; or why it gets none."""


def dearer(d: Draft, fused: Fused, priced: Priced | None) -> NotFusable | None:
    """Why torch's reduction between kernels for the maps is the better, if it is."""
    if priced is None:
        return NotFusable("RF305", "", "a kernel of this reduction is faster than torch's between kernels for its maps",
                          "it runs across memory, and nothing here models its kernel", "")
    found, torch = priced(fused), apart(d)
    if isinstance(found, NotFusable):
        return found
    if found < torch:
        return None
    return NotFusable("RF305", "", "a kernel of this reduction is faster than torch's between kernels for its maps",
                      f"modelled {found * 1e6:.1f} us on {d.machine.part}, torch's and the maps {torch * 1e6:.1f} us",
                      "nothing to change: the maps around it are kernels of their own")


def apart(d: Draft) -> float:
    """Seconds without the region: a kernel for the maps before, which writes what the reductions read, torch's reductions,
    which do little but read it, and a kernel for the maps behind. What torch's own call does beside is no map."""
    units, m = evaluated(d), d.machine
    reducing = [u for u in units if u.reducing]
    own, done = {id(u.provenance) for u in reducing if u.provenance.op}, bits(reducing)
    maps = [u for u in units if launches(u) and id(u.provenance) not in own]
    behind = [u for u in maps if u.ancestors & done]
    before = [u for u in maps if not u.ancestors & done]
    operands = {u: {source(n) for n in u.args} for u in reducing}
    made = {n for some in operands.values() for n in some if n.unit in before}
    results = sum(n.bytes for u in reducing for n in u.results)
    beside = any(prod(s.node.shape) > prod(n.shape) for s in d.sinks for u in reducing for n in u.results)
    seconds = sum(m.kernel + _reads(u, passes(m, sum(n.bytes for n in some), 0), beside) for u, some in operands.items())
    seconds += passes(m, results, 0)
    if before:
        seconds += passes(m, sum(n.bytes for n in (*d.external, *made)), 1)
    if behind:
        seconds += passes(m, results + sum(s.node.bytes for s in d.sinks), 1)
    return seconds


def _reads(u: Unit, memory: float, beside: bool) -> float:
    """Seconds that torch's kernel takes for what memory gives in so many. beside: the rows are written too, by few blocks where
    columns are few: a map of its own has more (costs of 300 boxes for 64 each, and the least, of 8 pictures: 63 us for 32)."""
    elements = max(prod(n.shape) for n in u.args) // max(1, max(prod(n.shape) for n in u.results))
    seconds = max(memory / SLOW if elements >= LONG else memory, STEP * min(WALKED, elements))
    if not any(isinstance(n.stmt, Reduce) and n.stmt.reducer.kind in ("argmax", "argmin") for n in u.nodes):
        return seconds
    return max(seconds * PLACED, 0.0 if beside else LOOKED * min(WALKED, elements))


def source(n: Node) -> Node:
    """What a view is of."""
    u: Unit | None = n.unit
    while u is not None and moves(u) and len(u.args) == 1:
        n, u = u.args[0], u.args[0].unit
    return n
