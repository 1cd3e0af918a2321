"""What the resource model promises, TileLang's lowering confirms: it lowers, and fits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from redfuser.codegen import tilelang
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import configs, tensorize
from tests import fused_examples as cascades
from tests.tensorize import examples
from tests.tensorize.examples import Shape

SCRIPT = Path(__file__).with_name("lower.py")
CAUSAL = Shape(b=1, h=8, hk=2, i=1000, n=1000, d=96)
CASES = {
    "sm_90a": [lambda: (examples.attention(CAUSAL, mask=examples.masks(CAUSAL)["causal"]), "single", 1),
               lambda: (cascades.layer_norm(4096, 768, "f16"), "resident", 1)],
    "sm_80": [lambda: (examples.attention(CAUSAL, mask=examples.masks(CAUSAL)["causal"]), "single", 1),
              lambda: (examples.attention(Shape(b=4, h=16, hk=4, i=1, n=3000, d=64)), "multi", 3)],
}


@pytest.mark.slow
@pytest.mark.parametrize("arch", CASES)
def test_first_choice_lowers_and_fits(arch, tmp_path):
    machine, paths, threads = target(arch), [], []
    for index, case in enumerate(CASES[arch]):
        f, strategy, splits = case()
        program = realise(f, strategy, splits)
        tiles = tensorize(program, configs(program, machine)[0], machine)
        paths.append(tmp_path / f"kernel_{index}.py")
        paths[-1].write_text(tilelang.print_program(tiles))
        threads += [k.threads + 128 * k.warp_specialized for k in tiles.kernels]
    done = subprocess.run([sys.executable, str(SCRIPT), arch, *map(str, paths)], capture_output=True, text=True,
                          timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lowered = [line.split() for line in done.stdout.splitlines() if line.startswith("LOWERED")]
    assert [int(line[2]) for line in lowered] == threads
    assert all(int(line[3]) <= machine.shared_bytes for line in lowered)
