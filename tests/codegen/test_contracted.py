"""What a GPU's compilers may not make one multiply-add of, as it stands in the text."""

from __future__ import annotations

import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.state import Fused
from redfuser.codegen import tilelang
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import configs, tensorize

ATTENTION = """cascade a(q: f16[2, 64, 64], k: f16[2, 96, 64], v: f16[2, 96, 64]{more}) over l
  s[b, i, l] = sum[c] f32(q[b, i, c]) * f32(k[b, l, c])
  p[b, i, l] = {score}
  m[b, i] = max[l] f32(p)
  t[b, i] = sum[l] exp(f32(p) - m)
  o[b, i, e] = sum[l] exp(f32(p) - m) / t * f32(v[b, l, e])
  y[b, i, e] = f16(o)
  return y
"""


def text(score: str, more: str = "") -> str:
    found = fuse(parse_cascade(ATTENTION.format(score=score, more=more)))
    assert isinstance(found, Fused), found
    program, machine = realise(found, "single"), target("sm_90a")
    return tilelang.print_program(tensorize(program, configs(program, machine)[0], machine))


@pytest.mark.parametrize("score", ["s", "s * 0.125", "s * 0.125 + f32(w[b, l])", "f16(s) * f16(0.125)"])
def test_a_difference_that_nothing_is_lost_of_is_plain(score: str) -> None:
    """The factor stands behind the difference, a sum or a rounding comes between: as fast as can be."""
    assert "_rn" not in text(score, ", w: f16[2, 96]")


def test_the_product_before_an_exponential_keeps_its_rounding() -> None:
    """``exp(s * w - max)``: as a multiply-add, 0 at the maximum becomes what ``s * w`` was rounded by."""
    made = text("s * f32(w[b, i])", ", w: f16[2, 64]")
    assert 'T.call_extern("float32", "exp2_approx", T.call_extern("float32", "sub_rn", scores[i, j], ' in made
    assert "float sub_rn(float x, float y) { return __fsub_rn(x, y); }" in made and made.count('"sub_rn"') == 1


def test_a_statistic_is_taken_of_the_rounded_product() -> None:
    """``s * c - logsumexp(s * c)`` with the logarithm from elsewhere: a softmax behind it would show what the product lost. What
    varies as the product does is a bias, and a sum with a row's is one too."""
    def score(of: str, c: str = "0.158", sign: str = "-") -> str:
        shape = {"b, i": "2, 64", "b, l": "2, 96", "b, i, l": "2, 64, 96"}[of]
        return text(f"s * {c} {sign} z[{of}]", f", z: f32[{shape}]")

    assert all('"sub_rn", scores[i, j] * ' in score(of) for of in ("b, i", "b, l"))
    assert not any("sub_rn" in score(*given) for given in (("b, i, l",), ("b, l", "0.158", "+")))


ROWS = """cascade rows(x: f32[64, 96], b: f32[64], c: f32[64]) over l
  m[i] = max[l] x[i, l]
  t[i] = sum[l] exp(x[i, l] - m)
  s[i] = sum[l] x[i, l] * exp(x[i, l] - m)
  y[i] = {result}
  return y
"""


def rows(result: str) -> str:
    found = fuse(parse_cascade(ROWS.format(result=result)))
    assert isinstance(found, Fused), found
    program, machine = realise(found, "single"), target("sm_90a")
    made = tilelang.print_program(tensorize(program, configs(program, machine)[0], machine))
    return next(line for line in made.splitlines() if "out_y[" in line)


def test_results_of_a_row_are_rounded_before_they_are_added() -> None:
    """Of two that are one and the same nothing is left; a constant is none, and elements of a row are read by more than these."""
    assert 'T.call_extern("float32", "sub_rn", T.log(t[i]) + ' in rows("log(t) + m + b[i] * s")
    assert "(-(b" in rows("log(t) + m + b[i] * s") and "sub_rn" in rows("m - b[i] * s")
    assert "sub_rn" not in rows("log(t) * 2.0 + 1.0") and "sub_rn" not in rows("log(t) + m + c[i]")


def test_halves_are_added_to_a_product_in_single_precision() -> None:
    """``w - s * 2`` overflows where the program's own product does."""
    made = text("w[b, l] - f16(s) * f16(2.0)", ", w: f16[2, 96]")
    assert 'T.cast(T.cast(w[b, step * 64 + j], "float32") - T.cast(T.cast(scores[i, j], "float16") * T.float16(2.0), "float32"), "float16")' \
        in made
    plain = text("w[b, l] - f16(s)", ", w: f16[2, 96]")
    assert '- T.cast(scores[i, j], "float16")' in plain and 'T.cast(w[b, step * 64 + j], "float32")' not in plain
