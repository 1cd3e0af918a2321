"""A difference is taken before it is scaled: a compiler that contracts ``a * c - b * c`` to a multiply-add leaves a residual
for equal values, 1e22 for -1e30, which no interpreter shows."""

import numpy as np
import pytest
import torch

from redfuser.acrf.expr import Const, Expr, Op, Ref, op, walk
from redfuser.chain.tiles import arguments
from redfuser.tensorize import tensorize
from redfuser.tensorize.ir.interpret import run
from redfuser.tensorize.rewrite.base_two import exponentials
from tests.chain.lowered import HOPPER, fused_of, program_of

SCALE = Const(0.08838834764831845, "f32")


@pytest.mark.parametrize("old", ["m@old", "scores"])
def test_equal_references_cancel_exactly(old: str) -> None:
    a, b = (op("mul", Ref(n, "f32"), SCALE) for n in (old, "m"))
    assert _differences(exponentials(op("exp", op("sub", a, b)))) == [op("sub", Ref(old, "f32"), Ref("m", "f32"))]


def test_what_else_is_added_comes_before_the_difference() -> None:
    biased = op("add", op("mul", Ref("scores", "f32"), SCALE), Ref("bias", "f32"))
    whole = op("sub", biased, Ref("m", "f32"))
    assert _differences(exponentials(op("exp", whole))) == [whole]


def _differences(written: Expr) -> list[Expr]:
    return [e for e in walk(written) if isinstance(e, Op) and e.name == "sub"]


@pytest.mark.parametrize("spelling", ["least", "labelled"])
def test_a_small_exponential_that_is_a_result_keeps_its_digits(spelling: str) -> None:
    """The factor log2 e is rounded, and the argument is 80: an error of 5e-6 where torch has 1e-7."""
    x, place = torch.randint(-128, 128, (4, 300)) / 64, torch.arange(4)  # differences are exact
    x[:, 7] += 80.0
    function = (lambda x, at: torch.softmax(x, -1).amin(-1)) if spelling == "least" else (
        lambda x, at: torch.softmax(x, -1).gather(-1, at[:, None])[:, 0])
    args = (x, place) if spelling == "labelled" else (x,)
    fused = fused_of(function if spelling == "labelled" else lambda x: function(x, place), *args)
    program, config = program_of(fused)
    tiles = tensorize(program, config, HOPPER)
    (out,) = run(tiles, arguments(program, tiles, {t.name: a.numpy() for t, a in zip(fused.cascade.inputs, args, strict=True)})).values()
    exact = function(x.double(), place).numpy()
    assert np.allclose(out, exact, rtol=3e-7, atol=0.0) and exact.max() < 1e-30


@pytest.mark.parametrize(("dtype", "base"), [("f32", "exp"), ("f16", "exp2")])
def test_exponentials_that_are_subtracted_keep_their_base(dtype: str, base: str) -> None:
    """What their digits have in common is gone, and what the change of base took is a large part of the rest."""
    def apart(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        m = torch.maximum(x.float().amax(-1, keepdim=True), z.float().amax(-1, keepdim=True))
        found = (torch.exp(x.float() - m) - torch.exp(z.float() - m)).abs().sum(-1)
        return found if dtype == "f32" else found.half()

    program, config = program_of(fused_of(apart, *torch.randn(2, 60, 333).half()), "resident")
    text = str(tensorize(program, config, HOPPER))
    assert ("exp2(" in text, " exp(" in text) == (base == "exp2", base == "exp"), text
