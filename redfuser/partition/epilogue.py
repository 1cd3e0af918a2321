"""Maps beside a product: which of them a library applies to its own result at no cost, and which are the end of a cascade."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from redfuser.acrf.affine import axes_of
from redfuser.acrf.cascade import Reduce
from redfuser.acrf.expr import BYTES, Cast, Expr, Load, Op, walk
from redfuser.partition.graph import Node, Unit
from redfuser.partition.work import REGION


def contracts(u: Unit) -> bool:
    """A sum of products of two tensors, one of which lacks an axis of the result or of the sum: the library's work."""
    return any(_contracts(n) for n in u.nodes)


def _contracts(n: Node) -> bool:
    if not (isinstance(n.stmt, Reduce) and n.stmt.reducer.kind == "sum"):
        return False
    scope = {*n.stmt.axes, n.stmt.over}
    reads = [{a for x in walk(f) if isinstance(x, Load) for i in x.indices for a in axes_of(i)} for f in _factors(n.stmt.expr)]
    data = [r for r in reads if r]
    return len(data) > 1 and any(scope - r for r in data)


def _factors(e: Expr) -> list[Expr]:
    if isinstance(e, Cast):
        return _factors(e.arg)
    if isinstance(e, Op) and e.name == "mul":
        return [f for a in e.args for f in _factors(a)]
    return [e]


def shortens(c: Unit, units: Iterable[Unit]) -> bool:
    """Would ``c`` be one more product before others, and is what it reads more than what it makes? A softmax's weights before a
    projection of one head: what makes them is to leave them on chip. Weights that are made of a product's scores count twice,
    once for these."""
    apart = contracts(c) and all(contracts(u) for u in units if u.reducing)
    return apart and any(n.bytes > u.bytes or (
        2 * prod(n.shape) > prod(u.shape) and scored(n)) for n in c.args if not n.weight for u in c.results)


def scored(n: Node) -> bool:
    """Is it made, through maps, of a row that a product makes and that is reduced on the way, and does nothing else read what
    is as large between?"""
    inside: set[Unit] = set()
    products: set[Unit] = set()
    todo = [n.unit]
    while todo and len(inside) < REGION:
        u = todo.pop()
        if u is None or u in inside or u.gap:
            continue
        (products if contracts(u) else inside).add(u)
        todo += () if contracts(u) else u.producers
    large = [u for u in inside | products if u is not n.unit and any(prod(m.shape) == prod(n.shape) for m in u.results)]
    alone = all(c in inside for u in large for c in u.consumers) and not any(m.escapes for u in large for m in u.results)
    return alone and not products.isdisjoint(large) and any(u.reducing for u in inside)


def convolves(u: Unit) -> bool:
    """A sum of products over windows: elements of one tensor are read at sums of positions."""
    return any(isinstance(n.stmt, Reduce) and _contracts(n) and any(len(axes_of(i)) > 1 for x in walk(n.stmt.expr)
                                                                   if isinstance(x, Load) for i in x.indices) for n in u.nodes)


def bare(u: Unit) -> bool:
    """A product that a library makes faster without a bias: a convolution's is added in a kernel of its own, and for one in
    float32 cuBLAS takes another kernel (decision 0020: up to twice the time on an H200)."""
    return convolves(u) or (contracts(u) and all(n.dtype == "f32" for n in (*u.args, *u.results)))


def in_the_call(u: Unit) -> bool:
    """Is it a bias or a rounding of the operation that makes the product before it, which one call of a library has whole?"""
    before = [p for p in u.producers if u.provenance.op and p.provenance is u.provenance]
    return any((contracts(p) and not convolves(p)) or in_the_call(p) for p in before)


def statistic(n: Node) -> bool:
    """Is it made, through maps, of a reduction's result that is no product?"""
    seen: set[Unit] = set()
    todo = [n.unit]
    while todo and len(seen) < REGION:
        u = todo.pop()
        if u is None or u in seen:
            continue
        seen.add(u)
        if u.reducing and not contracts(u):
            return True
        todo += u.producers if u.pointwise else ()
    return False


def rounds(u: Unit) -> bool:
    """Is it one conversion?"""
    return len(u.nodes) == 1 and u.nodes[0].stmt is not None and isinstance(u.nodes[0].stmt.expr, Cast)


def scales_rows(u: Unit) -> bool:
    """Is it ``x * r`` or ``x / r`` with one number for each row?"""
    e = u.nodes[0].stmt.expr if len(u.nodes) == 1 and u.nodes[0].stmt is not None else None
    if not (isinstance(e, Op) and e.name in ("mul", "div") and all(isinstance(x, Load) for x in e.args)):
        return False
    axes = u.nodes[0].stmt.axes if u.nodes[0].stmt is not None else ()
    reads = [{a for i in x.indices for a in axes_of(i)} for x in e.args if isinstance(x, Load)]
    ways = [reads, reads[::-1]] if e.name == "mul" else [reads]
    return any(whole == set(axes) and some and axes[-1] not in some for whole, some in ways)


def scaled_rows(n: Node) -> list[Unit]:
    """The maps that make ``n`` of a tensor whose rows are scaled: the scale, and roundings behind it. Empty where it is made
    otherwise."""
    found: list[Unit] = []
    while n.unit is not None and n.unit.pointwise and len(n.unit.nodes) == 1:
        u = n.unit
        if scales_rows(u):
            return [*found, u]
        if not rounds(u):
            break
        found.append(u)
        n = u.args[0]
    return []


def adds_vector(u: Unit) -> bool:
    """Is it one sum of two tensors, of which one has a single axis?"""
    e = u.nodes[0].stmt.expr if len(u.nodes) == 1 and u.nodes[0].stmt is not None else None
    plain = isinstance(e, Op) and e.name == "add" and all(isinstance(x, Load) for x in e.args) and len(u.args) == 2
    return plain and any(sum(k > 1 for k in n.shape) <= 1 for n in u.args)


def moves(u: Unit) -> bool:
    """A rearranged read of one tensor, a view of torch's. A choice between tensors by position is none."""
    return u.pointwise and not u.gathers and bool(u.nodes) and all(
        isinstance(n.stmt.expr, Load) for n in u.nodes if n.stmt is not None)


def launches(u: Unit) -> bool:
    """Does torch start a kernel for it?"""
    return u.pointwise and u.has_data and not moves(u)


def absorbed(u: Unit) -> bool:
    """Is it a library's part of its own product or reduction: the bias and what widens it, the rounding of the sum, what widens
    what is summed?"""
    if widens_inside(u):
        return True
    if rounds(u) and u.consumers and all(adds_bias(c) and made_of(c) is not u for c in u.consumers):
        return True
    m = made_of(u)
    if m is None:
        return False
    return (rounds(u) and (m.reducing or bool(m.gap) or adds_bias(m))) or adds_bias(u)


def widens_inside(u: Unit) -> bool:
    """Does torch widen these halves inside its reduction, whose result it rounds to such again?"""
    sums = [c for c in u.consumers if c.reducing and not contracts(c)]
    return rounds(u) and bool(sums) and sums == u.consumers and all(c.consumers and all(
        rounds(r) and r.results[0].dtype == u.args[0].dtype for r in c.consumers) for c in sums)


def adds_bias(u: Unit) -> bool:
    """A product and a vector that the library adds at no cost."""
    m = made_of(u)
    return m is not None and (bool(m.gap and not m.symbol) or contracts(m)) and not bare(m) and adds_vector(u)


def made_of(u: Unit) -> Unit | None:
    """What makes the only operand that is as large as the result."""
    full = [n.unit for n in u.args if n.shape == u.results[0].shape]
    return full[0] if len(full) == 1 else None


def accumulated(n: Node) -> bool:
    """Is it wider than what was multiplied for it: a sum that a library keeps to itself?"""
    u = n.unit
    while u is not None and u.pointwise and adds_bias(u):
        u = made_of(u)
    return u is not None and u.reducing and contracts(u) and any(BYTES.get(a.dtype, 8) < BYTES.get(n.dtype, 8) for a in u.args)
