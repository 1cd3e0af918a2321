"""The compiled model: called like the original, checked, traced, moved, looked at."""

from __future__ import annotations

import copy
import dataclasses
import re

import models
import pytest
import torch
from torch.utils import _pytree as pytree

from redfuser.artifact import KernelSpec
from redfuser.errors import InputError, NumericsError
from redfuser.runtime.model import CompiledModel
from redfuser.runtime.parts import Graph
from redfuser.runtime.signature import Signature, TensorSpec


def test_called_like_the_original(cpu_spec: KernelSpec) -> None:
    model, (x, bias) = models.make(cpu_spec), models.inputs()
    wanted = models.original(x, bias=bias)
    for found in (model(x, bias=bias, flag=True), model(x, flag=True, bias=bias)):
        assert list(found) == ["y", "total", "none"] and found["none"] is None
        torch.testing.assert_close(found["y"], wanted["y"])
        torch.testing.assert_close(found["total"], wanted["total"])
    y, total = models.make(cpu_spec, plain=True)(x, bias)
    torch.testing.assert_close((y, total), (wanted["y"], wanted["total"]))


def test_strided_inputs_are_taken(cpu_spec: KernelSpec) -> None:
    model, (x, bias) = models.make(cpu_spec, plain=True), models.inputs()
    torch.testing.assert_close(model(x.T.contiguous().T, bias), model(x, bias))


@pytest.mark.parametrize(("code", "words"), [
    ("RF502", "input 'x' is not a tensor but a str"), ("RF504", "input 'x' is torch.float64, compiled for torch.float32"),
    ("RF505", r"input 'x' has shape \[5, 8\], compiled for \[4, 8\]"), ("RF505", "input 'bias'"),
    ("RF503", "input 'bias' is on meta"), ("RF515", "requires a gradient")])
def test_bad_inputs(cpu_spec: KernelSpec, code: str, words: str) -> None:
    x, bias = models.inputs()
    cases = {"RF502": ("x", bias), "RF504": (x.double(), bias), "RF503": (x, bias.to("meta")),
             "RF515": (x.clone().requires_grad_(), bias)}
    args = cases.get(code) or ((torch.zeros(5, 8), bias) if "'x'" in words else (x, torch.zeros(9)))
    for model in (models.make(cpu_spec, plain=True),):
        with pytest.raises(InputError, match=code) as caught:
            model(*args)
        assert re.search(words, str(caught.value))
        model(x, bias)
        with pytest.raises(InputError, match=code):  # also once the model is bound
            model(*args)


def test_wrong_structure_and_values(cpu_spec: KernelSpec) -> None:
    model, (x, bias) = models.make(cpu_spec), models.inputs()
    for args, kwargs in (((), {}), ((x, bias), {}), ((x,), {"bias": bias}), (([x],), {"bias": bias, "flag": True})):
        with pytest.raises(InputError, match="RF511"):
            model(*args, **kwargs)
    with pytest.raises(InputError, match="RF514 an argument is False, compiled for True"):
        model(x, bias=bias, flag=False)
    with pytest.raises(InputError, match="RF514"):
        model(x, bias=bias, flag=1)
    plain = models.make(cpu_spec, plain=True)
    for args, kwargs in (((x,), {}), ((x, bias, x), {}), ((x, bias), {"a": 1})):
        with pytest.raises(InputError, match="RF511"):
            plain(*args, **kwargs)


def test_the_keys_of_a_dict_come_in_any_order() -> None:
    wanted = pytree.tree_structure((({"a": 0, "b": [0, {"c": 0, "d": 0}]},), {}))
    signature = Signature(tuple(TensorSpec(n, "float32", (1,)) for n in "abcd"), (0, 1, 2, 3), (0,), wanted)
    a, b, c, d = torch.arange(4.0).split(1)
    bound = signature.bind(({"b": [b, {"d": d, "c": c}], "a": a},), {})
    assert [t.item() for t in bound] == [0, 1, 2, 3]
    for other in ({"a": a, "c": b}, {"a": a, "b": [b, {"c": c}]}, {"a": a, "b": [b, {"c": c, "e": d}]},
                  {"a": a, "b": (b, {"c": c, "d": d})}, {"a": a, "b": b}, {"a": [a], "b": [b, {"c": c, "d": d}]}):
        with pytest.raises(InputError, match="RF511"):
            signature.bind((other,), {})


def test_gradients_off_is_fine(cpu_spec: KernelSpec) -> None:
    x, bias = models.inputs()
    with torch.no_grad():
        models.make(cpu_spec, plain=True)(x.requires_grad_(), bias)


def test_looking(cpu_spec: KernelSpec) -> None:
    model = models.make(cpu_spec)
    assert model.source() == models.SOURCE and model.source("softmax") == "# scalar TIR of softmax"
    with pytest.raises(KeyError, match="there are softmax"):
        model.source("absent")
    assert list(model.stages()) == ["graph", "softmax/fused", "softmax/cascade"]
    assert model.stages("softmax")["cascade"] == "the cascade"
    assert model.report.coverage == 1 and "toy" in repr(model) and list(model.kernels) == ["softmax"]


def test_copies_share_nothing(cpu_spec: KernelSpec) -> None:
    model, (x, bias) = models.make(cpu_spec, plain=True), models.inputs()
    before = model(x, bias)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.c_w.zero_()
    torch.testing.assert_close(model(x, bias), before)
    assert not torch.equal(other(x, bias)[0], before[0])


def test_dtypes_are_fixed_and_devices_are_not(cpu_spec: KernelSpec) -> None:
    model, (x, bias) = models.make(cpu_spec, plain=True), models.inputs()
    with pytest.raises(InputError, match="RF504"):
        model.half()
    with pytest.raises(InputError, match="RF504"):
        model.to(torch.float64)
    model.to("cpu")
    model(x, bias)
    model.to("meta")
    with pytest.raises(InputError, match="RF503 the model is on meta, its kernels are for cpu"):
        model(x, bias)


def test_cuda_graph_needs_a_gpu(cpu_spec: KernelSpec) -> None:
    with pytest.raises(InputError, match="RF512"):
        models.make(cpu_spec, plain=True).cuda_graph(*models.inputs())


def test_compile_and_export(cpu_spec: KernelSpec) -> None:
    model, (x, bias) = models.make(cpu_spec, plain=True), models.inputs()
    wanted = model(x, bias)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, bias), wanted)
    exported = torch.export.export(model, (x, bias))
    assert "redfuser.softmax_" in str(exported.graph)
    torch.testing.assert_close(exported.module()(x, bias), wanted)


def test_compile_with_structures(cpu_spec: KernelSpec) -> None:
    model, (x, bias) = models.make(cpu_spec), models.inputs()
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(compiled(x, bias=bias, flag=True)["y"], model(x, bias=bias, flag=True)["y"])


def test_strided_operands_inside_a_graph_are_copied(cpu_spec: KernelSpec, caplog: pytest.LogCaptureFixture) -> None:
    source = "def forward(x):\n    v0 = x.permute(1, 0)\n    y, t = k(v0)\n    return (y,)\n"
    graph = Graph(source, ("x",), 1, {"k": "softmax"})
    signature = Signature((TensorSpec("x", "float32", (8, 4)),), (0,), (0,))
    model, x = CompiledModel(graph, {}, {"softmax": cpu_spec}, signature), torch.randn(8, 4)
    for _ in range(2):
        torch.testing.assert_close(model(x), torch.softmax(x.T, 1))
    assert sum("copying the operand" in r.message for r in caplog.records) == 1


def test_numerical_check(cpu_spec: KernelSpec) -> None:
    model, (x, bias) = models.make(cpu_spec), models.inputs()
    assert all(c.passed for c in model.check(models.original, (x,), {"bias": bias, "flag": True}))
    assert model.report.numerics is not None and model.report.numerics.passed
    with torch.no_grad():
        model.c_scale.mul_(1.01)
    with pytest.raises(NumericsError, match="RF801"):
        model.check(models.original, (x,), {"bias": bias, "flag": True})
    assert not model.report.numerics.passed
    with pytest.raises(InputError, match="RF516"):
        model.check("model.onnx")


def test_the_same_kernel_under_two_names_is_loaded_once(cpu_spec: KernelSpec) -> None:
    source = "def forward(x):\n    a, s = k0(x)\n    b, t = k1(a)\n    return (b,)\n"
    graph = Graph(source, ("x",), 1, {"k0": "softmax", "k1": "softmax"})
    signature = Signature((TensorSpec("x", "float32", (4, 8)),), (0,), (0,))
    x = torch.randn(4, 8)
    spec = dataclasses.replace(cpu_spec)
    torch.testing.assert_close(CompiledModel(graph, {}, {"softmax": spec}, signature)(x),
                               torch.softmax(torch.softmax(x, 1), 1))
