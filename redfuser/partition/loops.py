"""The steps of a loop that was unrolled: cascades of one model that differ in nothing but numbers.

    o[i] = sum[l] k[3, l] * s[l, i]                         o[i] = sum[l] x[l] * s[l, i]     x = k[3]
    o[i] = sum[l] k[4, l] * s[l, i]         -->             the same                         x = k[4]

Where several differ in the places alone that they read, they read slices, which torch makes, and are one cascade with one
kernel. What still differs by equal distances (lengths that grow by one) is a loop whose every step would be judged and built by
itself: it is left to torch, and the report says so (RF308).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from redfuser.acrf.affine import Indices
from redfuser.acrf.cascade import Let
from redfuser.acrf.expr import Const, Expr, Index, Load, map_children
from redfuser.acrf.index import i64
from redfuser.acrf.state import NotFusable
from redfuser.partition.graph import Graph, Node

ALIKE = 3
"""Distinct cascades that differ in numbers only, up to which they are left as they are."""
STEPS = 8
"""Likewise at equal distances, up to which they are kernels of their own."""
DEPTH = 4
"""Views of a tensor, one behind the other, among which its slices are looked for."""
LEFT = NotFusable("RF308", "", "a loop was unrolled", "its steps are cascades that differ in lengths or places",
                    "a loop that was unrolled is better compiled as one step")
"""Why its steps have no kernels."""
_NUMBER = re.compile(r"(?<![A-Za-z_\d.])\d+")
Fixed = dict[int, int]
"""Dimensions that are read at one place, and where."""


def template(key: str) -> str:
    """A cascade's canonical text without its numbers."""
    return _NUMBER.sub("#", key)


def alike(keys: Iterable[str]) -> frozenset[str]:
    """Templates of which there are more than ``ALIKE``."""
    return frozenset(t for t, some in _grouped(keys).items() if len(some) > ALIKE)


def unrolled(keys: Iterable[str]) -> frozenset[str]:
    """Templates of which more than ``STEPS`` have some number at equal distances."""
    found = set()
    for t, some in _grouped(keys).items():
        if len(some) > STEPS:
            columns = zip(*(map(int, _NUMBER.findall(key)) for key in some), strict=True)
            if any(_run(sorted(set(column))) > STEPS for column in columns):
                found.add(t)
    return frozenset(found)


def _grouped(keys: Iterable[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for key in dict.fromkeys(keys):
        groups[template(key)].append(key)
    return groups


def _run(numbers: Sequence[int]) -> int:
    """The longest stretch of equal distances."""
    best = length = min(1, len(numbers))
    for k in range(1, len(numbers)):
        length = length + 1 if k > 1 and numbers[k] - numbers[k - 1] == numbers[k - 1] - numbers[k - 2] else 2
        best = max(best, length)
    return best


class Slices:
    """The slices of tensors that a program makes: views of them at one place of some dimensions, whole in the others."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.known: dict[Node, list[tuple[Fixed, Node, tuple[int | None, ...]]]] = {}

    def of(self, base: Node) -> list[tuple[Fixed, Node, tuple[int | None, ...]]]:
        """Where it is taken, the slice, and for each of its dimensions which of the tensor's it is (None: of extent 1). Those
        that fix most come first."""
        if base not in self.known:
            found = []
            todo: list[tuple[Node, tuple[Expr, ...], int]] = [(base, tuple(Index(str(d)) for d in range(len(base.shape))), 0)]
            while todo:
                node, at, depth = todo.pop()
                if node is not base and (got := _slice(base, node, at)) is not None:
                    found.append((got[0], node, got[1]))
                if depth < DEPTH:
                    todo += [(n, through, depth + 1) for n, through in self.views(node, at)]
            self.known[base] = sorted(found, key=lambda x: (-len(x[0]), x[1].key))
        return self.known[base]

    def views(self, node: Node, at: tuple[Expr, ...]) -> Iterable[tuple[Node, tuple[Expr, ...]]]:
        """Views that the program makes of a tensor, with what of its base (``at``) each of their elements is."""
        for u in self.graph.readers(node):
            for n in u.results if u.is_view and not u.gap else ():
                if isinstance(n.stmt, Let) and isinstance(e := n.stmt.expr, Load) and n.dtype == node.dtype and \
                        u.buffers.get(e.tensor) is node:
                    names = {a: Index(str(d)) for d, a in enumerate(n.stmt.axes)}
                    here = {str(d): _put(i, names) for d, i in enumerate(e.indices)}
                    yield n, tuple(_put(i, here) for i in at)

    def load(self, base: Node, indices: tuple[Expr, ...]) -> tuple[Node, tuple[Expr, ...]] | None:
        """An element of a tensor as one of a slice of it; None where the program makes no slice that has it."""
        at = {d: int(i.value) for d, i in enumerate(indices) if isinstance(i, Const) and base.shape[d] > 1}
        for fixed, node, dims in self.of(base) if at else ():
            if fixed.items() <= at.items():
                return node, tuple(i64(0) if d is None else indices[d] for d in dims)
        return None

    def read(self, e: Expr, loads: dict[str, Node]) -> Expr:
        """An expression with slices in their tensors' stead, in positions that data say too; ``loads`` (the tensors by name)
        gets them."""
        got = map_children(e, lambda x: self.read(x, loads))
        if isinstance(got, Load) and (part := self.load(loads[got.tensor], got.indices)) is not None:
            loads[part[0].name] = part[0]
            got = replace(got, tensor=part[0].name, indices=part[1])
        return got


def _slice(base: Node, node: Node, at: tuple[Expr, ...]) -> tuple[Fixed, tuple[int | None, ...]] | None:
    ix = Indices({str(d): n for d, n in enumerate(node.shape)})
    fixed: Fixed = {}
    dims: dict[int, int] = {}
    for d, (i, extent) in enumerate(zip(at, base.shape, strict=True)):
        p = ix.linear(i)
        if not p.terms:
            fixed |= {d: p.constant} if extent > 1 else {}
            continue
        axis = next(iter(p.axes), None)
        if axis is None or p.terms != ((Index(axis), 1),) or p.constant or node.shape[int(axis)] != extent or int(axis) in dims:
            return None
        dims[int(axis)] = d
    whole = [k for k, n in enumerate(node.shape) if n > 1]
    if not fixed or sorted(dims) != whole:
        return None
    return fixed, tuple(dims.get(k) for k in range(len(node.shape)))


def _put(e: Expr, at: Mapping[str, Expr]) -> Expr:
    return at.get(e.axis, e) if isinstance(e, Index) else map_children(e, partial(_put, at=at))
