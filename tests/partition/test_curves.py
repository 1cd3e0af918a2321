"""Functions written out for kernels: torch's values, and its NaN, infinities and signs of zero."""

from __future__ import annotations

import math

import pytest
import torch

from redfuser import pipeline
from redfuser.frontend import import_model
from redfuser.partition import partition
from tests.partition.helpers import execute

SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1e-30, -1e-30, 3e38, -3e38, 80.0, -80.0, 3.0]
ONE = {name: getattr(torch, name) for name in ("tan", "sinh", "cosh", "atan", "asin", "acos", "asinh", "acosh", "atanh",
                                               "erfc", "erfinv")}
ZEROS = {name: getattr(torch, name) for name in ("lgamma", "digamma")}
"""Those that are 0 between numbers: relative to themselves errors have no bound there."""


def drawn(n: int = 256) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    near = torch.rand(n, generator=g) * 2 - 1
    return torch.cat([near, near * 4, near * 10 ** (near * 1.9)])


def held(f, *args: torch.Tensor, atol: float = 0) -> None:
    """Nothing is left to torch, and the interpreted group has float64's values to a few float32 roundoffs."""
    imported = import_model(f, args)
    p = partition(imported)
    assert p.maps and not p.kept, p.kept
    got = execute(imported, p, args)
    for mine, want in zip(got, f(*(a.double() for a in args)), strict=True):
        mine, other = mine.double(), want.float().double()
        assert torch.equal(mine.isnan(), want.isnan()) and torch.equal(mine.isinf(), other.isinf())
        zero = want == 0
        assert torch.equal(mine[zero], want[zero]) and torch.equal(mine[zero].signbit(), want[zero].signbit())
        finite = mine.isfinite() & (want.abs() > 1e-37)
        assert torch.allclose(mine[finite], want[finite], rtol=3e-7, atol=atol)


def test_functions_of_one_number() -> None:
    x = torch.cat([torch.tensor(SPECIAL), drawn()])
    held(lambda x, y: tuple(f(x) * y for f in ONE.values()), x, torch.ones_like(x))


def test_functions_with_zeros() -> None:
    x = torch.cat([torch.tensor(SPECIAL), drawn()])
    held(lambda x, y: tuple(f(x) * y for f in ZEROS.values()), x, torch.ones_like(x), atol=1e-7)


TWO = {"atan2": torch.atan2, "hypot": torch.hypot}
QUOTIENTS = {"remainder": torch.remainder, "fmod": torch.fmod, "floor_divide": torch.floor_divide}


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """All pairs of special numbers, and drawn ones."""
    a, b = torch.cartesian_prod(torch.tensor(SPECIAL), torch.tensor(SPECIAL)).unbind(-1)
    return torch.cat([a, drawn()]), torch.cat([b, drawn().flip(0) * 3])


def test_functions_of_two_numbers() -> None:
    x, y = pairs()
    held(lambda x, y, z: tuple(f(x, y) * z for f in TWO.values()), x, y, torch.ones_like(x))


@pytest.mark.parametrize("by", [None, 6.2831855, -0.7])
@pytest.mark.parametrize("name", QUOTIENTS)
def test_what_a_quotient_leaves_is_exact(name: str, by: float | None) -> None:
    """torch's bits. (Of quotients beyond 2^24 torch's own vectors on the CPU are NaN, and its single numbers are not.)"""
    x, y = pairs()
    few = (x / (y if by is None else by)).abs() < 2.0**20
    x, y = x[few], y[few]
    f = QUOTIENTS[name]
    args = (x, y if by is None else torch.ones_like(x))

    def doubled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return f(x, y if by is None else by) * 2

    imported = import_model(doubled, args)
    p = partition(imported)
    assert p.maps and not p.kept, p.kept
    (got,), want = execute(imported, p, args), doubled(*args)
    assert torch.equal(got.isnan(), want.isnan())
    known = ~want.isnan()
    assert torch.equal(got[known], want[known])


@pytest.mark.parametrize("by", [0.5, 0.3, math.inf])
def test_a_remainder_says_which_element(by: float) -> None:
    """In an index: no axis is in groups of half an element, or of infinitely many."""
    def looked_up(t: torch.Tensor, table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (table[(torch.remainder(t, by) * 8).long().clamp(0, 15)] + x).sum(-1)

    args = torch.rand(64), torch.randn(16, 128), torch.randn(64, 128)
    planned = pipeline.run(looked_up, args, arch="sm_90a", build=False)
    assert [planned.produced[r.name].reason for r in planned.partition.parts] == [None]
    assert not planned.partition.refusals and not planned.partition.unmapped


def test_bits_are_arithmetic() -> None:
    """Four bits of a byte, as packed weights are read; shifts and remainders of negative numbers too."""
    packed = torch.arange(256, dtype=torch.uint8)
    signed = torch.arange(-128, 128, dtype=torch.int32)

    def f(p, s, w):
        return (p & 15) * w, (p >> 4) * w, (s >> 3) * w, (s & 7) * w, (s << 2) * w

    imported = import_model(f, args := (packed, signed, torch.ones(256)))
    p = partition(imported)
    assert p.maps and not p.kept and not imported.opaque
    for mine, want in zip(execute(imported, p, args), f(*args), strict=True):
        assert torch.equal(mine, want)


@pytest.mark.parametrize("bits", [lambda n: n & 5, lambda n: n >> 40, lambda n: n | 1])
def test_other_bits_stay_with_torch(bits) -> None:
    args = torch.arange(64, dtype=torch.int32), torch.ones(64)
    assert not partition(import_model(lambda n, w: bits(n) * w, args)).maps
