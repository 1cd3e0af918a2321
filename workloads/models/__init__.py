"""Whole models with random weights, from their public configurations where transformers has them, else in plain PyTorch.
Each at the size that is measured and at a smoke size for the CPU."""

from __future__ import annotations

from workloads.case import Case
from workloads.models import convolutions, diffusion, encoders, experts, further, language, llama, others


def cases() -> list[Case]:
    return [c for kind in (encoders, llama, language, experts, diffusion, convolutions, others, further) for c in kind.cases()]
