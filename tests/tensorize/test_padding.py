"""What lies past the end of a ragged row is neutral to every reduction that meets it, whichever came first."""

from __future__ import annotations

import pytest

from redfuser.acrf import parse_cascade
from tests.tensorize.holding import hold, tiles, values

TEXTS = {
    "a largest magnitude beside a largest": "m[i] = max[l] x[i, l]\n  a[i] = max[l] abs(x[i, l])\n  t[i] = sum[l] exp(x[i, l] - m)",
    "a sum before the largest of the same":
        "d[i, l] = x[i, l] - y[i, l]\n  s[i] = sum[l] d * d\n  m[i] = max[l] d\n  t[i] = s / m\n  a[i] = s + m",
    "a sum of magnitudes, then their largest":
        "d[i, l] = abs(x[i, l] - y[i, l])\n  t[i] = sum[l] d\n  m[i] = max[l] d\n  a[i] = t / m",
    "an inner product and its greatest term": "d[i, l] = x[i, l] * y[i, l]\n  t[i] = sum[l] d\n  m[i] = max[l] d\n  a[i] = t / m",
}


@pytest.mark.parametrize("what", TEXTS)
@pytest.mark.parametrize("strategy, splits", [("single", 1), ("multi", 3), ("resident", 1)])
def test_ragged_rows(what: str, strategy: str, splits: int) -> None:
    inputs = "x: f32[21, 37], y: f32[21, 37]" if "y[" in TEXTS[what] else "x: f32[21, 37]"
    cascade = parse_cascade(f"cascade ragged({inputs}) over l\n  {TEXTS[what]}\n  return m, t, a\n")
    for scale in (1.0, 9.0):
        hold(cascade, values(cascade, scale), tiles(cascade, strategy, splits))
