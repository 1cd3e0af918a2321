"""Programs as libraries spell them, over other axes, layouts and dtypes: torch's own functions with their options, reductions
that lead, rows of one and of many thousands, integers, and values that one result passes to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import HALVES, In, Program, alternate

Fn = Callable[..., Any]


# -- attention -----------------------------------------------------------------------------------------------------------


def windowed(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """Swin: a bias looked up by relative position, one for each head."""
    n = q.shape[-2]
    at = torch.arange(n, device=q.device)
    bias = table[:, at[:, None] - at[None, :] + n - 1]
    return torch.softmax((q * q.shape[-1] ** -0.5) @ k.mT + bias, -1) @ v


def two_axes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Axial: along rows, then along columns of what that gave."""
    a = F.scaled_dot_product_attention(q, k, v)
    b = F.scaled_dot_product_attention(a.transpose(1, 2), a.transpose(1, 2), a.transpose(1, 2))
    return b.transpose(1, 2)


def channels(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Tensor:
    """Restormer, XCiT: channels attend to channels, rows of unit length."""
    q, k = F.normalize(q.float(), dim=-2), F.normalize(k.float(), dim=-2)
    return (v.float() @ torch.softmax((q.mT @ k) * t, -1).mT).to(v.dtype)


def external(x: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """External attention: a softmax over places, then each place's weights sum to one."""
    a = torch.softmax((x @ k.mT).float(), 1)
    return ((a / (1e-9 + a.sum(-1, keepdim=True))) @ v.float()).to(x.dtype)


def talking(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Heads are mixed before the softmax."""
    s = torch.einsum("bhqd,bhkd->bhqk", q, k).float() * 0.125
    p = torch.softmax(torch.einsum("bhqk,hg->bgqk", s, w.float()), -1)
    return torch.einsum("bhqk,bhkd->bhqd", p, v.float()).to(q.dtype)


def penalised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Distance taken off as its logarithm (Kerple)."""
    i = torch.arange(q.shape[-2], device=q.device)
    s = (q @ k.mT).float() * 0.125 - 0.7 * torch.log1p((i[:, None] - i[None, :]).abs().float())
    s = s.masked_fill(i[None, :] > i[:, None], float("-inf"))
    return torch.softmax(s, -1).to(v.dtype) @ v


def stick_breaking(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A sigmoid, and what is left of the later ones: sums that run from the end."""
    s = (q @ k.mT).float() * 0.125
    rest = F.logsigmoid(-s)
    after = rest.flip(-1).cumsum(-1).flip(-1) - rest
    return (torch.exp(F.logsigmoid(s) + after) @ v.float()).to(q.dtype)


def off_by_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = (q @ k.mT).float() * 0.125
    m = s.amax(-1, keepdim=True).clamp_min(0)
    e = torch.exp(s - m)
    return ((e / (torch.exp(-m) + e.sum(-1, keepdim=True))) @ v.float()).to(q.dtype)


def inverse_square(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Weights by distance: Student's t, as in clustering."""
    d = (q.float() ** 2).sum(-1)[..., None] + (k.float() ** 2).sum(-1)[..., None, :] - 2 * (q @ k.mT).float()
    w = 1 / (1 + d.clamp_min(0))
    return ((w / w.sum(-1, keepdim=True)) @ v.float()).to(q.dtype)


def pooled(x: Tensor, w: Tensor) -> Tensor:
    """Attention pooling: one score a place, one mean a row; also its deviation (ECAPA)."""
    a = torch.softmax((x @ w).float(), 1)[..., None]
    m = (a * x.float()).sum(1)
    return torch.cat([m, ((a * x.float() ** 2).sum(1) - m * m).clamp_min(1e-4).sqrt()], -1)


def pieces(q: Tensor, k: Tensor, v: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
    """Keys and values of two places, one softmax."""
    s = torch.cat([q @ k.mT, q @ k2.mT], -1).float() * 0.125
    p = torch.softmax(s, -1).to(v.dtype)
    return p[..., : k.shape[-2]] @ v + p[..., k.shape[-2]:] @ v2


def late(q: Tensor, k: Tensor, v: Tensor, n: Tensor) -> Tensor:
    """Lengths from a tensor."""
    s = (q @ k.mT) * 0.125
    keep = torch.arange(k.shape[-2], device=q.device)[None, None, :] < n[:, None, None]
    return torch.softmax(s.masked_fill(~keep, torch.finfo(s.dtype).min), -1) @ v


# -- rows, over other axes -----------------------------------------------------------------------------------------------


def down(x: Tensor) -> Tensor:
    return torch.softmax(x, 0)


def middle(x: Tensor) -> Tensor:
    return F.log_softmax(x.float(), 1).to(x.dtype)


def ends(x: Tensor) -> tuple[Tensor, Tensor]:
    """Over the first axis and the last, together."""
    return torch.var_mean(x.float(), (0, 2))


def corners(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.aminmax(x.float().flatten(1), dim=1)


def turned(x: Tensor) -> Tensor:
    """A norm of what has been turned, turned back."""
    return F.layer_norm(x.transpose(1, 2), (x.shape[1],)).transpose(1, 2)


def running(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x.float()
    return torch.logcumsumexp(h, -1), h.cumsum(-1) / torch.arange(1, x.shape[-1] + 1, device=x.device)


def best_so_far(x: Tensor) -> Tensor:
    return x - torch.cummax(x, -1).values


def softmin(x: Tensor) -> tuple[Tensor, Tensor]:
    p = F.softmin(x.float(), -1)
    return p, (p * x.float()).sum(-1)


def distances(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    d = x.float() - y.float()
    return F.pairwise_distance(x.float(), y.float()), d.abs().amax(-1), torch.linalg.vector_norm(d, 3, -1)


def trimmed(x: Tensor) -> Tensor:
    """A mean without the greatest and the least."""
    h = x.float()
    return (h.sum(-1) - h.amax(-1) - h.amin(-1)) / (x.shape[-1] - 2)


def median_of_groups(x: Tensor) -> Tensor:
    """Three means, the middle one."""
    g = x.float().unflatten(-1, (3, -1)).mean(-1)
    return g.sum(-1) - g.amax(-1) - g.amin(-1)


def logit_margin(x: Tensor, y: Tensor) -> Tensor:
    """CW's loss: the label's score against the best of the others."""
    own = x.gather(-1, y[:, None])
    others = x.scatter(-1, y[:, None], float("-inf"))
    return (own[:, 0] - others.amax(-1)).float()


def arcface(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    c = F.normalize(x.float(), dim=-1) @ F.normalize(w.float(), dim=-1).mT
    c = torch.where(torch.arange(w.shape[0], device=x.device)[None, :] == y[:, None], c - 0.35, c)
    return F.cross_entropy(30 * c, y, reduction="none")


def triplet(a: Tensor, p: Tensor, n: Tensor) -> Tensor:
    return F.relu((a - p).float().pow(2).sum(-1) - (a - n).float().pow(2).sum(-1) + 1.0)


def tversky(x: Tensor, y: Tensor) -> Tensor:
    p, g = torch.softmax(x.float(), 1)[:, 1], (y > 0).float()
    tp, fp, fn = (p * g).sum((1, 2)), (p * (1 - g)).sum((1, 2)), ((1 - p) * g).sum((1, 2))
    return 1 - tp / (tp + 0.3 * fp + 0.7 * fn + 1e-6)


def mutual(x: Tensor) -> tuple[Tensor, Tensor]:
    """BALD: the entropy of the mean, the mean of entropies, over draws."""
    p = torch.softmax(x.float(), -1)
    m = p.mean(0)
    return -(m * torch.log(m + 1e-12)).sum(-1), -(p * torch.log(p + 1e-12)).sum(-1).mean(0)


def renyi(x: Tensor) -> tuple[Tensor, Tensor]:
    p = torch.softmax(x.float(), -1)
    return -torch.log(p.pow(2).sum(-1)), (1 - p.pow(3).sum(-1)) / 2


def normal_ll(x: Tensor, mean: Tensor, logvar: Tensor) -> Tensor:
    return -0.5 * (logvar.float() + (x - mean).float().pow(2) * torch.exp(-logvar.float())).sum(-1)


def kl_normal(mean: Tensor, logvar: Tensor) -> Tensor:
    m, v = mean.float(), logvar.float()
    return -0.5 * (1 + v - m * m - v.exp()).sum(-1)


def beside_itself(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two norms of one row, one of the other's result."""
    a = F.rms_norm(x, (x.shape[-1],))
    return a, F.layer_norm(a + x, (x.shape[-1],))


def weight_norm(v: Tensor, g: Tensor, x: Tensor) -> Tensor:
    return F.linear(x, g * v / v.norm(dim=1, keepdim=True))


def qk_norm(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    n = (q.shape[-1],)
    return F.scaled_dot_product_attention(F.rms_norm(q, n, w), F.rms_norm(k, n, w), v)


def counts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (x > 0).sum(-1), torch.count_nonzero(x, -1), (x == x.amax(-1, keepdim=True)).sum(-1)


def zscore_clip(x: Tensor) -> Tensor:
    s, m = torch.std_mean(x.float(), -1, keepdim=True)
    return torch.clamp((x.float() - m) / (s + 1e-6), -3, 3).to(x.dtype)


def minmax(x: Tensor) -> Tensor:
    lo, hi = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    return torch.round((x - lo) / (hi - lo + 1e-5) * 255)


def signed(x: Tensor) -> tuple[Tensor, Tensor]:
    """One bit: signs, and the mean of magnitudes."""
    return torch.sign(x), x.float().abs().mean(-1, keepdim=True).to(x.dtype)


def ternary(w: Tensor, x: Tensor) -> Tensor:
    """BitNet: weights by their mean magnitude, in three values; activations in 8 bits."""
    s = w.float().abs().mean().clamp_min(1e-5)
    a = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-5) / 127
    return F.linear((torch.round(x.float() / a) * a).to(x.dtype), (torch.round(w.float() / s).clamp(-1, 1) * s).to(w.dtype))


def state(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """A chunk of a state space: weights are exponentials of differences of running sums."""
    c = a.float().cumsum(-1)
    w = torch.exp((c[..., :, None] - c[..., None, :]).masked_fill(
        torch.ones(a.shape[-1], a.shape[-1], device=a.device, dtype=torch.bool).triu(1), float("-inf")))
    return (w * b.float()[..., None, :]) @ x.float()


def potential(x: Tensor) -> Tensor:
    """Lennard-Jones, every pair but oneself."""
    d = (x[:, None] - x[None, :]).pow(2).sum(-1) + torch.eye(x.shape[0], device=x.device) * 1e12
    r = 1 / d.clamp_min(0.25) ** 3
    return (4 * (r * r - r)).sum(-1)


def kernel_regression(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Nadaraya and Watson, with the variance of what it says."""
    w = torch.softmax(-(x[:, None] - y[None, :]).pow(2) / 0.5, -1)
    m = w @ z
    return m, w @ (z * z) - m * m


def sums_of_whole(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.float().sum(), x.float().pow(2).mean().sqrt(), x.float().abs().amax()


def inner(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x.float() * y.float()).sum(-1), torch.einsum("ij,ij->i", x.float(), y.float()) / x.float().norm(dim=-1)


def pooled_max(x: Tensor, w: Tensor) -> Tensor:
    """The greatest of a row's products, through a tanh (max-pooled late interaction)."""
    return torch.tanh((x @ w.mT).float().amax(-1))


def colbert(q: Tensor, d: Tensor) -> Tensor:
    return torch.einsum("bqe,bde->bqd", F.normalize(q.float(), dim=-1), F.normalize(d.float(), dim=-1)).amax(-1).sum(-1)


def gated_sum(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    """Experts' outputs, weighted by a softmax of the best of their gates."""
    g = torch.softmax((x @ w).float(), -1)
    return torch.einsum("be,bed->bd", g, u.float()).to(x.dtype)


HEADS: dict[str, Fn] = {"channels": lambda q, k, v: channels(q, k, v, torch.ones((), device=q.device)), "Kerple": penalised,
                        "stick breaking": stick_breaking, "off by one": off_by_one, "Student's weights": inverse_square}
ROWS: dict[str, Fn] = {"softmin": softmin, "trimmed": trimmed, "Renyi": renyi, "two norms": beside_itself, "counts": counts,
                       "clipped z": zscore_clip, "min and max to 8 bits": minmax, "one bit": signed, "best so far": best_so_far}


def heads() -> Iterator[Program]:
    for dtype in HALVES:
        q, k, v = (In(n, (2, 3, 150, 64), dtype) for n in "qkv")
        for what, fn in HEADS.items():
            yield Program("abroad", f"{dtype} 2x3x150 {what}", fn, (q, k, v))
        table = In("table", (3, 97), dtype, "weight")
        small = tuple(In(n, (5, 3, 49, 32), dtype) for n in "qkv")
        yield Program("abroad", f"{dtype} 5x3x49 Swin's window", windowed, (*small, table))
        yield Program("abroad", f"{dtype} 2x8x150 talking heads", talking, (
            *(In(n, (2, 8, 150, 64), dtype) for n in "qkv"), In("w", (8, 8), dtype, "weight")))
        yield Program("abroad", f"{dtype} 2x40x40 two axes", two_axes, tuple(In(n, (2, 40, 40, 64), dtype) for n in "qkv"))
        yield Program("abroad", f"{dtype} 2x200 external", external, (
            In("x", (2, 200, 64), dtype), In("k", (64, 64), dtype, "weight"), In("v", (64, 64), dtype)))
        yield Program("abroad", f"{dtype} 4x150 pooled", pooled,
            (In("x", (4, 150, 96), dtype), In("w", (96,), dtype, "weight")))
        more = tuple(In(n, (2, 3, 77, 64), dtype) for n in ("k2", "v2"))
        yield Program("abroad", f"{dtype} 2x3x150 pieces", pieces, (q, k, v, *more))
        three = tuple(In(n, (3, 150, 80), dtype) for n in "qkv")
        yield Program("abroad", f"{dtype} 3x150 lengths", late, (*three, In("n", (3,), "i64", "label", high=150)))
        yield Program("abroad", f"{dtype} 2x3x150 norms of queries and keys", qk_norm,
            (q, k, v, In("w", (64,), dtype, "weight")))


def rows() -> Iterator[Program]:
    for dtype in ("f32", "bf16"):
        for what, fn in ROWS.items():
            yield Program("abroad", f"{dtype} 23x700 {what}", fn, (In("x", (23, 700), dtype, shift=0.25),))
        x = In("x", (130, 75), dtype)
        yield Program("abroad", f"{dtype} 130x75 down", down, (x,))
        x = In("x", (6, 90, 37), dtype)
        for what, fn in (("middle", middle), ("ends", ends), ("corners", corners), ("turned norm", turned)):
            yield Program("abroad", f"{dtype} 6x90x37 {what}", fn, (x,))
        yield Program("abroad", f"{dtype} 9x130 running", running, (In("x", (9, 130), dtype),))
        yield Program("abroad", f"{dtype} 23x300 middle of three means", median_of_groups, (In("x", (23, 300), dtype),))
        pair = (In("x", (23, 700), dtype), In("y", (23, 700), dtype))
        yield Program("abroad", f"{dtype} 23x700 distances", distances, pair)
        yield Program("abroad", f"{dtype} 23x700 inner", inner, pair)
        yield Program("abroad", f"{dtype} 23x200 triplet", triplet, tuple(In(n, (23, 200), dtype) for n in "apn"))
        yield Program("abroad", f"{dtype} 23x96 normal", normal_ll,
            tuple(In(n, (23, 96), dtype) for n in ("x", "mean", "logvar")))
        yield Program("abroad", f"{dtype} 23x96 divergence from normal", kl_normal,
            tuple(In(n, (23, 96), dtype) for n in ("mean", "logvar")))
        labels = In("y", (70,), "i64", "label", high=900)
        yield Program("abroad", f"{dtype} 70x900 margin", logit_margin, (In("x", (70, 900), dtype), labels))
        yield Program("abroad", f"{dtype} 3x2x40x30 Tversky", tversky,
            (In("x", (3, 2, 40, 30), dtype), In("y", (3, 40, 30), dtype)))
        yield Program("abroad", f"{dtype} 5x30x100 mutual information", mutual, (In("x", (5, 30, 100), dtype),))
        yield Program("abroad", f"{dtype} 300x200 whole", sums_of_whole, (In("x", (300, 200), dtype),))
        yield Program("abroad", f"{dtype} 2x60x90 late interaction", colbert,
            (In("q", (2, 60, 64), dtype), In("d", (2, 90, 64), dtype)))
        yield Program("abroad", f"{dtype} 70x1 one column", softmin, (In("x", (70, 1), dtype),))
        yield Program("abroad", f"{dtype} 1x40001 one row", zscore_clip, (In("x", (1, 40001), dtype),))


def products() -> Iterator[Program]:
    for dtype in HALVES:
        x = In("x", (130, 96), dtype)
        yield Program("abroad", f"{dtype} 130x96 ArcFace", arcface,
            (x, In("w", (300, 96), dtype, "weight"), In("y", (130,), "i64", "label", high=300)))
        yield Program("abroad", f"{dtype} 130x96 normed weights", weight_norm, (
            In("v", (200, 96), dtype, "weight"), In("g", (200, 1), dtype, "weight"), x))
        yield Program("abroad", f"{dtype} 130x96 three values", ternary, (In("w", (200, 96), dtype, "weight"), x))
        yield Program("abroad", f"{dtype} 130x96 greatest product", pooled_max, (x, In("w", (333, 96), dtype, "weight")))
        yield Program("abroad", f"{dtype} 130x96 mixture of experts", gated_sum,
            (x, In("w", (96, 8), dtype, "weight"), In("u", (130, 8, 96), dtype)))


def fields() -> Iterator[Program]:
    yield Program("abroad", "f32 300x3 Lennard-Jones", potential,
        (In("x", (300, 3), "f32"),), only=("normal", "ties", "zeros", "tiny"))
    yield Program("abroad", "f32 90x400 kernel regression", kernel_regression, (
        In("x", (90,), "f32"), In("y", (400,), "f32"), In("z", (400,), "f32")))
    ins = (In("x", (2, 64, 32), "f32"), In("a", (2, 64), "f32", scale=-0.1), In("b", (2, 64), "f32"))
    yield Program("abroad", "f32 2x64x32 state space", state, ins, only=("normal", "ties", "zeros", "nan:x", "inf:b"))


def programs() -> Iterator[Program]:
    yield from alternate(heads())
    yield from alternate(rows())
    yield from alternate(products())
    yield from fields()
