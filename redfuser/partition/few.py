"""A sum of few that lie across memory is written out: its neighbours are other sums, and what makes its terms need not be
written. What some experts made of tokens::

    y[t, d] = sum[e] z[t, e, d] * w[t, e]   ->   y[t, d] = z[t, 0, d] * w[t, 0] + z[t, 1, d] * w[t, 1] + ...

So is one of what is nowhere stored, pairs of coordinates, where several read it or a row of it is reduced: each has it anew,
and nobody writes it::

    d[i, j] = sum[c] (a[i, c] - b[j, c])^2,  min[i] d[i, j],  min[j] d[i, j];  sum[j] exp(-d[i, j])

So are products of many small matrices, for which a library starts a tile of its own each (streams that are mixed, points that
are turned): a sum of few for each result, of what lies beside it.

So are sums of few neighbours, of the windows of a sequence that nobody writes: a short convolution of each channel, of a tensor
that is read where its windows lie.

And so is a sum of two to four coordinates, however few there are of them, whose maps another reduction reads and nobody
widens: a kernel of boxes and a mean of what they make are one.

A product of few is always written out: no kernel multiplies along a row. And so is a running sum of few elements, of which a
kernel of scans keeps a tile of 32 (the knots of a spline)::

    t[i, l] = sum[..l] x[i, l]   ->   t[i, l] = x[i, 0] + (x[i, 1] if 1 <= l else 0) + ...

One that is part of more, a softmax or a norm across memory, stays a reduction: its row is read once for all of them.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from redfuser.acrf.cascade import Axis, Let, Reduce, Tensor
from redfuser.acrf.expr import FLOATS, Const, Expr, Index, Load, Op, indices_of, substitute, walk
from redfuser.acrf.lift import Lifted
from redfuser.partition.epilogue import contracts
from redfuser.partition.graph import Graph, Node, Unit
from redfuser.partition.legalise import spelled

FEW, LARGE = 8, 1 << 20
"""Elements of a sum that is written out, at most, and of what it is a sum of, at least."""
COORDINATES = 4
"""Elements of a sum that is written out whatever its size, at most: chosen."""
BATCH = 256
"""Matrices that are many: chosen; 4096 and 65536 of them were measured (decision 0043)."""


def write_out(graph: Graph) -> None:
    """Put expressions in the place of running sums of few, and of the sums of few that no other reduction has a row in common
    with."""
    for u in graph.units:
        if u.scan is not None and u.extents[u.scan.over] <= FEW and prod(u.extents.values()) >= LARGE:
            write_scan(u, u.scan)
    for u in graph.units:
        if (s := single(u)) is not None and s.reducer.kind == "prod" and s.dtype in FLOATS and u.extents[s.over] <= FEW:
            spell(u, s)
        if s is not None and coordinates(u, s):
            spell(u, s)
    rows = {u: rows_of(u) for u in graph.units if u.reducing and any(large(n) for n in u.nodes)}
    for u in [u for u in rows if few(u)]:
        s = single(u)
        if s is not None and not any(rows[u] & other for r, other in rows.items()
                                     if r is not u and u.extents[s.over] in lengths(r)):
            spell(u, s)


def spell(u: Unit, s: Reduce) -> None:
    made = spelled(s, u.extents[s.over])
    assert u.lifted is not None
    u.lifted = replace(u.lifted, stmts=tuple(made if x is s else x for x in u.lifted.stmts))
    for n in u.nodes:
        n.stmt = made if n.stmt is s else n.stmt


def single(u: Unit) -> Reduce | None:
    """The only reduction of a unit."""
    found = [n.stmt for n in u.nodes if isinstance(n.stmt, Reduce)] if not u.gap else []
    return found[0] if len(found) == 1 else None


def write_scan(u: Unit, s: Reduce) -> None:
    """Each result of its own elements, in turn, as the scan takes them."""
    kind, neutral = ("add", 0) if s.reducer.kind == "sum" else ("mul", 1)
    none = Const(float(neutral) if s.dtype in FLOATS else neutral, s.dtype)
    terms = [substitute(s.expr, indices={s.over: Const(k, "i64")}) for k in range(u.extents[s.over])]
    total: Expr = terms[0]
    for k, term in enumerate(terms[1:], 1):
        reached = Op("le", (Const(k, "i64"), Index(s.over)), "bool")
        total = Op(kind, (total, Op("select", (reached, term, none), s.dtype)), s.dtype)
    (node,) = u.nodes
    x = u.buffers["@0"]
    node.stmt = Let("out", s.axes, total)
    axes = tuple(Axis(a, n) for a, n in u.extents.items())
    u.lifted = Lifted((Tensor("@0", x.dtype, x.shape),), axes, (node.stmt,), ("out",))
    u.scan, u.gap = None, ""


def few(u: Unit) -> bool:
    """Does it reduce once, and that a large tensor to sums of few elements, of which it is one or the other kind?"""
    s = single(u)
    if s is None:
        return False
    across = isinstance(s.expr, Load) and bool(s.axes) and s.expr.indices[-1] == Index(s.axes[-1])
    return s.reducer.kind == "sum" and s.dtype in FLOATS and u.extents[s.over] <= FEW and all(
        large(n) for n in u.nodes if n.stmt is s) and (
            across or (paired(u) and (len(u.consumers) > 1 or reduced_again(u))) or batched(u, s) or slides(u, s))


def coordinates(u: Unit, s: Reduce) -> bool:
    """Is it a sum of few coordinates of a small tensor, of which another reduction makes something, and no map a row again? Not
    of what is about a mean: it is the mean's cascade."""
    sums = s.reducer.kind == "sum" and s.dtype in FLOATS and u.extents[s.over] <= COORDINATES and not contracts(u)
    size = max(prod(n.shape) for n in u.results)
    given = not any(large(n) for n in u.nodes) and not any(n.unit is not None and n.unit.reducing for n in behind(u))
    return sums and given and reduced_again(u) and all(
        c.reducing or max(prod(n.shape) for n in c.results) <= size for c in following(u))


def reduced_again(u: Unit) -> bool:
    """Are its sums, which no library makes, reduced behind maps? There they are elements of a row that nobody writes."""
    return not contracts(u) and any(c.reducing for c in following(u))


def batched(u: Unit, s: Reduce) -> bool:
    """Is it many products of small matrices, and no row of another reduction?"""
    if not contracts(u):
        return False
    loads = [x for x in walk(s.expr) if isinstance(x, Load)]
    each = set(s.axes).intersection(*(frozenset().union(*map(indices_of, x.indices)) for x in loads))
    return prod(u.extents[a] for a in each) >= BATCH and not any(c.reducing for c in following(u))


def slides(u: Unit, s: Reduce) -> bool:
    """Are its terms windows of large tensors, one for each element: is nothing that they are maps of larger than the sums?"""
    found = [n for n in behind(u) if n.unit is None or not n.unit.pointwise]
    most = prod(u.extents[a] for a in s.axes)
    return not contracts(u) and any(prod(n.shape) >= LARGE for n in found) and all(prod(n.shape) <= most for n in found)


def following(u: Unit) -> set[Unit]:
    """What reads it, behind maps."""
    todo, seen = list(u.consumers), set[Unit]()
    while todo:
        c = todo.pop()
        if c not in seen:
            seen.add(c)
            todo += c.consumers if c.pointwise else ()
    return seen


def paired(u: Unit) -> bool:
    """Are its terms maps of tensors that are all smaller than they are many, whatever made these?"""
    return all(prod(n.shape) < LARGE for n in behind(u) if n.unit is None or not n.unit.pointwise)


def behind(u: Unit) -> set[Node]:
    """What a unit reads, and what that is a map of, with all in between."""
    todo, seen = list(u.args), set[Node]()
    while todo:
        n = todo.pop()
        if n not in seen:
            seen.add(n)
            todo += n.unit.args if n.unit is not None and n.unit.pointwise else ()
    return seen


def lengths(u: Unit) -> set[int]:
    """Of the rows that it reduces."""
    return {u.extents[n.stmt.over] for n in u.nodes if isinstance(n.stmt, Reduce)}


def large(n: Node) -> bool:
    s, u = n.stmt, n.unit
    return isinstance(s, Reduce) and u is not None and prod(u.extents[a] for a in (*s.axes, s.over)) >= LARGE


def rows_of(u: Unit) -> set[Node]:
    """The large tensors that it reduces, and those they are maps of, with the results of reductions of as many elements."""
    own: set[Node] = set(u.results) if any(large(n) for n in u.nodes) else set()
    return own | {n for n in behind(u) if prod(n.shape) >= LARGE or (
        n.unit is not None and n.unit.reducing and any(large(x) for x in n.unit.nodes))}
