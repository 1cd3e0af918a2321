"""Programs of more kinds: attention without a product of queries and keys, routing between groups, mixtures, losses, codecs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import HALVES, In, Program, alternate

Fn = Callable[..., Any]


# -- attention of other kinds --------------------------------------------------------------------------------------------


def attention_free(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """AFT's simple form: every place has the same weighted mean, gated."""
    w = torch.exp(k.float() - k.float().amax(-2, keepdim=True))
    return (torch.sigmoid(q.float()) * ((w * v.float()).sum(-2, keepdim=True) / w.sum(-2, keepdim=True))).to(q.dtype)


def additive(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Bahdanau: the score is a sum over tanh."""
    s = (torch.tanh(q[:, :, None, :].float() + k[:, None, :, :].float()) * w.float()).sum(-1)
    return torch.softmax(s, -1) @ v.float()


def graph(a: Tensor, b: Tensor, keep: Tensor, h: Tensor) -> Tensor:
    """GAT: a rectified sum of two vectors, among neighbours."""
    s = F.leaky_relu(a[:, None] + b[None, :], 0.2)
    return torch.softmax(s.masked_fill(~keep, float("-inf")), -1) @ h


def slots(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Slots compete for places, then each takes the mean of what it has won."""
    p = torch.softmax((q @ k.mT).float() * 0.125, -2) + 1e-8
    return ((p / p.sum(-1, keepdim=True)) @ v.float()).to(q.dtype)


def features(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Linear attention with elu + 1."""
    a, b = F.elu(q.float()) + 1, F.elu(k.float()) + 1
    return ((a @ (b.mT @ v.float())) / (a @ b.sum(-2)[..., None] + 1e-6)).to(q.dtype)


def eight_bits(q: Tensor, k: Tensor, v: Tensor, ks: Tensor, vs: Tensor) -> Tensor:
    """Keys and values of 8 bits with a scale for each token."""
    s = (q.float() @ k.float().mT) * ks[:, None, :] * 0.125
    return (torch.softmax(s, -1) @ (v.float() * vs[..., None])).to(q.dtype)


def double(x: Tensor) -> Tensor:
    return torch.softmax(torch.softmax(x.float(), -1) * 8.0, -1)


def sinkhorn(x: Tensor) -> Tensor:
    h = x.float()
    for _ in range(2):
        h = h - torch.logsumexp(h, -1, keepdim=True)
        h = h - torch.logsumexp(h, -2, keepdim=True)
    return h.exp()


# -- mixtures and chains -------------------------------------------------------------------------------------------------


def mixture(x: Tensor, mean: Tensor, log_scale: Tensor, logits: Tensor) -> Tensor:
    """The log density of a mixture of normals."""
    z = (x[:, None] - mean) * torch.exp(-log_scale)
    return torch.logsumexp(torch.log_softmax(logits, -1) - 0.5 * z * z - log_scale, -1)


def forward_step(alpha: Tensor, a: Tensor) -> Tensor:
    """A hidden Markov chain's step."""
    return torch.logsumexp(alpha[:, :, None] + a[None, :, :], 1)


def viterbi_step(alpha: Tensor, a: Tensor) -> Tensor:
    return (alpha[:, :, None] + a[None, :, :]).amax(1)


# -- losses and measures -------------------------------------------------------------------------------------------------


def dice(x: Tensor, y: Tensor) -> Tensor:
    p, g = torch.sigmoid(x.float()), (y > 0).float()
    return 1 - (2 * (p * g).sum(-1) + 1) / (p.sum(-1) + g.sum(-1) + 1)


def crest(x: Tensor) -> Tensor:
    return x.abs().amax(-1) / x.pow(2).mean(-1).sqrt()


def geometric(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.exp(torch.log(x).mean(-1)), 1 / (1 / x).mean(-1)


def log_cosh(x: Tensor, y: Tensor) -> Tensor:
    d = (x - y).float()
    return (d.abs() + F.softplus(-2 * d.abs()) - 0.6931471805599453).mean(-1)


def surprise(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A label's logarithm, and the mean of all."""
    lp = torch.log_softmax(x.float(), -1)
    return lp.gather(-1, y[:, None])[:, 0], -(lp.exp() * lp).sum(-1)


def weighted_entropy(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), y, weight=w.float(), reduction="none")


def smooth(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), y, label_smoothing=0.1, reduction="none")


def redundancy(x: Tensor, y: Tensor) -> Tensor:
    """Barlow twins: columns are standardised, then correlated."""
    a = (x - x.mean(0)) / (x.std(0) + 1e-4)
    b = (y - y.mean(0)) / (y.std(0) + 1e-4)
    return (a.mT @ b) / x.shape[0]


def squash(x: Tensor) -> Tensor:
    n = (x.float() ** 2).sum(-1, keepdim=True)
    return (n / (1 + n) * x.float() * torch.rsqrt(n + 1e-8)).to(x.dtype)


# -- norms, codecs -------------------------------------------------------------------------------------------------------


def of_batch(x: Tensor) -> Tensor:
    m, v = x.float().mean((0, 2, 3), keepdim=True), x.float().var((0, 2, 3), keepdim=True, unbiased=False)
    return ((x.float() - m) * torch.rsqrt(v + 1e-5)).to(x.dtype)


def of_instance(x: Tensor) -> Tensor:
    return F.instance_norm(x)


def of_groups(x: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 8))


def both_axes(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.softmax(x.float().flatten(1), -1).view(x.shape), torch.logsumexp(x.float(), (1, 2))


def shared_exponent(x: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks of 32 with a power of two for a scale."""
    g = x.float().unflatten(-1, (-1, 32))
    e = torch.floor(torch.log2(g.abs().amax(-1, keepdim=True).clamp_min(1e-30))) - 8.0
    return (g * torch.exp2(-e)).clamp(-448, 448).to(torch.float8_e4m3fn).flatten(-2).float(), e[..., 0]


def unit_sum(x: Tensor) -> Tensor:
    return F.normalize(x, p=1.0, dim=-1)


ROWS: dict[str, Fn] = {"double softmax": double, "crest": crest, "squash": squash, "unit sum": unit_sum}


def heads() -> Iterator[Program]:
    for dtype in HALVES:
        q, k, v = (In(n, (2, 140, 64), dtype) for n in "qkv")
        for what, fn in (("attention-free", attention_free), ("slots", slots), ("linear", features)):
            yield Program("further", f"{dtype} 2x140 {what}", fn, (q, k, v))
        small = tuple(In(n, (2, 50, 32), dtype) for n in "qkv")
        yield Program("further", f"{dtype} 2x50 additive", additive, (*small, In("w", (32,), dtype, "weight")))
        near = In("keep", (150, 150), "bool", "keep")
        ins = (In("a", (150,), dtype), In("b", (150,), dtype), near, In("h", (150, 64), dtype))
        yield Program("further", f"{dtype} 150 graph attention", graph, ins)
        kv = tuple(In(n, (2, 140, 64), "e4m3") for n in "kv")
        scales = tuple(In(n, (2, 140), "f32", "positive", scale=0.1) for n in ("ks", "vs"))
        yield Program("further", f"{dtype} 2x140 keys of 8 bits", eight_bits, (q, *kv, *scales),
                      only=("normal", "ties", "zeros", "outlier", "spread", "tiny", "big", "nan:q", "inf:ks", "nan:vs"))
        yield Program("further", f"{dtype} 130x1000 weighted entropy", weighted_entropy, (
            In("x", (130, 1000), dtype), In("y", (130,), "i64", "label", high=1000), In("w", (1000,), dtype, "positive")))
        ins = (In("x", (200, 72), dtype), In("y", (200, 72), dtype))
        yield Program("further", f"{dtype} 200x72 redundancy", redundancy, ins)


def rows() -> Iterator[Program]:
    for dtype in ("f32", "f16"):
        for what, fn in ROWS.items():
            yield Program("further", f"{dtype} 21x600 {what}", fn, (In("x", (21, 600), dtype, shift=0.25),))
        yield Program("further", f"{dtype} 3x70x70 sinkhorn", sinkhorn, (In("x", (3, 70, 70), dtype),))
        pair = (In("x", (21, 600), dtype), In("y", (21, 600), dtype))
        yield Program("further", f"{dtype} 21x600 dice", dice, pair)
        yield Program("further", f"{dtype} 21x600 log cosh", log_cosh, pair)
        labels = (In("x", (130, 500), dtype), In("y", (130,), "i64", "label", high=500))
        yield Program("further", f"{dtype} 130x500 surprise", surprise, labels)
        yield Program("further", f"{dtype} 130x500 smoothed entropy", smooth, labels)
        for what, fn in (("batch norm", of_batch), ("instance norm", of_instance), ("group norm", of_groups)):
            yield Program("further", f"{dtype} 3x48x14x14 {what}", fn, (In("x", (3, 48, 14, 14), dtype, shift=0.5),))
        yield Program("further", f"{dtype} 9x20x30 both axes", both_axes, (In("x", (9, 20, 30), dtype),))
        yield Program("further", f"{dtype} 19x320 shared exponent", shared_exponent, (In("x", (19, 320), dtype),))


def chains() -> Iterator[Program]:
    yield Program("further", "f32 21x600 geometric", geometric, (In("x", (21, 600), "f32", "positive"),))
    parts = tuple(In(n, (400, 40), "f32") for n in ("mean", "log_scale", "logits"))
    yield Program("further", "f32 400x40 mixture", mixture, (In("x", (400,), "f32"), *parts), only=("normal", "ties", "zeros"))
    for what, fn in (("forward step", forward_step), ("viterbi step", viterbi_step)):
        yield Program("further", f"f32 30x120 {what}", fn, (In("alpha", (30, 120), "f32"), In("a", (120, 120), "f32")))


def programs() -> Iterator[Program]:
    yield from alternate(heads())
    yield from alternate(rows())
    yield from chains()
