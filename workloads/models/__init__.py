"""Whole models with random weights, from their public configurations where transformers has them, else in plain PyTorch.
Each at the size that is measured and at a smoke size for the CPU."""

from __future__ import annotations

from workloads.case import Case
from workloads.models import (
    byhand,
    convolutions,
    diffusion,
    encoders,
    experts,
    fresh,
    further,
    language,
    later,
    llama,
    others,
    sketches,
    unseen,
    written,
)


def cases() -> list[Case]:
    kinds = (encoders, llama, language, experts, diffusion, convolutions, others, further, written, fresh, byhand, unseen,
             sketches, later)
    return [c for kind in kinds for c in kind.cases()]
