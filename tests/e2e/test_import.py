"""Every model of the zoo, imported and interpreted, against eager: the numerics rule of the project.

Reference: the same module in float64, from the same low-precision weights and inputs. The imported program's error may
be at most twice that of eager in the low precision, plus a tiny epsilon.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from redfuser import tvm_compat as tc
from redfuser.frontend import Imported, import_model
from tests.e2e.models import MODELS
from tests.interpret import run
from tests.unit.frontend.test_normal_form import check_invariants

HALF, BRAIN = torch.float16, torch.bfloat16

# Each model in half precision, spelled as its users have it; test_outer_zoo.py has the same models in float32.
CASES: list[tuple[str, dict[str, Any]]] = [
    ("bert", {"dtype": HALF, "padded": True}), ("bert", {"dtype": BRAIN, "attention": "eager"}),
    ("vit", {"dtype": BRAIN, "image": 64, "attention": "eager"}), ("vit", {"dtype": HALF, "image": 64}),
    ("llama", {"dtype": HALF, "padded": True}), ("llama", {"dtype": BRAIN, "attention": "eager"}), ("llama-decode", {"dtype": HALF}),
    ("qwen3", {"dtype": HALF, "attention": "eager"}), ("qwen3", {"dtype": BRAIN}), ("gemma2", {"dtype": BRAIN}),
    ("qwen3-moe", {"dtype": HALF}), ("qwen3-moe", {"dtype": BRAIN, "experts": "grouped_mm"}),
    ("mixtral", {"dtype": BRAIN}), ("mixtral", {"experts": "grouped_mm"}),
    ("deepseek-v3", {"dtype": HALF, "attention": "eager"}), ("deepseek-v3", {"dtype": BRAIN}),
]


def title(name: str, options: dict[str, Any]) -> str:
    return "-".join([name, *(str(v).removeprefix("torch.") for v in options.values())])


def reference(name: str, options: dict[str, Any]) -> tuple[nn.Module, Any, list[torch.Tensor], list[torch.Tensor]]:
    """The module and its example, eager's results in its own precision, and those in float64 (where torch has no
    grouped product: the batched experts stand for them)."""
    module, args = MODELS[name](**options)
    wide = MODELS[name](**{**options, "experts": "batched_mm"})[0].double() if "experts" in options else deepcopy(module).double()
    with torch.no_grad():
        low = pytree.tree_leaves(module(*args))
        high = pytree.tree_leaves(wide(*[a.double() if a.is_floating_point() else a for a in args]))
    return module, args, low, high


def hold(ours: list[torch.Tensor], low: list[torch.Tensor], high: list[torch.Tensor]) -> None:
    assert len(ours) == len(low)
    for a, b, exact in zip(ours, low, high, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        tiny = 0.5 * torch.finfo(b.dtype).eps
        for norm in (lambda e: float(e.abs().max()), lambda e: float(e.pow(2).mean().sqrt())):
            assert norm(a.double() - exact) <= 2 * norm(b.double() - exact) + tiny * norm(exact)


def contractions(imported: Imported) -> int:
    return sum(tc.op_name(b.value) == "matmul" for b in tc.bindings(imported.mod["main"]))


@pytest.mark.parametrize(("name", "options"), [
    pytest.param(n, o, id=title(n, o)) for n, o in CASES])
def test_model(name: str, options: dict[str, Any]) -> None:
    module, args, low, high = reference(name, options)
    imported = import_model(module, args)
    check_invariants(imported)
    if options.get("experts") != "grouped_mm":
        assert not imported.opaque, imported.notes
    assert contractions(imported) >= 8
    hold(run(imported, args), low, high)


def test_a_wrong_scale_breaks_the_rule() -> None:
    """The rule can fail: 5 % off in the attention scale is outside it."""
    module, args, low, high = reference("bert", {"dtype": HALF, "attention": "eager"})
    hold(run(import_model(module, args), args), low, high)
    module.model.encoder.layer[0].attention.self.scaling *= 1.05
    with pytest.raises(AssertionError):
        hold(run(import_model(module, args), args), low, high)


@pytest.mark.parametrize(("name", "options", "opset"), [
    ("bert", {"dtype": HALF, "padded": True}, 23), ("vit", {"image": 64, "dtype": HALF}, 18),
    ("llama", {"intermediate": 256, "vocab": 64}, 18), ("llama", {"intermediate": 256, "vocab": 64, "padded": True}, 23),
])
def test_model_through_onnx(name: str, options: dict[str, Any], opset: int) -> None:
    module, args, low, high = reference(name, options)
    proto = torch.onnx.export(module, args, dynamo=True, opset_version=opset, verbose=False).model_proto
    imported = import_model(proto)
    check_invariants(imported)
    assert imported.source == "onnx" and not imported.opaque
    assert all(p.op.endswith("(onnx)") and (p.source or p.op == "Constant (onnx)") for p in imported.provenance.values())
    assert "isnan" not in {tc.op_name(b.value) for b in tc.bindings(imported.mod["main"])}
    hold(run(imported, args), low, high)
