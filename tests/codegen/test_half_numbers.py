"""Arithmetic in half precision beside numbers is in half precision: TileLang takes a bare number for one in float32, in which it
then computes, and the program's rounding is lost."""

from __future__ import annotations

import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.state import Fused
from redfuser.codegen import tilelang
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import configs, tensorize

STEPS = """cascade steps(x: {d}[64, 512], w: {d}[64, 512]) over l
  t[i] = sum[l] f32({d}(f32(x[i, l] - w[i, l] + {d}(1.5)) % 3.0) - {d}(0.75))
  z[i, l] = f32({d}(2.5) * x[i, l]) + 1.0
  return t, z
"""


@pytest.mark.parametrize(("dtype", "name"), [("bf16", "T.bfloat16"), ("f16", "T.float16")])
@pytest.mark.parametrize("on", ["sm_90a", "gfx942"])
def test_a_number_has_the_type_of_what_it_is_beside(dtype: str, name: str, on: str) -> None:
    fused = fuse(parse_cascade(STEPS.format(d=dtype)))
    assert isinstance(fused, Fused)
    machine, program = target(on), realise(fused, "resident")
    text = tilelang.print_program(tensorize(program, configs(program, machine)[0], machine), machine.kind)
    assert f"+ {name}(1.5)" in text and f"- {name}(0.75)" in text and f"{name}(2.5) *" in text
    assert "+ 1.0" in text, "in float32 a number is what it is"
