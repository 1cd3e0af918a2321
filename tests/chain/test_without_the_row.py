"""Maps that do not run along the row, read where the row is done: in the kernel that merges splits too."""

from __future__ import annotations

from pathlib import Path

import pytest

from redfuser import chain
from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.state import Fused
from redfuser.cache import Cache
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import configs

HEAD = "cascade scaled(x: f32[64, 512], w: f32[64], c: f32[8]) over l"
CASES = {
    "of the point": "p[i] = w[i] * 2.0; m[i] = max[l] x[i, l]; y[i] = m + p; return y",
    "of another axis": "p[n] = c[n] * 2.0; m[i] = max[l] x[i, l]; y[i, n] = m * p; return y",
    "a contraction": "p[i] = sum[k] c[k] * w[i]; m[i] = max[l] x[i, l]; y[i] = m + p; return y",
    "one of another": "p[i] = w[i] * 2.0; q[i] = p + 1.0; m[i] = max[l] x[i, l]; u[i] = m + q; y[i, l] = x[i, l] * p - u; return u, y",
    "in the row too": "p[n] = c[n] * 2.0; m[i] = max[l] x[i, l]; t[i, n] = sum[l] exp(x[i, l] - m) * p; y[i, n] = t * p + m; return y",
}


@pytest.mark.parametrize("strategy, splits", [("single", 1), ("multi", 4), ("resident", 1)])
@pytest.mark.parametrize("case", CASES)
def test_it_is_at_hand(case: str, strategy: str, splits: int, tmp_path: Path) -> None:
    lines = CASES[case].split("; ")
    head = HEAD + (" where k = 8" if "[k]" in CASES[case] else "")
    fused = fuse(parse_cascade("\n  ".join([head, *lines])))
    assert isinstance(fused, Fused), fused
    program, store = realise(fused, strategy, splits), Cache(tmp_path)  # type: ignore[arg-type]
    machine = target("sm_90a")
    assert chain.scalar_program(program, True, store).violations == ()
    assert chain.tile_program(program, configs(program, machine)[0], machine, store).violations == ()
