"""Cascades as tile programs, and tile programs held to their cascades in the interpreter."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from redfuser import numerics
from redfuser.acrf import fuse
from redfuser.acrf.cascade import Cascade
from redfuser.acrf.state import Fused
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import TileConfig, tensorize
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.nodes import TileProgram
from tests.evaluated import run

H200 = target("sm_90a")
PRODUCT, ROWS = TileConfig(32, 16, 64, 2), TileConfig(4, 16, 64, 0, warp_specialized=False)
TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn}
TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


def values(cascade: Cascade, size: float = 1.0, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal data; row 3 of a mask hides everything, row 4 all but the end."""
    rng = np.random.default_rng(seed)
    out = {}
    for t in cascade.inputs:
        x = rng.standard_normal(t.shape)
        if t.dtype == "bool":
            x = x > -0.3
            x[3], x[4, :-2], x[4, -1] = False, False, True
            out[t.name] = x
        else:
            out[t.name] = (x * (size if t.name in "qk" else 1.0)).astype(TYPES[t.dtype])
    return out


def tiles(cascade: Cascade, strategy: str = "single", splits: int = 1, config: TileConfig = PRODUCT) -> TileProgram:
    fused = fuse(cascade)
    assert isinstance(fused, Fused), fused
    return tensorize(realise(fused, strategy, splits), config, H200)


def hold(cascade: Cascade, given: dict[str, np.ndarray], program: TileProgram) -> None:
    """The numerics rule for every result; NaN and infinities where the unfused program or float64 has them."""
    exact, unfused = run(cascade, given, round_casts=False), run(cascade, given, "program")
    for name, ours in interpret.run(program, given).items():
        dtype = TORCH[cascade.stmt(name).expr.dtype if hasattr(cascade.stmt(name), "expr") else "f32"]
        a, b, r = (torch.from_numpy(np.asarray(x).astype(np.float64)) for x in (ours, unfused[name], exact[name]))
        check = numerics.compare(a.to(dtype), b.to(dtype), r, name)
        gone = (a.isfinite() != b.isfinite()) & (a.isfinite() != r.isfinite())
        assert not gone.any(), f"{name}: {int(gone.sum())} misplaced\n{cascade}"
        limit = check.limit
        assert check.ours.maximum <= limit.maximum and check.ours.rms <= limit.rms, f"{check}\n{cascade}"
