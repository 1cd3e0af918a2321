"""Operators of torch.linalg that check what they computed: a singular matrix is an error. torch takes such a check apart into
an effect of its own, for which a compiled model has no place; the same operator with ``check_errors`` makes it in the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def inverse(A: Tensor) -> Tensor:
    return torch.linalg.inv_ex(A, check_errors=True).inverse


def cholesky(self: Tensor, *, upper: bool = False) -> Tensor:
    return torch.linalg.cholesky_ex(self, upper=upper, check_errors=True).L


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    return torch.linalg.solve_ex(A, B, left=left, check_errors=True).result


REPLACED: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.linalg_inv.default: inverse, torch.ops.aten.inverse.default: inverse,
    torch.ops.aten.linalg_cholesky.default: cholesky, torch.ops.aten.linalg_solve.default: solve,
}
"""What is called in an operator's place before torch decomposes a program."""
