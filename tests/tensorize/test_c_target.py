"""The printed text, run: TileLang's ``c`` target against the float64 reference, fp16 and fp32."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from redfuser.codegen import tilelang as printer
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import TileConfig, tensorize
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.pointwise import NUMPY_DTYPES
from tests import fused_examples as cascades
from tests.tensorize import examples
from tests.tensorize.examples import Shape

SCRIPT = Path(__file__).with_name("c_target.py")
SMALL = TileConfig(16, 16, 32, 1, warp_specialized=False)
DECODE = TileConfig(16, 16, 128, 1, "shared", False)
ROWS = TileConfig(2, 64, 64, 0, warp_specialized=False)


def run(tiles, values, folder: Path) -> dict[str, np.ndarray]:
    module, given, left = folder / "kernel.py", folder / "in.npz", folder / "out.npz"
    module.write_text(printer.print_program(tiles))
    memory = {}
    for a in tiles.args:
        dtype = np.uint8 if a.dtype == "bool" else NUMPY_DTYPES[a.dtype]
        memory[a.name] = values[a.name].astype(dtype) if a.role == "in" else np.zeros(a.shape, dtype)
    np.savez(given, **memory)
    done = subprocess.run([sys.executable, str(SCRIPT), str(module), str(given), str(left)], capture_output=True,
                          text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    out = np.load(left)
    return {name: out[arg] for name, arg in tiles.outputs}


CASES = {
    "prefill, causal, ragged": lambda: (examples.attention(
        Shape(i=20, n=40, d=16), mask=examples.masks(Shape(i=20, n=40))["causal"]), SMALL, "single", 1),
    "window and data mask": lambda: (examples.attention(Shape(h=4, hk=2, i=24, n=24, d=16),
                                                        mask=examples.masks(Shape(i=24, n=24))["causal and keys"],
                                                        bias="tile", cap=4.0), SMALL, "single", 1),
    "split decode": lambda: (examples.attention(Shape(b=2, h=4, hk=2, i=1, n=50, d=16)), DECODE, "multi", 3),
    "layer norm": lambda: (cascades.layer_norm(5, 50, "f16"), ROWS, "resident", 1),
    "softmax f32": lambda: (cascades.softmax(5, 64, "f32"), ROWS, "resident", 1),
    "variance f32": lambda: (cascades.variance(3, 40), TileConfig(2, 16, 64, 0, warp_specialized=False), "multi", 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_printed_text_runs(name, tmp_path):
    f, config, strategy, splits = CASES[name]()
    tiles = tensorize(realise(f, strategy, splits), config, target("sm_80"))
    values = examples.inputs(f)
    got = run(tiles, values, tmp_path)
    checked = interpret.run(tiles, values)
    for output, expected in examples.reference(f, values).items():
        tolerance = 1e-5 if "f32" in name else 3e-3
        have = got[output].astype(np.float64)
        np.testing.assert_allclose(have, expected, atol=tolerance, rtol=tolerance)
        np.testing.assert_allclose(have, checked[output].astype(np.float64), atol=tolerance, rtol=tolerance)
