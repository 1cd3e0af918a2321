"""What a certificate says is read back and held against the program: a wrong reason is a violation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redfuser.acrf.check.verify import check, check_claims
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.state import Certificate, Condition, Fused
from redfuser.acrf.text import parse_cascade

VARIANCE = """cascade variance(x: f32[L], w: f32[L]) over l
  m = max[l] abs(x[l])
  n = sum[l] 1.0
  s = sum[l] x[l]
  v = sum[l] (x[l] - s / n) * (x[l] - s / n)
  y = sum[l] w[l] / m
  return v, y"""


@pytest.fixture(scope="module")
def right() -> Fused:
    f = fuse(parse_cascade(VARIANCE))
    assert isinstance(f, Fused)
    return f


def says(f: Fused, certificate: Certificate) -> list[str]:
    return list(check_claims(replace(f, certificate=certificate)))


def test_the_right_ones_hold(right: Fused) -> None:
    c = right.certificate
    assert any("(*) [1/m]" in x for x in c.decomposition) and c.identities and c.conditions
    assert says(right, c) == []
    wrong = replace(right, certificate=replace(c, identities=("s = 0",)))
    assert any(v.startswith("certificate") for v in check(wrong, stability=False))


@pytest.mark.parametrize(("old", "new"), [("1/m", "1/n"), ("max[l]", "max[l] 2.0 *"), ("pow(", "abs("), ("(*)", "and"), ("x[l]", "z[l]")])
def test_a_wrong_decomposition_is_found(right: Fused, old: str, new: str) -> None:
    lines = tuple(x.replace(old, new) for x in right.certificate.decomposition)
    assert any("the decomposition" in v for v in says(right, replace(right.certificate, decomposition=lines)))


def test_a_wrong_identity_is_found(right: Fused) -> None:
    (line,) = right.certificate.identities
    for wrong in (line.replace("-(", "("), line.replace("v_1", "v_acc"), "v_1 = nothing = 0"):
        assert any("the identity" in v for v in says(right, replace(right.certificate, identities=(wrong,)))), wrong


@pytest.mark.parametrize(("text", "discharged"), [
    ("s >= 0", "interval"), ("m <= 0", "z3"), ("abs(x[l]) <= m / 2.0", "table"), ("m >= 0", "hope"), ("all is well", "table"),
    ("abs(x[l]) <= c * (m - m) for a constant c", "interval"),
    ("v is not observed where m <= 0.0", "table")])
def test_a_wrong_condition_is_found(right: Fused, text: str, discharged: str) -> None:
    c = replace(right.certificate, conditions=(Condition(text, discharged),))
    assert any("the condition" in v for v in says(right, c))


@pytest.mark.parametrize("text", ["m >= 0", "abs(x[l]) <= m", "sqrt(n) >= 0 wherever s is defined", "the sign of s is unknown",
                                  "abs(x[l]) <= c * (m / 4.0) for a constant c"])
def test_a_right_condition_is_not(right: Fused, text: str) -> None:
    assert says(right, replace(right.certificate, conditions=(Condition(text, "interval"),))) == []
