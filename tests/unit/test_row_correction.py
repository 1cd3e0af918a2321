"""A difference is taken before it is scaled: a compiler that contracts ``a * c - b * c`` to a multiply-add leaves a residual
for equal values, 1e22 for -1e30, which no interpreter shows."""

import pytest

from redfuser.acrf.expr import Const, Expr, Op, Ref, op, walk
from redfuser.tensorize.rewrite.base_two import exponentials

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
