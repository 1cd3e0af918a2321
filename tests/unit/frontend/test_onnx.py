"""ONNX operators against ONNX's reference implementation, one small graph each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from redfuser.errors import RedFuserError
from redfuser.frontend import import_model
from tests.interpret import run

RNG = np.random.default_rng(0)


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def i(*values: Any) -> np.ndarray:
    return np.array(values, dtype=np.int64)


class Known(np.ndarray):
    """An operand that the graph holds as an initializer."""


def known(*values: Any) -> np.ndarray:
    return i(*values).view(Known)


def graph(kind: str, operands: list[np.ndarray | None], opset: int, outputs: int, **attributes: Any) -> onnx.ModelProto:
    names = [f"x{k}" if o is not None else "" for k, o in enumerate(operands)]
    node = helper.make_node(kind, names, [f"y{k}" for k in range(outputs)], name=f"the_{kind}", **attributes)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(o.dtype), o.shape)
        for n, o in zip(names, operands, strict=True)
        if o is not None and not isinstance(o, Known)
    ]
    initializers = [
        onnx.numpy_helper.from_array(np.asarray(o), n)
        for n, o in zip(names, operands, strict=True)
        if isinstance(o, Known)
    ]
    results = [helper.make_empty_tensor_value_info(n) for n in node.output]
    made = helper.make_graph([node], "g", inputs, results, initializers)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


X, Y = f(3, 4, 6), f(3, 4, 6)
CASES: list[tuple[Any, ...]] = [
    (
        "Attention",
        [
            f(2, 4, 3, 8),
            f(2, 2, 3, 8),
            f(2, 2, 3, 8),
            np.where(f(3, 7) > 0, 0, -1).astype(np.float32),
            f(2, 2, 4, 8),
            f(2, 2, 4, 8),
        ],
        {"is_causal": 1},
        23,
        3,
    ),
    # operator, operands, attributes, opset, number of results
    *[
        (k, [X])
        for k in (
            "Abs",
            "Neg",
            "Exp",
            "Sqrt",
            "Sin",
            "Tanh",
            "Sigmoid",
            "Erf",
            "Relu",
            "Floor",
            "Round",
            "Sign",
            "Reciprocal",
            "Softplus",
            "HardSwish",
            "Mish",
            "Gelu",
            "Softsign",
            "Identity",
        )
    ],
    *[
        (k, [X, Y])
        for k in ("Add", "Sub", "Mul", "Div", "Less", "GreaterOrEqual", "Max", "Min", "Sum", "Mean", "PRelu")
    ],
    ("Div", [i(7, -7, 9), i(2, 2, 4)]),
    ("Mod", [i(7, -7), i(3, 3)]),
    ("Mod", [X, Y], {"fmod": 1}),
    ("Pow", [np.abs(X), np.array(0.5, np.float32).view(Known)]),
    ("Pow", [X, np.array(2.0, np.float32).view(Known)]),
    *[("Pow", [X[0, 0], np.full(shape, 2.0, np.float32).view(Known)]) for shape in ((1,), (1, 1), (3, 1))],
    ("Clip", [X, np.array(-0.5, np.float32), np.array(0.5, np.float32)]),
    *[("IsInf", [np.array([1, np.inf, -np.inf, np.nan], np.float32)], {"detect_negative": n, "detect_positive": p})
      for n in (0, 1) for p in (0, 1)],
    ("LeakyRelu", [X], {"alpha": 0.2}),
    ("Elu", [X]),
    ("Celu", [X], {"alpha": 2.0}),
    *[("Selu", [X], own) for own in ({}, {"alpha": 2.0, "gamma": 1.5}, {"gamma": 2.0}, {"alpha": 1.6732631921768188})],
    ("HardSigmoid", [X]),
    ("Gelu", [X], {"approximate": "tanh"}),
    ("ThresholdedRelu", [X]),
    ("Cast", [X], {"to": TensorProto.INT32}),
    ("Where", [X > 0, X, Y]),
    ("Not", [X > 0]),
    ("And", [X > 0, Y > 0]),
    ("Softmax", [X]),
    ("Softmax", [X], {"axis": 1}),
    ("LogSoftmax", [X]),
    *[
        (k, [X, known(-1)])
        for k in (
            "ReduceSum",
            "ReduceMean",
            "ReduceMax",
            "ReduceMin",
            "ReduceProd",
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSumExp",
            "ReduceSumSquare",
        )
    ],
    ("ReduceSum", [X, known(0, 2)], {"keepdims": 0}),
    *[
        (k, [np.abs(X) + 1 if "Log" in k else X, *axes], {"noop_with_empty_axes": 1})
        for k in ("ReduceSum", "ReduceMax", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
        for axes in ([], [known()], [known(1)])
    ],
    ("ReduceMax", [X], {"axes": [1], "keepdims": 0}, 13),
    ("ArgMax", [X], {"axis": 1}),
    ("ArgMin", [X], {"axis": -1, "keepdims": 0}),
    ("TopK", [X, known(3)], {"axis": 2}, 18, 2),
    ("TopK", [X, known(2)], {"largest": 0, "axis": 1}, 18, 2),
    ("CumSum", [X, known(1).reshape(())]),
    ("CumSum", [X, known(2).reshape(())], {"exclusive": 1, "reverse": 1}),
    *[("CumSum", [np.array([1, np.inf, 3, 1e9, 2], np.float32), known(0).reshape(())], {"exclusive": 1, "reverse": back})
      for back in (0, 1)],
    ("Reshape", [X, known(0, -1)]),
    ("Transpose", [X], {"perm": [2, 0, 1]}),
    ("Unsqueeze", [X, known(0, 3)]),
    ("Squeeze", [X[:1], known(0)]),
    ("Flatten", [X], {"axis": 2}),
    ("Expand", [X[:, :1], known(2, 3, 4, 6)]),
    ("Concat", [X, Y], {"axis": 1}),
    ("Split", [X, known(1, 3)], {"axis": 1}, 18, 2),
    ("Split", [X], {"axis": 2, "num_outputs": 3}, 18, 3),
    ("Slice", [X, known(1, -5), known(3, 9), known(0, 2), known(1, 2)]),
    ("Slice", [X, known(-1), known(-99), known(1), known(-1)]),
    ("Slice", [X, known(1), known(3), known(1), known(-1)]),
    ("Gather", [X, i(2, 0, -1)]),
    ("Gather", [X, i(1)], {"axis": 2}),
    *[("Gather", [X, place], {"axis": axis}) for axis in (0, -1)  # of rank 0: torch's brackets ask such a tensor for its value
      for place in (np.array(2), np.array(-1), np.array(2).view(Known), np.array(-1).view(Known))],
    ("Gather", [f(5), np.array(-2)]),
    ("GatherND", [X, i(2, -1)]),
    ("GatherND", [X, i(2, -1, 0)]),
    ("GatherElements", [X, RNG.integers(-6, 6, (3, 4, 2))], {"axis": 2}),
    ("GatherND", [X, i([0, 1], [2, 3])]),
    ("ScatterElements", [X, i([[1, 0]]), f(1, 1, 2)], {"axis": 1}),
    ("ScatterND", [X, i([0], [2]), f(2, 4, 6)]),
    ("ScatterND", [X, i(1), f(4, 6)]),
    ("Tile", [X, known(1, 2, 1)]),
    ("Pad", [X, known(0, 1, 0, 0, 0, 2)]),
    *[("Pad", [f(*shape), known(*amounts)], {"mode": mode}, 20) for mode in ("reflect", "edge", "wrap")
      for shape, amounts in (((6,), (1, 2)), ((4, 6), (1, 0, 0, 3)), ((2, 3, 5, 4), (0, 1, 0, 2, 0, 1, 2, 0)), ((3, 4), (0, 9, 0, 7)))],
    ("Pad", [X, known(1, 2), None, known(0)], {"mode": "reflect"}),
    ("Pad", [i([1, 2, 3]), known(0, 1, 0, 1)], {"mode": "edge"}),
    ("Trilu", [X]),
    ("Trilu", [X, known(1).reshape(())], {"upper": 0}),
    ("OneHot", [i(1, 0, -1), known(3).reshape(()), f(2)]),
    ("MatMul", [X, f(6, 5)]),
    ("Gemm", [f(3, 4), f(5, 4), f(5)], {"transB": 1}),
    ("Gemm", [f(4, 3), f(4, 5), f(5)], {"transA": 1, "alpha": 0.5, "beta": 2.0}),
    ("Einsum", [X, f(6, 5)], {"equation": "abc,cd->bad"}),
    ("Conv", [f(1, 3, 8, 8), f(4, 3, 3, 3), f(4)], {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ("Conv", [f(1, 4, 8), f(4, 2, 3)], {"group": 2, "auto_pad": "SAME_UPPER"}),
    ("MaxPool", [f(1, 2, 8, 8)], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("AveragePool", [f(1, 2, 8, 8)], {"kernel_shape": [2, 2]}),
    ("GlobalAveragePool", [f(1, 2, 8, 8)]),
    ("LayerNormalization", [X, f(6), f(6)]),
    ("RMSNormalization", [X, f(6)], {}, 23),
    ("GroupNormalization", [f(2, 4, 5), f(4), f(4)], {"num_groups": 2}, 21),
    ("InstanceNormalization", [f(2, 3, 5), f(3), f(3)]),
    ("BatchNormalization", [f(2, 3, 5), f(3), f(3), f(3), np.abs(f(3))]),
    ("DepthToSpace", [f(1, 8, 2, 3)], {"blocksize": 2}),
    ("SpaceToDepth", [f(1, 2, 4, 6)], {"blocksize": 2}),
    ("QuantizeLinear", [X, np.array(0.02, np.float32), np.array(3, np.uint8).view(Known)]),
    ("DequantizeLinear", [np.arange(8, dtype=np.uint8), np.array(0.5, np.float32), np.array(4, np.uint8).view(Known)]),
    ("QuantizeLinear", [np.array([100, 7, -3], np.int32), np.array(0.5, np.float32), np.array(3, np.int8)], {}, 23),
    ("QuantizeLinear", [X.astype(np.float16), np.array(0.013, np.float32)], {}, 23),
    ("QuantizeLinear", [X, np.array(0.013, np.float32)], {"precision": TensorProto.FLOAT16}, 23),
    *[("QuantizeLinear", [f(7, 3), np.abs(f(2, 3)) + 0.1, *zero], {"axis": 0, "block_size": 4}, 21)
      for zero in ([], [np.arange(6, dtype=np.uint8).reshape(2, 3)])],
    ("DequantizeLinear", [np.arange(21, dtype=np.uint8).reshape(3, 7), f(3, 2)], {"axis": -1, "block_size": 4}, 21),
    ("DequantizeLinear", [np.array([100000, -7], np.int32), np.array(2.0**-10, np.float16)], {}, 21),
    ("DequantizeLinear", [np.arange(8, dtype=np.uint8), np.array(0.3, np.float32)], {"output_dtype": TensorProto.FLOAT16}, 23),
    ("DynamicQuantizeLinear", [X], {}, 18, 3),
    ("DynamicQuantizeLinear", [X * 0], {}, 18, 3),
    ("MatMulInteger", [np.arange(6, dtype=np.uint8).reshape(2, 3), np.arange(6, dtype=np.int8).reshape(3, 2)]),
    ("Attention", [f(2, 4, 5, 8), f(2, 2, 7, 8), f(2, 2, 7, 8)], {}, 23),
    ("Attention", [f(2, 4, 5, 8), f(2, 4, 5, 8), f(2, 4, 5, 8)], {"is_causal": 1}, 23),
    (
        "Attention",
        [f(2, 5, 32), f(2, 7, 16), f(2, 7, 16), f(5, 7)],
        {"q_num_heads": 4, "kv_num_heads": 2, "softcap": 5.0},
        23,
    ),
]


def merged(cases: list[tuple[Any, ...]], opset: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """One graph of all the cases' nodes, and its inputs."""
    nodes, inputs, outputs, initializers, feeds = [], [], [], [], {}
    for n, (kind, operands, attributes, _, count) in enumerate(cases):
        one = graph(kind, operands, opset, count, **attributes)
        onnx.compose.add_prefix(one, f"c{n}_", inplace=True)
        nodes += one.graph.node
        inputs += one.graph.input
        outputs += one.graph.output
        initializers += one.graph.initializer
        feeds.update(
            {f"c{n}_x{k}": np.asarray(o) for k, o in enumerate(operands) if o is not None and not isinstance(o, Known)}
        )
    made = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), feeds


FULL = [(*c, *({}, 20, 1)[len(c) - 2 :]) for c in CASES]


@pytest.mark.parametrize("opset", sorted({c[3] for c in FULL}))
def test_operators(opset: int) -> None:
    cases = [c for c in FULL if c[3] == opset]
    model, feeds = merged(cases, opset)
    expected = iter(ReferenceEvaluator(model).run(None, feeds))
    imported = import_model(model)
    assert [s.name for s in imported.user_inputs] == list(feeds)
    ours = iter(run(imported, tuple(torch.from_numpy(np.array(v)) for v in feeds.values())))
    for kind, _, attributes, _, count in cases:
        for _ in range(count):
            a, b = next(ours), np.asarray(next(expected))
            where = f"{kind} {attributes}"
            assert tuple(a.shape) == b.shape, where
            np.testing.assert_allclose(a.double().numpy(), b.astype(np.float64), rtol=2e-5, atol=2e-5, err_msg=where)


def test_softmax_of_old_models_runs_over_all_dimensions_from_the_axis_on() -> None:
    imported = import_model(graph("Softmax", [X], 11, 1, axis=1))
    x = torch.from_numpy(X)
    torch.testing.assert_close(run(imported, (x,))[0], x.flatten(1).softmax(-1).reshape(x.shape))


@pytest.mark.parametrize(("kind", "expected"), [("ReduceMean", [[-2], [4]]), ("ReduceL2", [[9], [8]]), ("ReduceLogSum", [[0], [2]]),
                                                ("ReduceLogSumExp", [[1], [7]])])
def test_reductions_of_integers_stay_integers(kind: str, expected: list[list[int]]) -> None:
    x = torch.tensor([[1, -9, 1], [7, 5, 1]], dtype=torch.int64)
    if kind == "ReduceLogSum":
        x = x.abs() - torch.tensor([[0, 8, 1], [0, 0, 0]])
    made = graph(kind, [x.numpy(), known(1)], 18, 1)
    (got,) = run(import_model(made), (x,))
    assert got.dtype == torch.int64 and got.tolist() == expected


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_padding_is_no_maximum(dtype: Any) -> None:
    """(ONNX's reference has a window too few.)"""
    x = np.array([[[1, 5, 2, 7, 3, 4]]], dtype) - dtype(100 if dtype is np.int8 else 0)
    (got,) = run(import_model(graph("MaxPool", [x], 20, 1, kernel_shape=[3], pads=[0, 1])), (torch.from_numpy(x),))
    assert (got.int() - got.int()[0, 0, 0]).tolist() == [[[0, 2, 2, 2, -1]]]


@pytest.mark.parametrize(("axis", "shape"), [(0, (1, 0)), (1, (0, 6)), (-1, (0, 3)), (3, (0, 1))])
def test_nothing_is_flattened(axis: int, shape: tuple[int, int]) -> None:
    assert run(import_model(graph("Flatten", [f(0, 2, 3)], 20, 1, axis=axis)), (torch.zeros(0, 2, 3),))[0].shape == shape


def test_shape_arithmetic_is_computed_on_the_way() -> None:
    """Shape, Gather, Concat, Range and ConstantOfShape leave nothing behind but a reshape and a comparison."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Gather", ["s", "one"], ["m"]),
        helper.make_node("Mul", ["n", "m"], ["nm"]),
        helper.make_node("Unsqueeze", ["nm", "zero_axis"], ["flat"]),
        helper.make_node("Reshape", ["x", "flat"], ["y"]),
        helper.make_node("Range", ["zero", "nm", "one"], ["r"]),
        helper.make_node("Less", ["r", "five"], ["keep"]),
        helper.make_node("Where", ["keep", "y", "zero_float"], ["out"]),
    ]
    constants = {
        "zero": np.array(0),
        "one": np.array(1),
        "zero_axis": np.array([0]),
        "five": np.array(5),
        "zero_float": np.array(0, np.float32),
    }
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(v, n) for n, v in constants.items()],
    )
    imported = import_model(helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    x = torch.arange(12.0).reshape(3, 4)
    expected = torch.where(torch.arange(12) < 5, x.reshape(12), 0)
    assert torch.equal(run(imported, (x,))[0], expected)
    assert {s.kind for s in imported.inputs} <= {"user", "constant"}


def test_attributes_that_change_nothing_are_none() -> None:
    x = torch.from_numpy(X)
    for kind, attributes in (("Dropout", {"seed": 3}), ("Softmax", {"axis": -1}), ("ReduceMax", {"noop_with_empty_axes": 0})):
        run(import_model(graph(kind, [X], 20, 1, **attributes)), (x,))
    run(import_model(graph("Attention", [X[None]] * 3, 23, 1, softmax_precision=1)), (x[None],) * 3)


def test_blocks_types_and_rows_of_zeros() -> None:
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    (got,) = run(import_model(graph("SpaceToDepth", [x.repeat(1, 2, 1, 1).numpy()], 20, 1, blocksize=2, mode="CRD")),
                 (x.repeat(1, 2, 1, 1),))
    torch.testing.assert_close(got, torch.nn.functional.pixel_unshuffle(x.repeat(1, 2, 1, 1), 2))
    (eye,) = run(import_model(graph("EyeLike", [i((1, 2), (3, 4))], 20, 1, dtype=TensorProto.DOUBLE)), (torch.ones(2, 2).long(),))
    assert eye.dtype == torch.float64
    (rows,) = run(import_model(graph("LpNormalization", [np.zeros((2, 3), np.float32)], 20, 1)), (torch.tensor([[3.0, 4, 0], [0, 0, 0]]),))
    torch.testing.assert_close(rows, torch.tensor([[0.6, 0.8, 0], [0, 0, 0]]))


@pytest.mark.parametrize("names", [["y", "mean", "deviation"], ["y", "", "deviation"], ["y", "", ""]])
def test_results_that_nobody_uses_are_none(names: list[str]) -> None:
    made = graph("LayerNormalization", [X, f(6)], 20, 1)
    made.graph.node[0].output[:] = names
    made.graph.output[0].name = "y"
    x, scale = torch.from_numpy(X), torch.rand(6)
    torch.testing.assert_close(run(import_model(made), (x, scale))[0], torch.nn.functional.layer_norm(x, (6,), scale))


def test_a_split_has_as_many_parts_as_are_written() -> None:
    made = graph("Split", [X], 13, 3, axis=2)
    del made.graph.output[1:]
    assert torch.equal(run(import_model(made), (torch.from_numpy(X),))[0], torch.from_numpy(X)[..., :2])


def test_constants_of_types_that_numpy_lacks() -> None:
    nodes = [helper.make_node("Cast", ["one"], ["b"], to=TensorProto.BFLOAT16), helper.make_node("Neg", ["b"], ["n"]),
             helper.make_node("Mul", ["x", "n"], ["y"])]
    made = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [4])],
                             [helper.make_tensor_value_info("y", TensorProto.BFLOAT16, None)],
                             [onnx.numpy_helper.from_array(np.array(2.0, np.float32), "one")])
    imported = import_model(helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    x = torch.arange(4.0).bfloat16()
    assert torch.equal(run(imported, (x,))[0], x * -2)


def test_quantisation_to_float8_saturates() -> None:
    made = graph(
        "QuantizeLinear", [f(4) * 1000, np.array(1.0, np.float32)], 21, 1, output_dtype=TensorProto.FLOAT8E4M3FN
    )
    imported = import_model(made)
    x = torch.tensor([1000.0, -1000.0, 3.3, 0.0])
    assert run(imported, (x, torch.tensor(1.0)))[0].float().tolist() == [448.0, -448.0, 3.25, 0.0]
    (cast,) = run(import_model(graph("Cast", [f(4)], 21, 1, to=TensorProto.FLOAT8E4M3FN, saturate=0)), (x,))
    assert cast.float().isnan().tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("kind", "operands", "attributes"),
    [
        ("NonZero", [X], {}),
        ("Resize", [f(1, 1, 4, 4)], {}),
        ("LSTM", [f(3, 2, 4), f(1, 20, 4), f(1, 20, 5)], {"hidden_size": 5}),
        ("Reshape", [X, i(3, 24)], {}),
        ("MaxPool", [f(1, 1, 4, 4)], {"kernel_shape": [2, 2], "storage_order": 1}),
        ("Attention", [f(1, 2, 4, 8)] * 3, {"left_window_size": 1}),  # of a later opset
        ("Softmax", [X], {"temperature": 2.0}),
        ("Range", [np.array(0.0, np.float32)] * 3, {}),
        ("MaxPool", [f(1, 1, 8, 8)], {"kernel_shape": [3, 3], "pads": [2, 2, 2, 2]}),
    ],
)
def test_what_has_no_torch_form_is_one_coded_error(
    kind: str, operands: list[np.ndarray], attributes: dict[str, Any]
) -> None:
    with pytest.raises(RedFuserError) as caught:
        import_model(graph(kind, operands, 18, 1, **attributes))
    assert caught.value.code == "RF115" and kind in caught.value.where and f"the_{kind}" in caught.value.where
    assert ("torch.export" in caught.value.help) is (kind in ("NonZero", "Resize", "LSTM"))  # no opset has a rule for these


def test_wide_unsigned_inputs_are_refused() -> None:
    with pytest.raises(RedFuserError, match=r"RF112.*x0: uint16"):
        import_model(graph("Cast", [np.zeros(4, np.uint16)], 20, 1, to=TensorProto.FLOAT))


def test_dynamic_inputs_are_refused() -> None:
    made = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_empty_tensor_value_info("y")],
    )
    with pytest.raises(RedFuserError) as caught:
        import_model(helper.make_model(made))
    assert caught.value.code == "RF111" and "batch" in caught.value.where


@pytest.mark.parametrize(("imported", "written"), [("ai.onnx", ""), ("", "ai.onnx"), ("ai.onnx", "ai.onnx")])
def test_the_two_names_of_onnx_own_domain_are_one(imported: str, written: str) -> None:
    """Under the wrong one a softmax was that of opset 1, which flattens."""
    made = graph("Softmax", [X], 18, 1, axis=0)
    made.opset_import[0].domain, made.graph.node[0].domain = imported, written
    x = torch.from_numpy(X)
    torch.testing.assert_close(run(import_model(made), (x,))[0], x.softmax(0))
    counted = graph("ConstantOfShape", [known(2, 3)], 20, 1)
    counted.opset_import[0].domain, counted.graph.node[0].domain = imported, written
    counted.graph.node.append(helper.make_node("Neg", ["y0"], ["n"], domain=written))
    assert run(import_model(counted), ())[0].shape == (2, 3)


def broken(**changes: Any) -> onnx.ModelProto:
    """y = x @ w, with something wrong in it."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    for name, value in changes.items():
        if isinstance(value, list):
            getattr(node, name)[:] = value
        else:
            setattr(node, name, value)
    made = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
                             [helper.make_empty_tensor_value_info("y")], [onnx.numpy_helper.from_array(f(4, 5), "w")])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize(("changes", "where", "why"), [
    ({"input": ["x", "v"]}, "MatMul", "its operand v"), ({"input": ["y", "w"]}, "MatMul", "its operand y"),
    ({"input": ["x"]}, "MatMul", "1 operands of at least 2"), ({"output": ["z"]}, "the result y", "no operator makes it"),
    ({"op_type": "Einsum"}, "Einsum", "no attribute equation"), ({"op_type": "Concat"}, "Concat", "no attribute axis"),
])
def test_a_graph_that_lacks_something_is_one_coded_error(changes: dict[str, Any], where: str, why: str) -> None:
    with pytest.raises(RedFuserError) as caught:
        import_model(broken(**changes))
    assert caught.value.code == "RF119" and where in caught.value.where and why in caught.value.why


def test_a_result_that_an_operator_does_not_have_is_one_coded_error() -> None:
    with pytest.raises(RedFuserError, match=r"RF119(.|\n)*3 results, and 4 are used"):
        import_model(graph("Split", [f(5, 2)], 18, 4, num_outputs=4))


def test_tensors_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    short, away = broken(), broken()
    short.graph.initializer[0].raw_data = b"1234"
    onnx.save(away, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="w.bin")
    for made in (short, onnx.load(tmp_path / "m.onnx", load_external_data=False), (tmp_path / "m.onnx").read_bytes()):
        with pytest.raises(RedFuserError, match="RF119") as caught:
            import_model(made)
        assert caught.value.where == "the tensor w" and "load_external_data_for_model" in caught.value.help
    assert len(run(import_model(str(tmp_path / "m.onnx")), (torch.ones(3, 4),))) == 1


@pytest.mark.parametrize("places", [i(0, 7), i([0, 0], [1, 3])])
@pytest.mark.parametrize("constant", [True, False])
def test_sparse_tensors_are_filled_with_zeros(places: np.ndarray, constant: bool) -> None:
    sparse = helper.make_sparse_tensor(onnx.numpy_helper.from_array(np.array([2, 3], np.float32), "w"),
                                       onnx.numpy_helper.from_array(places, "places"), [4, 4])
    made = broken()
    del made.graph.initializer[:]
    if constant:
        made.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse))
    else:
        made.graph.sparse_initializer.append(sparse)
    w = torch.zeros(4, 4)
    w[tuple(torch.from_numpy(places).T) if places.ndim > 1 else (torch.tensor([0, 1]), torch.tensor([0, 3]))] = torch.tensor([2.0, 3.0])
    x = torch.rand(3, 4)
    torch.testing.assert_close(run(import_model(made), (x,))[0], x @ w)


def test_text_that_nobody_uses_does_no_harm() -> None:
    made = broken()
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(["a", "b"], dtype=object), "labels"))
    assert len(run(import_model(made), (torch.ones(3, 4),))) == 1
    made.graph.node[0].input[1] = "labels"
    with pytest.raises(RedFuserError, match=r"RF115(.|\n)*text"):
        import_model(made)


def test_a_dimension_of_minus_one_is_dynamic() -> None:
    made = broken()
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    with pytest.raises(RedFuserError, match="RF111"):
        import_model(made)


@pytest.mark.parametrize(("name", "values"), [("int4", range(-8, 8)), ("uint4", range(16)), ("float4_e2m1fn", [-6, -0.5, 0, 3] * 4)])
@pytest.mark.parametrize("constant", [True, False])
def test_weights_of_four_bits(name: str, values: Any, constant: bool) -> None:
    """Without a zero point, with one per block, and through a Cast."""
    w = np.array(values, np.float32).reshape(4, 4)
    held = onnx.numpy_helper.from_array(w.astype(getattr(ml_dtypes, name)), "w")
    nodes = [helper.make_node("Constant", [], ["w"], value=held)] if constant else []
    nodes += [helper.make_node("DequantizeLinear", ["w", "s"], ["a"], axis=0, block_size=2), helper.make_node("Cast", ["w"], ["b"], to=1),
              helper.make_node("MatMul", ["x", "a"], ["y"]), helper.make_node("MatMul", ["x", "b"], ["z"])]
    scale = np.abs(f(2, 4))
    made = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
                             [helper.make_empty_tensor_value_info(n) for n in "yz"],
                             [onnx.numpy_helper.from_array(scale, "s"), *([] if constant else [held])])
    imported = import_model(helper.make_model(made, opset_imports=[helper.make_opsetid("", 23)], ir_version=11))
    x = torch.rand(3, 4)
    y, z = run(imported, (x,))
    torch.testing.assert_close(y, x @ torch.from_numpy(w * np.repeat(scale, 2, 0)))
    torch.testing.assert_close(z, x @ torch.from_numpy(w))


def test_numbers_of_four_bits_are_not_computed_with() -> None:
    """In the byte that holds them they would not end where they do."""
    zero = np.zeros(1, ml_dtypes.int4)
    made = graph("QuantizeLinear", [X, np.array([0.1], np.float32), zero.view(Known)], 21, 1)
    with pytest.raises(RedFuserError, match=r"RF115(.|\n)*less than a byte"):
        import_model(made)
