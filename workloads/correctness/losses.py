"""Softmax and what is made of it: its logarithm, log-sum-exp, cross-entropy, entropy, divergence, policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import In, Program, alternate, draws

Fn = Callable[..., Any]


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def softmax_wide(x: Tensor) -> Tensor:
    return torch.softmax(x, -1, dtype=torch.float32).to(x.dtype)


def softmax_hand(x: Tensor) -> Tensor:
    e = torch.exp(x - x.max(-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True)


def softmax_naive(x: Tensor) -> Tensor:
    e = x.exp()
    return e / e.sum(-1, keepdim=True)


def softmax_warm(x: Tensor) -> Tensor:
    return torch.softmax(x / 0.7, -1)


def softmax_tail(x: Tensor) -> Tensor:
    """After the softmax, something on the row."""
    p = torch.softmax(x.float(), -1)
    return (p * (p > 0.001)).to(x.dtype)


def logsumexp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1)


def log_hand(x: Tensor) -> Tensor:
    m = x.amax(-1, keepdim=True)
    return (x - m).exp().sum(-1).log() + m[..., 0]


def with_max(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.logsumexp(x, -1), x.amax(-1)


def log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, -1)


def z_loss(x: Tensor) -> Tensor:
    return torch.logsumexp(x.float(), -1) ** 2


def entropy(x: Tensor) -> Tensor:
    p = torch.softmax(x, -1)
    return -(p * torch.log_softmax(x, -1)).sum(-1)


def entropy_float(x: Tensor) -> Tensor:
    q = torch.log_softmax(x.float(), -1)
    return -(q.exp() * q).sum(-1)


def entropy_difference(x: Tensor) -> Tensor:
    """logsumexp minus the mean logit."""
    h = x.float()
    return torch.logsumexp(h, -1) - (torch.softmax(h, -1) * h).sum(-1)


def cross(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x, y, reduction="none")


def cross_float(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), y, reduction="none")


def cross_mean(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), y)


def cross_gather(x: Tensor, y: Tensor) -> Tensor:
    return torch.logsumexp(x.float(), -1) - x.float().gather(-1, y[:, None])[:, 0]


def cross_smooth(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), y, reduction="none", label_smoothing=0.1)


def cross_own(x: Tensor) -> Tensor:
    return F.cross_entropy(x, x.argmax(-1), reduction="none")


def policy(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    q = torch.log_softmax(x.float(), -1)
    return q.gather(-1, y[:, None])[:, 0], -(q.exp() * q).sum(-1)


def divergence(x: Tensor, z: Tensor) -> Tensor:
    p, q = torch.log_softmax(x.float(), -1), torch.log_softmax(z.float(), -1)
    return (p.exp() * (p - q)).sum(-1)


def cross_indexed(x: Tensor, y: Tensor) -> Tensor:
    return -torch.log_softmax(x.float(), -1)[torch.arange(len(y), device=y.device), y]


def divergence_of_torch(x: Tensor, z: Tensor) -> Tensor:
    return F.kl_div(F.log_softmax(x.float(), -1), torch.softmax(z.float(), -1), reduction="none").sum(-1)


ROWWISE: dict[str, Fn] = {
    "softmax": softmax, "softmax wide": softmax_wide, "softmax hand": softmax_hand, "softmax naive": softmax_naive,
    "softmax warm": softmax_warm, "softmax tail": softmax_tail, "logsumexp": logsumexp, "logsumexp hand": log_hand,
    "logsumexp and max": with_max, "log_softmax": log_softmax, "z": z_loss, "entropy": entropy, "entropy float": entropy_float,
    "entropy difference": entropy_difference, "cross own": cross_own,
}
LABELLED: dict[str, Fn] = {"cross": cross, "cross float": cross_float, "cross mean": cross_mean, "cross gather": cross_gather,
                           "cross smooth": cross_smooth, "cross indexed": cross_indexed, "policy": policy}


def programs() -> Iterator[Program]:
    yield from alternate(rows())
    yield Program("softmax", "f16 2x131072", softmax, (In("x", (2, 131072), "f16", scale=3.0),))
    yield Program("losses", "f16 5x70000 cross float", cross_float, (
        In("x", (5, 70000), "f16", scale=3.0), In("y", (5,), "i64", "label", high=70000)))
    yield Program("losses", "bf16 5x9000 cross float", cross_float, (
        In("x", (5, 9000), "bf16", scale=3.0), In("y", (5,), "i64", "label", high=9000)), "multi", 5)
    yield Program("softmax", "f32 4x7x65 middle axis", lambda x: torch.softmax(x, 1), (In("x", (4, 65, 7), "f32", scale=3.0),))


def renyi(x: Tensor) -> Tensor:
    return -torch.logsumexp(2.5 * F.log_softmax(x.float(), -1), -1) / 1.5


def third_moment(x: Tensor) -> Tensor:
    p = torch.softmax(x.float(), -1)
    mean = (p * x).sum(-1, keepdim=True)
    return (p * (x - mean) ** 3).sum(-1)


def rows() -> Iterator[Program]:
    for dtype in ("f16", "bf16", "f32"):
        for what, fn in ROWWISE.items():
            n = 333
            family = "entropy" if "entropy" in what else "softmax" if "softmax" in what else "losses"
            yield Program(family, f"{dtype} 9x{n} {what}", fn, (In("x", (9, n), dtype, scale=3.0),))
            if what in ("softmax", "logsumexp and max", "entropy float") and dtype != "bf16":
                for strategy, splits in (("single", 0), ("resident", 0), ("multi", 2), ("multi", 5)):
                    ins = (In("x", (5, 2500), dtype, scale=3.0),)
                    yield Program(family, f"{dtype} 5x2500 {what}", fn, ins, strategy, splits)
        for what, fn in LABELLED.items():
            if dtype != "f16" or what == "cross":
                ins = (In("x", (33, 1111), dtype, scale=3.0), In("y", (33,), "i64", "label", high=1111))
                yield Program("losses", f"{dtype} 33x1111 {what}", fn, ins)
        for what, fn in (("divergence", divergence), ("divergence of torch", divergence_of_torch)):
            p = Program("losses", f"{dtype} 7x333 {what}", fn,
                        (In("x", (7, 333), dtype, scale=2.0), In("z", (7, 333), dtype, scale=2.0)))
            yield replace(p, only=tuple(d for d in draws(p) if d != "tiny"))  # named in docs/algebra.md
        for what, fn in (("renyi", renyi), ("third moment", third_moment)):
            yield Program("entropy", f"{dtype} 7x333 {what}", fn, (In("x", (7, 333), dtype, scale=2.0),))
