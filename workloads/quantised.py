"""FP8 per-token quantisation and a product: A [m, k] bfloat16, W [n, k] e4m3 with a scale per channel [n] float32;
a = max|A| per row, A8 = e4m3(448 A / a), C = (A8 Wt) (a / 448) scale, bfloat16. Written with torch._scaled_mm, as models
do, and as a plain product of the two tensors made float32."""

from __future__ import annotations

import torch

from workloads.case import Case, Inputs, normal
from workloads.norms import Function

LARGEST = 448.0

# name: (m, n, k, the model it comes from)
PAPER = {
    "Q1": (4096, 1536, 2560, "ERNIE-21B"), "Q2": (4096, 2560, 1536, "ERNIE-21B"),
    "Q3": (4096, 3584, 8192, "ERNIE-300B"), "Q4": (4096, 8192, 3584, "ERNIE-300B"),
    "Q5": (4096, 7168, 2048, "DeepSeek-R1"), "Q6": (4096, 2048, 7168, "DeepSeek-R1"),
    "Q7": (4096, 2048, 768, "Qwen3-30B"), "Q8": (4096, 768, 2048, "Qwen3-30B"),
    "Q9": (4096, 4096, 1536, "Qwen3-235B"), "Q10": (4096, 1536, 4096, "Qwen3-235B"),
}


def scaled(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    largest = x.float().abs().amax(-1, keepdim=True)
    eight = (LARGEST * x.float() / largest).to(torch.float8_e4m3fn)
    return torch._scaled_mm(eight, w.t(), largest / LARGEST, scale[None], out_dtype=torch.bfloat16)


def plain(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    largest = x.float().abs().amax(-1, keepdim=True)
    eight = (LARGEST * x.float() / largest).to(torch.float8_e4m3fn)
    return ((eight.float() @ w.float().mT) * (largest / LARGEST) * scale).to(torch.bfloat16)


def make(name: str, m: int, n: int, k: int, sets: tuple[str, ...], note: str = "", library: bool = True) -> Case:
    """``library``: by torch._scaled_mm, which float64 cannot say; the plain product is its reference."""
    def inputs(device: str, seed: int) -> Inputs:
        w = normal((n, k), "f32", device, 3 * seed + 1).to(torch.float8_e4m3fn)
        return normal((m, k), "bf16", device, 3 * seed), w, normal((n,), "f32", device, 3 * seed + 2).abs() + 0.1

    return Case("quant", name, "e4m3", {"m": m, "n": n, "k": k}, build=lambda: Function(scaled if library else plain),
                inputs=inputs, flops=2 * m * n * k, bytes=2 * m * k + n * k + 4 * n + 2 * m * n, sets=sets, note=note,
                sample=lambda args: (args[0][:256], *args[1:]), pick=lambda out: out[:256], sample_note="rows 0:256",
                sample_build=lambda: Function(plain))


def cases() -> list[Case]:
    out = [make(name, *shape[:3], ("paper",), shape[3]) for name, shape in PAPER.items()]
    out += [make(f"{name}-plain", *shape[:3], ("plain",), shape[3], library=False) for name, shape in PAPER.items()]
    return [*out, make("plain-smoke", 33, 48, 96, ("smoke",), library=False)]
