"""The verifier on rows of known extent and on reductions declared in half precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from redfuser.acrf.cascade import Let
from redfuser.acrf.check.shorten import restated
from redfuser.acrf.check.verify import check
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.expr import Cast, Const, Expr, Op, Ref, f32, map_children, op
from redfuser.acrf.state import Fused
from redfuser.acrf.text import parse_cascade
from tests.evaluated import run, run_fused
from tests.seconds import within

LAYERNORM = """cascade norm(x0: f32[1, 128, 768], x1: f32[1, 128, 768], x2: f32[768], x3: f32[768]) over l
  p[i, l] = x0[0, i, l] + x1[0, i, l]
  t[i] = sum[l] p
  u[i] = t / 768.0
  t1[i] = sum[l] (p - u) * (p - u)
  y[i, l] = (p - u) * rsqrt(t1 / 768.0 + 1e-12) * x2[l] + x3[l]
  return y"""


def fused(text: str) -> Fused:
    f = fuse(parse_cascade(text))
    assert isinstance(f, Fused)
    return f


def test_a_row_of_known_extent_is_proved_in_seconds():
    f = fused(LAYERNORM)
    with within(5):
        assert check(f) == []


def in_post(f: Fused, old: float, new: float) -> Fused:
    def other(e: Expr) -> Expr:
        return replace(e, value=new) if isinstance(e, Const) and e.value == old else map_children(e, other)

    return replace(f, post=tuple(replace(s, expr=other(s.expr)) for s in f.post))


LONG = LAYERNORM.replace("768.0", "1000000.0").replace("768", "1000000")


def test_a_row_longer_than_any_sample_is_measured_at_another_length():
    """GroupNorm over an image: its literals say a million, which a row of fewer elements contradicts."""
    f = fused(LONG)
    assert check(f) == []
    assert check(in_post(f, 1e6, 1e6 + 1), enough=1)
    *rest, last = f.state.accumulators
    raw = replace(last, rebase=(Ref(f"{last.name}@old", last.dtype),))
    assert check(replace(f, state=replace(f.state, accumulators=(*rest, raw))), enough=1), "no update of the mean"


@pytest.mark.parametrize("wrong", [769.0, 767.0, 768.0001])
def test_a_wrong_extent_in_the_fused_form_is_caught(wrong):
    assert check(in_post(fused(LAYERNORM), 768.0, wrong), enough=1)


@pytest.mark.parametrize("literal", ["767.0", "384.0", "769.0"])
def test_a_literal_that_only_resembles_the_extent_is_no_mean(literal):
    """``u`` is then no mean: a state that takes it for one is refused, derived or not."""
    right = fused(LAYERNORM)
    other = parse_cascade(LAYERNORM.replace("u[i] = t / 768.0", f"u[i] = t / {literal}"))
    assert check(replace(right, cascade=other), enough=1)


def test_restating_replaces_lengths_and_leaves_addresses():
    f = fused("""cascade c(x: f32[4, 2048]) over l where i = 4, l = 1024
  m[i] = sum[l] x[i, l + 1024]
  v[i] = m / 1024.0 + m * 0.0009765625 + m / 1023.0 + m * 3.0 + m / 1048576.0
  return v""")
    short = restated(f, 4)
    assert short is not None
    assert "m / 4.0 + m * 0.25 + m / 3.0 + m * 3.0 + m / 16.0" in str(short.cascade) and "1024" in str(short.cascade.stmts[0])
    assert restated(fused("cascade c(x: f32[4, 1024]) over l\n m[i] = sum[l] x[i, l]"), 4) is None


# -- reductions declared in half precision -----------------------------------------------------------------------------

HALF = ["t[i] = sum[l] x[i, l]", "t[i]: {d} = sum[l] f32(x[i, l]) * f32(x[i, l])",
        "m[i] = max[l] f32(x[i, l])\n t[i]: {d} = sum[l] exp(f32(x[i, l]) - m)",
        "m[i] = max[l] f32(x[i, l])\n s[i] = sum[l] exp(f32(x[i, l]) - m)\n"
        " t[i]: {d} = sum[l] exp(f32(x[i, l]) - m) / s * f32(x[i, l])"]


@pytest.mark.parametrize("d", ["f16", "bf16"])
@pytest.mark.parametrize("body", HALF)
def test_a_half_reduction_rounds_its_total_once(body, d):
    f = fused(f"cascade h(x: {d}[3, 48]) over l\n {body.format(d=d)}\n return t")
    assert check(f) == []
    exact = replace(f, certificate=replace(f.certificate, roundings=()))  # nothing moved: equal, rounding included
    assert check(exact, stability=False) == []
    last = f.state.finalize[-1]
    assert isinstance(last.expr, Cast) and last.expr.dtype == d
    unrounded = replace(exact, state=replace(exact.state, finalize=(*f.state.finalize[:-1],
                                                                    replace(last, expr=last.expr.arg))))
    assert check(unrounded, stability=False, enough=1)


def test_a_half_total_is_a_half_number_in_every_number_system():
    c = parse_cascade("cascade h(x: f16[1, 3]) over l\n t[i] = sum[l] x[i, l]\n return t")
    x = np.array([[1.0, 2.0**-11, 2.0**-12]], np.float16)  # 1 + 3 * 2**-12 lies between two halves
    for precision in ("f64", "program", "exact", "digits"):
        assert float(run(c, {"x": x}, precision)["t"][0]) == 1 + 2.0**-10, precision
    assert float(run(c, {"x": x}, "f64", round_casts=False)["t"][0]) == 1 + 3 * 2.0**-12


# -- samples that say nothing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", ["sqrt(-1.0 - x[l] * x[l])", "exp(exp(exp(abs(x[l]) + 9.0)))"])
def test_a_program_that_is_hardly_ever_defined_is_not_proved(body):
    f = fused(f"cascade c(x: f32[64]) over l\n t = sum[l] {body}\n return t")
    assert any("too few samples could be compared" in v for v in check(f))


@pytest.mark.parametrize("instead", [float("inf"), float("-inf"), 0.0])
def test_nan_in_the_input_may_not_come_out_as_anything_else(instead):
    f = fused("cascade c(x: f32[64]) over l\n t = sum[l] x[l]\n return t")
    let = f.state.finalize[-1]
    guarded = op("select", op("isnan", let.expr), f32(instead), let.expr)
    wrong = replace(f, state=replace(f.state, finalize=(replace(let, expr=guarded),)))
    assert check(f) == [] and any("nan" in v for v in check(wrong))


CHOSEN = {
    "least": """cascade own_minimum(x: f32[I, 48]) over l
  n[i] = min[l] x[i, l]
  s[i] = sum[l] pow(x[i, l] / n, -2.0)
  k[i] = min[l] abs(x[i, l])
  least[i] = sum[l] (k / x[i, l]) * (k / x[i, l])
  return s, least""",
    "cube": """cascade own_maximum(x: f32[I, 48]) over l
  t[i] = sum[l] x[i, l]
  square[i] = sum[l] (x[i, l] / t) * (x[i, l] / t)
  m[i] = max[l] abs(x[i, l])
  cube[i] = sum[l] pow(x[i, l] / m, 3.0)
  return square, cube""",
    "z": """cascade own_peak(x: f32[I, 48], b: f32[I, 48]) over l
  s[i] = sum[l] b[i, l]
  e[i] = sum[l] exp(x[i, l] - s)
  m[i] = max[l] x[i, l]
  z[i] = sum[l] exp(x[i, l] - m)
  return e, z""",
}
"""Programs that have, for a later sum, the very result that the deriver chooses by itself for an earlier one."""


@pytest.mark.parametrize("extent", [48, 8192])
@pytest.mark.parametrize("name", CHOSEN)
def test_a_result_of_the_program_stays_the_program_s_where_the_deriver_chose_it_too(name: str, extent: int):
    """Rows on which it is 0 or infinite end as in the source, also rows too long to be evaluated whole."""
    f = fused(CHOSEN[name].replace("48", str(extent)))
    assert check(f, stability=False) == []

    def at_the_reference(s: Let) -> Let:
        assert isinstance(s.expr, Op)
        return replace(s, expr=s.expr.args[0])

    finalize = tuple(at_the_reference(s) if s.name == name else s for s in f.state.finalize)
    found = check(replace(f, state=replace(f.state, finalize=finalize)), stability=False, enough=1)
    assert found and found[0].startswith(f"result: {name} differs"), found


@pytest.mark.parametrize("how", ["step", "tree"])
def test_a_mean_in_half_precision_is_the_program_s_in_the_end(how):
    """What stands for it while the row is reduced rounds otherwise: a row of one number has no variance all the same."""
    f = fused("""cascade counted(k: bool[4, 200], x: bf16[4, 200]) over l
  t[i] = sum[l] f32(select(k[i, l], x[i, l], bf16(0.0)))
  n[i] = sum[l] i64(k[i, l])
  u[i] = bf16(t) / bf16(max(n, 1))
  s[i] = sum[l] f32(select(k[i, l], (x[i, l] - u) * (x[i, l] - u), bf16(0.0)))
  return s""")
    k = np.random.default_rng(0).random((4, 200)) < 0.6
    given = {"k": k, "x": np.full((4, 200), 9984.0)}
    want = run(f.cascade, given, "program")["s"]
    got = run_fused(f, given, [64, 64, 64, 8], how, "program")["s"]
    assert (want == 0).all() and (got == 0).all()
