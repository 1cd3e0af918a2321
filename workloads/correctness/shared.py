"""Rows that are read once for all that reads them: written and reduced again, or reduced for results that nothing else
connects; and numbers of a row that its end reads at a place that data tell."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import CALM, Program, made, of

Two = tuple[Tensor, Tensor]
Three = tuple[Tensor, Tensor, Tensor]


def rms(x: Tensor, w: Tensor) -> Tensor:
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (y * (1 + w.float())).type_as(x)


# -- written, and reduced again ----------------------------------------------------------------------------------------


def post_and_next(x: Tensor, h: Tensor, w: Tensor, v: Tensor) -> Two:
    """The norm behind a block, its residual, the norm in front of the next."""
    h = h + rms(x, w)
    return h, rms(h, v)


def twice(x: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Two:
    y = F.layer_norm(x, (x.shape[-1],), w, b)
    return y, F.layer_norm(y, (x.shape[-1],), v, c)


def thrice(x: Tensor) -> Three:
    y = F.layer_norm(x, (x.shape[-1],))
    z = F.normalize(y + x, dim=-1)
    return y, z, z.amax(-1)


def rounded(x: Tensor, w: Tensor) -> Three:
    """A norm, and its 8-bit form for the product."""
    y = F.rms_norm(x, (x.shape[-1],), w)
    scale = y.abs().amax(-1, keepdim=True).float().clamp(min=1e-6) / 448
    return y, (y.float() / scale).to(torch.float8_e4m3fn).float(), scale


def entropy(x: Tensor) -> Two:
    p = torch.softmax(x, -1)
    return p, -(p * (p + 1e-9).log()).sum(-1)


def confident(x: Tensor) -> Three:
    p = x.softmax(-1)
    sharp = p * p
    sharp = sharp / sharp.sum(-1, keepdim=True)
    return p, sharp, sharp.amax(-1)


# -- one row, several results ------------------------------------------------------------------------------------------


def weights_and_total(x: Tensor) -> Two:
    return x.softmax(-1), x.logsumexp(-1)


def norms(x: Tensor, w: Tensor, v: Tensor) -> Two:
    return rms(x, w), rms(x, v)


def unlike(x: Tensor) -> Three:
    return F.layer_norm(x, (x.shape[-1],)), x.softmax(-1), F.normalize(x, dim=-1)


def moments(x: Tensor) -> Three:
    return F.layer_norm(x, (x.shape[-1],)), x.mean(-1), x.var(-1)


def kept_out(x: Tensor, keep: Tensor) -> Two:
    """Weights where they are visible, and of all."""
    return x.masked_fill(~keep, float("-inf")).softmax(-1), x.softmax(-1)


def apart(x: Tensor, h: Tensor) -> Three:
    """Of a sum that is written too."""
    y = x + h
    return y, y.log_softmax(-1), F.rms_norm(y, (x.shape[-1],))


# -- what a row's end reads of its own ---------------------------------------------------------------------------------


def at_label(x: Tensor, t: Tensor, w: Tensor) -> Tensor:
    return (x.logsumexp(-1) - x.gather(-1, t[:, None])[:, 0]) * w


def at_label_of_class(x: Tensor, t: Tensor, w: Tensor) -> Tensor:
    """Each class has a weight, looked up by the label; of a first half alone."""
    nll = w[t] * (x.logsumexp(-1) - x.gather(-1, t[:, None])[:, 0])
    return torch.where(torch.arange(x.shape[0], device=x.device) < x.shape[0] // 2, nll, 0.0)


def ends(x: Tensor, scale: Tensor, shift: Tensor, gate: Tensor) -> Two:
    y = x.var(-1) * scale + shift
    return y, torch.where(gate > 0, y, shift)


def programs() -> Iterator[Program]:
    p = partial(made, "shared")
    for d, n, k in (("bf16", 65, 512), ("f16", 33, 1000), ("f32", 130, 257), ("bf16", 5, 4096)):
        vectors = tuple(of(v, k, dtype=d, kind="weight") for v in "wv")
        yield p(f"{d} {n}x{k} post and next", post_and_next, of("x", n, k, dtype=d), of("h", n, k, dtype=d), *vectors)
        yield p(f"{d} {n}x{k} norms", norms, of("x", n, k, dtype=d), *vectors)
        yield p(f"{d} {n}x{k} weights and total", weights_and_total, of("x", n, k, dtype=d))
    for d, n, k in (("f32", 65, 130), ("bf16", 33, 512), ("f16", 17, 1024)):
        yield p(f"{d} {n}x{k} twice", twice, of("x", n, k, dtype=d), *(of(v, k, dtype=d, kind="weight") for v in "wbvc"),
                only=CALM)
        yield p(f"{d} {n}x{k} thrice", thrice, of("x", n, k, dtype=d), only=CALM)
        yield p(f"{d} {n}x{k} entropy", entropy, of("x", n, k, dtype=d))
        yield p(f"{d} {n}x{k} unlike", unlike, of("x", n, k, dtype=d))
        yield p(f"{d} {n}x{k} moments", moments, of("x", n, k, dtype=d))
        yield p(f"{d} {n}x{k} kept out", kept_out, of("x", n, k, dtype=d), of("keep", n, k, dtype="bool", kind="keep"))
        yield p(f"{d} {n}x{k} apart", apart, of("x", n, k, dtype=d), of("h", n, k, dtype=d))
    yield p("f32 65x513 confident", confident, of("x", 65, 513))
    yield p("bf16 65x512 rounded", rounded, of("x", 65, 512, dtype="bf16"), of("w", 512, dtype="bf16", kind="weight"),
            only=CALM)
    yield p("f32 130x2000 at label", at_label, of("x", 130, 2000), of("t", 130, dtype="i64", kind="label", high=2000),
            of("w", 130))
    yield p("bf16 67x30 at label", at_label, of("x", 67, 30, dtype="bf16"), of("t", 67, dtype="i64", kind="label", high=30),
            of("w", 67, dtype="bf16"))
    yield p("f32 130x257 of a class", at_label_of_class, of("x", 130, 257), of("t", 130, dtype="i64", kind="label", high=257),
            of("w", 257))
    own = ("scale", "shift", "gate")
    yield p("f16 63x300 ends", ends, of("x", 63, 300, dtype="f16"), *(of(v, 63, dtype="f16") for v in own))
    yield p("f32 7x20000 ends", ends, of("x", 7, 20000), *(of(v, 7) for v in own))
