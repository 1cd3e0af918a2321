"""One step of models with a state: it is decayed, corrected, written and read. Products with one row, written out and as
matrices; operands that a library reads the other way round; remainders and fractions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.correctness.program import TAME, In, Program


def delta(s: Tensor, q: Tensor, k: Tensor, v: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """A gated delta rule whose keys and queries are normalised."""
    k, q = F.normalize(k, dim=-1), F.normalize(q, dim=-1)
    s = s * (-F.softplus(g)).exp()[..., None, None]
    u = (v - (s * k[..., None]).sum(-2)) * b.sigmoid()[..., None]
    s = s + k[..., None] * u[..., None, :]
    return (s * q[..., None]).sum(-2), s


def gated_delta(s: Tensor, k: Tensor, v: Tensor, b: Tensor, g: Tensor) -> Tensor:
    s = s * g.sigmoid()[..., None, None]
    u = (v - torch.einsum("bhk,bhkv->bhv", k, s)) * b.sigmoid()[..., None]
    return s + torch.einsum("bhk,bhv->bhkv", k, u)


def transposed_delta(s: Tensor, q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The state's columns are the keys'."""
    k = F.normalize(k, dim=-1)
    u = (s * -k[..., None, :]).sum(-1)
    s = s * (-w.exp()).exp()[..., None, :] + u[..., None] * k[..., None, :] + v[..., None] * k[..., None, :]
    return (s * q[..., None, :]).sum(-1), s


def selective(s: Tensor, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    dt = F.softplus(dt)
    s = s * (dt * -a.exp()).exp()[..., None, None] + (dt[..., None] * x)[..., None] * b[:, None, None]
    return (s * c[:, None, None]).sum(-1) + x, s


def scanned(h: Tensor, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    dt = F.softplus(dt)
    h = h * torch.exp(dt[..., None] * -a.exp()) + (dt * x)[..., None] * b[:, None]
    return ((h * c[:, None]).sum(-1) + x) * F.silu(z), h


def gated_linear(s: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    s = F.logsigmoid(g).exp()[..., None] * s + k.float()[..., None] * v.float()[..., None, :]
    return (q.float()[..., None] * s).sum(-2).to(q.dtype), s


def normalised(s: Tensor, z: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    k, q = F.elu(k) + 1, F.elu(q) + 1
    s, z = s + k[..., None] * v[..., None, :], z + k
    return (q[..., None] * s).sum(-2) / (q * z).sum(-1, keepdim=True).clamp(min=1e-3), s, z


def exponential_gates(c: Tensor, n: Tensor, q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor
                      ) -> tuple[Tensor, Tensor, Tensor]:
    f = F.logsigmoid(f)
    m = torch.maximum(f, i)
    fi, ii = (f - m).exp()[..., None], (i - m).exp()[..., None]
    c, n = fi[..., None] * c + ii[..., None] * (k[..., :, None] * v[..., None, :]), fi * n + ii * k
    return (q[..., None] * c).sum(-2) / torch.maximum((q * n).sum(-1, keepdim=True).abs(), (-m).exp()[..., None]), c, n


def time_mixed(s: Tensor, r: Tensor, k: Tensor, v: Tensor, u: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    kv = k[..., :, None] * v[..., None, :]
    y = (r[..., :, None] * (s + u[..., None] * kv)).sum(-2)
    return F.group_norm(y.flatten(1), s.shape[1]), s * (-w.exp()).exp()[..., None] + kv


def one_query(h: Tensor, q: Tensor, m: Tensor) -> Tensor:
    s = (h * q[:, None]).sum(-1).float() * h.shape[-1] ** -0.5
    return (s.masked_fill(~m, -1e4).softmax(-1)[..., None] * h).sum(1)


def one_query_of_heads(k: Tensor, q: Tensor) -> Tensor:
    s = (k * q[:, :, None]).sum(-1).float()
    return (s.softmax(-1)[..., None] * k.float()).sum(2)


def rounded_product(x: Tensor, w: Tensor) -> Tensor:
    t = w.abs().amax(-1, keepdim=True) / 127
    return F.linear(x, (w / t).round().clamp(-128, 127) * t)


def unit_rows_multiplied(x: Tensor, w: Tensor) -> Tensor:
    return F.normalize(x, dim=-1) @ F.normalize(w, dim=-1).T


def wrapped(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * 3
    return (y % 1.0).sum(-1), y.frac().amax(-1), (y // 0.5).amin(-1)


def weighted_by_time(x: Tensor, m: Tensor) -> Tensor:
    w = m[..., None].float()
    n = w.sum(1, keepdim=True).clamp(min=1)
    u = (x * w).sum(1, keepdim=True) / n
    v = ((x - u).square() * w).sum(1, keepdim=True) / n
    return (x - u) * (v + 1e-3).rsqrt() * w


def programs() -> Iterator[Program]:
    def of(what: str, fn: Callable[..., Any], dtype: str, shape: tuple[int, ...], *more: tuple[int, ...]) -> Program:
        ins = (In("s", shape, "f32"), *(In(f"x{n}", s, dtype) for n, s in enumerate(more)))
        return Program("states", f"{dtype} {'x'.join(map(str, shape))} {what}", fn, ins, only=TAME)

    for b, h, k, v in ((8, 4, 64, 64), (3, 2, 64, 128), (2, 3, 48, 40)):
        keys, values = (b, h, k), (b, h, v)
        yield of("delta", delta, "f32", (b, h, k, v), keys, keys, values, (b, h), (b, h))
        yield of("gated delta", gated_delta, "f32", (b, h, k, v), keys, values, (b, h), (b, h))
        yield of("transposed delta", transposed_delta, "f32", (b, h, v, k), keys, keys, values, keys)
        yield of("normalised", normalised, "f32", (b, h, k, v), keys, keys, keys, values)
    for b, h, p, n in ((4, 8, 64, 16), (3, 5, 33, 128)):
        yield of("selective", selective, "f32", (b, h, p, n), (b, h, p), (b, h), (h,), (b, n), (b, n))
    yield of("scanned", scanned, "f32", (8, 300, 16), (8, 300), (8, 300), (300, 16), (8, 16), (8, 16), (8, 300))
    yield of("gated linear", gated_linear, "bf16", (8, 4, 128, 128), (8, 4, 128), (8, 4, 128), (8, 4, 128), (8, 4, 128))
    yield of("gated linear", gated_linear, "f16", (5, 2, 64, 96), (5, 2, 64), (5, 2, 64), (5, 2, 96), (5, 2, 64))
    yield of("exponential gates", exponential_gates, "f32", (4, 2, 64, 128), *((4, 2, 64),) * 3, (4, 2, 128), (4, 2), (4, 2))
    yield of("time mixed", time_mixed, "f32", (8, 4, 64, 64), (8, 4, 64), (8, 4, 64), (8, 4, 64), (4, 64), (4, 64))

    def rows(what: str, fn: Callable[..., Any], *ins: In) -> Program:
        return Program("states", f"{ins[0].dtype} {'x'.join(map(str, ins[0].shape))} {what}", fn, ins, only=TAME)

    for b, n, d, dtype in ((300, 50, 32, "f16"), (70, 20, 64, "bf16"), (40, 33, 24, "f32")):
        yield rows("one query", one_query, In("h", (b, n, d), dtype), In("q", (b, d), dtype), In("m", (b, n), "bool", "keep"))
    yield rows("one query of heads", one_query_of_heads, In("k", (16, 4, 100, 32), "f16"), In("q", (16, 4, 32), "f16"))
    yield rows("rounded product", rounded_product, In("x", (64, 256), "bf16"), In("w", (128, 256), "bf16"))
    yield rows("unit rows multiplied", unit_rows_multiplied, In("x", (200, 96), "f32"), In("w", (130, 96), "f32"))
    yield rows("wrapped", wrapped, In("x", (300, 200), "f32"))
    yield rows("wrapped", wrapped, In("x", (64, 1000), "f16"))
    yield rows("weighted by time", weighted_by_time, In("x", (6, 200, 96), "f16"), In("m", (6, 200), "bool", "keep"))
