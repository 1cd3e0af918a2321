"""Tensors that are divided by what is measured of them: norms with affine parts over all sorts of axes, quantisers to 4 and
8 bits, by blocks and by history, and products with quantised weights."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import CALM, Program, made, of

WIDE = (*CALM, "tiny", "big")


# -- norms -------------------------------------------------------------------------------------------------------------


def group_affine(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 8, w, b, 1e-6))


def instance_affine(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.leaky_relu(F.instance_norm(x, weight=w, bias=b, eps=1e-5), 0.2) + x


def gemma(x: Tensor, w: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    h = r + x
    n = h.float() * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    return (n * (1.0 + w.float())).type_as(x), h


def scale_norm(x: Tensor, g: Tensor) -> Tensor:
    return x * (g / torch.norm(x, dim=-1, keepdim=True).clamp(min=1e-5))


def norm_linear_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(F.layer_norm(x, (x.size(-1),)), w, b), approximate="tanh")


def adaln(x: Tensor, c: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """DiT's final layer: modulation from a condition's own product."""
    shift, scale = F.linear(F.silu(c), w, b).chunk(2, dim=-1)
    return F.layer_norm(x, (x.shape[-1],), eps=1e-6) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


def pixel(x: Tensor) -> Tensor:
    return x * (x.square().mean(dim=1, keepdim=True) + 1e-8).rsqrt()


def frn(x: Tensor, g: Tensor, b: Tensor, t: Tensor) -> Tensor:
    nu2 = torch.mean(x.pow(2), dim=[2, 3], keepdim=True)
    return torch.max(g * (x * torch.rsqrt(nu2 + 1e-6)) + b, t)


def grn(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
    """ConvNeXt V2, channels last."""
    gx = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
    nx = gx / (gx.mean(dim=-1, keepdim=True) + 1e-6)
    return g * (x * nx) + b + x


def batch_stats(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m = x.mean((0, 2, 3))
    v = x.var((0, 2, 3), unbiased=False)
    y = (x - m[None, :, None, None]) / torch.sqrt(v[None, :, None, None] + 1e-5)
    return F.relu(y * w[None, :, None, None] + b[None, :, None, None]), m, v


def power_iteration(w: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    for _ in range(2):
        v = F.normalize(torch.mv(w.t(), u), dim=0, eps=1e-6)
        u = F.normalize(torch.mv(w, v), dim=0, eps=1e-6)
    sigma = torch.dot(u, torch.mv(w, v))
    return w / sigma.clamp(min=1e-3), sigma


# -- quantisers --------------------------------------------------------------------------------------------------------


def fake4(x: Tensor) -> Tensor:
    """Groups of 32, zero points, back again."""
    g = x.reshape(*x.shape[:-1], -1, 32)
    hi, lo = g.amax(-1, keepdim=True), g.amin(-1, keepdim=True)
    s = (hi - lo).clamp(min=1e-5) / 15
    z = (-torch.round(lo / s)).clamp_(0, 15)
    return ((torch.clamp(torch.round(g / s) + z, 0, 15) - z) * s).reshape(x.shape)


def block128(x: Tensor) -> tuple[Tensor, Tensor]:
    """DeepSeek's act_quant."""
    v = x.view(x.shape[0], -1, 128)
    amax = v.abs().float().amax(dim=2).view(x.shape[0], -1).clamp(1e-4)
    return (v * (448.0 / amax.unsqueeze(2))).to(torch.float8_e4m3fn).view_as(x), (amax / 448.0)


def weight_block(w: Tensor) -> tuple[Tensor, Tensor]:
    """Both axes in blocks of 128: amax over two middle axes."""
    v = w.view(w.shape[0] // 128, 128, w.shape[1] // 128, 128)
    a = v.abs().float().amax(dim=(1, 3), keepdim=True).clamp(1e-4)
    return (v * (448.0 / a)).to(torch.float8_e4m3fn).view_as(w), (a / 448.0).squeeze(3).squeeze(1)


def mx(x: Tensor) -> tuple[Tensor, Tensor]:
    g = x.float().unflatten(-1, (-1, 32))
    e = torch.floor(torch.log2(g.abs().amax(-1, keepdim=True).clamp_min(2.0**-120))) - 8
    return (g * torch.exp2(-e)).clamp(-448, 448).to(torch.float8_e4m3fn).flatten(-2), e.squeeze(-1)


def history(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Transformer Engine: delayed scaling."""
    scale = 448.0 / h.amax(0).clamp(min=1e-12)
    new = torch.cat([x.abs().amax().float()[None], h[:-1]])
    return (x.float() * scale).clamp(-448, 448).to(torch.float8_e4m3fn), new, scale


def vq(x: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest code's distance, and the commitment loss."""
    flat = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
    d = (flat ** 2).sum(1, keepdim=True) + (e ** 2).sum(1) - 2 * flat @ e.t()
    best, _ = d.min(1)
    return best.view(x.shape[0], x.shape[2], x.shape[3]), best.mean() * 0.25


# -- products ----------------------------------------------------------------------------------------------------------


def smoothquant(x: Tensor, w: Tensor) -> Tensor:
    """Scales by both operands' column maxima."""
    s = (x.abs().amax(0).float().pow(0.5) / w.abs().amax(0).float().pow(0.5).clamp(min=1e-5)).clamp(min=1e-5)
    xs = x.float() / s
    q = xs.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
    return ((xs / q).round() * q) @ (w.float() * s).T


def dequant_group(x: Tensor, q: Tensor, s: Tensor, z: Tensor) -> Tensor:
    """AWQ: integer weights in groups of 64 along the depth."""
    w = (q.view(q.shape[0], -1, 64).to(x.dtype) - z[..., None]) * s[..., None]
    return F.linear(x, w.view(q.shape[0], -1))


def dynamic_gemm(x: Tensor, w: Tensor, ws: Tensor, b: Tensor) -> Tensor:
    s = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-6) / 448.0
    q = (x.float() / s).to(torch.float8_e4m3fn)
    return F.gelu((q.float() @ w.float().t()) * s * ws[None, :] + b).to(x.dtype)


def lora(x: Tensor, w: Tensor, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, w, bias) + 0.5 * (x @ a.t() @ b.t())


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    p = partial(made, "scaled")
    yield p("f16 2x64x15x17 group", group_affine, of("x", 2, 64, 15, 17, dtype="f16"), of("w", 64, dtype="f16", kind="weight"),
            of("b", 64, dtype="f16", kind="weight"))
    yield p("f32 2x7x33x20 instance", instance_affine, of("x", 2, 7, 33, 20), of("w", 7, kind="weight"),
            of("b", 7, kind="weight"))
    yield p("bf16 33x1025 gemma", gemma, of("x", 33, 1025, dtype="bf16"), of("w", 1025, dtype="bf16", kind="weight", scale=0.1),
            of("r", 33, 1025, dtype="bf16"))
    yield p("f16 33x777 scale norm", scale_norm, of("x", 33, 777, dtype="f16"), of("g", 1, dtype="f16", kind="weight"))
    yield p("bf16 70x200 norm linear gelu", norm_linear_gelu, of("x", 70, 200, dtype="bf16"),
            of("w", 160, 200, dtype="bf16", kind="weight", scale=0.07), of("b", 160, dtype="bf16", kind="weight"))
    yield p("f16 3x50x96 adaln", adaln, of("x", 3, 50, 96, dtype="f16"), of("c", 3, 40, dtype="f16"),
            of("w", 192, 40, dtype="f16", kind="weight", scale=0.15), of("b", 192, dtype="f16", kind="weight"))
    yield p("f32 2x33x20x21 pixel", pixel, of("x", 2, 33, 20, 21))
    yield p("f32 2x9x30x31 frn", frn, of("x", 2, 9, 30, 31), *(of(n, 1, 9, 1, 1, kind="weight") for n in "gbt"))
    yield p("bf16 2x14x15x72 grn", grn, of("x", 2, 14, 15, 72, dtype="bf16"),
            *(of(n, 1, 1, 1, 72, dtype="bf16", kind="weight") for n in "gb"))
    yield p("f32 5x12x13x11 batch", batch_stats, of("x", 5, 12, 13, 11, shift=1.0), of("w", 12, kind="weight"),
            of("b", 12, kind="weight"))
    yield p("f32 130x200 power iteration", power_iteration, of("w", 130, 200, kind="weight", scale=0.1), of("u", 130))
    yield p("f32 33x320 fake 4 bits", fake4, of("x", 33, 320), only=("normal", "outlier"))
    yield p("bf16 33x640 block of 128", block128, of("x", 33, 640, dtype="bf16"), only=WIDE)
    yield p("bf16 256x384 block of both", weight_block, of("w", 256, 384, dtype="bf16"), only=WIDE)
    yield p("bf16 33x320 mx", mx, of("x", 33, 320, dtype="bf16"), only=WIDE)
    yield p("bf16 130x200 history", history, of("x", 130, 200, dtype="bf16"), of("h", 16, kind="positive"), only=CALM)
    yield p("f32 2x16x9x11x130 vq", vq, of("x", 2, 16, 9, 11), of("e", 130, 16, kind="weight"))
    yield p("bf16 70x192x130 smoothquant", smoothquant, of("x", 70, 192, dtype="bf16"), of("w", 130, 192, dtype="bf16"),
            only=("normal", "outlier"))
    yield p("f16 70x256x96 group dequant", dequant_group, of("x", 70, 256, dtype="f16"),
            of("q", 96, 256, dtype="i64", kind="label", high=16), of("s", 96, 4, dtype="f16", kind="weight", scale=0.02),
            of("z", 96, 4, dtype="f16", kind="weight", shift=8.0))
    yield p("bf16 65x256x96 dynamic", dynamic_gemm, of("x", 65, 256, dtype="bf16"),
            of("w", 96, 256, dtype="e4m3", kind="weight"), of("ws", 96, kind="weight", scale=0.1), of("b", 96, kind="weight"))
    yield p("f16 130x96x200 lora", lora, of("x", 130, 96, dtype="f16"), of("w", 200, 96, dtype="f16", kind="weight", scale=0.1),
            of("a", 8, 96, dtype="f16", kind="weight", scale=0.1), of("b", 200, 8, dtype="f16", kind="weight"),
            of("bias", 200, dtype="f16", kind="weight"))
