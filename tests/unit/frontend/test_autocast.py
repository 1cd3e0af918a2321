"""Operators that torch takes apart behind autocast have the dtypes and the values of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import redfuser

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
COMPOSITE: dict[str, Callable[[Tensor], Any]] = {
    "einsum": lambda x: torch.einsum("id,jd->ij", x, x), "einsum without products": lambda x: torch.einsum("i,j->ij", x[0], x[1]),
    "tensordot": lambda x: torch.tensordot(x, x, dims=([1], [1])), "inner": lambda x: torch.inner(x, x), "chain": lambda x: x @ x.mT @ x,
    "multi_dot": lambda x: torch.linalg.multi_dot([x, x.mT, x]), "matrix_power": lambda x: torch.linalg.matrix_power(x @ x.mT, 3),
    "of both": lambda x: torch.einsum("id,jd->ij", (x @ x.mT @ x).float(), x).softmax(-1)}


@pytest.mark.parametrize("name", COMPOSITE)
@pytest.mark.parametrize("ambient", [False, True])
def test_results_are_eagers(name: str, ambient: bool) -> None:
    def run(x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = COMPOSITE[name](x)
            with torch.autocast("cpu", enabled=False):
                return y, COMPOSITE[name](x)

    f = COMPOSITE[name] if ambient else run
    with torch.autocast("cpu", torch.bfloat16, enabled=ambient):
        compiled, eager = redfuser.compile(f, (X,), target="cpu", fallback="allow"), f(X)
        ours = compiled(X)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (ours, eager)), strict=True):
        few = 1e-5 if a.dtype == torch.float32 else 2.0 ** -7  # one rounding of bfloat16; that of operands is not allowed in float32
        assert a.dtype == b.dtype and torch.allclose(a.float(), b.float(), rtol=few, atol=few * float(b.abs().max()))
