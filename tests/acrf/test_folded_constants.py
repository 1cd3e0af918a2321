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


LEAST = {"f32": -3.4028234663852886e38, "bf16": -3.3895313892515355e38, "f16": -65504.0}


def where(c: str, x: Expr, y: Expr) -> Expr:
    return Op("select", (Load(c, (Index("i"),), "bool"), x, y), x.dtype)


def plus(x: Expr, y: Expr) -> Expr:
    return fold(Op("add", (x, y), x.dtype))


def valued(e: Expr, given: dict[str, float]) -> float:
    """A choice, as deep as it is, where its conditions and tensors have the values ``given``."""
    match e:
        case Const(value=v):
            return v
        case Load(tensor=name):
            return given[name]
        case Op(name="select", args=(c, a, b)):
            return valued(a if valued(c, given) else b, given)
        case Op(name="and", args=(a, b)):
            return min(valued(a, given), valued(b, given))
    raise AssertionError(e)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("second", ["least", "infinite"])
@pytest.mark.parametrize("order", ["one by one", "masks first", "chosen, then added"])
def test_an_element_that_two_masks_hide_is_what_both_add_up_to(dtype: str, second: str, order: str) -> None:
    zero, least = Const(0.0, dtype), Const(LEAST[dtype], dtype)
    low = least if second == "least" else Const(float("-inf"), dtype)
    a, b = where("a", zero, least), where("b", zero, low)
    folded = {"one by one": plus(plus(x(dtype), a), b), "masks first": plus(x(dtype), plus(a, b)),
              "chosen, then added": plus(where("a", x(dtype), least), b)}[order]
    want = {(1, 1): 3.0, (0, 1): least.value, (1, 0): low.value, (0, 0): float("-inf")}
    for (one, other), value in want.items():
        assert valued(folded, {"x": 3.0, "a": one, "b": other}) == value
