"""Constants that folding makes: each of all of its type's digits, or the operation stays."""

from __future__ import annotations

import pytest

from redfuser.acrf.expr import Const, Expr, Index, Load, Op
from redfuser.partition.fold import fold
from redfuser.tensorize import algebra


def x(dtype: str) -> Expr:
    return Load("x", (Index("i"),), dtype)


@pytest.mark.parametrize(("dtype", "value"), [("f16", 2.0**-20), ("f16", 2.0**15), ("bf16", 2.0**127), ("f32", 2.0**-140)])
def test_a_quotient_whose_inverse_is_no_normal_number_stays(dtype: str, value: float) -> None:
    e = Op("div", (x(dtype), Const(value, dtype)), dtype)
    assert fold(e) == e
    assert fold(Op("div", (x(dtype), Const(8.0, dtype)), dtype)) == Op("mul", (x(dtype), Const(0.125, dtype)), dtype)
    assert dtype != "f32" or algebra.factors(e) == (e,)


def test_a_product_of_constants_that_is_infinite_stays() -> None:
    for a, b, made in ((1e30, 2.0**100, False), (2.0**-100, 2.0**-60, False), (0.3, 0.5, True)):
        for fold_, (v, w) in ((fold, (a, b)), (algebra.fold, (b, a))):
            e = Op("mul", (Op("mul", (x("f32"), Const(v, "f32")), "f32"), Const(w, "f32")), "f32")
            assert (fold_(e) != e) == made
