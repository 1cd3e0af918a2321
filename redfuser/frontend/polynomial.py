"""A step of a loop over the rows of a matrix, as a polynomial of it, and what it is proved to make.

Two polynomials that agree at a random point of many are equal (Schwartz and Zippel), so that a step is computed at points of
integers, where all arithmetic is exact, and compared with the row that it has to make (:mod:`redfuser.frontend.substitution`).
Its own constants are small integers for that reason: 1e-9 more is nothing beside a sum of products of 2^18.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from redfuser.frontend.static import Statics

NODES = 64
"""Operators of a step, at most."""
SIZE = 1 << 25
"""Elements of a matrix with its batch, up to which a step is computed to be compared: a quarter of a second each."""
WORK = 1 << 32
"""Elements of such matrices in all: 128 steps of the largest."""
POINTS = {1: (1, 1 << 18), 2: (1, 1 << 18), 3: (2, 1 << 12), 4: (3, 1 << 9)}
"""By the degree of a step, at how many points it is compared, and how large the integers are that they are of: sums of ``ROWS``
terms of them, times a constant, are below 2^53, and so exact in float64. A polynomial of degree d that is not 0 is 0 at a point
of integers up to n with a probability of d / (2 n + 1) at most: 4e-6 for products of two."""
ROWS, CONSTANT = 1 << 12, 16
"""Rows of a matrix, and a constant of a step, at most."""
LINEAR = frozenset(f"aten.{n}" for n in (
    "select.int", "slice.Tensor", "clone.default", "alias.default", "unsqueeze.default", "squeeze.dim", "squeeze.dims",
    "view.default", "_unsafe_view.default", "reshape.default", "expand.default", "permute.default", "transpose.int",
    "mT.default", "neg.default", "sum.dim_IntList", "add.Tensor", "sub.Tensor", "copy.default", "cat.default", "where.self",
    "select_scatter.default", "slice_scatter.default", "constant_pad_nd.default"))
PRODUCTS = frozenset(f"aten.{n}" for n in ("mul.Tensor", "mm.default", "bmm.default", "mv.default", "matmul.default"))
ARITHMETIC = PRODUCTS | {"aten.add.Tensor", "aten.sub.Tensor"}
Form = Callable[[torch.Tensor, int], torch.Tensor]
"""Row ``i`` of a matrix after its step, of the matrix before it."""
FORMS: dict[str, Form] = {
    "to the diagonal": lambda x, i: torch.cat((x[..., i, :i] + _times(x[..., i, :i], x[..., :i, :i]), x[..., i, i:]), -1),
    "every row to the diagonal": lambda x, i: torch.cat((x[..., i, :i] + _times(x[..., i, :], x[..., :i]), x[..., i, i:]), -1),
    "whole rows": lambda x, i: x[..., i, :] + _times(x[..., i, :i], x[..., :i, :])}


def _times(row: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    return (row.unsqueeze(-2) @ matrix).squeeze(-2)


@dataclass(frozen=True, slots=True)
class Step:
    """From one matrix to the next, by operators that read nothing else."""

    before: fx.Node
    after: fx.Node
    nodes: tuple[fx.Node, ...]
    degree: int

    def at(self, x: torch.Tensor, statics: Statics) -> torch.Tensor:
        env: dict[fx.Node, Any] = {self.before: x}

        def value(n: fx.Node) -> Any:
            return env[n] if n in env else statics[n]

        for node in self.nodes:
            target: Any = node.target
            env[node] = target(*fx.node.map_arg(node.args, value), **fx.node.map_arg(node.kwargs, value))
        result: torch.Tensor = env[self.after]
        return result

    def text(self, statics: Statics) -> str:
        """What it computes, but for the names of its nodes."""
        names = {n: f"%{k}" for k, n in enumerate((self.before, *self.nodes))}

        def named(a: Any) -> Any:
            return fx.node.map_arg(a, lambda n: names.get(n) or hashlib.sha256(repr(statics[n].tolist()).encode()).hexdigest())

        shape = tuple(self.before.meta["val"].shape)
        return f"{shape}:" + ";".join(f"{n.target}{named(n.args)}{named(n.kwargs)}" for n in self.nodes)


class Proofs:
    """What steps have been found to be; those of a model's layers have the same texts."""

    def __init__(self, statics: Statics) -> None:
        self.statics = statics
        self.known: dict[tuple[str, str, int], bool] = {}
        self.drawn: dict[tuple[tuple[int, ...], int], list[torch.Tensor]] = {}
        self.left = WORK

    def holds(self, step: Step, form: str, i: int) -> bool:
        """Does the step make row ``i`` as the form says, and nothing else? A form that is none of ``FORMS`` makes nothing."""
        key = (step.text(self.statics), form, i)
        if key not in self.known:
            shape = tuple(step.before.meta["val"].shape)
            self.left -= prod(shape)
            self.known[key] = self.left > 0 and all(self.agrees(step, form, i, x) for x in self.points(shape, step.degree))
        return self.known[key]

    def points(self, shape: tuple[int, ...], degree: int) -> list[torch.Tensor]:
        if (shape, degree) not in self.drawn:
            count, most = POINTS[degree]
            draw = torch.Generator("cpu").manual_seed(degree)
            some = [torch.randint(-most, most + 1, shape, generator=draw, device="cpu").double() for _ in range(count)]
            self.drawn = {(shape, degree): some}  # one at a time is enough of what may be large
        return self.drawn[shape, degree]

    def agrees(self, step: Step, form: str, i: int, x: torch.Tensor) -> bool:
        with torch.no_grad():
            found = step.at(x, self.statics).double()
            if found.shape != x.shape:
                return False
            if form in FORMS:
                if not torch.equal(found[..., i, :], FORMS[form](x, i)):
                    return False
                found = found.clone() if found.data_ptr() == x.data_ptr() else found
                found[..., i, :] = x[..., i, :]
            return torch.equal(found, x)


def between(before: fx.Node, after: fx.Node, statics: Statics) -> Step | None:
    """The step from one node to the other, where its operators are polynomials of it alone; None otherwise."""
    found: set[fx.Node] = set()
    todo = [after]
    while todo:
        node = todo.pop()
        if node is before or node in statics or node in found:
            continue
        name = str(node.target)
        if node.op != "call_function" or name not in LINEAR | PRODUCTS or len(found) == NODES:
            return None
        if (name == "aten.where.self" and node.args[0] not in statics) or not _whole(node, statics):
            return None
        found.add(node)
        todo += node.all_input_nodes
    order = list(itertools.takewhile(lambda n: n is not after, _following(before)))
    nodes = (*(n for n in order if n in found), after)
    degrees: dict[fx.Node, int] = {before: 1}
    for node in nodes:
        of = [degrees.get(n, 0) for n in node.all_input_nodes]
        if str(node.target) in PRODUCTS:
            of = [sum(degrees.get(a, 0) for a in node.args if isinstance(a, fx.Node))]
        degrees[node] = max(of, default=0)
    whole = len(nodes) == len(found) and degrees[after] in POINTS
    return Step(before, after, nodes, degrees[after]) if whole else None


def _whole(node: fx.Node, statics: Statics) -> bool:
    """Are the operator's constants small integers? Those of other operators than sums and products that are integers are
    axes, places and extents."""
    numbers = [a for a in tree_leaves((node.args, node.kwargs)) if isinstance(a, float) or (
        str(node.target) in ARITHMETIC and isinstance(a, int))]
    tensors = [statics[n] for n in node.all_input_nodes if n in statics]
    return all(float(a).is_integer() and abs(a) <= CONSTANT for a in numbers) and all(
        t.dtype == torch.bool or bool(((t == t.trunc()) & (t.abs() <= CONSTANT)).all()) for t in tensors)


def _following(node: fx.Node) -> Iterator[fx.Node]:
    while node.op != "root":
        node = node.next
        yield node
