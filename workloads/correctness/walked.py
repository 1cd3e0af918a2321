"""Rows longer than a block holds, walked by its threads: such as end with a step of all threads, within one, and within an
access; results of the row, and along it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import In, Program

ROWS, ONE_EACH = 264, 132
"""More than an H200 has multiprocessors, and as many."""


def log_sum(x: Tensor) -> Tensor:
    return torch.logsumexp(x.float(), -1)


def loss(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), y, reduction="none")


def smoothed(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), y, reduction="none", label_smoothing=0.1)


def spread(x: Tensor) -> Tensor:
    return x.float().var(-1, correction=0)


def stable_norm(x: Tensor) -> Tensor:
    m = x.float().abs().amax(-1, keepdim=True)
    return (m * torch.sqrt(((x.float() / m) ** 2).sum(-1, keepdim=True))).to(x.dtype)


def entropy(x: Tensor) -> Tensor:
    s = torch.log_softmax(x.float(), -1)
    return -(torch.exp(s) * s).sum(-1)


def expected_place(x: Tensor) -> Tensor:
    return (torch.softmax(x.float(), -1) * torch.arange(x.shape[-1], device=x.device)).sum(-1)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def root_mean_square(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], eps=1e-6)


def layer(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def elsewhere(by: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: log_sum(by(x))


SHIFTED: dict[str, Callable[[Tensor], Tensor]] = {
    "from the second on": lambda x: x[:, 1:],
    "up to the last": lambda x: x[:, :-1],
    "a window": lambda x: x[:, 8:-8],
    "every other": lambda x: x[:, ::2],
    "backwards": lambda x: x.flip(-1),
    "neighbours": lambda x: x[:, 1:] - x[:, :-1],
    "across": lambda x: x[:, 8:] * x[:, :-8],
}
"""Where a row's elements are read that is not where it begins, or not one after the other."""
OF_THE_ROW: dict[str, Callable[..., Tensor]] = {
    "log-sum-exp": log_sum, "loss": loss, "smoothed loss": smoothed, "variance": spread, "norm": stable_norm,
    "entropy": entropy, "expected place": expected_place}
ALONG_IT: dict[str, Callable[..., Tensor]] = {"softmax": softmax, "rms": root_mean_square, "layer": layer}
LENGTHS = {"f16": (65536, 32000, 50257), "bf16": (50304, 50257, 65536), "f32": (30000, 32768, 30001)}
"""Whole steps, a step with whole accesses of 16 bytes, and one with accesses of single elements."""


def programs() -> Iterator[Program]:
    for at, (what, fn) in enumerate(OF_THE_ROW.items()):
        for n, (dtype, lengths) in enumerate(LENGTHS.items()):
            yield _program(what, fn, dtype, ROWS, lengths[(at + n) % 3])
    for at, (what, fn) in enumerate(ALONG_IT.items()):
        yield _program(what, fn, "f16", ONE_EACH, (66000, 65537, 131072)[at])
        yield _program(what, fn, "f32", ONE_EACH, (65600, 65536, 65539)[at])
    for n, (what, by) in enumerate(SHIFTED.items()):
        yield _program(what, elsewhere(by), ("f16", "bf16", "f32")[n % 3], ROWS, 32768 + 8 * (n % 2))


def _program(what: str, fn: Callable[..., Tensor], dtype: str, rows: int, length: int) -> Program:
    labels = (In("y", (rows,), "i64", "label", high=length),) if fn in (loss, smoothed) else ()
    return Program("walked", f"{what} {dtype} {rows}x{length}", fn, (In("x", (rows, length), dtype, scale=3.0), *labels))
