"""Rendering: light along rays, layers that are blended, what a ray meets, and surfaces."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import MILD, TAME, Program, made, mask, of, positive


def nerf(sigma: Tensor, rgb: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """NeRF: alpha from densities, an exclusive cumprod, colour, depth, disparity, opacity."""
    dists = z[..., 1:] - z[..., :-1]
    dists = torch.cat([dists, torch.full_like(dists[..., :1], 1e10)], -1)
    alpha = 1.0 - torch.exp(-F.relu(sigma) * dists)
    trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1.0 - alpha + 1e-10], -1), -1)[:, :-1]
    weights = alpha * trans
    colour = torch.sum(weights[..., None] * torch.sigmoid(rgb), -2)
    depth = torch.sum(weights * z, -1)
    acc = torch.sum(weights, -1)
    disparity = 1.0 / torch.max(1e-10 * torch.ones_like(depth), depth / acc)
    return colour + (1.0 - acc[..., None]), depth, disparity, weights


def nerf_log(sigma: Tensor, rgb: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Transmittance as the exponential of an exclusive cumsum."""
    tau = F.softplus(sigma - 1.0) * delta
    trans = torch.exp(-(torch.cumsum(tau, dim=-1) - tau))
    w = (1 - torch.exp(-tau)) * trans
    return torch.einsum("rs,rsc->rc", w, rgb.sigmoid()), 1 - w.sum(-1)


def nerf_shifted(sigma: Tensor, delta: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """mip-NeRF: exclusive by a concatenated zero; distances clamped into the ray and NaN replaced."""
    density_delta = sigma.relu() * delta
    alpha = 1 - torch.exp(-density_delta)
    trans = torch.exp(-torch.cat([torch.zeros_like(density_delta[..., :1]), torch.cumsum(density_delta[..., :-1], -1)], -1))
    w = alpha * trans
    acc = w.sum(-1)
    distance = (w * t).sum(-1) / acc
    distance = torch.clamp(torch.nan_to_num(distance, nan=float("inf")), t[:, 0], t[:, -1])
    return distance, acc


def distortion(w: Tensor, t: Tensor) -> Tensor:
    """mip-NeRF 360, with all pairs."""
    mid = (t[..., 1:] + t[..., :-1]) / 2
    inter = torch.sum(w * torch.sum(w[..., None, :] * (mid[..., :, None] - mid[..., None, :]).abs(), dim=-1), dim=-1)
    intra = torch.sum(w**2 * (t[..., 1:] - t[..., :-1]), dim=-1) / 3
    return inter + intra


def distortion_scan(w: Tensor, m: Tensor) -> Tensor:
    """The same in linear time."""
    wm = w * m
    before, before_m = w.cumsum(-1) - w, wm.cumsum(-1) - wm
    return 2 * (wm * before - w * before_m).sum(-1).mean()


def sample_pdf(w: Tensor) -> tuple[Tensor, Tensor]:
    w = w[..., 1:-1] + 1e-5
    pdf = w / torch.sum(w, -1, keepdim=True)
    cdf = torch.cumsum(pdf, -1)
    return torch.cat([torch.zeros_like(cdf[..., :1]), cdf], -1), -(pdf * torch.log(pdf)).sum(-1)


def inverse_cdf(w: Tensor, u: Tensor, bins: Tensor) -> Tensor:
    """searchsorted as a count."""
    pdf = w / w.sum(-1, keepdim=True)
    cdf = torch.cumsum(pdf, -1)
    at = (cdf[:, None, :] <= u[:, :, None]).sum(-1).clamp(max=w.shape[-1] - 1)
    return torch.gather(bins, 1, at)


def median_depth(sigma: Tensor, delta: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """The depth where half of the light is gone: the first place of a running sum past log 2."""
    tau = torch.cumsum(F.relu(sigma) * delta, -1)
    gone = tau >= math.log(2.0)
    at = gone.int().argmax(dim=-1, keepdim=True)
    hit = gone.any(-1)
    return torch.where(hit, torch.gather(z, 1, at).squeeze(1), z[:, -1]), hit


def splat(xy: Tensor, mean: Tensor, conic: Tensor, opacity: Tensor, colour: Tensor) -> tuple[Tensor, Tensor]:
    """Gaussians sorted front to back, blended for each pixel."""
    d = xy[:, None, :] - mean[None]
    power = -0.5 * (conic[:, 0] * d[..., 0] ** 2 + conic[:, 2] * d[..., 1] ** 2) - conic[:, 1] * d[..., 0] * d[..., 1]
    alpha = (opacity * torch.exp(power)).clamp(max=0.99)
    alpha = torch.where((power > 0) | (alpha < 1 / 255), torch.zeros_like(alpha), alpha)
    trans = torch.cumprod(1 - alpha, dim=1)
    before = torch.cat([torch.ones_like(trans[:, :1]), trans[:, :-1]], dim=1)
    return (alpha * before) @ colour, trans[:, -1]


def blend(logits: Tensor, colour: Tensor) -> tuple[Tensor, Tensor]:
    """Alpha compositing of layers, back to front, by flipping."""
    a = logits.sigmoid()
    trans = torch.flip(torch.cumprod(torch.flip(1 - a, dims=(0,)), 0), dims=(0,))
    trans = torch.cat([trans[1:], torch.ones_like(trans[:1])], 0)
    w = a * trans
    return (w.unsqueeze(-1) * colour).sum(0), w.sum(0)


def oit(alpha: Tensor, colour: Tensor, z: Tensor) -> Tensor:
    """Weighted blended order-independent transparency."""
    a = alpha.sigmoid()
    w = a * torch.clamp(0.03 / (1e-5 + (z / 200).pow(4)), 1e-2, 3e3)
    c = (w[..., None] * colour).sum(-2) / w.sum(-1, keepdim=True).clamp_min(1e-5)
    return c * (1 - torch.prod(1 - a, dim=-1, keepdim=True))


def spheres(o: Tensor, d: Tensor, c: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest hit of a ray among spheres, which sphere, and whether any."""
    d = d / d.norm(dim=-1, keepdim=True)
    oc = o[:, None] - c[None]
    b = (oc * d[:, None]).sum(-1)
    disc = b * b - (oc.square().sum(-1) - r**2)
    t = -b - torch.sqrt(disc.clamp(min=0))
    t = torch.where((disc < 0) | (t < 1e-3), float("inf"), t)
    near, which = t.min(dim=1)
    return near, torch.isfinite(near), torch.where(torch.isfinite(near), which, -1)


def planes(o: Tensor, d: Tensor, n: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """A ray clipped by a convex body: the last entry, the first exit."""
    den = d @ n.t()
    t = (h - o @ n.t()) / torch.where(den.abs() < 1e-6, 1e-6, den)
    near = t.masked_fill(den >= 0, float("-inf")).amax(1).clamp(min=0.0)
    far = t.masked_fill(den < 0, float("inf")).amin(1)
    return torch.where(near < far, near, torch.tensor(float("nan"))), near < far


def slabs(o: Tensor, d: Tensor, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
    inv = 1.0 / d[:, None]
    t0, t1 = (lo - o[:, None]) * inv, (hi - o[:, None]) * inv
    near = torch.minimum(t0, t1).amax(-1)
    far = torch.maximum(t0, t1).amin(-1)
    hit = (near <= far) & (far > 0)
    first = torch.where(hit, near, torch.inf).min(-1).values
    return first, hit.sum(1)


def soft_rasterizer(d: Tensor, z: Tensor, colour: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """SoftRas: probabilities of faces, weights of a softmax with a background, the silhouette a product."""
    p = torch.sigmoid(d / 0.1)
    eps = 1e-3
    zmax = z.max(dim=-1, keepdim=True)[0].clamp(min=eps)
    w = p * torch.exp((z - zmax) / gamma)
    delta = torch.exp((eps - zmax) / gamma).clamp(min=eps)
    denom = w.sum(-1, keepdim=True) + delta
    return (w[..., None] * colour).sum(-2) / denom, 1.0 - torch.prod(1.0 - p, dim=-1)


def surface_normals(z: Tensor) -> Tensor:
    dx = F.pad(z[..., 2:] - z[..., :-2], (1, 1))
    dy = F.pad(z[..., 2:, :] - z[..., :-2, :], (0, 0, 1, 1))
    return F.normalize(torch.stack([-dx, -dy, torch.ones_like(z)], 1), dim=1)


def eikonal(g: Tensor, keep: Tensor) -> Tensor:
    return (((g.norm(2, dim=-1) - 1) ** 2) * keep).sum() / keep.sum().clamp(min=1)


def programs() -> Iterator[Program]:
    p = partial(made, "scenes")
    yield p("f32 130x65 nerf", nerf, of("sigma", 130, 65), of("rgb", 130, 65, 3), positive("z", 130, 65), only=MILD)
    yield p("f32 65x130 nerf log", nerf_log, of("sigma", 65, 130), of("rgb", 65, 130, 3), positive("delta", 65, 130), only=TAME)
    yield p("f16 65x130 nerf log", nerf_log, of("sigma", 65, 130, dtype="f16"), of("rgb", 65, 130, 3, dtype="f16"),
            positive("delta", 65, 130, dtype="f16"), only=MILD)
    yield p("f32 33x64 nerf shifted", nerf_shifted, of("sigma", 33, 64), positive("delta", 33, 64), positive("t", 33, 64))
    yield p("f32 33x65 distortion", distortion, of("w", 33, 65), of("t", 33, 66))
    yield p("f32 33x65 distortion scan", distortion_scan, positive("w", 33, 65), of("m", 33, 65), only=TAME)
    yield p("f32 65x66 sample pdf", sample_pdf, positive("w", 65, 66), only=TAME)
    yield p("f32 65x63x20 inverse cdf", inverse_cdf, positive("w", 65, 63), of("u", 65, 20), of("bins", 65, 63),
            only=("normal",))
    yield p("f32 65x130 median depth", median_depth, of("sigma", 65, 130, scale=0.1), positive("delta", 65, 130),
            of("z", 65, 130), only=("normal", "zeros"))
    yield p("f32 65x33 splat", splat, of("xy", 65, 2), of("mean", 33, 2), positive("conic", 33, 3), positive("opacity", 33),
            of("colour", 33, 3), only=("normal",))
    yield p("f32 9x1000 blend", blend, of("logits", 9, 1000), of("colour", 9, 1000, 3))
    yield p("bf16 9x130 blend", blend, of("logits", 9, 130, dtype="bf16"), of("colour", 9, 130, 3, dtype="bf16"))
    yield p("f32 130x9 oit", oit, of("alpha", 130, 9), of("colour", 130, 9, 3), of("z", 130, 9, scale=100.0))
    yield p("f32 130x33 spheres", spheres, of("o", 130, 3), of("d", 130, 3), of("c", 33, 3), positive("r", 33),
            only=("normal",))
    yield p("f32 65x20 planes", planes, of("o", 65, 3, scale=0.1), of("d", 65, 3), of("n", 20, 3), positive("h", 20),
            only=("normal", "outlier"))
    yield p("f32 65x33 slabs", slabs, of("o", 65, 3), of("d", 65, 3), of("lo", 33, 3, shift=-1.0, scale=0.1),
            of("hi", 33, 3, shift=1.0, scale=0.1))
    yield p("f32 65x33 soft rasterizer", soft_rasterizer, of("d", 65, 33), of("z", 65, 33), of("colour", 65, 33, 3),
            positive("gamma"), only=TAME)
    yield p("f32 3x33x65 surface normals", surface_normals, of("z", 3, 33, 65))
    yield p("bf16 3x130x3 eikonal", eikonal, of("g", 3, 130, 3, dtype="bf16"), mask("keep", 3, 130))
