"""Questions and signs of types that TVM has no form for, and numbers that an integer does not hold: fused, as torch has them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import redfuser

SEED = torch.Generator().manual_seed(7)
X = torch.randn(4, 16, generator=SEED)
ODD = X.bfloat16()
ODD[1, 2], ODD[2, 3], ODD[3, 5] = float("nan"), float("inf"), -float("inf")
BYTES = torch.randint(0, 256, (4, 16), generator=SEED, dtype=torch.uint8)
PROGRAMS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "isnan": (lambda x: torch.where(x.isnan(), 0.0, x).softmax(-1), (ODD,)),
    "isinf": (lambda x: x.masked_fill(x.isinf(), 0).softmax(-1), (ODD,)),
    "isfinite": (lambda x: torch.where(x.isfinite(), x, 0).softmax(-1), (ODD,)),
    "nan_to_num": (lambda x: x.nan_to_num(0.0, 1.0, -1.0).softmax(-1), (ODD,)),
    "minus bytes": (lambda x, u: (x * -u).softmax(-1), (X, BYTES)),
    "signs of bytes": (lambda x, u: (x * u.sign()).softmax(-1), (X, BYTES)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_stays_with_torch(name: str) -> None:
    f, args = PROGRAMS[name]
    planned = redfuser.explain(f, args, target="sm_90a")
    assert len(planned.fused) == 1 and not [n for n in planned.notes if n.code == "RF301"]
    compiled = redfuser.compile(f, args, target="cpu", fallback="error")
    torch.testing.assert_close(compiled(*args), f(*args), rtol=8e-3 if args[0] is ODD else 1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64], ids=str)
def test_numbers_beyond_an_integer(dtype: torch.dtype) -> None:
    """The checks draw such numbers too: without torch's meaning of them no cascade with a conversion to int32 was built."""
    x = X * 0.01
    x[0, 1], x[1, 2], x[2, 3] = 3e9, -3e9, 1e30

    def f(x: Tensor) -> Tensor:
        return (x * 300).to(dtype).float().softmax(-1)

    compiled = redfuser.compile(f, (x,), target="cpu", fallback="error")
    torch.testing.assert_close(compiled(x), f(x))
