"""Values that a comparison finds equal because both sides chose the same one: they are computed once.

    s = sigmoid(x); m = s.amax(-1, keepdim=True); where(s == m, a, b)

A maximum is one of the elements, so that some element of every row is equal to it, as long as both are the same number.
Computed by torch for the maximum and anew for the comparison, their last bits differ where functions are approximated, or
products and sums rounded together, and no element is equal any more. Whoever reads such a value reads what was written.
"""

from __future__ import annotations

from collections.abc import Iterator

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.expr import COMPARISONS, FLOATS, Cast, Const, Expr, Load, Op, walk
from redfuser.partition.graph import Graph, Node, Unit

CHOOSING = frozenset({"max", "min", "topk"})
"""Reductions whose results are elements."""
EXACT = frozenset({"min", "max", "neg", "abs", "select"})
"""Operations on floats that every device agrees on, whatever they are fused with."""
ROUNDED = frozenset({"add", "sub", "mul"})
"""Those on which they agree where nothing is fused with them; on divisions by numbers as well."""
MANY = 32
"""Tensors that one is chosen from; one of more counts as computed."""


def decided(graph: Graph) -> frozenset[Node]:
    """Tensors of which both sides of some comparison may have the same element, and which are not the same number however they
    are computed."""
    sources: dict[Node, frozenset[Node]] = {}
    exact: set[Node] = set()
    found: set[Node] = set()
    for u in graph.units:
        for n in u.nodes:
            behind = list(_elements(n.stmt.expr, u)) if n.stmt is not None and not u.gap and chooses(n) else []
            chosen = frozenset().union(*(sources.get(m, frozenset({m})) for m in behind))
            sources[n] = chosen if 0 < len(chosen) <= MANY else frozenset({n})
            if n.stmt is None or u.gap or isinstance(n.stmt, Reduce) or _agreed(n.stmt.expr, u, exact):
                exact.add(n)
            for x in walk(n.stmt.expr) if n.stmt is not None and not u.gap else ():
                if isinstance(x, Op) and x.name in COMPARISONS and x.args[0].dtype in FLOATS:
                    one, other = (frozenset().union(*(sources.get(m, frozenset({m})) for m in _elements(a, u))) for a in x.args)
                    found |= one & other
    return frozenset(n for n in found - exact if n.unit is not None)


def chooses(n: Node) -> bool:
    """Are its elements some of what it reads?"""
    return not isinstance(n.stmt, Reduce) or n.stmt.reducer.kind in CHOOSING


def _elements(e: Expr, u: Unit) -> Iterator[Node]:
    """Tensors of which a value may be an element, or one's negative."""
    match e:
        case Load(tensor=t) if t in u.buffers:
            yield u.buffers[t]
        case Cast(arg=x, dtype=d) if d in FLOATS and x.dtype in FLOATS:
            yield from _elements(x, u)
        case Op(name="select", args=(_, *args)) | Op(name="min" | "max" | "neg" | "abs", args=args):
            for x in args:
                yield from _elements(x, u)


def _agreed(e: Expr, u: Unit, exact: set[Node]) -> bool:
    """Is it the same number whoever computes it?"""
    rounded = [x for x in walk(e) if isinstance(x, Op) and x.dtype in FLOATS and x.name not in EXACT]
    read = {u.buffers[x.tensor] for x in walk(e) if isinstance(x, Load) and x.tensor in u.buffers}
    return all(n in exact or n.unit is None for n in read) and (not rounded or (
        len(rounded) == 1 and _plain(rounded[0]) and all(n.unit is None or n.unit.gap for n in read)))


def _plain(x: Op) -> bool:
    return x.name in ROUNDED or (x.name == "div" and isinstance(x.args[1], Const))
