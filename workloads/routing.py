"""MoE routing: the k best experts of a token, values and indices, from softmax(x W) in float32; x [tokens, width] and
W [width, experts] bfloat16. Also with the weights made to sum to one (Qwen3)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from workloads.case import Case, Inputs, normal, size
from workloads.norms import Function

Chosen = tuple[torch.Tensor, torch.Tensor]

# name: (tokens, width, experts, k, the model it comes from)
PAPER = {
    "R1": (2048, 768, 128, 1, "switch-base-128"),
    "R2": (2048, 1024, 128, 1, "switch-large-128"),
    "R3": (2048, 4096, 128, 1, "switch-xxl-128"),
    "R4": (2048, 2560, 64, 6, "ERNIE-21B-A3B"),
    "R5": (2048, 8192, 64, 8, "ERNIE-300B-A47B"),
    "R6": (2048, 2048, 64, 6, "DeepSeek-V2-Lite"),
    "R7": (2048, 2048, 128, 8, "Qwen3-30B-A3B"),
    "R8": (2048, 4096, 128, 8, "Qwen3-235B-A30B"),
}


def router(k: int) -> Callable[[torch.Tensor, torch.Tensor], Chosen]:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Chosen:
        values, places = torch.softmax((x @ w).float(), -1).topk(k, -1)
        return values, places

    return fn


def renormalised(k: int) -> Callable[[torch.Tensor, torch.Tensor], Chosen]:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Chosen:
        values, places = torch.softmax((x @ w).float(), -1).topk(k, -1)
        return values / values.sum(-1, keepdim=True), places

    return fn


def make(name: str, tokens: int, width: int, experts: int, k: int, sets: tuple[str, ...], note: str = "",
         to_one: bool = False) -> Case:
    def inputs(device: str, seed: int) -> Inputs:
        return normal((tokens, width), "bf16", device, 2 * seed), normal((width, experts), "bf16", device, 2 * seed + 1,
                                                                        width ** -0.5)

    moved = size((tokens, width), "bf16") + size((width, experts), "bf16") + tokens * k * (4 + 8)
    return Case("moe", name, "bf16", {"tokens": tokens, "width": width, "experts": experts, "k": k},
                build=lambda: Function((renormalised if to_one else router)(k)), inputs=inputs,
                flops=2 * tokens * width * experts, bytes=moved, sets=sets, note=note)


def cases() -> list[Case]:
    out = [make(name, *shape[:4], ("paper",), shape[4]) for name, shape in PAPER.items()]
    out.append(make("R7-renormalised", *PAPER["R7"][:4], ("long",), PAPER["R7"][4], to_one=True))
    return [*out, make("smoke", 33, 96, 64, 6, ("smoke",)), make("renormalised-smoke", 33, 96, 64, 6, ("smoke",), to_one=True)]
