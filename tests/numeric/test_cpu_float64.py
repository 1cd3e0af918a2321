"""float64 on the CPU, to float64's own digits: literals beyond float32's range, NaN in its bits, norms that Relax has in float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import redfuser

SEED = torch.Generator().manual_seed(11)


def r(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=SEED, dtype=torch.float64)


X, W, Q, K = r(6, 70) * 3 + 1, r(70), r(2, 20, 16), r(2, 33, 16)
ODD = X.clone()
ODD[0, 3], ODD[1, 2], ODD[2], ODD[3], ODD[4] = float("nan"), float("inf"), -float("inf"), 1e300, 1e-310
LOWEST = torch.finfo(torch.float64).min
PROGRAMS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "layer norm": (lambda x, w: F.layer_norm(x, (70,), w, w, 1e-6), (X, W)),
    "rms norm": (lambda x, w: F.rms_norm(x, (70,), w), (X, W)),
    "rms norm of its own epsilon": (lambda x: F.rms_norm(x * 1e-5, (70,)), (X,)),
    "logsumexp": (lambda x: x.logsumexp(-1), (ODD,)),
    "the lowest number": (lambda x: x.masked_fill(x > 1, LOWEST).softmax(-1), (X,)),
    "products less their maximum": (lambda x, w: torch.softmax((x - x.mean(-1, keepdim=True)) * (w * 1e15), -1), (X, W)),
    "attention": (lambda q, k: torch.softmax(q @ k.mT / 4, -1) @ k, (Q, K)),
    "largest product": (lambda q, k: (q @ k.mT * 2).amax(-1) - 1, (Q, K)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_fuses_and_keeps_its_digits(name: str) -> None:
    f, args = PROGRAMS[name]
    compiled = redfuser.compile(f, args, target="cpu")
    assert compiled.report.fused and not compiled.report.refused
    torch.testing.assert_close(compiled(*args), f(*args), rtol=1e-13, atol=1e-13, equal_nan=True)
