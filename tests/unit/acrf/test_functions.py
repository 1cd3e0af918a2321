"""One table of functions: whatever computes one knows all of them."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from redfuser.acrf.check.digits import _digit_ops, _digits
from redfuser.acrf.check.domains import UFUNCS
from redfuser.acrf.check.exact import _EXACT
from redfuser.acrf.expr import Load, Op, f32
from redfuser.acrf.functions import DEAR, TABLE
from redfuser.acrf.repeated import in_steps
from redfuser.acrf.text import parse_cascade
from redfuser.chain.losses import _SLOPES
from redfuser.codegen.dialects import DIALECTS
from redfuser.codegen.expressions import _FUNCTIONS
from redfuser.strategies.tir_expr import _CALLS, _LIBM
from redfuser.tensorize.ir.pointwise import ARRAY

POINTS = [0.25, 1.0, 2.0, 3.5, -0.75]


@pytest.mark.parametrize("name", TABLE)
def test_every_evaluator_and_printer_has_it(name: str) -> None:
    assert name in ARRAY and name in _EXACT and name in _SLOPES and name in DEAR
    assert name in _CALLS or name in _LIBM or name == "sigmoid"
    assert all(name in _FUNCTIONS or name in dialect.functions for dialect in DIALECTS.values())


@pytest.mark.parametrize("name", TABLE)
def test_evaluators_agree(name: str) -> None:
    """float64 beside 50 digits."""
    f, digits = TABLE[name], _digit_ops()[name]
    for x in POINTS:
        args = (x, 0.7 - x)[:f.arity]
        with np.errstate(invalid="ignore"):
            mine = float(UFUNCS[name](*(np.asarray(a, np.float64) for a in args)))
        exact = float(digits(*map(_digits().mpf, args)))
        assert math.isnan(mine) == math.isnan(exact) and (math.isnan(mine) or mine == pytest.approx(exact, rel=1e-14))


@pytest.mark.parametrize("x, by, left", [(2.0, math.inf, 2.0), (-2.0, math.inf, math.inf), (2.0, -math.inf, -math.inf),
                                         (0.0, -math.inf, 0.0), (5.5, -2.0, -0.5), (-5.5, 2.0, 0.5)])
def test_remainders_by_the_infinite_are_torch_s(x: float, by: float, left: float) -> None:
    digits, mpf = _digit_ops()["mod"], _digits().mpf
    assert float(torch.remainder(torch.tensor(x), by)) == left == float(digits(mpf(x), mpf(by))) == float(UFUNCS["mod"](x, by))
    assert float(_EXACT["mod"](Fraction(x), by if math.isinf(by) else Fraction(by))) == left


@pytest.mark.parametrize("name", TABLE)
def test_slopes_are_differences(name: str) -> None:
    f, h = TABLE[name], 1e-6
    for x in (0.25, 1.5, 2.75):
        args = [np.asarray(a, np.float64) for a in (x, 0.4)[:f.arity]]
        for k, slope in enumerate(_SLOPES[name](UFUNCS[name](*args), *args)):
            up, down = (UFUNCS[name](*(a + s * h * (i == k) for i, a in enumerate(args))) for s in (1, -1))
            found = abs(float(up - down) / (2 * h))
            assert found <= abs(float(slope)) * 1.01 + 1e-6, "an error is said to grow less than it does"


def test_they_are_read_and_printed() -> None:
    unary = " + ".join(f"{n}(x[i])" for n, f in TABLE.items() if f.arity == 1)
    binary = " + ".join(f"{n}(x[i], y[i])" for n, f in TABLE.items() if f.arity == 2)
    text = f"cascade all(x: f32[8], y: f32[8]) over i\n  z[i] = {unary} + {binary}\n  return z"
    assert str(parse_cascade(str(parse_cascade(text)))) == str(parse_cascade(text))


def test_what_is_repeated_is_named_once() -> None:
    """Innermost first; a single operation stays where it is read."""
    x = Load("x", (), "f32")
    twice = Op("mul", (Op("add", (x, f32(1.0)), "f32"),) * 2, "f32")
    thrice = Op("add", (Op("exp", (twice,), "f32"), Op("sub", (twice, x), "f32")), "f32")
    steps = in_steps("out", (), thrice)
    assert [s.name for s in steps] == ["out_0", "out"]
    assert str(steps[0].expr) == "(x[] + 1.0) * (x[] + 1.0)" and str(steps[1].expr) == "exp(out_0[]) + (out_0[] - x[])"
