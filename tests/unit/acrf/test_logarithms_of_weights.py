"""Moments under weights that are written as log-probabilities: ``exp(x - m - log t)`` is ``exp(x - m) / t`` where t is a sum of
weights, so that a surprisal's mean and its spread about that mean are moments of one row."""

from __future__ import annotations

import math

import pytest
import torch

import redfuser
from redfuser.acrf import NotFusable, fuse, parse_cascade
from redfuser.acrf.check.verify import check
from redfuser.acrf.state import Fused

WEIGHTS = """cascade surprisal(x: f32[i, L]) over l
  m[i] = max[l] x[i, l]
  t[i] = sum[l] {exp}(x[i, l] - m)
  {stmts}
"""


def fused(*stmts: str, exp: str = "exp") -> Fused | NotFusable:
    return fuse(parse_cascade(WEIGHTS.format(exp=exp, stmts="\n  ".join(stmts))))


@pytest.mark.parametrize(("exp", "log"), [("exp", "log"), ("exp2", "log2")])
def test_the_spread_of_surprisal_is_a_moment_about_its_mean(exp: str, log: str) -> None:
    """It was refused: its mean was taken for an exponential that nothing bounds (RF207)."""
    p = f"(x[i, l] - m - {log}(t))"
    f = fused(f"h[i] = sum[l] {exp}{p} * {p}", f"v[i] = sum[l] {exp}{p} * (({p} - h) * ({p} - h))", "return h, v", exp=exp)
    assert isinstance(f, Fused), f
    assert not check(f)
    assert not any(f"{exp}(-{log}" in str(e) for a in f.state.accumulators for e in (a.contribution, *a.rebase))


def test_a_logarithm_of_what_is_no_sum_of_weights_stays_inside() -> None:
    """Of all exponentials, each of which may be infinite where the quotient is not."""
    f = fuse(parse_cascade("""cascade raw(x: f32[i, L]) over l
  m[i] = max[l] x[i, l]
  t[i] = sum[l] exp(x[i, l])
  s[i] = sum[l] exp(x[i, l] - m - log(t))
  return s
"""))
    assert isinstance(f, Fused), f
    assert any("log(" in str(s.expr) for s in f.state.finalize)


def varentropy(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    lp = x.log_softmax(-1)
    h = -(lp.exp() * lp).sum(-1, keepdim=True)
    return h, (lp.exp() * (lp + h).square()).sum(-1)


@pytest.mark.parametrize(("columns", "strategy"), [(4096, "resident"), (128256, "multi")])
def test_one_kernel_reads_the_row(columns: int, strategy: str) -> None:
    """64 rows of a vocabulary were five kernels and a reading each: 53.9 us on an H200, so 20.9 (torch.compile 41.0)."""
    report = redfuser.explain(varentropy, (torch.empty(64, columns),), target="sm_90a")
    (one,) = report.fused
    assert one.strategy == strategy and not report.refused


def test_torchs_values() -> None:
    """Also of equal elements, of one that is far above the others, of one alone, and where no element has a weight."""
    torch.manual_seed(0)
    x = 3 * torch.randn(7, 500)
    x[1], x[2, 7], x[3], x[3, 5], x[4] = 2.0, 80.0, -math.inf, 1.0, -math.inf
    compiled = redfuser.compile(varentropy, (x,), target="cpu")
    for mine, wide, theirs in zip(compiled(x), varentropy(x.double()), varentropy(x), strict=True):
        assert torch.equal(mine.isnan(), theirs.isnan())
        bound = 1e-5 + 2 * (theirs.double() - wide).abs().nan_to_num().max().item()
        torch.testing.assert_close(mine.double(), wide, rtol=1e-5, atol=bound, equal_nan=True)
