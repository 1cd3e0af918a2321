"""Equal values are computed once: where they are, what stays apart, and that the values are the program's."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import redfuser
from redfuser import tvm_compat as tc
from redfuser.frontend import import_model
from tests.interpret import run
from workloads.models.diffusion import DiT

X, C, W = torch.randn(4, 8), torch.randn(8), torch.randn(8, 8)


def ops(model, *args: Tensor) -> Counter[str]:
    imported = import_model(model, args)
    for ours, theirs in zip(run(imported, args), flat(model(*args)), strict=True):
        torch.testing.assert_close(ours, theirs)
    return Counter(tc.op_name(b.value) for b in tc.bindings(imported.mod["main"]))


def flat(out) -> tuple[Tensor, ...]:
    return out if isinstance(out, tuple) else (out,)


def test_every_block_of_a_dit_reads_one_silu_of_the_condition() -> None:
    model = DiT(16, 2, 3).half()
    imported = import_model(model, (torch.randn(1, 6, 16).half(), torch.randn(1, 16).half()))
    assert Counter(tc.op_name(b.value) for b in tc.bindings(imported.mod["main"]))["nn.silu"] == 1
    ((where, more),) = imported.once
    assert where.op == "aten.silu.default" and where.source.startswith("diffusion.py:") and more == 2


def test_chains_of_equal_operations_are_one_and_the_report_says_so() -> None:
    def model(x: Tensor, c: Tensor, w: Tensor) -> Tensor:
        a = torch.tanh(x.mT.contiguous() * 2.0).mT @ w
        return a + torch.sigmoid(torch.tanh(x.mT.contiguous() * 2.0).mT @ w) * c

    found = ops(model, X, C, W)
    assert found["tanh"] == found["matmul"] == 1
    notes = [n.text for n in redfuser.explain(model, (X, C, W), target="cpu").notes]
    assert any(n.startswith("computed once for 2 operations that compute the same: aten.tanh") for n in notes), notes


@pytest.mark.parametrize("model", [
    lambda x, c: x.sum(0) * x.sum(1, keepdim=True), lambda x, c: (x * 2.0 + x * 2.5) * c, lambda x, c: (x - c) * (c - x),
    lambda x, c: torch.clamp(x, min=0.0) * torch.clamp(x, min=-0.0), lambda x, c: torch.cumsum(x, 0) + torch.cumsum(x, 1),
    lambda x, c: x[:2] + x[2:], lambda x, c: x.float().double().sum() + x.double().sum() * 3,
    lambda x, c: torch.topk(x, 2, -1)[0] + torch.topk(x, 2, -1)[1],
])
def test_what_differs_in_attributes_operands_or_constants_stays_apart(model) -> None:
    ops(model, X, C)  # compares with torch


def test_random_numbers_are_drawn_as_often_as_the_program_draws_them() -> None:
    imported = import_model(lambda x: torch.rand_like(x) - torch.rand_like(x), (X,))
    assert len(imported.opaque) == 2 and not imported.once


def test_results_of_the_program_share_no_memory_that_eager_keeps_apart() -> None:
    def model(x: Tensor) -> tuple[Tensor, ...]:
        return torch.exp(x), torch.exp(x), torch.exp(x).reshape(8, 4), torch.exp(x).sum(0)

    assert ops(model, X)["exp"] == 3  # the sum reads one of the others
    storages = {t.untyped_storage().data_ptr() for t in redfuser.compile(model, (X,), target="cpu")(X)}
    assert len(storages) == 4


def test_a_library_still_makes_each_product_with_its_own_bias() -> None:
    def model(x: Tensor, b: Tensor, c: Tensor, w: Tensor) -> Tensor:
        return torch.relu(F.linear(x, w, b)) * F.linear(x, w, c)

    half = [t.half() for t in (torch.randn(512, 1024), torch.randn(1024), torch.randn(1024), torch.randn(1024, 1024))]
    imported = import_model(model, half)
    from redfuser.outer import emit
    assert emit(imported).source.count("F.linear(") == 2 and ".float()" not in emit(imported).source
