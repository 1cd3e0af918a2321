"""The small programs with every floating input in bfloat16: what is written in float32 for the most part meets roundings there
that nobody chose. Those that refuse the type are left out."""

from __future__ import annotations

from dataclasses import replace

from workloads.case import Case
from workloads.small import programs
from workloads.small.spec import Program

FLOATS = ("f32", "f16")


def cases() -> list[Case]:
    return [replace(c, workload="halved", sets=("halved",)) for p in programs() if (c := _halved(p)) is not None]


def _halved(p: Program) -> Case | None:
    ins = tuple(replace(i, dtype="bf16") if not i.high and not i.likely and i.dtype in FLOATS else i for i in p.ins)
    try:
        return replace(p, ins=ins).case() if ins != p.ins else None
    except RuntimeError:  # of a sum of two types that the program names itself, of an operation that has no bfloat16
        return None
