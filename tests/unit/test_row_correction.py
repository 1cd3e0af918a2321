"""The correction of a row takes its difference before it is scaled: a compiler that contracts ``a * c - b * c`` to a
multiply-add leaves a residual for equal references, 1e22 for -1e30, which no interpreter shows."""

from redfuser.acrf.expr import Const, Op, Ref, op, walk
from redfuser.tensorize.rewrite import Facts, exponentials


def test_equal_references_cancel_exactly() -> None:
    scale = Const(0.08838834764831845, "f32")
    old, new = (op("mul", Ref(n, "f32"), scale) for n in ("m@old", "m"))
    facts = Facts(rounded=lambda e: True, per_row=lambda e: True, largest=lambda e: 1.0, follows=lambda a, b: True)
    written = exponentials(op("exp", op("sub", old, new)), facts)
    (difference,) = [e for e in walk(written) if isinstance(e, Op) and e.name == "sub"]
    assert difference == op("sub", Ref("m@old", "f32"), Ref("m", "f32"))
