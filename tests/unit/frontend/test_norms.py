"""A norm of which parts of the rows are reduced is imported as what it is made of, so that those compute it; any other stays one
operation, which torch runs as one where nothing is fused."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from redfuser.frontend import import_model
from redfuser.partition.search import Partitioner
from redfuser.tvm_compat import bindings, op_name
from tests.partition.helpers import execute, flat

X, W = torch.randn(6, 64), torch.randn(64)


def scales(y: Tensor, width: int = 16) -> tuple[Tensor, Tensor]:
    g = y.float().view(*y.shape[:-1], -1, width)
    s = g.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
    return (g / s).view(y.shape), s[..., 0]


def written_out(model: Callable[..., object], *args: Tensor) -> bool:
    return not any(op_name(b.value) in ("nn.rms_norm", "nn.layer_norm") for b in bindings(import_model(model, args).mod["main"]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_groups_it_is_what_it_is_made_of(dtype: torch.dtype) -> None:
    def f(x: Tensor, w: Tensor) -> object:
        return scales(F.rms_norm(x, (64,), w, 1e-6))

    def g(x: Tensor, w: Tensor) -> object:
        return scales(F.layer_norm(x, (64,), w, w))

    args = X.to(dtype), W.to(dtype)
    for model in (f, g):
        assert written_out(model, *args)
        imported = import_model(model, args)
        p = Partitioner(imported).run()
        for mine, theirs in zip(execute(imported, p, args), flat(model(*args)), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)


def test_of_groups_nobody_writes_it() -> None:
    """4096 x 4096 bfloat16 numbers and a residual, rounded to 8 bits by groups of 32: the norm's result is not in memory."""
    def f(x: Tensor, r: Tensor, w: Tensor) -> object:
        h = x + r
        return h, *scales(F.rms_norm(h, (4096,), w, 1e-6), 32)

    args = tuple(torch.empty(s, dtype=torch.bfloat16, device="meta") for s in ((4096, 4096), (4096, 4096), (4096,)))
    p = Partitioner(import_model(f, args)).run()
    large = [(r.name, t.name) for r in p.parts for t in r.cascade.inputs if prod(map(int, t.shape)) == 4096 * 4096]
    assert len(p.parts) == 2 and len(large) == 3, "both terms of the sum, and the sum"


def test_of_whole_rows_and_of_heads_it_is_one_operation() -> None:
    def heads(x: Tensor, w: Tensor) -> Tensor:
        q = F.rms_norm(x, (64,), w).view(6, 4, 16).transpose(0, 1)
        return q @ q.mT

    def rows(x: Tensor, w: Tensor) -> Tensor:
        return F.rms_norm(x, (64,), w).abs().amax(-1)

    def both(x: Tensor, w: Tensor) -> object:
        y = F.rms_norm(x, (64,), w)
        return scales(y), y @ y.T

    assert not any(written_out(f, X, W) for f in (heads, rows, both))
