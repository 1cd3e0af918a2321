"""Every model of the zoo, imported and interpreted, against eager: the numerics rule of the project.

Reference: the same module in float64, from the same low-precision weights and inputs. The imported program's error may
be at most twice that of eager in the low precision, plus a tiny epsilon.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from redfuser import tvm_compat as tc
from redfuser.frontend import Imported, import_model
from tests.e2e.models import MODELS
from tests.interpret import run
from tests.unit.frontend.test_normal_form import check_invariants

HALF, BRAIN = torch.float16, torch.bfloat16

CASES: list[tuple[str, dict[str, Any]]] = [
    ("bert", {}), ("bert", {"dtype": HALF, "padded": True}), ("bert", {"dtype": BRAIN, "attention": "eager"}),
    ("vit", {"dtype": HALF, "image": 64}), ("vit", {"dtype": BRAIN, "image": 64, "attention": "eager"}),
    ("llama", {"dtype": HALF, "padded": True}), ("llama", {"dtype": BRAIN, "attention": "eager"}),
    ("llama-decode", {}), ("llama-decode", {"dtype": HALF, "layers": 2}),
    ("qwen3", {"dtype": HALF}), ("qwen3", {"dtype": BRAIN, "attention": "eager"}),
    ("gemma2", {}), ("gemma2", {"dtype": BRAIN}),
    ("qwen3-moe", {"dtype": HALF}), ("qwen3-moe", {"dtype": BRAIN, "experts": "grouped_mm"}),
    ("mixtral", {"dtype": BRAIN}), ("mixtral", {"experts": "grouped_mm"}),
    ("deepseek-v3", {}), ("deepseek-v3", {"dtype": HALF, "attention": "eager"}), ("deepseek-v3", {"dtype": BRAIN}),
]


def title(case: tuple[str, dict[str, Any]]) -> str:
    return "-".join([case[0], *(str(v).removeprefix("torch.") for v in case[1].values())])


def reference(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Eager in the module's own precision, and in float64."""
    with torch.no_grad():
        low = pytree.tree_leaves(module(*args))
        wide = copy.deepcopy(module).double()
        high = pytree.tree_leaves(wide(*[a.double() if a.is_floating_point() else a for a in args]))
    return low, high


def hold(ours: list[torch.Tensor], low: list[torch.Tensor], high: list[torch.Tensor]) -> None:
    assert len(ours) == len(low)
    for a, b, exact in zip(ours, low, high, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        tiny = 4 * torch.finfo(b.dtype).eps * float(exact.abs().max())
        for measure in (lambda e: float(e.abs().max()), lambda e: float(e.pow(2).mean().sqrt())):
            assert measure(a.double() - exact) <= 2 * measure(b.double() - exact) + tiny


def contractions(imported: Imported) -> int:
    return sum(tc.is_op(b.value, "matmul") for b in tc.bindings(imported.mod["main"]))


@pytest.mark.parametrize("case", CASES, ids=title)
def test_model(case: tuple[str, dict[str, Any]]) -> None:
    name, options = case
    module, args = MODELS[name](**options)
    imported = import_model(module, args)
    check_invariants(imported)
    if options.get("experts") != "grouped_mm":
        assert not imported.opaque, imported.notes
    assert contractions(imported) >= 8
    low, high = reference(module, args)
    hold(run(imported, args), low, high)


def test_a_wrong_scale_breaks_the_rule() -> None:
    """The rule can fail: 3 % off in the attention scale is outside it."""
    module, args = MODELS["bert"](dtype=HALF, attention="eager")
    imported = import_model(module, args)
    low, high = reference(module, args)
    module.model.encoder.layer[0].attention.self.scaling *= 1.03
    wrong = import_model(module, args)
    hold(run(imported, args), low, high)
    with pytest.raises(AssertionError):
        hold(run(wrong, args), low, high)


@pytest.mark.parametrize(("name", "options", "opset"), [
    ("bert", {}, 18), ("bert", {"dtype": HALF, "padded": True}, 23), ("vit", {"image": 64}, 23),
    ("vit", {"image": 64, "dtype": HALF}, 18), ("llama", {"intermediate": 256, "vocab": 64}, 18),
    ("llama", {"intermediate": 256, "vocab": 64, "padded": True}, 23),
])
def test_model_through_onnx(name: str, options: dict[str, Any], opset: int) -> None:
    module, args = MODELS[name](**options)
    proto = torch.onnx.export(module, args, dynamo=True, opset_version=opset, verbose=False).model_proto
    imported = import_model(proto)
    check_invariants(imported)
    assert imported.source == "onnx" and not imported.opaque
    assert all(p.op.endswith("(onnx)") and p.source for p in imported.provenance.values())
    assert "isnan" not in {tc.op_name(b.value) for b in tc.bindings(imported.mod["main"])}
    low, high = reference(module, args)
    hold(run(imported, args), low, high)
