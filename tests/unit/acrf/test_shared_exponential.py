"""Functions of sums of exponentials that share a factor: ``relu(exp(x - m) - exp(-m))`` scales with ``exp(-m)``, whatever its sign."""

from __future__ import annotations

import pytest

from redfuser.acrf import NotFusable, fuse, parse_cascade
from redfuser.acrf.check.verify import check
from redfuser.acrf.state import Fused

FUNCTIONS = {
    "size": "abs(exp(x[i, l] - m) - exp(-m))",
    "above": "max(exp(x[i, l] - m) - exp(-m), 0.0)",
    "below": "min(exp(x[i, l] - m) - exp(-m), 0.0)",
    "larger": "max(exp(x[i, l] - m), exp(z[i, l] - m) - exp(1.0 - m))",
    "weighed": "max(exp(x[i, l] - m) * z[i, l] + exp(-m), 0.0)",
    "largest": "max(exp(x[i, l] - m), exp(z[i, l] - m))",
    "of two": "abs(exp2(x[i, l] - m) - exp2(z[i, l] - m))",
}


def fused(*stmts: str) -> Fused | NotFusable:
    text = "\n  ".join(stmts)
    return fuse(parse_cascade(f"""cascade picked(x: f32[i, L], z: f32[i, L], v: bf16[L, e]) over l
  m[i] = max[l] x[i, l]
  {text}
"""))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_fuses(name: str) -> None:
    f = fused(f"t[i] = sum[l] {FUNCTIONS[name]}", "return t")
    assert isinstance(f, Fused), f
    assert not check(f)
    assert any(a.reducer.kind == "sum" for a in f.state.accumulators)


def test_weights_that_are_0_where_the_row_is_below() -> None:
    """softmax without a sink for what nothing is said about; rounded weights are at most 1, as softmax's are."""
    f = fused("t[i] = sum[l] abs(exp(x[i, l] - m) - exp(-m))",
              "o[i, e] = sum[l] f32(bf16(max(exp(x[i, l] - m) - exp(-m), 0.0) / (t + 1e-6))) * f32(v[l, e])", "return o")
    assert isinstance(f, Fused), f
    assert not check(f)


@pytest.mark.parametrize("body", ["abs(exp(x[i, l] - m) - exp(-n))", "max(exp(x[i, l] - m) - m, 0.0)",
                                  "abs(exp(x[i, l] - m) - exp2(-m))", "max(exp(x[i, l] - m) - 1.0, 0.0)"])
def test_what_shares_no_factor_is_refused(body: str) -> None:
    f = fused("n[i] = max[l] z[i, l]", f"t[i] = sum[l] {body}", "return t")
    assert isinstance(f, NotFusable) and f.code in ("RF201", "RF203"), f
