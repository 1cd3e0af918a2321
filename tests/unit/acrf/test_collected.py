"""Cascades beyond the rows of the specification: each is derived, and its certificate holds."""

from __future__ import annotations

import re

import pytest

from redfuser.acrf.check.verify import check
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.state import Fused, NotFusable
from redfuser.acrf.text import parse_cascade
from tests.unit.acrf.corpus import FOLDER

TEXTS = {re.search(r"cascade (\w+)", t)[1]: t + "\n"
         for t in (FOLDER / "collected.txt").read_text().strip().split("\n\n")[1:]}


@pytest.mark.parametrize("name", TEXTS)
def test_it_fuses_and_its_certificate_holds(name):
    f = fuse(parse_cascade(TEXTS[name]))
    assert isinstance(f, Fused), f
    assert check(f) == []


def accumulators(body: str, head: str = "x: f32[I, L], v: f32[L, E], k: bool[I, L]") -> list[str]:
    f = fuse(parse_cascade(f"cascade c({head}) over l\n{body}"))
    assert isinstance(f, Fused), f
    return [a.name for a in f.state.accumulators]


def test_a_mask_written_twice_bounds_the_exponential_without_a_maximum_of_its_own():
    assert accumulators("""  m = max[l] select(k[i, l], x[i, l], -inf)
  t = sum[l] select(k[i, l], exp(x[i, l] - m), 0.0)
  o = sum[l] select(k[i, l], exp(x[i, l] - m), 0.0) * v[l, e] / t
""") == ["m", "t", "o_acc"]


def test_a_sink_bounds_it_too():
    names = accumulators("  m = max[l] x[i, l]\n  r[i] = max(m, 0.0)\n  t = sum[l] exp(x[i, l] - r)\n")
    assert names == ["m", "t"]


def test_equal_results_do_not_cancel():
    """d / d is NaN where d is 0."""
    f = fuse(parse_cascade("cascade c(x: f32[L]) over l\n  d = sum[l] x[l]\n  s = sum[l] x[l] * d / d\n"))
    assert isinstance(f, Fused)
    assert str(f.state.finalize[-1]) == "s = d * d / d" and check(f) == []


@pytest.mark.parametrize(("body", "code"), [
    ("  d = sum[l] x[i, l]\n  r = sum[l] exp(x[i, l] - d)\n  o = sum[l] pow(x[i, l] - exp(d + x[i, 0]), 2)\n", "RF207"),
    ("  d = sum[l] x[i, l]\n  o = sum[l] pow(abs(x[i, l]) / d, 1.5)\n", "RF206"),
    ("  d = argmax[l] x[i, l]\n  o = sum[l] select(l < d, x[i, l], 0.0)\n", "RF204"),
    ("  m = min[l] abs(x[i, l])\n  p = prod[l] x[i, l] * m\n", "RF207"),
    ("  m = sum[l] x[i, l]\n  p = prod[l] x[i, l] * m\n", "RF207"),
    ("  m = max[l] x[i, l]\n  p = prod[l] select(x[i, l] == m, 2.0, x[i, l])\n", "RF204"),
])
def test_what_has_no_steady_reference_is_refused(body, code):
    f = fuse(parse_cascade(f"cascade c(x: f32[I, L]) over l\n{body}"))
    assert isinstance(f, NotFusable) and f.code == code, f


def test_the_place_of_a_top_one_singles_out_its_element_too():
    f = fuse(parse_cascade("cascade c(x: f32[L], v: f32[L]) over l\n  w, at = topk(1)[l] x[l]\n"
                           "  o = sum[l] select(l == at, v[l], 0.0)\n"))
    assert isinstance(f, Fused) and check(f) == []
    two = fuse(parse_cascade("cascade c(x: f32[L], v: f32[L]) over l\n  w, at = topk(2)[l] x[l]\n"
                             "  o = sum[l] select(l == at, v[l], 0.0)\n"))
    assert isinstance(two, NotFusable) and two.code == "RF204"
