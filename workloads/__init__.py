"""Workloads: plain PyTorch programs with their shapes, inputs, cost and the facts baselines need. One file per family.

    redfuser bench list
    redfuser bench run mha --shapes paper --baseline eager,inductor,flash,cudnn,flex --json out.jsonl
"""

from __future__ import annotations

import importlib

from workloads.case import Case

FAMILIES = ("mha", "attention", "latent", "routing", "quantised", "norms", "rowsets", "small", "halved", "products", "scored",
            "models", "cpu")


def all_cases() -> list[Case]:
    """Every case of every family, in order."""
    return [c for family in FAMILIES for c in importlib.import_module(f"workloads.{family}").cases()]


__all__ = ["Case", "all_cases"]
