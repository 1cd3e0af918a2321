"""Cascades that feed each other through views: blocks of models, losses over both axes, gradients written out. What one kernel
writes and the next reads, in which order of axes, is what goes wrong here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import HALVES, In, Program, alternate

Fn = Callable[..., Any]
HEADS = 3


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(-3, -2)


# -- blocks --------------------------------------------------------------------------------------------------------------


def block(x: Tensor, wqkv: Tensor, wo: Tensor) -> Tensor:
    """A transformer's first half: norm, packed projections, attention, residual, norm."""
    q, k, v = F.linear(F.layer_norm(x, x.shape[-1:]), wqkv).chunk(3, -1)
    a = F.scaled_dot_product_attention(split(q), split(k), split(v)).transpose(1, 2).flatten(-2)
    return F.layer_norm(x + F.linear(a, wo), x.shape[-1:])


def packed(qkv: Tensor) -> Tensor:
    """(places, 3, heads, width) in one tensor."""
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    return (torch.softmax(q @ k.mT * 0.125, -1) @ v).transpose(1, 2).flatten(-2)


def windows(x: Tensor) -> Tensor:
    """Windows of 7 by 7 attend to themselves and go back to their places."""
    b, h, w, c = x.shape
    t = x.view(b, h // 7, 7, w // 7, 7, c).transpose(2, 3).reshape(-1, 49, c)
    y = F.scaled_dot_product_attention(t, t, t)
    return y.view(b, h // 7, w // 7, 7, 7, c).transpose(2, 3).reshape(b, h, w, c)


def shifted(x: Tensor, w: Tensor) -> Tensor:
    """Norm, windows of 4 by 4 around the corner, a product, back to their places, a residual and its norm."""
    b, h, n, c = x.shape
    y = F.layer_norm(x, (c,)).roll((-1, -3), (1, 2)).view(b, h // 4, 4, n // 4, 4, c).transpose(2, 3).reshape(-1, 16, c)
    y = (y @ w).view(b, h // 4, n // 4, 4, 4, c).transpose(2, 3).reshape(x.shape).roll((1, 3), (1, 2))
    return F.layer_norm(x + y, (c,))


def rotary_pieces(x: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries, keys and values are pieces of one product; half a head is read from the other half's places."""
    def turned(y: Tensor) -> Tensor:
        half = y.shape[-1] // 2
        return y * cos + torch.cat((-y[..., half:], y[..., :half]), -1) * sin

    n = w.shape[0] // 3
    q, k, v = (split(y) for y in F.linear(x, w).split(n, -1))
    return F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)


def backwards(x: Tensor) -> tuple[Tensor, Tensor]:
    """Positions that are counted: the last first, every second, around the end."""
    n = x.shape[-1]
    y = x[:, torch.arange(n - 1, -1, -1)]
    return torch.softmax(y, -1) + x[:, (torch.arange(n) + 5) % n], y[:, torch.arange(0, n, 2)].amax(-1)


def both_ways(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One result as it is, turned, and normalised."""
    a = F.scaled_dot_product_attention(q, k, v)
    return a, a.transpose(1, 2), F.rms_norm(a, a.shape[-1:])


def crossed(q: Tensor, k: Tensor, v: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
    """To one memory, then from there to another."""
    a = F.scaled_dot_product_attention(q, k, v)
    return F.scaled_dot_product_attention(a, k2, v2) + a


def all_of_it(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """What is asked of the weights beside their mean: the largest, the entropy, what each key receives."""
    p = torch.softmax((q @ k.mT).float() * 0.125, -1)
    return p @ v.float(), p.amax(-1), -(p * torch.log(p.clamp_min(1e-20))).sum(-1), p.sum(-2)


def transposed_norms(x: Tensor) -> tuple[Tensor, Tensor]:
    """Normalised along one axis, then along the other; and the softmax of the first, turned."""
    a = F.layer_norm(x, x.shape[-1:])
    return F.layer_norm(a.transpose(1, 2), (x.shape[1],)), torch.softmax(a.transpose(1, 2), -1)


def chained(x: Tensor) -> Tensor:
    return torch.softmax(torch.softmax(x.float(), -1).transpose(1, 2) * 4.0, -1).transpose(1, 2).to(x.dtype)


def excite(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """Squeeze and excitation, then where the channels agree (CBAM)."""
    g = torch.sigmoid(F.linear(F.relu(F.linear(x.float().mean((2, 3)), w1.float())), w2.float()))
    y = x.float() * g[:, :, None, None]
    return (y * torch.sigmoid(y.mean(1, keepdim=True) + y.amax(1, keepdim=True))).to(x.dtype)


def neighbours(x: Tensor, y: Tensor) -> Tensor:
    """The five nearest, weighted by a softmax of their distances."""
    d = (x * x).sum(-1, keepdim=True) + (y * y).sum(-1) - 2 * x @ y.mT
    near = torch.topk(-d, 5, -1)
    return (torch.softmax(near.values, -1)[..., None] * y[near.indices]).sum(-2)


def embedded(x: Tensor, keep: Tensor, y: Tensor) -> Tensor:
    """Sentences as means over what is not padding, of unit length, against others."""
    m = keep.to(x.dtype)[..., None]
    e = F.normalize((x * m).sum(1) / m.sum(1).clamp_min(1e-9), dim=-1)
    return torch.softmax(20 * (e @ F.normalize(y, dim=-1).mT).float(), -1)


def clip(a: Tensor, b: Tensor) -> Tensor:
    """Rows and columns of one table of similarities."""
    s = F.normalize(a.float(), dim=-1) @ F.normalize(b.float(), dim=-1).mT * 14.0
    at = torch.arange(a.shape[0], device=a.device)
    return (F.cross_entropy(s, at) + F.cross_entropy(s.mT, at)) / 2


def ignored(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Labels of 0 do not count."""
    each = F.cross_entropy(x.float(), y, ignore_index=0, reduction="none")
    return each, each.sum() / (y != 0).sum()


def scaled_to_eight(x: Tensor, w: Tensor) -> Tensor:
    """One scale for a whole tensor, another for the weights' rows."""
    a, b = x.float().abs().amax() / 127, w.float().abs().amax(-1) / 127
    q, r = torch.round(x.float() / a).clamp(-127, 127), torch.round(w.float() / b[:, None]).clamp(-127, 127)
    return ((q @ r.mT) * (a * b)).to(x.dtype)


# -- gradients, written out ----------------------------------------------------------------------------------------------


def softmax_grad(x: Tensor, g: Tensor) -> Tensor:
    p = torch.softmax(x.float(), -1)
    return (p * (g.float() - (p * g.float()).sum(-1, keepdim=True))).to(x.dtype)


def softmax_grad_saved(p: Tensor, g: Tensor) -> Tensor:
    return p * (g - (p * g).sum(-1, keepdim=True))


def entropy_grad(x: Tensor, y: Tensor) -> Tensor:
    p = torch.softmax(x.float(), -1)
    return (p - (torch.arange(x.shape[-1], device=x.device) == y[:, None]).float()) / x.shape[0]


def layer_norm_grad(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    h, d = x.float(), g.float() * w.float()
    m, r = h.mean(-1, keepdim=True), torch.rsqrt(h.var(-1, keepdim=True, unbiased=False) + 1e-5)
    n = (h - m) * r
    return (r * (d - d.mean(-1, keepdim=True) - n * (d * n).mean(-1, keepdim=True))).to(x.dtype)


def rms_norm_grad(x: Tensor, g: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h, d = x.float(), g.float() * w.float()
    r = torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-6)
    return (r * d - h * r**3 * (d * h).mean(-1, keepdim=True)).to(x.dtype), (g.float() * h * r).sum(0)


def attention_grad(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    p = torch.softmax((q @ k.mT).float() * 0.125, -1)
    dp = (g @ v.mT).float()
    ds = (p * (dp - (p * dp).sum(-1, keepdim=True)) * 0.125).to(q.dtype)
    return ds @ k, ds.mT @ q, p.to(q.dtype).mT @ g


GRADIENTS: dict[str, Fn] = {"softmax": softmax_grad, "softmax of what was saved": softmax_grad_saved}


def blocks() -> Iterator[Program]:
    for dtype in HALVES:
        x, width = In("x", (2, 60, 96), dtype), 96
        weights = (In("wqkv", (3 * width, width), dtype, "weight", 0.1), In("wo", (width, width), dtype, "weight", 0.1))
        yield Program("structure", f"{dtype} 2x60x96 block", block, (x, *weights), only=("normal", "ties", "zeros", "nan:x"))
        yield Program("structure", f"{dtype} 2x70 packed", packed, (In("qkv", (2, 70, 3, 4, 64), dtype),))
        yield Program("structure", f"{dtype} 2x14x21x32 windows", windows, (In("x", (2, 14, 21, 32), dtype),))
        q, k, v = (In(n, (2, 3, 100, 64), dtype) for n in "qkv")
        more = tuple(In(n, (2, 3, 33, 64), dtype) for n in ("k2", "v2"))
        for what, fn in (("both ways", both_ways), ("all of it", all_of_it)):
            yield Program("structure", f"{dtype} 2x3x100 {what}", fn, (q, k, v))
        yield Program("structure", f"{dtype} 2x3x100 crossed", crossed, (q, k, v, *more))
        ins = (q, k, v, In("g", (2, 3, 100, 64), dtype))
        yield Program("structure", f"{dtype} 2x3x100 gradient of attention", attention_grad, ins)
        yield Program("structure", f"{dtype} 70x96 CLIP", clip, (In("a", (70, 96), dtype), In("b", (70, 96), dtype)))
        yield Program("structure", f"{dtype} 70x96 one scale", scaled_to_eight, (
            In("x", (70, 96), dtype), In("w", (80, 96), dtype, "weight")))
        yield Program("structure", f"{dtype} 5x40x64 sentences", embedded, (
            In("x", (5, 40, 64), dtype), In("keep", (5, 40), "bool", "keep"), In("y", (90, 64), dtype, "weight")))


def rows() -> Iterator[Program]:
    for dtype in ("f32", "bf16"):
        x = In("x", (3, 40, 72), dtype)
        yield Program("structure", f"{dtype} 3x40x72 norms of both axes", transposed_norms, (x,))
        yield Program("structure", f"{dtype} 3x40x72 chained", chained, (x,))
        yield Program("structure", f"{dtype} 3x32x9x11 excite", excite, (
            In("x", (3, 32, 9, 11), dtype), In("w1", (8, 32), dtype, "weight"), In("w2", (32, 8), dtype, "weight")))
        labels = (In("x", (70, 500), dtype), In("y", (70,), "i64", "label", high=500))
        yield Program("structure", f"{dtype} 70x500 ignored labels", ignored, labels)
        yield Program("structure", f"{dtype} 70x500 gradient of entropy", entropy_grad, labels)
        pair = (In("x", (33, 500), dtype), In("g", (33, 500), dtype))
        for what, fn in GRADIENTS.items():
            yield Program("structure", f"{dtype} 33x500 gradient of {what}", fn, pair)
        more = (*pair, In("w", (500,), dtype, "weight"))
        for what, fn in (("layer norm", layer_norm_grad), ("RMS norm", rms_norm_grad)):
            yield Program("structure", f"{dtype} 33x500 gradient of {what}", fn, more)
    points = (In("x", (50, 12), "f32"), In("y", (90, 12), "f32"))
    yield Program("structure", "f32 50x90 neighbours", neighbours, points, only=("normal",))
    for dtype in ("bf16", "f32"):
        yield Program("structure", f"{dtype} 3x8x12x40 shifted windows", shifted, (
            In("x", (3, 8, 12, 40), dtype), In("w", (40, 40), dtype, "weight")))
        turns = tuple(In(n, (50, 16), dtype) for n in ("cos", "sin"))
        yield Program("structure", f"{dtype} 2x50x64 rotary pieces", rotary_pieces, (
            In("x", (2, 50, 64), dtype), In("w", (3 * HEADS * 16, 64), dtype, "weight"), *turns))
        yield Program("structure", f"{dtype} 9x333 backwards", backwards, (In("x", (9, 333), dtype),))


def programs() -> Iterator[Program]:
    yield from alternate(blocks())
    yield from alternate(rows())
