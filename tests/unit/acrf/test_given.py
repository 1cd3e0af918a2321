"""Scales of the point that leave a contraction: which do, what the certificate says of it, and that a wrong one is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.check.verify import check
from redfuser.acrf.expr import op
from redfuser.acrf.state import Fused


def fused(body: str, inputs: str = "x: bf16[8, 12], r: f32[8], w: bf16[5, 12]", casts: str = "preserve") -> Fused:
    got = fuse(parse_cascade(f"cascade c({inputs}) over l\n  {body}\n  return o\n"), casts)
    assert isinstance(got, Fused)
    return got


def contribution(f: Fused) -> str:
    (a,) = f.state.accumulators
    return str(a.contribution)


@pytest.mark.parametrize(("body", "data", "value"), [
    ("o[i, n] = sum[l] f32(bf16(f32(x[i, l]) * r[i])) * f32(w[n, l])", "f32(x[i, l]) * f32(w[n, l])", "o_acc * r[i]"),
    ("o[i, n] = sum[l] f32(bf16(f32(x[i, l]) / r[i])) * f32(w[n, l])", "f32(x[i, l]) * f32(w[n, l])", "o_acc / r[i]"),
    ("o[i, n] = sum[l] f32(x[i, l]) * rsqrt(r[i] + 0.5) * f32(w[n, l])", "f32(x[i, l]) * f32(w[n, l])",
     "o_acc * rsqrt(r[i] + 0.5)"),
    ("p[i, l] = bf16(f32(x[i, l]) * r[i])\n  o[i, n] = sum[l] f32(p) * f32(w[n, l])", "f32(x[i, l]) * f32(w[n, l])",
     "o_acc * r[i]"),
], ids=["times", "over", "of a number", "by name"])
def test_a_scale_of_the_row_is_applied_to_the_sum(body: str, data: str, value: str) -> None:
    f = fused(body)
    assert contribution(f) == data and str(f.state.finalize[0].expr) == value
    assert check(f) == []
    assert any("deferred: the same for the whole row" in c for c in f.certificate.choices)
    moved = [r for r in f.certificate.roundings if "moves across" in r]
    assert len(moved) == (0 if "bf16(" not in body else 1), "a rounding that moved is listed, and nothing else is"


@pytest.mark.parametrize(("body", "inputs"), [
    ("o[i, n] = sum[l] f32(e4m3(f32(x[i, l]) * r[i])) * f32(w[n, l])", ""),
    ("o[i, n] = sum[l] f32(f16(f32(x[i, l]) * r[i])) * f32(w[n, l])", ""),  # x itself may be beyond what f16 holds
    ("o[i, n] = sum[l] f32(f16(sigmoid(f32(x[i, l])) * r[i])) * f32(w[n, l])", ""),  # or so small that f16 has no digits of it
    ("o[i] = sum[l] f32(x[i, l]) * r[i]", ""),  # no product of matrices: one multiplication an element
    ("o[i, n] = sum[l] f32(bf16(f32(x[i, l]) + r[i])) * f32(w[n, l])", ""),
    ("o[i, n] = sum[l] f32(bf16(f32(x[i, l]) * r[l])) * f32(w[n, l])", "x: bf16[8, 12], r: f32[12], w: bf16[5, 12]"),
], ids=["eight bits", "does not fit", "may vanish", "no contraction", "a sum", "along the row"])
def test_others_stay_in_the_sum(body: str, inputs: str) -> None:
    f = fused(body, *filter(None, [inputs]))
    assert "r[" in contribution(f) and f.certificate.roundings == () and check(f) == []


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("operand", ["x[i, l] / r[i]", "x[i, l] * r[i]", "x[i, l] / sqrt(r[i] * r[i] + {d}(1.0))",
                                     "x[i, l] * {d}(0.5) / r[i]"])
def test_a_scale_in_half_precision_is_applied_in_the_sums(dtype: str, operand: str) -> None:
    f = fused(f"o[i, n] = sum[l] f32({operand}) * f32(w[n, l])".replace("{d}", dtype),
              f"x: {dtype}[8, 12], r: {dtype}[8], w: {dtype}[5, 12]")
    assert check(f) == [] and "r[" not in contribution(f)
    assert f.certificate.decomposition[0].endswith("]") and "f32(" in f.certificate.decomposition[0].split("(*)")[1]


def test_scales_that_multiply_and_divide_meet_first() -> None:
    """Numbers of 1e15 on both sides are in range as the program has them, and so is what is added up of them without scales."""
    f = fused("o[i, n] = sum[l] (x[i, l] * r[i]) * (w[n, l] / s[n])", "x: f32[8, 12], r: f32[8], w: f32[5, 12], s: f32[5]")
    assert str(f.state.finalize[0].expr) == "o_acc * (r[i] / s[n])" and check(f) == []
    f = fused("o[i, n] = sum[l] x[i, l] / r[i] * (w[n, l] / s[n])", "x: f32[8, 12], r: f32[8], w: f32[5, 12], s: f32[5]")
    assert str(f.state.finalize[0].expr) == "o_acc / (r[i] * s[n])" and check(f) == []


def test_a_forgotten_scale_is_found() -> None:
    f = fused("o[i, n] = sum[l] f32(bf16(f32(x[i, l]) * r[i])) * f32(w[n, l])")
    (value,) = f.state.finalize
    twice = replace(value, expr=op("mul", value.expr, value.expr.args[1]))  # type: ignore[attr-defined]
    for wrong in (replace(value, expr=value.expr.args[0]), twice):  # type: ignore[attr-defined]
        assert check(replace(f, state=replace(f.state, finalize=(wrong,))))
