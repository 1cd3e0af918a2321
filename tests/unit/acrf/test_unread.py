"""Results that nothing reads any more: a place is chosen before the map that keeps the order, and what the map alone read is
left out, which the certificate says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from redfuser.acrf.check.verify import check
from redfuser.acrf.derive.derivation import Row
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.serial import fused_from_json, fused_to_json
from redfuser.acrf.state import Condition, Fused, NotFusable
from redfuser.acrf.text import parse_cascade
from tests.evaluated import run, run_fused

MEAN = "  t[i] = sum[l] x[i, l]\n  u[i] = t / 40.0\n"
SQUARES = MEAN + "  v[i] = sum[l] (x[i, l] - u) * (x[i, l] - u)\n"
MAGNITUDES = MEAN + "  v[i] = sum[l] abs(x[i, l] - u)\n"
LEFT_OUT = {
    "layer norm": SQUARES + "  a[i] = argmax[l] (x[i, l] - u) * rsqrt(v / 40.0 + 1e-05)\n",
    "its smallest": SQUARES + "  a[i] = argmin[l] (x[i, l] - u) * rsqrt(v / 40.0 + 1e-05)\n",
    "falling": SQUARES + "  a[i] = argmax[l] (u - x[i, l]) * rsqrt(v / 40.0 + 1e-05)\n",
    "more than a deviation": SQUARES + "  a[i] = argmax[l] x[i, l] * (sqrt(v / 39.0) + 1.0)\n",
    "a deviation, 0 of equal elements": SQUARES + "  a[i] = argmax[l] x[i, l] * sqrt(v / 39.0)\n",
    "z-score": SQUARES + "  a[i] = argmax[l] (x[i, l] - u) / sqrt(v / 39.0)\n",
    "moved": SQUARES + "  a[i] = argmax[l] x[i, l] + v\n",
    "by absolute deviation": MAGNITUDES + "  a[i] = argmax[l] (x[i, l] - u) / (v / 40.0)\n",
    "times absolute deviation": MAGNITUDES + "  a[i] = argmax[l] x[i, l] * v\n",
}


def of_a_row(body: str, outputs: str = "a", row: Row = "direct", head: str = "x: f32[5, 40]") -> Fused | NotFusable:
    return fuse(parse_cascade(f"cascade c({head}) over l\n{body}  return {outputs}\n"), row=row)


def left_out(body: str) -> Fused:
    f = of_a_row(body)
    assert isinstance(f, Fused), f
    return f


@pytest.mark.parametrize("body", LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_only_keeps_the_order_is_left_out_and_the_certificate_holds(body):
    f = left_out(body)
    assert check(f) == [] and not f.post
    assert "v is read by nothing" in {c.text for c in f.certificate.conditions}
    assert not [c for c in f.certificate.choices if c.startswith("v: ")]
    assert fused_from_json(fused_to_json(f)) == f
    x = np.random.default_rng(1).standard_normal((5, 40)).astype(np.float32)
    x[1], x[2, 7:20] = 3.0, 9.0
    for segments in ([40], [7, 0, 33]):
        assert (run_fused(f, {"x": x}, segments, "tree")["a"] == run(f.cascade, {"x": x})["a"]).all()


def test_what_is_read_beside_is_not():
    for outputs, more in (("a, v", ""), ("a, m", "  m[i] = max[l] (x[i, l] - u) * rsqrt(v / 40.0 + 1e-05)\n")):
        f = of_a_row(LEFT_OUT["layer norm"] + more, outputs)
        assert isinstance(f, Fused) and check(f) == []
        assert "v" in {s.name for s in f.post} and "v is read by nothing" not in {c.text for c in f.certificate.conditions}


def test_what_is_missing_is_said_to_be():
    """Without the line, and with one about a result that is an output, that is made, or that something reads."""
    f = left_out(LEFT_OUT["layer norm"])
    c = f.certificate
    silent = replace(c, conditions=tuple(x for x in c.conditions if x.text != "v is read by nothing"))
    assert check(replace(f, certificate=silent)) == ["structure: the reduction v is nowhere computed"]

    def claimed(f: Fused, name: str) -> Fused:
        more = (*f.certificate.conditions, Condition(f"{name} is read by nothing", "table"))
        return replace(f, certificate=replace(f.certificate, conditions=more))

    def without(f: Fused, name: str) -> Fused:
        f = claimed(f, name)
        return replace(f, state=replace(f.state, finalize=tuple(s for s in f.state.finalize if s.name != name)),
                       post=tuple(s for s in f.post if s.name != name))

    assert any("t is read by nothing does not hold" in v for v in check(claimed(f, "t")))
    assert any("y is read by nothing is about no reduction" in v for v in check(claimed(f, "y")))
    assert any("a is read by nothing does not hold" in v for v in check(without(f, "a")))
    both = of_a_row(LEFT_OUT["layer norm"] + "  m[i] = max[l] (x[i, l] - u) * rsqrt(v / 40.0 + 1e-05)\n", "a, m")
    assert isinstance(both, Fused)
    assert any("reads v, which it cannot know" in v for v in check(without(both, "v")))


@pytest.mark.parametrize("row", ["merged", "held", "direct", "final"])
@pytest.mark.parametrize("body", [
    "  s[i] = sum[l] abs(y[i, l])\n  a[i] = argmax[l] x[i, l] * s\n",
    "  t[i] = sum[l] y[i, l]\n  s[i] = sum[l] (y[i, l] - t / 40.0) * (y[i, l] - t / 40.0)\n  a[i] = argmin[l] x[i, l] * s\n",
    "  t[i] = sum[l] x[i, l]\n  s[i] = sum[l] (x[i, l] - t) * (x[i, l] - t)\n  a[i] = argmax[l] x[i, l] * (s - 1.0)\n",
], ids=["0 beside", "a deviation of another's", "of either sign"])
def test_a_scale_that_may_be_0_or_negative_is_not(body, row):
    f = of_a_row(body, row=row, head="x: f32[5, 40], y: f32[5, 40]")
    assert isinstance(f, NotFusable) and f.code == "RF209"
