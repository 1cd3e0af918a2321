"""A loop that substitutes forward, row by row of a matrix, is one triangular solve::

    for i in range(1, n):                                             L = tril(A, -1)
        A[..., i, :i] += (A[..., i, :i, None] * A[..., :i, :i]).sum(-2)     -->   X = solve(I - L, A)

Delta rules in chunks are written so (2412.06464). Unrolled, a step is a reduction over rows that earlier steps made, and a copy
of the whole matrix to put a row into: kernels for each of 63 steps, of which none has work for a device. Row ``i`` of the
result is ``A[i] + sum[k < i] L[i, k] X[k]``, as ``(I - L) X = A`` says; what a loop leaves as it was, on the diagonal and
above, is taken out of the sum first (:meth:`_Loop.solved`).

That a step is such a row is not read off its operators. It is a polynomial of the matrix, since all that it is made of adds,
multiplies and moves, and two polynomials that agree at a random point of many are equal (Schwartz and Zippel): the step is
computed in exact arithmetic at points of integers, and compared with what it has to be.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from redfuser.frontend.static import Statics
from redfuser.users import quiet

aten = torch.ops.aten
STEPS = 4
"""Rows from which a loop is worth a solve: of fewer, its steps are in one kernel."""
NODES = 64
"""Operators of a step, at most."""
SIZE = 1 << 24
"""Elements of a matrix with its batch, up to which a step is computed to be compared."""
POINTS, RANGE, DEGREE = 3, 512, 4
"""Points at which a step is compared, the integers that they are of, and the degree that all sums are exact to in float64.
A polynomial of that degree that is not 0 is 0 at one of them with a probability of 4 / 1025 at most."""
LINEAR = frozenset(f"aten.{n}" for n in (
    "select.int", "slice.Tensor", "clone.default", "alias.default", "unsqueeze.default", "squeeze.dim", "squeeze.dims",
    "view.default", "_unsafe_view.default", "reshape.default", "expand.default", "permute.default", "transpose.int",
    "mT.default", "neg.default", "sum.dim_IntList", "add.Tensor", "sub.Tensor", "copy.default", "cat.default", "where.self",
    "select_scatter.default", "slice_scatter.default", "constant_pad_nd.default"))
PRODUCTS = frozenset(f"aten.{n}" for n in ("mul.Tensor", "mm.default", "bmm.default", "mv.default", "matmul.default"))
WRITES = {"aten.where.self": (1, 2), "aten.select_scatter.default": (0,), "aten.slice_scatter.default": (0,)}
"""Operators that end a step, and where they may have the matrix that it begins with."""

Form = Callable[[torch.Tensor, int], torch.Tensor]
"""Row ``i`` of a matrix after its step, of the matrix before it."""
FORMS: dict[str, Form] = {
    "to the diagonal": lambda x, i: torch.cat((x[..., i, :i] + _times(x[..., i, :i], x[..., :i, :i]), x[..., i, i:]), -1),
    "every row to the diagonal": lambda x, i: torch.cat((x[..., i, :i] + _times(x[..., i, :], x[..., :i]), x[..., i, i:]), -1),
    "whole rows": lambda x, i: x[..., i, :] + _times(x[..., i, :i], x[..., :i, :])}


def _times(row: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    return (row.unsqueeze(-2) @ matrix).squeeze(-2)


def written_out(program: ExportedProgram) -> tuple[ExportedProgram, tuple[str, ...]]:
    """``program``, which torch made functional, with such loops as solves, and a note for each; itself where it has none."""
    if not any(_loops(program.graph)):
        return program, ()
    with quiet():
        module = copy.deepcopy(program.graph_module)
    notes = [loop.solved() for loop in _loops(module.graph)]
    module.graph.eliminate_dead_code()
    module.recompile()
    with quiet():
        changed: ExportedProgram = program._update(module, program.graph_signature)
    return changed, tuple(notes)


@dataclass(frozen=True, slots=True)
class _Step:
    """From one matrix to the next, by operators that read nothing else."""

    before: fx.Node
    after: fx.Node
    nodes: tuple[fx.Node, ...]

    def at(self, x: torch.Tensor, statics: Statics) -> torch.Tensor:
        env: dict[fx.Node, Any] = {self.before: x}
        for node in self.nodes:
            value = lambda n: env[n] if n in env else statics[n]  # noqa: E731
            env[node] = node.target(*fx.node.map_arg(node.args, value), **fx.node.map_arg(node.kwargs, value))  # type: ignore[operator]
        result: torch.Tensor = env[self.after]
        return result

    def text(self) -> str:
        """What it computes, but for the names of its nodes and which matrices they are."""
        names = {n: f"%{k}" for k, n in enumerate((self.before, *self.nodes))}
        named = lambda a: fx.node.map_arg(a, lambda n: names.get(n, n.name))  # noqa: E731
        return ";".join(f"{n.target}{named(n.args)}{named(n.kwargs)}" for n in self.nodes)


@dataclass(frozen=True, slots=True)
class _Loop:
    """Steps for rows 1 to n - 1, each of the ``form``."""

    steps: tuple[_Step, ...]
    form: str
    strict: bool  # nothing on the diagonal and above it

    def solved(self) -> str:
        """Put the solve in the place of what the last step made. With L below the diagonal of A and U what is left of it,
        row ``i`` of X is ``A[i] + sum[k < i] L[i, k] X[k]`` below the diagonal and A's from there on, so that
        ``(I - L) (X - U) = tril(A + L U, -1)``: what the loop adds of rows of U is known before it begins."""
        last = self.steps[-1].after
        a = self.steps[0].before
        made = _Made(last)
        lower = a if self.strict else made(aten.tril.default, a, -1)
        n = a.meta["val"].shape[-1]
        eye = made(aten.eye.default, n, dtype=a.meta["val"].dtype, device=a.meta["val"].device)
        unit = made(aten.sub.Tensor, eye, lower)
        right = a
        if not self.strict and self.form != "whole rows":
            upper = made(aten.triu.default, a)
            right = made(aten.add.Tensor, a, made(aten.matmul.default, lower, upper))
            if self.form == "every row to the diagonal":  # rows that no step has come to yet
                right = made(aten.add.Tensor, right, made(aten.matmul.default, upper, a))
            right = made(aten.tril.default, right, -1)
        x = made(aten.linalg_solve_triangular.default, unit, right, upper=False, unitriangular=True)
        if not self.strict and self.form != "whole rows":
            x = made(aten.add.Tensor, x, upper)
        last.replace_all_uses_with(x, delete_user_cb=lambda user: user not in made.nodes)
        if any(user.op == "output" for user in x.users):  # known by its name
            name, last.name = last.name, f"{last.name}_looped"
            x.name = name
        return f"{len(self.steps)} steps of a loop that substitutes forward are one triangular solve: {x.name}"


class _Made:
    """New nodes before one, each with its value's shape and the line that the one is of."""

    def __init__(self, place: fx.Node) -> None:
        self.place = place
        self.nodes: set[fx.Node] = set()

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with self.place.graph.inserting_before(self.place):
            made = self.place.graph.call_function(target, args, kwargs)
        with self.place.meta["val"].fake_mode:
            made.meta["val"] = target(*fx.node.map_arg(args, lambda n: n.meta["val"]), **kwargs)
        made.meta |= {k: self.place.meta[k] for k in ("stack_trace", "nn_module_stack") if k in self.place.meta}
        self.nodes.add(made)
        return made


def _loops(graph: fx.Graph) -> Iterator[_Loop]:
    """Loops in the order of their ends."""
    if not any(n.target in (aten.slice_scatter.default, aten.select_scatter.default, aten.where.self) for n in graph.nodes):
        return
    statics = Statics(graph, {})
    ends = {step.after: step for node in graph.nodes if (step := _step(node, statics)) is not None}
    begun = {step.before for step in ends.values()}
    known: dict[tuple[str, str, int], bool] = {}
    for node in [n for n in ends if n not in begun]:
        steps = [ends[node]]
        while (earlier := ends.get(steps[0].before)) is not None:
            steps.insert(0, earlier)
        size = node.meta["val"].shape[-1]
        taken = _joined(steps, statics, known)[1 - size:]
        if size <= STEPS or len(taken) != size - 1 or not _alone(taken):
            continue
        for form in FORMS:
            if all(_is(step, form, i, statics, known) for i, step in enumerate(taken, 1)):
                yield _Loop(tuple(taken), form, _strict(taken[0].before, statics))
                break


def _step(node: fx.Node, statics: Statics) -> _Step | None:
    """The step that ends in ``node``; None where it ends in none."""
    val = node.meta.get("val")
    places = WRITES.get(str(node.target))
    if places is None or node in statics or not isinstance(val, torch.Tensor) or val.dtype not in (
            torch.float32, torch.float64) or val.dim() < 2 or val.shape[-1] != val.shape[-2] or not all(
            isinstance(n, int) for n in val.shape) or val.numel() > SIZE:
        return None
    for place in places:
        before = node.args[place]
        if isinstance(before, fx.Node) and before not in statics and tuple(before.meta["val"].shape) == tuple(val.shape) \
                and before.meta["val"].dtype == val.dtype and (nodes := _between(before, node, statics)):
            return _Step(before, node, nodes)
    return None


def _between(before: fx.Node, after: fx.Node, statics: Statics) -> tuple[fx.Node, ...]:
    """The operators from one node to the other, in their order, where they are polynomials of it alone; () otherwise."""
    found: set[fx.Node] = set()
    todo = [after]
    while todo:
        node = todo.pop()
        if node is before or node in statics or node in found:
            continue
        name = str(node.target)
        if node.op != "call_function" or name not in LINEAR | PRODUCTS or len(found) == NODES:
            return ()
        if name == "aten.where.self" and node.args[0] not in statics:
            return ()
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
    return nodes if len(nodes) == len(found) and degrees[after] <= DEGREE else ()


def _following(node: fx.Node) -> Iterator[fx.Node]:
    while node.op != "root":
        node = node.next
        yield node


def _joined(steps: list[_Step], statics: Statics, known: dict[tuple[str, str, int], bool]) -> list[_Step]:
    """Without those that change nothing, each of which is part of the one before it: ``row += y`` puts a row where it is."""
    found: list[_Step] = []
    for step in steps:
        if found and _is(step, "nothing", 0, statics, known):
            step = _Step(found[-1].before, step.after, (*found.pop().nodes, *step.nodes))
        found.append(step)
    return found


def _alone(steps: list[_Step]) -> bool:
    """Is nothing of the loop read outside of it, but for its result?"""
    inside = {n for step in steps for n in step.nodes}
    return all(user in inside for step in steps for n in step.nodes if n is not steps[-1].after for user in n.users)


def _is(step: _Step, form: str, i: int, statics: Statics, known: dict[tuple[str, str, int], bool]) -> bool:
    """Does the step make row ``i`` as the form says, and nothing else? A form that is none of ``FORMS`` makes nothing."""
    key = (step.text(), form, i)
    if key not in known:
        shape = tuple(step.before.meta["val"].shape)
        random = torch.Generator().manual_seed(i)
        known[key] = True
        for _ in range(POINTS):
            x = torch.randint(-RANGE, RANGE + 1, shape, generator=random).double()
            with torch.no_grad():
                found = step.at(x, statics)
            expected = x.clone()
            if form in FORMS:
                expected[..., i, :] = FORMS[form](x, i)
            if found.shape != x.shape or not torch.equal(found.double(), expected):
                known[key] = False
                break
    return known[key]


def _strict(a: fx.Node, statics: Statics) -> bool:
    """Is the matrix known to be 0 on its diagonal and above?"""
    while str(a.target) in ("aten.neg.default", "aten.clone.default", "aten.alias.default", "aten._to_copy.default"):
        a = a.args[0]  # type: ignore[assignment]
    if str(a.target) != "aten.where.self":
        return False
    n = a.meta["val"].shape[-1]
    condition, *values = a.args
    mask = statics.get(condition)
    if mask is None:
        return False
    above = torch.ones(n, n, dtype=torch.bool).triu()
    for value, hidden in ((values[0], mask), (values[1], ~mask)):
        zero = statics.get(value)
        if zero is not None and not zero.any() and bool(hidden.expand(a.meta["val"].shape)[..., above].all()):
            return True
    return False
