"""Labels: what is made of a number of each row for the result alone is made where the result is; what makes a NaN of a result is
not looked for twice."""

from __future__ import annotations

import torch
from torch.nn import functional

from redfuser.acrf.expr import Cast, Index, Load
from redfuser.frontend import import_model
from redfuser.partition import Partitioner
from redfuser.tensorize import nan
from redfuser.tensorize.nan import keeps_nan
from workloads.norms import Function, l2norm


class Loss(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(x.float(), y, reduction="none")


class Largest(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        m = x.float().abs().amax(-1, keepdim=True)
        return m, ((x / m) ** 2).sum(-1)


def _parts(module: torch.nn.Module, *args: torch.Tensor) -> tuple:
    return Partitioner(import_model(module, args, None), "preserve", "sm_90a", maps=True).run().parts


def test_a_loss_is_one_kernel() -> None:
    """The label that is ignored, and the place that is read instead of it, are of the row, and so are what it leads to."""
    (loss,) = _parts(Loss(), torch.randn(8, 64).half(), torch.randint(64, (8,)))
    assert [t.dtype for t in loss.fused.cascade.inputs] == ["f16", "i64"]
    assert not keeps_nan(loss.fused, loss.fused.state.accumulators[0].name), "the sum of the exponentials has it"


def test_where_a_maximum_must_keep_nan() -> None:
    for module, keeps in ((Function(l2norm), False), (Largest(), True)):
        (part,) = _parts(module, torch.randn(8, 64).half())
        extremum = next(a for a in part.fused.state.accumulators if a.reducer.kind == "max")
        assert keeps_nan(part.fused, extremum.name) is keeps


def test_eight_bits_are_nan_where_a_number_is_too_large_for_them() -> None:
    x = Load("x", (Index("l"),), "f32")
    eight = Cast(x, "e4m3")
    assert nan._bare(Cast(Cast(x, "f16"), "f32")) == x and nan._bare(Cast(eight, "f32")) == eight
