"""Attention under masks that hide to a number: walks of the steps that positions leave, and of all of them for rows that need
those. Rows see everything, a window, a prefix or nothing at all; results are the output alone, or with it the row's maximum or
log-sum-exp."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from workloads.correctness.attention import Shape, Way, program
from workloads.correctness.program import HALVES, Program, alternate

SMALL = Shape(b=2, i=333, l=333)
GROUPED = replace(SMALL, h=4, g=2)
ROLES = Shape(b=2, i=328, l=400)
LONG = Shape(i=712, l=712)
SINGLE = Shape(b=1, i=130, l=130, d=32)


def programs() -> Iterator[Program]:
    yield from (replace(p, walk="needed") for p in alternate(_halves()))
    for way in (Way("*", mask="causal", fill="finfo.min", also="lse"), Way("/", mask="prefix", fill="-1e4")):
        yield replace(program("filled", way, SINGLE, "f32"), walk="needed")


def _halves() -> Iterator[Program]:
    for dtype in HALVES:
        for way in (Way("*", "scores", mask="causal", fill="finfo.min"), Way("/", mask="causal", fill="finfo.min"),
                    Way("*", "scores", mask="wide window", fill="-1e9"), Way("*", "inputs", mask="prefix", fill="-1e4"),
                    Way("*", "scores", mask="none-seen", fill="finfo.min"), Way("*", "scores", mask="causal", fill="add min")):
            yield program("filled", way, SMALL, dtype)
        yield program("filled", Way("*", "scores", mask="causal", fill="-1e4", also="lse"), SMALL, dtype)
        yield program("filled", Way("*", "scores", mask="causal", fill="finfo.min", also="max"), SMALL, dtype)
        for group in ("repeat", "view"):
            yield program("filled", Way("*", "scores", mask="causal", fill="finfo.min", group=group), GROUPED, dtype)
        for shape, mask, fill in ((replace(ROLES, l=328), "causal", "finfo.min"), (ROLES, "top-left", "-1e4"),
                                  (LONG, "wide window", "-1e9"), (LONG, "none-seen", "finfo.min")):
            yield replace(program("filled", Way("*", "scores", mask=mask, fill=fill), shape, dtype, "single"), roles=True)
