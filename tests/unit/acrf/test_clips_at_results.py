"""Clips at a result of the row: at one that bounds what is clipped they change nothing, at any other they are refused."""

from __future__ import annotations

import pytest
import torch

import redfuser
from redfuser.acrf import NotFusable, fuse, parse_cascade
from redfuser.acrf.check.verify import check
from redfuser.acrf.state import Fused

BOUNDED = {
    "the size": ("m[i] = max[l] abs(x[i, l])", "max(x[i, l], -m)", "m"),
    "one at least": ("m[i] = max[l] abs(x[i, l])\n  s[i] = max(m, 1.0)", "max(x[i, l], s * -1.0)", "s"),
    "the other way round": ("m[i] = max[l] abs(x[i, l])\n  s[i] = max(m, 1.0)", "max(-s, x[i, l])", "s"),
}
OTHERS = {
    "half the size": ("m[i] = max[l] abs(x[i, l])\n  s[i] = m * 0.5", "max(x[i, l], -s)", "s"),
    "the maximum": ("m[i] = max[l] x[i, l]", "max(x[i, l], -m)", "m"),
    "another row's size": ("m[i] = max[l] abs(z[i, l])", "max(x[i, l], -m)", "m"),
    "a length, whose squares may vanish": ("q[i] = sum[l] x[i, l] * x[i, l]\n  s[i] = sqrt(q)", "max(x[i, l], -s)", "s"),
    "a size with fewer digits": ("m[i] = max[l] abs(x[i, l])\n  s[i] = f32(bf16(m))", "max(x[i, l], -s)", "s"),
}


def clipped(first: str, low: str, high: str) -> Fused | NotFusable:
    return fuse(parse_cascade(f"""cascade clipped(x: f32[i, L], z: f32[i, L]) over l
  {first}
  t[i] = sum[l] min({low}, {high}) / {high}
  return t
"""))


@pytest.mark.parametrize("name", BOUNDED)
def test_at_what_bounds_it(name: str) -> None:
    f = clipped(*BOUNDED[name])
    assert isinstance(f, Fused), f
    assert not check(f)


@pytest.mark.parametrize("name", OTHERS)
def test_at_anything_else(name: str) -> None:
    f = clipped(*OTHERS[name])
    assert isinstance(f, NotFusable) and f.code == "RF203", f


def test_torchs_values() -> None:
    """Of a picture whose noise is taken away: also of one that is 0, one beyond its range, one with NaN, and one infinite."""
    def kept(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        s = x.abs().amax(-1, keepdim=True).clamp(min=1.0)
        y = torch.minimum(torch.maximum(x, -s), s) / s
        return y, y.mean(-1)

    torch.manual_seed(0)
    x = torch.randn(6, 700)
    x[1], x[2], x[3, 9], x[4, 8] = 0.0, 3e4 * x[2], torch.nan, torch.inf
    compiled = redfuser.compile(kept, (x,), target="cpu")
    assert len(compiled.report.fused) == 1
    for mine, theirs in zip(compiled(x), kept(x), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("n", [700, 300000], ids=["short", "shared out"])
def test_a_bound_that_is_no_number_is_seen_by_all(n: int) -> None:
    """Also where a mask hides the element that is NaN, and where it hides all of a row."""
    def shown(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        s = x.abs().amax(-1, keepdim=True)
        return torch.where(keep, torch.minimum(torch.maximum(x, -s), s), 0.0).sum(-1)

    torch.manual_seed(0)
    x, keep = torch.randn(4, n), torch.rand(4, n) > 0.5
    compiled = redfuser.compile(shown, (x, keep), target="cpu")
    x[0, 5], keep[0, 5], x[1, 7], keep[2] = torch.nan, False, torch.inf, False
    torch.testing.assert_close(compiled(x, keep), shown(x, keep), rtol=1e-4, atol=1e-3, equal_nan=True)
