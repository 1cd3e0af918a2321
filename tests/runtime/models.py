"""A small compiled model over the CPU kernel of the fixtures."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from redfuser.artifact import KernelSpec
from redfuser.report import Report
from redfuser.reported import CascadeReport, OpRef
from redfuser.runtime.model import CompiledModel
from redfuser.runtime.parts import Graph
from redfuser.runtime.signature import Signature, TensorSpec, Value

SOURCE = '''def forward(x, bias):
    v0 = F.linear(x, w, bias)
    v1, v2 = k_softmax_0(v0)
    v3 = torch.matmul(v1, w) * scale
    return (v3, v2)
'''
WEIGHT = torch.linspace(-1, 1, 64).reshape(8, 8)


def original(x: torch.Tensor, *, bias: torch.Tensor, flag: bool = True) -> dict[str, Any]:
    s = torch.nn.functional.linear(x, WEIGHT, bias)
    return {"y": torch.softmax(s, 1) @ WEIGHT * 2, "total": s.exp().sum(1), "none": None}


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 8, generator=generator), torch.randn(8, generator=generator)


def make(spec: KernelSpec, plain: bool = False) -> CompiledModel:
    """Called as ``model(x, bias=b, flag=True)`` and returning a dict, or positionally and returning a tuple."""
    tensors = (TensorSpec("x", "float32", (4, 8)), TensorSpec("bias", "float32", (8,)))
    if plain:
        signature = Signature(tensors, (0, 1), (0, 1))
    else:
        x, bias = inputs()
        in_spec = pytree.tree_structure(((x,), {"bias": bias, "flag": True}))
        out_spec = pytree.tree_structure(original(x, bias=bias))
        signature = Signature(tensors, (0, 1, Value(True)), (0, 1, Value(None)), in_spec, out_spec)
    graph = Graph(SOURCE, ("x", "bias"), 2, {"k_softmax_0": spec.name})
    report = Report("toy", spec.arch, (CascadeReport("softmax.0", (OpRef("aten.softmax.int", "toy.py:3"),), True,
                                                     strategy="single", kernel=spec.name),), timings={"import": 1.0})
    constants = {"w": WEIGHT.clone(), "scale": torch.tensor(2.0)}
    return CompiledModel(graph, constants, {spec.name: spec}, signature, report,
                         {spec.name: {"fused": "the fused form", "cascade": "the cascade"}})
