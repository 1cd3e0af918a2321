"""Moments about a weighted mean whose weights are of both signs: the mean lies anywhere, the reference stays in the data."""

from __future__ import annotations

import numpy as np
import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.check.verify import check
from redfuser.acrf.state import Fused
from tests.evaluated import run, run_fused

INERTIA = """cascade inertia(m: f32[64, 2048], x: f32[64, 2048]) over l
  t[i] = sum[l] m[i, l]
  s[i] = sum[l] m[i, l] * x[i, l]
  q[i] = sum[l] m[i, l] * ((x[i, l] - s / t) * (x[i, l] - s / t))
  return q
"""


def fused() -> Fused:
    found = fuse(parse_cascade(INERTIA), "preserve")
    assert isinstance(found, Fused)
    return found


def test_it_holds() -> None:
    assert check(fused()) == []


@pytest.mark.parametrize("how, segments", [("tree", 8), ("tree", 32), ("step", 32)])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_it_keeps_the_digits_that_a_sum_of_its_terms_has(how: str, segments: int, offset: float) -> None:
    """Each row's error in units of what a sum of its terms may lose: of rows whose masses nearly cancel all else is lost in the
    one that is farthest out. Where segments were taken about the ends of their data it was 3.3 to 4.2 times eager's."""
    f, ours, eager = fused(), [], []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        m = rng.standard_normal((64, 2048)).astype(np.float32)
        x = (rng.standard_normal((64, 2048)) + offset).astype(np.float32)
        wide, far = m.astype(np.float64), x.astype(np.float64)
        centre = (wide * far).sum(-1, keepdims=True) / wide.sum(-1, keepdims=True)
        unit = 2.0**-24 * (abs(wide) * (far - centre) ** 2).sum(-1)
        exact = run(f.cascade, {"m": m, "x": x})["q"]
        for found, got in ((ours, run_fused(f, {"m": m, "x": x}, [2048 // segments] * segments, how, precision="program")),
                           (eager, run(f.cascade, {"m": m, "x": x}, "program"))):
            found.append((got["q"] - exact) / unit)
    assert np.sqrt(np.mean(np.square(ours))) <= 3.0 * np.sqrt(np.mean(np.square(eager)))
