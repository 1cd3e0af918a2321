"""What holds of every architecture that kernels are made for, and what is said of those that none are."""

from __future__ import annotations

import pytest

from redfuser import api
from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.state import Fused
from redfuser.codegen import tilelang
from redfuser.errors import InputError
from redfuser.strategies import realise
from redfuser.target import TARGETS, older_of, target
from redfuser.tensorize import configs, tensorize
from redfuser.tensorize.ir.nodes import Roles
from redfuser.tensorize.model import fits, predicted

ATTENTION = """cascade attention(q: f16[2, 300, 64], k: f16[2, 300, 64], v: f16[2, 300, 64]) over l
  s[b, i, l] = sum[c] f32(q[b, i, c]) * f32(k[b, l, c])
  m[b, i] = max[l] s * 0.125
  t[b, i] = sum[l] exp(s * 0.125 - m)
  o[b, i, e] = sum[l] exp(s * 0.125 - m) / t * f32(v[b, l, e])
  y[b, i, e] = f16(o)
  return y
"""
NORMED = """cascade normed(x: f16[140, 200], w: f16[200, 48]) over l
  t[i] = sum[l] f32(x[i, l]) * f32(x[i, l])
  o[i, d] = sum[l] f32(x[i, l]) * rsqrt(t / 200.0 + 1.0e-5) * f32(w[l, d])
  y[i, d] = f16(o)
  return y
"""


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("text", [ATTENTION, NORMED], ids=["attention", "normed"])
def test_its_tiles_fit_and_ask_for_nothing_it_lacks(arch: str, text: str) -> None:
    """Rows that loads and a product lay out in two ways meet in shared memory wherever products are of single warps: TileLang has
    no layout for them, or one with a barrier for every element (1290 of them in one kernel for sm_86)."""
    at, fused = target(arch), fuse(parse_cascade(text))
    assert isinstance(fused, Fused)
    program = realise(fused, "single")
    tiles = tensorize(program, configs(program, at)[0], at)
    (kernel,) = tiles.kernels
    assert fits(kernel, at) and (predicted(tiles, at) or 0.0) > at.launch
    assert at.tma or not (kernel.warp_specialized or any(isinstance(s, Roles) for s in kernel.body))
    met = [b.name for b in kernel.buffers if b.scope == "shared" and len(b.shape) == 1]
    assert bool(met) == (text is NORMED and not at.wgmma)
    assert ("tilelang.rocm" in tilelang.print_program(tiles, at.kind)) == (at.kind == "hip")


@pytest.mark.parametrize("arch, said", [("sm_99", "unknown target"), ("sm_75", "no bfloat16"), ("gfx1100", "waves are of 32"),
                                        ("sm_121", "target='sm_120'"), ("sm_87", "target='sm_86'"), ("sm_9", "unknown target")])
def test_what_no_kernels_are_made_for_is_refused_by_name(arch: str, said: str) -> None:
    for ask in (target, api.architecture):
        with pytest.raises(InputError) as error:
            ask(arch)
        assert error.value.code == "RF496" and arch in error.value.what and said in error.value.render()


@pytest.mark.parametrize("arch, runs", [("sm_87", "sm_86"), ("sm_88", "sm_86"), ("sm_103", "sm_100"), ("sm_91", ""), ("gfx950", "")])
def test_binaries_of_the_same_generation_run(arch: str, runs: str) -> None:
    assert older_of(arch) == runs
