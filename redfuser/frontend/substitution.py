"""A loop that substitutes forward, row by row of a matrix, is one triangular solve::

    for i in range(1, n):                                             L = tril(A, -1)
        A[..., i, :i] += (A[..., i, :i, None] * A[..., :i, :i]).sum(-2)     -->   X = solve(I - L, A)

Delta rules in chunks are written so (2412.06464). Unrolled, a step is a reduction over rows that earlier steps made, and a copy
of the whole matrix to put a row into: kernels for each of 63 steps, of which none has work for a device. Row ``i`` of the
result is ``A[i] + sum[k < i] L[i, k] X[k]``, as ``(I - L) X = A`` says; what a loop leaves as it was, on the diagonal and
above, is taken out of the sum first (:meth:`_Loop.solved`).

That a step makes such a row is not read off its operators. It is a polynomial of the matrix, since all that it is made of adds,
multiplies and moves, and two polynomials that agree at a random point of many are equal (Schwartz and Zippel): the step is
computed in exact arithmetic at points of integers, and compared with what it has to be.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from redfuser.frontend.opaque import shaped_by_data
from redfuser.frontend.polynomial import FORMS, ROWS, SIZE, Proofs, Step, between
from redfuser.frontend.static import Statics
from redfuser.users import quiet

aten = torch.ops.aten
STEPS = 4
"""Rows from which a loop is worth a solve: of fewer, its steps are in one kernel."""
WRITES = {"aten.where.self": (1, 2), "aten.select_scatter.default": (0,), "aten.slice_scatter.default": (0,)}
"""Operators that end a step, and where they may have the matrix that it begins with."""
ZEROS_STAY = frozenset(f"aten.{n}.default" for n in ("neg", "clone", "alias", "_to_copy"))


def written_out(program: ExportedProgram) -> tuple[ExportedProgram, tuple[str, ...]]:
    """``program``, which torch made functional, with such loops as solves, and a note for each; itself where it has none."""
    loops = list(_loops(program.graph))
    if not loops:
        return program, ()
    with quiet():
        module = copy.deepcopy(program.graph_module)
    nodes = {n.name: n for n in module.graph.nodes}
    notes = [loop.solved(nodes) for loop in loops]
    module.graph.eliminate_dead_code()
    module.recompile()
    with quiet():
        changed: ExportedProgram = program._update(module, program.graph_signature)
    return changed, tuple(notes)


@dataclass(frozen=True, slots=True)
class _Loop:
    """Steps for rows 1 to n - 1, each of the ``form``."""

    steps: tuple[Step, ...]
    form: str
    strict: bool  # nothing on the diagonal and above it

    def solved(self, nodes: dict[str, fx.Node]) -> str:
        """Put the solve in the place of what the last step made. With L below the diagonal of A and U what is left of it,
        row ``i`` of X is ``A[i] + sum[k < i] L[i, k] X[k]`` below the diagonal and A's from there on, so that
        ``(I - L) (X - U) = tril(A + L U, -1)``: what the loop adds of rows of U is known before it begins."""
        a, last = nodes[self.steps[0].before.name], nodes[self.steps[-1].after.name]
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
        nodes[last.name] = x
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
    """Loops, each with the nodes of its own graph."""
    if not any(n.target in (aten.slice_scatter.default, aten.select_scatter.default, aten.where.self) for n in graph.nodes):
        return
    if any(shaped_by_data(n) for n in graph.nodes):
        return  # refused behind this, with its lines; until then no two of its shapes can be compared
    statics = Statics(graph, {})
    ends = {step.after: step for node in graph.nodes if (step := _step(node, statics)) is not None}
    begun = {step.before for step in ends.values()}
    proofs = Proofs(statics)
    for node in [n for n in ends if n not in begun]:
        steps = [ends[node]]
        while (earlier := ends.get(steps[0].before)) is not None:
            steps.insert(0, earlier)
        size = node.meta["val"].shape[-1]
        if STEPS < size <= min(len(steps) + 1, ROWS):
            yield from _of_chain(steps if len(steps) == size - 1 else _joined(steps, proofs), size - 1, proofs)


def _of_chain(steps: list[Step], count: int, proofs: Proofs) -> Iterator[_Loop]:
    """The loops of ``count`` steps each among those of one matrix after the other."""
    k = 0
    while k + count <= len(steps):
        some = steps[k:k + count]
        form = next((f for f in FORMS if all(proofs.holds(step, f, i) for i, step in enumerate(some, 1))), None)
        if form is not None and _alone(some):
            yield _Loop(tuple(some), form, _strict(some[0].before, proofs.statics))
        k += count if form is not None else 1


def _step(node: fx.Node, statics: Statics) -> Step | None:
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
                and before.meta["val"].dtype == val.dtype and (step := between(before, node, statics)) is not None:
            return step
    return None


def _joined(steps: list[Step], proofs: Proofs) -> list[Step]:
    """Without those that change nothing, each of which is part of the one before it: ``row += y`` puts a row where it is."""
    found: list[Step] = []
    for step in steps:
        if found and proofs.holds(step, "nothing", 0):
            last = found.pop()
            step = Step(last.before, step.after, (*last.nodes, *step.nodes), last.degree)
        found.append(step)
    return found


def _alone(steps: list[Step]) -> bool:
    """Is nothing of the loop read outside of it, but for its result?"""
    inside = {n for step in steps for n in step.nodes}
    return all(user in inside for step in steps for n in step.nodes if n is not steps[-1].after for user in n.users)


def _strict(a: fx.Node, statics: Statics) -> bool:
    """Is the matrix known to be 0 on its diagonal and above?"""
    while str(a.target) in ZEROS_STAY and isinstance(of := a.args[0], fx.Node):
        a = of
    if str(a.target) != "aten.where.self":
        return False
    n = a.meta["val"].shape[-1]
    condition, *values = a.args
    mask = statics.get(condition)
    if mask is None:
        return False
    above = torch.ones(n, n, dtype=torch.bool, device=mask.device).triu()
    for value, hidden in ((values[0], mask), (values[1], ~mask)):
        zero = statics.get(value)
        if zero is not None and not zero.any() and bool(hidden.expand(a.meta["val"].shape)[..., above].all()):
            return True
    return False
