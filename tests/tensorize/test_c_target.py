"""The printed text, run: TileLang's ``c`` target against the float64 reference, fp16 and fp32."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.state import Fused
from redfuser.codegen import tilelang as printer
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import TileConfig, TileProgram, tensorize
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.pointwise import NUMPY_DTYPES
from tests import evaluated
from tests import fused_examples as cascades
from tests.tensorize import examples
from tests.tensorize.examples import Shape

SCRIPT = Path(__file__).with_name("c_target.py")
SMALL = TileConfig(16, 16, 32, 1, warp_specialized=False)
DECODE = TileConfig(16, 16, 128, 1, "shared", False)
ROWS = TileConfig(2, 64, 64, 0, warp_specialized=False)

INTEGERS = """cascade integers(x: f32[5, 64], k: i32[5, 64], b: i8[5, 64]) over l
  z[i, l] = f32((i64(x[i, l] * 2.5) * 3 + i64(k[i, l]) * i64(b[i, l])) % 97)
  w[i, l] = f32(b[i, l] * b[i, l]) + select(b[i, l] + b[i, l] < b[i, l], 0.25, 0.5)
  m[i] = max[l] z + w
  t[i] = sum[l] z * f32(i64(x[i, l]))
  return m, t
"""

CASES = {
    "integers f32": lambda: (fuse(parse_cascade(INTEGERS)), ROWS, "resident", 1),
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


Results = dict[str, np.ndarray]


def run(kernels: Mapping[Path, tuple[TileProgram, Mapping[str, np.ndarray]]]) -> list[Results]:
    """What tiles, by the folder that they are written to, make of their inputs: all of them in one process."""
    for folder, (tiles, values) in kernels.items():
        (folder / "kernel.py").write_text(printer.print_program(tiles))
        memory = {}
        for a in tiles.args:
            dtype = np.uint8 if a.dtype == "bool" else NUMPY_DTYPES[a.dtype]
            memory[a.name] = values[a.name].astype(dtype) if a.role == "in" else np.zeros(a.shape, dtype)
        np.savez(folder / "in.npz", **memory)
    done = subprocess.run([sys.executable, str(SCRIPT), *map(str, kernels)], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    left = [np.load(folder / "out.npz") for folder in kernels]
    return [{name: out[arg] for name, arg in tiles.outputs} for out, (tiles, _) in zip(left, kernels.values(), strict=True)]


Ran = dict[str, tuple[Fused, TileProgram, Results, Results]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Every case: its state, tiles, inputs and results."""
    made = {}
    for name, case in CASES.items():
        f, config, strategy, splits = case()
        made[name] = f, tensorize(realise(f, strategy, splits), config, target("sm_80")), examples.inputs(f)
    got = run({tmp_path_factory.mktemp("kernel"): (tiles, values) for _, tiles, values in made.values()})
    return {name: (*made[name], results) for name, results in zip(made, got, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_printed_text_runs(name: str, ran: Ran) -> None:
    f, tiles, values, got = ran[name]
    checked = interpret.run(tiles, values)
    reference = examples.reference(f, values) if "integers" not in name else evaluated.run(f.cascade, values, round_casts=False)
    for output, expected in reference.items():
        tolerance = 1e-5 if "f32" in name else 3e-3
        have = got[output].astype(np.float64)
        np.testing.assert_allclose(have, expected, atol=tolerance, rtol=tolerance)
        np.testing.assert_allclose(have, checked[output].astype(np.float64), atol=tolerance, rtol=tolerance)
