"""PT2E's operators: what a program computes with them fuses, is saved, and is what torch has; exported or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers them
from torch import Tensor, nn
from torch.nn import functional as F

import redfuser
from redfuser.dynamo.capture import capture

Q = torch.ops.quantized_decomposed
SEED = torch.Generator().manual_seed(3)
X, BYTES = torch.randn(4, 16, generator=SEED), torch.randint(-127, 128, (8, 16), generator=SEED, dtype=torch.int8)


def of_a_tensor(x: Tensor) -> Tensor:
    q = Q.quantize_per_tensor(x, 0.1, 3, -128, 127, torch.int8)
    return Q.dequantize_per_tensor(q, 0.1, 3, -128, 127, torch.int8).softmax(-1)


def of_channels(x: Tensor) -> Tensor:
    scales = torch.arange(1, 9) / 400
    return F.linear(x, Q.dequantize_per_channel(BYTES, scales, torch.zeros(8, dtype=torch.int64), 0, -127, 127, torch.int8)).softmax(-1)


def of_rows(x: Tensor) -> Tensor:
    s, z = Q.choose_qparams_per_token_asymmetric(x, torch.int8)
    q = Q.quantize_per_token(x, s, z, -128, 127, torch.int8)
    return Q.dequantize_per_token(q, s, z, -128, 127, torch.int8, torch.float32).softmax(-1)


class Model(nn.Module):
    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        return self.f(x)


@pytest.mark.parametrize("f", [of_a_tensor, of_channels, of_rows])
def test_they_are_written_out(f: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    exported = torch.export.export(Model(f), (X,))
    before = str(exported.graph)
    for model in (exported, Model(f)):
        compiled = redfuser.compile(model, None if model is exported else (X,), target="cpu", fallback="error")
        assert compiled.report.fused and not [n for n in compiled.report.notes if "quantized_decomposed" in n.text]
        torch.testing.assert_close(compiled(X), f(X))
        compiled.save(tmp_path / "model.rf")
    assert str(exported.graph) == before


def test_a_graph_of_torch_compile_holds_none() -> None:
    found = capture(torch.fx.symbolic_trace(Model(of_a_tensor)), [X]).program
    assert "quantized_decomposed" not in str(found.graph)
