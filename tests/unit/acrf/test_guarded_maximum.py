"""A maximum that is guarded by hand, or raised to a constant, in front of half weights: they divide by 1 or more, or by nothing."""

from __future__ import annotations

import pytest

from redfuser.acrf import NotFusable, fuse, parse_cascade
from redfuser.acrf.check.verify import check
from redfuser.acrf.state import Fused

GUARDS = {
    "equal": "select(m == -inf, 0.0, m)",
    "not equal": "select(not (m == -inf), m, 0.0)",
    "infinite": "select(not (abs(m) == inf and not isnan(m)), m, 0.0)",
    "finite": "select(m == m and abs(m) != inf, m, 0.0)",
    "far below": "max(m, -1e30)",
}


def fused(reference: str, divisor: str = "t", dtype: str = "f16", weights: str = "exp(p - u)") -> Fused | NotFusable:
    return fuse(parse_cascade(f"""cascade attention(x: f32[i, L], k: bool[i, L], z: f32[i], v: {dtype}[L, e]) over l
  p[i, l] = select(k[i, l], x[i, l] * 0.125, -inf)
  m[i] = max[l] p
  u[i] = {reference}
  t[i] = sum[l] {weights}
  o[i, e] = sum[l] f32({dtype}({weights} / {divisor})) * f32(v[l, e])
  return o
"""))


@pytest.mark.parametrize("divisor", ["t", "max(t, 1e-9)", "select(not (t == 0.0), t, 1.0)"])
@pytest.mark.parametrize("guard", GUARDS)
def test_half_weights_about_a_guarded_maximum_are_fused(guard: str, divisor: str) -> None:
    """Each was refused (RF205), or derived about the guard itself, whose ratio overflows where the first element is seen."""
    f = fused(GUARDS[guard], divisor)
    assert isinstance(f, Fused)
    assert not any("running results" in r for r in f.certificate.roundings)
    assert not check(f)


@pytest.mark.parametrize(("reference", "divisor"), [
    ("max(m, 0.0)", "(t + exp(-u))"), ("max(m, 2.0)", "(t + exp(2.0 - u))"), ("max(m, z[i])", "max(t + exp(z[i] - u), 1e-9)"),
    ("max(max(m, z[i]), 0.0)", "(t + exp(z[i] - u) + exp(-u))")])
def test_one_of_several_in_the_divisor_is_the_largest(reference: str, divisor: str) -> None:
    f = fused(reference, divisor)
    assert isinstance(f, Fused)
    assert not check(f)


@pytest.mark.parametrize(("reference", "divisor", "weights"), [
    ("max(m, 0.0)", "t", "exp(p - u)"), ("max(m, 0.0)", "(t + exp(-u - 1.0))", "exp(p - u)"), ("max(m, -1e4)", "t", "exp(p - u)"),
    ("select(m == 0.0, 0.0, m)", "(t * 0.5)", "exp(p - u)"), (GUARDS["equal"], "t", "select(k[i, l], exp(x[i, l] - u), 0.0)")])
def test_a_divisor_that_may_be_small_is_refused(reference: str, divisor: str, weights: str) -> None:
    f = fused(reference, divisor, weights=weights)
    assert isinstance(f, NotFusable)
    assert f.code == "RF205"


def test_a_reference_that_is_given_may_be_nan() -> None:
    """An empty segment is NaN then where init is 0, and so is every row's state."""
    f = fuse(parse_cascade("""cascade first(x: f32[i, L]) over l
  m[i] = max[l] x[i, l]
  u[i] = max(m, x[i, 0] * 2.0)
  t[i] = sum[l] exp(x[i, l] - u)
  return t
"""))
    assert isinstance(f, Fused)
    assert not check(f)


@pytest.mark.parametrize("expr", ["x[i, l] * 2.0", "x[i, l] + 1.0"])
@pytest.mark.parametrize("reference", ["max(m, p[i, 0])", "p[i, 0]"])
def test_a_reference_at_a_place_that_is_computed_along_the_row_is_refused(expr: str, reference: str) -> None:
    """It was fused, and the checker found the element out of every other segment's reach."""
    f = fuse(parse_cascade(f"""cascade first(x: f32[i, L]) over l
  p[i, l] = {expr}
  m[i] = max[l] p
  u[i] = {reference}
  t[i] = sum[l] exp(p - m) * exp(m - u)
  return t
"""))
    assert isinstance(f, NotFusable)
    assert f.code == "RF208"


@pytest.mark.parametrize("place", ["min(l, 31)", "max(l, 3)", "min(max(l, 3), 31)"])
@pytest.mark.parametrize("reference", ["m", "max(m, -3.4028234663852886e+38)"])
def test_a_position_with_a_limit_is_no_clamp_of_a_float(place: str, reference: str) -> None:
    """The derivation looked for the largest integer of a type that is kept for floats alone, and failed with RF902."""
    f = fuse(parse_cascade(f"""cascade distances(x: f32[i, L]) over l
  m[i] = max[l] x[i, l] - f32({place})
  t[i] = sum[l] exp(x[i, l] - f32({place}) - {reference})
  return t
"""))
    assert isinstance(f, Fused)
    assert not check(f)
