"""TensorIR to statements: what each kind of block becomes, and what is refused."""

from __future__ import annotations

import pytest

from redfuser.acrf.lift import lift_primfunc
from redfuser.acrf.lift_expr import Unliftable
from redfuser.tvm_compat import TensorStructInfo, relax, te, tirx, topi, tvm


def lowered(f, *shapes, dtype="float32"):
    """The text of the lifted statements of one Relax op."""
    args = [relax.Var(f"x{i}", TensorStructInfo(s, dtype)) for i, s in enumerate(shapes)]
    body = relax.BlockBuilder().normalize(f(*args))
    module = tvm.IRModule({"main": relax.Function(args, body, body.struct_info)})
    module = relax.transform.LegalizeOps()(relax.transform.Normalize()(module))
    (func,) = [g for g in module.functions.values() if isinstance(g, tirx.PrimFunc)]
    return [str(s) for s in lift_primfunc(func).stmts]


def test_softmax():
    assert lowered(lambda x: relax.op.nn.softmax(x, -1), (3, 5)) == [
        "v2[a0] = max[a1] p0[a0, a1]",
        "v3[a2, a3] = exp(p0[a2, a3] - v2[a2])",
        "v4[a4] = sum[a5] v3[a4, a5]",
        "p1[a6, a7] = v3[a6, a7] / v4[a6]"]


def test_a_product_keeps_its_casts():
    assert lowered(lambda x, y: relax.op.matmul(x, y, out_dtype="float32"), (3, 4), (4, 5), dtype="float16") == [
        "p2[a0, a1] = sum[a2] f32(p0[a0, a2]) * f32(p1[a2, a1])"]


def test_several_reduced_axes_become_one():
    assert lowered(lambda x: relax.op.sum(x, [1, 2]), (3, 4, 5)) == ["p1[a0] = sum[a1] p0[a0, a1 // 5, a1 % 5]"]


def test_a_reshape_keeps_its_index_map():
    (line,) = lowered(lambda x: relax.op.reshape(x, [3, 2, 4]), (3, 8))
    assert "//" in line and "%" in line


def test_argmax_takes_the_lowest_index():
    assert lowered(lambda x: relax.op.argmax(x, -1), (3, 5)) == [
        "v2[a0] = argmax[a1] p0[a0, a1]", "v3[a0] = max[a1] p0[a0, a1]", "p1[a2] = v2[a2]"]


@pytest.mark.parametrize(("op", "text"), [(relax.op.max, "max"), (relax.op.min, "min"), (relax.op.prod, "prod")])
def test_reducers(op, text):
    assert lowered(lambda x: op(x, -1), (3, 5)) == [f"p1[a0] = {text}[a1] p0[a0, a1]"]


def primfunc(*tensors):
    return te.create_prim_func(list(tensors))


def test_an_initial_value_that_is_not_neutral_is_refused():
    x = te.placeholder((3, 5), name="x")
    k = te.reduce_axis((0, 5), name="k")
    add = te.comm_reducer(lambda a, b: a + b, lambda dtype: tirx.const(1.0, dtype))
    y = te.compute((3,), lambda i: add(x[i, k], axis=k), name="y")
    with pytest.raises(Unliftable, match="not its neutral element"):
        lift_primfunc(primfunc(x, y))


def test_an_argmax_that_takes_the_last_index_is_refused():
    x = te.placeholder((3, 5), name="x")
    y = topi.argmax(x, axis=1, select_last_index=True)
    with pytest.raises(Unliftable, match="ties"):
        lift_primfunc(primfunc(x, y))


def test_symbolic_extents_are_refused():
    n = tirx.Var("n", "int64")
    x = te.placeholder((n, 5), name="x")
    with pytest.raises(Unliftable, match="symbolic"):
        lift_primfunc(primfunc(x, te.compute((n, 5), lambda i, j: x[i, j] + 1.0)))


def test_an_intrinsic_without_counterpart_is_refused():
    x = te.placeholder((3,), name="x")
    with pytest.raises(Unliftable, match="call to"):
        lift_primfunc(primfunc(x, te.compute((3,), lambda i: te.atan(x[i]))))


def test_two_maps_in_one_func_and_no_parameters():
    y = te.compute((4,), lambda i: tirx.Cast("float32", i), name="y")
    assert [str(s) for s in lift_primfunc(primfunc(y)).stmts] == ["p0[a0] = f32(a0)"]
