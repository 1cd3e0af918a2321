"""Loops that substitute forward are solves, whatever they are written with; loops that are nearly so stay as they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import redfuser
from redfuser.frontend import import_model
from redfuser.frontend.polynomial import FORMS
from redfuser.frontend.substitution import STEPS

N = STEPS + 2
"""A loop without one of its steps is still as long as a solve is made for."""
A = torch.randn(2, 3, N, N, generator=torch.Generator().manual_seed(3)) * 0.4
Step = Callable[[Tensor, int], None]


def masked(a: Tensor) -> Tensor:
    return -(a.masked_fill(torch.ones(N, N, dtype=torch.bool).triu(), 0))


def looped(step: Step, rows: range = range(1, N), first: Callable[[Tensor], Tensor] = masked) -> Callable[[Tensor], Tensor]:
    def run(a: Tensor) -> Tensor:
        a = first(a)
        for i in rows:
            step(a, i)
        return a + torch.eye(N, dtype=a.dtype)
    return run


def cloned(a: Tensor, i: int) -> None:
    """As transformers has it."""
    row, above = a[..., i, :i].clone(), a[..., :i, :i].clone()
    a[..., i, :i] = row + (row.unsqueeze(-1) * above).sum(-2)


def every_row(a: Tensor, i: int) -> None:
    """As flash-linear-attention has it."""
    a[..., i, :i] = a[..., i, :i].clone() + (a[..., i, :, None].clone() * a[..., :, :i].clone()).sum(-2)


def added(a: Tensor, i: int) -> None:
    a[..., i, :i] += (a[..., i, :i, None] * a[..., :i, :i]).sum(-2)


def einsum(a: Tensor, i: int) -> None:
    a[:, :, i, :i] = a[:, :, i, :i] + torch.einsum("bhk,bhkj->bhj", a[:, :, i, :i], a[:, :, :i, :i])


def product(a: Tensor, i: int) -> None:
    a[:, :, i] = a[:, :, i] + (a[:, :, i, None, :i] @ a[:, :, :i])[:, :, 0]


def subtracted(a: Tensor, i: int) -> None:
    """What is added is minus a sum of negatives, in an order of its own."""
    a[..., i, :i] -= (a[..., :i, :i].transpose(-1, -2) * -a[..., i, :i][..., None, :]).sum(-1)


def times_minus_one(a: Tensor, i: int) -> None:
    a[..., i, :i] = a[..., i, :i] - (-1.0 * a[..., i, :i, None] * a[..., :i, :i]).sum(-2)


def whole(a: Tensor) -> Tensor:
    return a * 0.5


RIGHT: dict[str, tuple[Step, Callable[[Tensor], Tensor]]] = {
    **{f.__name__: (f, masked) for f in (cloned, every_row, added, einsum, product, subtracted)},
    **{f"{f.__name__} of a whole matrix": (f, whole) for f in (cloned, every_row, product)},
    "minus a product with -1": (times_minus_one, masked), "of a lower triangle": (cloned, lambda a: a.tril(-1)), "with a diagonal": (every_row, lambda a: a.tril())}


@pytest.mark.parametrize("name", RIGHT)
def test_a_loop_is_a_solve(name: str) -> None:
    step, first = RIGHT[name]
    run = looped(step, first=first)
    imported = import_model(run, (A,))
    assert [c.target for c in imported.opaque.values()] == ["aten.linalg_solve_triangular.default"]
    assert any(note.startswith(f"{N - 1} steps of a loop that substitutes forward are one triangular solve") for note in imported.notes)
    compiled = redfuser.compile(run, (A,), target="cpu")
    exact = looped(step, first=lambda a: first(a).double())(A)
    ours, eager = ((x.double() - exact).abs().max() for x in (compiled(A), run(A)))
    assert ours <= max(2 * eager, 1e-6)


def times(c: float, at: int) -> Step:
    def step(a: Tensor, i: int) -> None:
        a[..., i, :i] += (1.0 + (i == at) * c) * (a[..., i, :i, None] * a[..., :i, :i]).sum(-2)
    return step



def shorter(a: Tensor, i: int) -> None:
    a[..., i, :i] += (a[..., i, :i, None] * a[..., :i, :i])[..., : max(i - 1, 1), :].sum(-2)


def other_head(a: Tensor, i: int) -> None:
    a[..., i, :i] += (a[..., i, :i, None].flip(0) * a[..., :i, :i]).sum(-2)


def bent(a: Tensor, i: int) -> None:
    a[..., i, :i] += (a[..., i, :i, None] * a[..., :i, :i]).sum(-2).tanh()


def squared(a: Tensor, i: int) -> None:
    a[..., i, :i] += (a[..., i, :i, None] ** 2 * a[..., :i, :i]).sum(-2)


def with_more(more: float) -> Step:
    def step(a: Tensor, i: int) -> None:
        a[..., i, :i] += (a[..., i, :i, None] * a[..., :i, :i]).sum(-2) + more
    return step


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    **{f"{more} more": looped(with_more(more)) for more in (1e-9, 1e-30, float("inf"))}, "one more": looped(with_more(1.0)),
    "one coefficient": looped(times(1e-3, 4)), "all but one": looped(times(-2.0, N - 1)),
    "a row is left out": looped(cloned, range(2, N)), "the last row is left out": looped(cloned, range(1, N - 1)),
    "rows from below": looped(cloned, range(N - 1, 0, -1)), **{f.__name__: looped(f) for f in (shorter, other_head, bent, squared)},
    "in half precision": looped(cloned, first=lambda a: masked(a).bfloat16())}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_nearly_such_a_loop_is_not_one(name: str) -> None:
    imported = import_model(WRONG[name], (A,))
    assert not any("solve" in c.target for c in imported.opaque.values())


def test_what_is_read_on_the_way_stays() -> None:
    def run(a: Tensor) -> tuple[Tensor, Tensor]:
        a = masked(a)
        for i in range(1, N):
            cloned(a, i)
            if i == 3:
                kept = a * 2
        return a, kept
    assert not any("solve" in c.target for c in import_model(run, (A,)).opaque.values())


def test_a_result_keeps_its_name_and_two_loops_are_two_solves() -> None:
    def run(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        a, b = masked(a), masked(b)
        for i in range(1, N):
            cloned(a, i)
            every_row(b, i)
        return a, b
    b = A.flip(0)
    assert [c.target for c in import_model(run, (A, b)).opaque.values()] == ["aten.linalg_solve_triangular.default"] * 2
    compiled = redfuser.compile(run, (A, b), target="cpu")
    for ours, theirs in zip(compiled(A, b), run(A, b), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("masks", [True, False])
def test_loops_behind_each_other(masks: bool) -> None:
    def run(a: Tensor) -> Tensor:
        for _ in range(2):
            a = masked(a) if masks else a * 1.0 if _ == 0 else a
            for i in range(1, N):
                cloned(a, i)
        return a * 2
    assert [c.target for c in import_model(run, (A,)).opaque.values()] == ["aten.linalg_solve_triangular.default"] * 2
    assert torch.allclose(redfuser.compile(run, (A,), target="cpu")(A), run(A), atol=1e-4)


def test_forms_differ() -> None:
    """Each says something else of a matrix that is not 0 above its diagonal; of one that is, all say the same."""
    rows = {name: form(A.double(), 4) for name, form in FORMS.items()}
    assert len({tuple(r.flatten().tolist()) for r in rows.values()}) == len(FORMS)
    lower = {tuple(form(A.double().tril(-1), 4).flatten().tolist()) for form in FORMS.values()}
    assert len(lower) == 1
