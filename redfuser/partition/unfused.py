"""What a region with products takes without us: a library's products, and between them one kernel for everything else.

    s = sum[e] q[i, e] * k[l, e]                  a library's product, which writes s
    m = max[l] s;  p = exp(s - m);  t = sum[l] p  one kernel, which reads s and writes p / t
    o = sum[l] p / t * v[l, d]                    a library's product, which reads it

Of a row that is written and reduced again, where there is no product: a kernel that writes it and one that reads it back.

While regions grow, products are weighed by a roofline, before there is a kernel (:mod:`redfuser.partition.cost`). Once a region
has a state, the model of resources knows the kernel that it gets: one that is far behind this is not made (RF305).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from math import ceil, prod

from redfuser.acrf.expr import BYTES
from redfuser.acrf.state import Fused, NotFusable
from redfuser.outline import library, on_cores, passes, turns
from redfuser.partition.cost import elements, operand_bytes
from redfuser.partition.drafted import Draft
from redfuser.partition.judge import again
from redfuser.partition.values import Instance

MARGIN = 1.5
"""How far behind a kernel is modelled before it is given up: the model takes some kernels for 1.4 times as slow as they are
(docs/results/h200-2026-11-26-tuning), and a library has launches and copies that are not counted here."""
SINGLE = 1.25
"""The same of products of float32 numbers, which it takes for faster than they are: on one H200, graphs, us, residual codes of
16 pictures (modelled 1.3 times as slow) 122.5, apart 91.4; linear attention (1.6) 48.5, 37.8; streams that are mixed (1.2)
39.7, 58.0."""
MUCH = 4.0
"""The same of reductions without a product, each of which torch writes the row of and reads it: chosen, beyond what the model
was seen to be off by (78 us modelled, 147 measured)."""
MANY = 1 << 18
"""Elements of a reduction from which a kernel of few blocks may be that slow: chosen."""
LATENCY = 20e-6
"""Seconds below which a library's products are what their launches and walks over the depth take: no roofline has these."""


def apart(d: Draft) -> float | None:
    """Seconds of the region's products as a library's and of one kernel around them, and of two kernels where a row is written
    and reduced again; None of any other region without a product."""
    products = [i for i in chain(d.inner, d.rows) if i.contraction]
    if not products and (read := sum(s.node.bytes for s in again(d))):
        return passes(d.machine, read + sum(n.bytes for n in d.external) + sum(s.node.bytes for s in d.sinks), 2)
    if not products:
        return None
    sites = {n for i in products for n, _ in i.body.sites}
    results = {i.node for i in products}
    around = sum(n.bytes for n in d.external if n not in sites)
    around += sum(_result(d, i) for i in d.inner if i.contraction)
    around += sum(s.node.bytes for s in d.sinks if s.node not in results)
    around += sum(_made(d, i) for i in d.rows if i.contraction)
    return sum(_product(d, i) for i in products) + passes(d.machine, around, 1)


def slower(d: Draft, fused: Fused, priced: Callable[[Fused], float | NotFusable]) -> NotFusable | None:
    """Why the region is cut, if its kernel is modelled far behind a library's products and a kernel between them. A state
    that gets no kernel at all is refused where kernels are made."""
    if (without := apart(d)) is None:
        return far_slower(d, fused, priced)
    found = priced(fused)
    singles = all(_whole(i) for i in chain(d.inner, d.rows) if i.contraction) and not again(d)
    if not isinstance(found, float) or found <= (SINGLE if singles else MARGIN) * max(without, LATENCY):
        return None
    parts = "a kernel that reads what another writes" if again(d) else "a library's products and a kernel between them"
    return NotFusable("RF305", "", f"one kernel is faster than {parts}",
                      f"modelled {found * 1e6:.0f} us on {d.machine.part}, apart {without * 1e6:.0f} us",
                      "nothing to change: smaller parts of it are tried")


def far_slower(d: Draft, fused: Fused, priced: Callable[[Fused], float | NotFusable]) -> NotFusable | None:
    """Why a region of reductions alone is cut: its kernel has few blocks, say, of which each walks the whole of a tensor. Asked
    where there are fewer rows than multiprocessors, and much to reduce."""
    counts = [elements(d, i.axes) * d.extents[i.over] for i in (*d.rows, *d.inner)]
    if elements(d, d.p_axes) >= d.machine.sms or max(counts) < MANY:
        return None
    moved = sum(2.0 * n * BYTES.get(i.node.dtype, 8) for n, i in zip(counts, (*d.rows, *d.inner), strict=True))
    without = passes(d.machine, moved + sum(s.node.bytes for s in d.sinks), len(d.rows) + 1)
    found = priced(fused)
    if not isinstance(found, float) or found <= MUCH * max(without, LATENCY):
        return None
    return NotFusable("RF305", "", "one kernel is faster than one for each of its reductions, which torch writes the row of",
                      f"modelled {found * 1e6:.0f} us on {d.machine.part}, apart {without * 1e6:.0f} us",
                      "nothing to change: smaller parts of it are tried")


def _result(d: Draft, i: Instance) -> float:
    return float(elements(d, i.axes) * BYTES[i.node.dtype])


def _made(d: Draft, i: Instance) -> float:
    """Bytes of the largest operand that the region makes of a product over the row: written, where a library multiplies."""
    made = [n for n, _ in i.body.sites if n not in d.external]
    return float(max((prod(n.shape) for n in made), default=0) * min((BYTES[n.dtype] for n in made), default=0))


def _product(d: Draft, i: Instance) -> float:
    """As the program has it: of float32 numbers where it multiplies those, were they halves before or not. No product is done
    before it has walked its depth."""
    m, flops, moved = d.machine, 2.0 * elements(d, i.axes) * d.extents[i.over], operand_bytes(d, i) + _result(d, i)
    walked = ceil(d.extents[i.over] / m.step) * m.waits * m.latency / m.ahead
    *several, rows, columns = 1, 1, *i.node.shape
    made = on_cores(m, flops, moved, turns(m, prod(several), rows, columns, d.extents[i.over])) if _whole(i) else \
        library(m, flops, moved)
    return max(made, walked) + m.kernel


def _whole(i: Instance) -> bool:
    """Does the program multiply float32 numbers?"""
    return i.node.unit is not None and all(n.dtype == "f32" for n in i.node.unit.args)
