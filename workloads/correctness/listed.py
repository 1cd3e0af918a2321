"""Attention among documents and over padding: walks of listed steps, which a kernel lists that looks at the data. Documents and
padding end inside tiles; some tiles of rows see few keys, and some rows none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from workloads.correctness.attention import Shape, Way, program, qkv
from workloads.correctness.program import HALVES, In, Program, alternate
from workloads.correctness.scheduled import BASE, SQUARE

SMALL = Shape(b=2, i=200, l=333)
LONG = Shape(b=2, h=4, g=4, i=1096, l=1096)
"""Nine tiles of a row, of which a document of five has two or three."""


def causal_documents(q: Tensor, k: Tensor, v: Tensor, document: Tensor) -> Tensor:
    s = (q @ k.transpose(-1, -2)).float() * 0.125
    at = torch.arange(q.shape[2], device=q.device)
    hidden = (at[None, :] > at[:, None]) | (document[:, None, :, None] != document[:, None, None, :])
    return torch.softmax(s.masked_fill(hidden, float("-inf")), -1).to(v.dtype) @ v


def padded_before(q: Tensor, k: Tensor, v: Tensor, segment: Tensor) -> Tensor:
    """What is of no segment, at the beginning, is padding."""
    s = (q @ k.transpose(-1, -2)).float() * 0.125
    return torch.softmax(s.masked_fill(segment[:, None, None, :] == 0, float("-inf")), -1).to(v.dtype) @ v


def padded(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Scores and their mask in half precision."""
    s = (q @ k.transpose(-1, -2) * 0.125).masked_fill(~keep[:, None, None, :], float("-inf"))
    return torch.softmax(s.float(), -1).to(v.dtype) @ v


def programs() -> Iterator[Program]:
    yield from (replace(p, walk="listed") for p in alternate(_programs()))


def _programs() -> Iterator[Program]:
    for dtype in HALVES:
        for roles, shape, square in ((False, SMALL, replace(SMALL, l=200)), (True, BASE, SQUARE), (True, LONG, LONG)):
            document = In("document", (square.b, square.i), "i64", "segments", high=5)
            segment = In("segment", (shape.b, shape.l), "i64", "segments", high=3)
            keep = In("keep", (shape.b, shape.l), "bool", "keep")
            found = (program("listed", Way("*", "scores", mask="document"), shape, dtype),
                     Program("listed", f"{dtype} {square} causal documents", causal_documents, (*qkv(square, dtype), document)),
                     Program("listed", f"{dtype} {shape} padded before", padded_before, (*qkv(shape, dtype), segment)),
                     Program("listed", f"{dtype} {shape} padded", padded, (*qkv(shape, dtype), keep)))
            yield from (replace(p, roles=roles) for p in found)
