"""Pictures: colour and contrast, style, similarity, histograms and filters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import MILD, TAME, Program, made, mask, of, positive, weight

# -- colour and contrast -----------------------------------------------------------------------------------------------


def grey_world(x: Tensor) -> Tensor:
    m = x.mean(dim=(-2, -1), keepdim=True)
    return (x * (m.mean(dim=1, keepdim=True) / (m + 1e-6))).clamp(0, 1)


def max_rgb(x: Tensor) -> Tensor:
    return x / x.flatten(2).amax(-1)[..., None, None].clamp(min=1e-4)


def shades_of_grey(x: Tensor) -> Tensor:
    e = x.abs().pow(6).mean((2, 3)).pow(1 / 6)
    e = e / e.norm(dim=1, keepdim=True)
    return x / (e[:, :, None, None] * math.sqrt(3) + 1e-6)


def reinhard(x: Tensor) -> tuple[Tensor, Tensor]:
    """By the log-average luminance, with a white point."""
    lum = 0.2126 * x[:, 0] + 0.7152 * x[:, 1] + 0.0722 * x[:, 2]
    avg = torch.exp(torch.log(lum + 1e-4).mean(dim=(1, 2), keepdim=True))
    scaled = 0.18 * lum / avg
    white = scaled.amax(dim=(1, 2), keepdim=True)
    mapped = scaled * (1 + scaled / white**2) / (1 + scaled)
    return x * (mapped / (lum + 1e-6)).unsqueeze(1), avg.flatten()


def stretch(x: Tensor) -> Tensor:
    lo, hi = x.amin(dim=(-1, -2), keepdim=True), x.amax(dim=(-1, -2), keepdim=True)
    y = (x - lo) / (hi - lo + 1e-8)
    return (y**0.4545 * 255).round().clamp(0, 255)


def stretch_bytes(x: Tensor) -> Tensor:
    """uint8 pictures, out again."""
    x = x.to(torch.uint8).float()
    lo, hi = torch.aminmax(x.flatten(1), dim=1)
    return ((x - lo[:, None]) * 255 / (hi - lo).clamp(min=1)[:, None]).to(torch.uint8)


def percentile_stretch(x: Tensor) -> Tensor:
    """The 2 per cent at both ends cut off."""
    k = max(1, x.shape[1] // 50)
    hi = x.topk(k, dim=1).values[:, -1:]
    lo = x.topk(k, dim=1, largest=False).values[:, -1:]
    return ((x - lo) / (hi - lo + 1e-6)).clamp_(0, 1)


def saturation(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """HSV, by the extremes of the channels."""
    v, at = x.max(dim=1)
    lo = x.min(1).values
    c = v - lo
    s = torch.where(v == 0, torch.zeros_like(c), c / v)
    r, g, b = x.unbind(1)
    safe = torch.where(c == 0, torch.ones_like(c), c)
    h = torch.stack([(g - b) / safe % 6, (b - r) / safe + 2, (r - g) / safe + 4], 1).gather(1, at.unsqueeze(1)).squeeze(1)
    return torch.where(c == 0, 0.0, h / 6), s, v


def exposure_fusion(x: Tensor) -> Tensor:
    """Mertens: contrast, saturation and exposedness, normalised over the pictures."""
    s = x.std(1, keepdim=True)
    e = torch.exp(-((x - 0.5) ** 2) / (2 * 0.2**2)).prod(1, keepdim=True)
    w = s * e + 1e-12
    w = w / w.sum(0, keepdim=True)
    return (w * x).sum(0)


def quantile_norm(x: Tensor) -> Tensor:
    """Rows with the sorted values of their mean."""
    ranks = (x[:, None, :] < x[:, :, None]).sum(-1)
    mean = x.sort(dim=1).values.mean(0)
    return mean[ranks]


# -- style -------------------------------------------------------------------------------------------------------------


def reinhard_transfer(x: Tensor, y: Tensor) -> Tensor:
    """Colour transfer: mean and deviation of another picture."""
    mx, my = x.mean((2, 3), keepdim=True), y.mean((2, 3), keepdim=True)
    sx, sy = x.std((2, 3), keepdim=True), y.std((2, 3), keepdim=True)
    return (x - mx) * (sy / (sx + 1e-5)) + my


def adain(c: Tensor, s: Tensor, alpha: Tensor) -> Tensor:
    b, ch = c.shape[:2]
    cv, sv = c.reshape(b, ch, -1), s.reshape(b, ch, -1)
    c_mean, s_mean = cv.mean(2).view(b, ch, 1, 1), sv.mean(2).view(b, ch, 1, 1)
    c_std, s_std = (cv.var(2) + 1e-5).sqrt().view(b, ch, 1, 1), (sv.var(dim=2) + 1e-5).sqrt().view(b, ch, 1, 1)
    out = s_std * (c - c_mean.expand(c.size())) / c_std.expand(c.size()) + s_mean.expand(c.size())
    return alpha * out + (1 - alpha) * c


def instance_norm_masked(x: Tensor, keep: Tensor) -> Tensor:
    m = keep[:, None].to(x.dtype)
    n = m.sum((2, 3), keepdim=True)
    mu = (x * m).sum((2, 3), keepdim=True) / n
    var = ((x - mu).pow(2) * m).sum((2, 3), keepdim=True) / n
    return (x - mu) * torch.rsqrt(var + 1e-5) * m


def spade(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return F.instance_norm(x.float(), eps=1e-5).to(x.dtype) * (1 + gamma) + beta


def gram(x: Tensor) -> Tensor:
    b, c, h, w = x.size()
    f = x.view(b, c, h * w)
    return f.bmm(f.transpose(1, 2)).div(c * h * w)


def style_loss(x: Tensor, y: Tensor) -> Tensor:
    fx, fy = x.flatten(2), y.flatten(2)
    gx = torch.einsum("bcn,bdn->bcd", fx, fx) / fx.shape[-1]
    gy = torch.einsum("bcn,bdn->bcd", fy, fy) / fy.shape[-1]
    return F.mse_loss(gx, gy) + F.l1_loss(fx.mean(-1), fy.mean(-1)) + F.l1_loss(fx.std(-1), fy.std(-1))


def covariance(x: Tensor) -> tuple[Tensor, Tensor]:
    """What whitening starts with."""
    f = x.flatten(2)
    mu = f.mean(-1, keepdim=True)
    f = f - mu
    eye = torch.eye(f.shape[1], device=f.device, dtype=f.dtype)
    return f @ f.mT / (f.shape[-1] - 1) + 1e-5 * eye, mu.squeeze(-1)


# -- similarity and histograms -----------------------------------------------------------------------------------------


def ssim_global(x: Tensor, y: Tensor) -> Tensor:
    x, y = x.flatten(1), y.flatten(1)
    mx, my = x.mean(1), y.mean(1)
    vx, vy = x.var(1, unbiased=False), y.var(1, correction=0)
    cov = ((x - mx[:, None]) * (y - my[:, None])).mean(1)
    return (2 * mx * my + 1e-4) * (2 * cov + 9e-4) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4))


def ssim_windows(x: Tensor, y: Tensor) -> Tensor:
    """Blocks of 8 x 8, by unfolding."""
    a = x.unfold(1, 8, 4).unfold(2, 8, 4).flatten(-2)
    b = y.unfold(1, 8, 4).unfold(2, 8, 4).flatten(-2)
    ma, mb = a.mean(-1), b.mean(-1)
    va, vb = (a * a).mean(-1) - ma * ma, (b * b).mean(-1) - mb * mb
    ab = (a * b).mean(-1) - ma * mb
    s = (2 * ma * mb + 0.01) * (2 * ab + 0.03) / ((ma**2 + mb**2 + 0.01) * (va + vb + 0.03))
    return s.mean(dim=(1, 2))


def psnr(x: Tensor, y: Tensor) -> Tensor:
    mse = torch.mean((x.clamp(0, 1) - y.clamp(0, 1)) ** 2, dim=[1, 2, 3])
    return 10 * torch.log10(1.0 / mse.clamp_min(1e-10))


def gmsd(x: Tensor, y: Tensor) -> Tensor:
    """Gradient magnitude similarity deviation."""
    def gm(i: Tensor) -> Tensor:
        return torch.sqrt((i[:, 1:, :-1] - i[:, :-1, :-1]) ** 2 + (i[:, :-1, 1:] - i[:, :-1, :-1]) ** 2 + 1e-12)
    a, b = gm(x), gm(y)
    gms = (2 * a * b + 0.0026) / (a**2 + b**2 + 0.0026)
    return gms.flatten(1).std(dim=1)


def total_variation(x: Tensor) -> tuple[Tensor, Tensor]:
    dh, dw = x[:, :, 1:] - x[:, :, :-1], x[..., 1:] - x[..., :-1]
    iso = torch.sqrt(F.pad(dh, (0, 0, 0, 1)) ** 2 + F.pad(dw, (0, 1)) ** 2 + 1e-8).sum((1, 2, 3))
    return dh.abs().mean((1, 2, 3)) + dw.abs().mean((1, 2, 3)), iso


def soft_histogram(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Kernel histograms, their cumulated form, and the earth mover's distance to the uniform one."""
    d = x[:, None, :] - centres[None, :, None]
    h = (torch.sigmoid(3 * (d + 0.25)) - torch.sigmoid(3 * (d - 0.25))).sum(-1)
    h = h / (h.sum(-1, keepdim=True) + 1e-6)
    cdf = h.cumsum(-1)
    flat = torch.arange(1, centres.shape[0] + 1, device=x.device) / centres.shape[0]
    return h, (cdf - flat).abs().mean(-1)


def hard_histogram(x: Tensor, edges: Tensor) -> Tensor:
    """Counts between edges, as comparisons."""
    inside = (x[:, None] >= edges[:-1][None, :, None]) & (x[:, None] < edges[1:][None, :, None])
    n = inside.sum(-1)
    return n.float() / n.sum(-1, keepdim=True).clamp(min=1).float()


def otsu(h: Tensor) -> tuple[Tensor, Tensor]:
    """The threshold of the largest variance between classes."""
    p = h / h.sum(-1, keepdim=True)
    k = torch.arange(h.shape[-1], device=h.device, dtype=h.dtype)
    w = p.cumsum(-1)
    m = (p * k).cumsum(-1)
    total = (p * k).sum(-1, keepdim=True)
    between = (total * w - m) ** 2 / (w * (1 - w)).clamp(min=1e-9)
    return between[..., :-1].amax(-1), total


# -- filters -----------------------------------------------------------------------------------------------------------


def bilateral(x: Tensor, space: Tensor) -> Tensor:
    """5 x 5, reflected at the border."""
    p = F.pad(x, (2, 2, 2, 2), mode="reflect")
    n = F.unfold(p, 5).view(x.shape[0], 25, *x.shape[2:])
    w = torch.exp(-((n - x) ** 2) / (2 * 0.3**2)) * space[None, :, None, None]
    return (w * n).sum(1, keepdim=True) / w.sum(1, keepdim=True)


def joint_bilateral(guide: Tensor, x: Tensor, keep: Tensor) -> Tensor:
    """All pairs, missing depths left out."""
    d = (guide[:, :, None] - guide[:, None]).pow(2).sum(-1)
    w = torch.exp(-d / 0.5).masked_fill(~keep[:, None], 0.0)
    return torch.where(keep, x, (w * x[:, None]).sum(-1) / w.sum(-1).clamp(min=1e-8))


def non_local_means(patches: Tensor, values: Tensor, h: Tensor) -> Tensor:
    d = torch.cdist(patches, patches, compute_mode="donot_use_mm_for_euclid_dist").pow(2) / patches.shape[-1]
    w = torch.exp(-torch.clamp(d - 2 * 0.01, min=0) / h**2)
    w = w * (1 - torch.eye(w.shape[-1], device=w.device))
    w = w + torch.diag_embed(w.max(-1)[0])
    return (w @ values) / w.sum(-1, keepdim=True)


def guided(i: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """A guided filter's coefficients, windows along the last axis."""
    mi, mp = i.mean(-1), p.mean(-1)
    cov = (i * p).mean(-1) - mi * mp
    var = (i * i).mean(-1) - mi * mi
    a = cov / (var + 0.01)
    return a, mp - a * mi


def dark_channel(x: Tensor, air: Tensor) -> Tensor:
    dark = (x / air[None, :, None, None]).amin(1, keepdim=True)
    dark = -F.max_pool2d(-dark, 5, stride=1, padding=2)
    return ((x - air.view(1, -1, 1, 1)) / (1 - 0.95 * dark).clamp(min=0.1) + air.view(1, -1, 1, 1)).half()


def local_contrast(x: Tensor) -> Tensor:
    """Divisive normalisation across channels, with the mean deviation as a floor."""
    d = x - F.avg_pool2d(x, 5, stride=1, padding=2, count_include_pad=False)
    s = d.pow(2).mean(1, keepdim=True).sqrt()
    return d / torch.maximum(s, s.mean((2, 3), keepdim=True))


def edge_aware(d: Tensor, img: Tensor) -> Tensor:
    """Monodepth's smoothness, with the disparity divided by its mean."""
    d = d / (d.mean(2, True).mean(3, True) + 1e-7)
    gx = (d[:, :, :, :-1] - d[:, :, :, 1:]).abs()
    gy = (d[:, :, :-1, :] - d[:, :, 1:, :]).abs()
    ix = torch.mean(torch.abs(img[:, :, :, :-1] - img[:, :, :, 1:]), 1, keepdim=True)
    iy = torch.mean(torch.abs(img[:, :, :-1, :] - img[:, :, 1:, :]), 1, keepdim=True)
    return (gx * torch.exp(-ix)).mean() + (gy * torch.exp(-iy)).mean()


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    p = partial(made, "scenes")
    yield p("f32 3x3x33x65 grey world", grey_world, positive("x", 3, 3, 33, 65))
    yield p("f16 2x3x33x65 max rgb", max_rgb, positive("x", 2, 3, 33, 65, dtype="f16"))
    yield p("f32 2x3x33x65 shades of grey", shades_of_grey, of("x", 2, 3, 33, 65))
    yield p("f32 2x3x33x65 reinhard", reinhard, positive("x", 2, 3, 33, 65))
    yield p("f32 3x33x65 stretch", stretch, of("x", 3, 33, 65), only=("ties", "zeros"))
    yield p("f32 3x1000 stretch bytes", stretch_bytes, of("x", 3, 1000, scale=30.0, shift=128.0), only=("zeros", "ties"))
    yield p("f32 3x1000 percentile stretch", percentile_stretch, of("x", 3, 1000))
    yield p("bf16 3x257 percentile stretch", percentile_stretch, of("x", 3, 257, dtype="bf16"))
    yield p("f32 2x3x17x33 saturation", saturation, of("x", 2, 3, 17, 33), only=("normal", "outlier", "tiny"))
    yield p("f32 5x3x17x33 exposure fusion", exposure_fusion, of("x", 5, 3, 17, 33, shift=0.5, scale=0.2), only=TAME)
    yield p("f32 5x130 quantile norm", quantile_norm, of("x", 5, 130), only=("normal", "ties"))

    yield p("f32 2x3x33x65 reinhard transfer", reinhard_transfer, of("x", 2, 3, 33, 65), of("y", 2, 3, 20, 31))
    yield p("f16 2x5x33x65 adain", adain, of("c", 2, 5, 33, 65, dtype="f16"), of("s", 2, 5, 16, 17, dtype="f16"),
            weight("alpha", dtype="f16"))
    yield p("f32 2x5x9x33 instance norm masked", instance_norm_masked, of("x", 2, 5, 9, 33), mask("keep", 2, 9, 33))
    yield p("f16 2x5x9x33 instance norm masked", instance_norm_masked, of("x", 2, 5, 9, 33, dtype="f16"),
            mask("keep", 2, 9, 33), only=(*MILD, "outlier", "hidden", "open", "nan:x", "inf:x"))
    yield p("bf16 2x5x9x33 spade", spade, *(of(n, 2, 5, 9, 33, dtype="bf16") for n in ("x", "gamma", "beta")))
    yield p("f16 2x17x9x33 gram", gram, of("x", 2, 17, 9, 33, dtype="f16"))
    yield p("f32 2x17x9x33 style loss", style_loss, of("x", 2, 17, 9, 33), of("y", 2, 17, 9, 33), only=TAME)
    yield p("f32 2x17x9x33 covariance", covariance, of("x", 2, 17, 9, 33, shift=5.0))

    yield p("f32 3x33x65 ssim global", ssim_global, of("x", 3, 33, 65), of("y", 3, 33, 65))
    yield p("f32 2x33x65 ssim windows", ssim_windows, of("x", 2, 33, 65), of("y", 2, 33, 65), only=("normal", "ties", "zeros"))
    yield p("bf16 2x3x33x65 psnr", psnr, of("x", 2, 3, 33, 65, dtype="bf16"), of("y", 2, 3, 33, 65, dtype="bf16"))
    yield p("f32 2x33x65 gmsd", gmsd, of("x", 2, 33, 65), of("y", 2, 33, 65))
    yield p("f32 2x3x33x65 total variation", total_variation, of("x", 2, 3, 33, 65))
    yield p("f32 3x257x16 soft histogram", soft_histogram, of("x", 3, 257), of("centres", 16), only=TAME)
    yield p("f16 3x257 hard histogram", hard_histogram, of("x", 3, 257, dtype="f16"), of("edges", 17, dtype="f16"))
    yield p("f32 3x256 otsu", otsu, positive("h", 3, 256), only=("normal", "ties", "zeros"))

    yield p("f32 2x1x17x33 bilateral", bilateral, of("x", 2, 1, 17, 33), positive("space", 25))
    yield p("f32 2x130 joint bilateral", joint_bilateral, of("guide", 2, 130, 3), of("x", 2, 130), mask("keep", 2, 130))
    yield p("f32 2x65x49 non local means", non_local_means, of("patches", 2, 65, 49), of("values", 2, 65, 1), positive("h"),
            only=TAME)
    yield p("f32 130x25 guided", guided, of("i", 130, 25), of("p", 130, 25), only=("normal", "ties", "zeros"))
    yield p("f32 2x3x17x33 dark channel", dark_channel, positive("x", 2, 3, 17, 33), positive("air", 3))
    yield p("f32 2x5x17x33 local contrast", local_contrast, of("x", 2, 5, 17, 33))
    yield p("f32 2x17x33 edge aware", edge_aware, positive("d", 2, 1, 17, 33), of("img", 2, 3, 17, 33))
