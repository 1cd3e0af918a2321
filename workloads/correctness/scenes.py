"""Pictures and what stands in them: rendering along rays, splats, image statistics and filters, detection, depth, matching of
patches and points, rotations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import CALM, In, Program, made, of

TAME = (*CALM, "tiny")
MILD = ("normal", "ties", "zeros")
Ranked = tuple[Tensor, Tensor]


# -- rays --------------------------------------------------------------------------------------------------------------


def nerf(sigma: Tensor, rgb: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """raw2outputs of the original code: alpha from densities, an exclusive cumprod, colour, depth, disparity, opacity."""
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


# -- points ------------------------------------------------------------------------------------------------------------


def normalise_cloud(p: Tensor) -> Tensor:
    """PointNet: centred, in the unit ball."""
    p = p - p.mean(dim=1, keepdim=True)
    return p / p.norm(dim=2, keepdim=True).max(dim=1, keepdim=True)[0]


def normalise_cloud_in_place(p: Tensor, keep: Tensor) -> Tensor:
    m = keep.unsqueeze(-1).to(p.dtype)
    c = (p * m).sum(1, keepdim=True) / m.sum(1, keepdim=True)
    q = (p - c) * m
    q = q / torch.sqrt((q**2).sum(-1).amax(dim=1))[:, None, None].clamp_min(1e-6)
    out = torch.zeros_like(p)
    out[:, :, :] = q
    return out


def hartley(p: Tensor) -> tuple[Tensor, Tensor]:
    """The normalising transform of a homography's points."""
    c = p.mean(-2)
    s = math.sqrt(2) / (p - c[:, None]).pow(2).sum(-1).sqrt().mean(-1)
    t = torch.zeros(p.shape[0], 3, 3, device=p.device, dtype=p.dtype)
    t[:, 0, 0] = s
    t[:, 1, 1] = s
    t[:, :2, 2] = -s[:, None] * c
    t[:, 2, 2] = 1
    return t, (p - c[:, None]) * s[:, None, None]


def kabsch(p: Tensor, q: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    w = w / w.sum(-1, keepdim=True)
    cp = torch.einsum("bn,bnd->bd", w, p)
    cq = torch.einsum("bn,bnd->bd", w, q)
    h = torch.einsum("bni,bn,bnj->bij", p - cp[:, None], w, q - cq[:, None])
    return h, cp, cq


def umeyama(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    pc, qc = p - p.mean(1, keepdim=True), q - q.mean(1, keepdim=True)
    return torch.bmm(qc.transpose(1, 2), pc) / p.shape[1], pc.square().sum(-1).mean(1)


def pca(p: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Covariances of neighbourhoods, those of few members set to 0."""
    n = keep.sum(-1)
    c = (p * keep[..., None]).sum(-2) / n.clamp(min=1)[..., None]
    d = (p - c.unsqueeze(-2)).masked_fill(~keep[..., None], 0.0)
    cov = d.transpose(-1, -2) @ d / (n - 1).clamp(min=1)[..., None, None]
    return torch.where((n >= 3)[..., None, None], cov, 0.0), c


def icp_weights(d2: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Nearest squared distances, Geman-McClure weights of them, and the weighted error."""
    near = d2.min(dim=-1)[0]
    w = c**2 / (c + near) ** 2
    return w, (w * near).sum(-1) / w.sum(-1)


def soft_correspondence(f: Tensor, g: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """DCP: soft matches of normalised features, and how sure they are."""
    f, g = F.normalize(f, dim=-1), F.normalize(g, dim=-1)
    s = torch.softmax(f @ g.transpose(1, 2) / 0.1, dim=-1)
    return s @ q, s.amax(-1)


def fscore(a: Tensor, b: Tensor, tau: Tensor) -> Tensor:
    d = (a[:, :, None] - b[:, None]).square().sum(-1).sqrt()
    precision = (d.min(2)[0] < tau).float().mean(1)
    recall = (d.min(1)[0] < tau).float().mean(1)
    return 2 * precision * recall / (precision + recall + 1e-8)


def hausdorff_part(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The 90th percentile of the nearest distances, by topk."""
    d = ((a[:, None] - b[None]) ** 2).sum(-1).amin(1).sqrt()
    return d.topk(d.shape[0] // 10, sorted=True).values[-1], d.mean()


def repulsion(d: Tensor) -> Tensor:
    """PU-Net's: the four nearest others of each point."""
    near = torch.topk(d, 5, dim=-1, largest=False).values[..., 1:]
    return F.relu(0.07 - near.sqrt() * torch.exp(-near / 0.03**2)).mean()


def ball_query(x: Tensor, c: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
    """The features in a ball, their maximum and how many."""
    inside = (c[:, None] - x[None]).pow(2).sum(-1) < 0.64
    g = torch.where(inside[..., None], f[None], float("-inf")).amax(1)
    n = inside.sum(1)
    return torch.where(n[:, None] > 0, g, torch.zeros_like(g)), n


def three_interpolate(d: Tensor, f: Tensor, at: Tensor) -> Tensor:
    inv = 1.0 / (d.clamp(min=0) + 1e-8)
    w = inv / inv.sum(dim=2, keepdim=True)
    picked = torch.gather(f, 1, at.flatten(1)[..., None].expand(-1, -1, f.shape[-1])).view(*at.shape, -1)
    return (picked * w[..., None]).sum(2)


def quaternions(q: Tensor) -> Tensor:
    """Normalised, and as matrices."""
    r, i, j, k = torch.unbind(q, -1)
    two = 2.0 / (q * q).sum(-1)
    o = torch.stack((1 - two * (j * j + k * k), two * (i * j - k * r), two * (i * k + j * r),
                     two * (i * j + k * r), 1 - two * (i * i + k * k), two * (j * k - i * r),
                     two * (i * k - j * r), two * (j * k + i * r), 1 - two * (i * i + j * j)), -1)
    return o.reshape((*q.shape[:-1], 3, 3))


def mean_quaternion(q: Tensor, w: Tensor) -> Tensor:
    """Signs as the first one's, a weighted mean, normalised."""
    q = F.normalize(q, dim=-1)
    sign = torch.where((q * q[:, :1]).sum(-1, keepdim=True) < 0, -1.0, 1.0)
    return F.normalize((q * sign * w.unsqueeze(-1)).sum(1), dim=-1)


def six_d(x: Tensor) -> Tensor:
    """Rotations from six numbers: Gram-Schmidt."""
    a1, a2 = x[..., :3], x[..., 3:]
    b1 = F.normalize(a1, dim=-1)
    b2 = a2 - (b1 * a2).sum(-1, keepdim=True) * b1
    b2 = F.normalize(b2, dim=-1)
    return torch.stack((b1, b2, torch.cross(b1, b2, dim=-1)), dim=-2)


def geodesic(a: Tensor, b: Tensor) -> Tensor:
    m = torch.matmul(a, b.transpose(-1, -2))
    cos = (m.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2
    return torch.acos(cos.clamp(-1 + 1e-6, 1 - 1e-6)).mean()


def sampson(f: Tensor, p: Tensor, q: Tensor) -> Tensor:
    one = torch.ones_like(p[..., :1])
    ph, qh = torch.cat([p, one], -1), torch.cat([q, one], -1)
    fp = ph @ f.transpose(-1, -2)
    ftq = qh @ f
    num = (qh * fp).sum(-1) ** 2
    return num / (fp[..., :2].pow(2).sum(-1) + ftq[..., :2].pow(2).sum(-1) + 1e-8)


def reprojection(p: Tensor, k: Tensor, uv: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    x = torch.einsum("ij,bnj->bni", k, p)
    proj = x[..., :2] / x[..., 2:].clamp(min=0.1)
    e = (proj - uv).norm(dim=-1)
    rho = torch.where(e < 1, 0.5 * e**2, e - 0.5)
    return (rho * keep).sum(-1) / keep.sum(-1), e.masked_fill(~keep, 0).max(-1).values


def plane_inliers(p: Tensor, n: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """MSAC: the best of many hypotheses."""
    r = (p @ F.normalize(n, dim=-1).t() + d).abs()
    cost = r.square().clamp(max=0.05**2).sum(0)
    best = cost.argmin()
    return cost, best


def by_cost(p: Tensor, n: Tensor, d: Tensor) -> Ranked:
    c = -(p @ F.normalize(n, dim=-1).t() + d).abs().square().clamp(max=0.05**2).sum(0)
    return c, c


# -- pictures ----------------------------------------------------------------------------------------------------------


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


def quantile_norm(x: Tensor) -> Tensor:
    """Rows with the sorted values of their mean."""
    ranks = (x[:, None, :] < x[:, :, None]).sum(-1)
    mean = x.sort(dim=1).values.mean(0)
    return mean[ranks]


# -- detection ---------------------------------------------------------------------------------------------------------


def corners(b: Tensor) -> Tensor:
    """Boxes of a centre and an extent."""
    cx, cy, w, h = b.unbind(-1)
    w, h = w.abs(), h.abs()
    return torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], -1)


def pair_iou(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    area_a, area_b = (a[:, 2:] - a[:, :2]).prod(1), (b[:, 2:] - b[:, :2]).prod(1)
    wh = (torch.min(a[:, None, 2:], b[None, :, 2:]) - torch.max(a[:, None, :2], b[None, :, :2])).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    union = area_a[:, None] + area_b - inter
    return inter / union.clamp(min=1e-6), union


def anchors(a: Tensor, gt: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Labels of anchors: above 0.7, below 0.3, and the best of each truth kept."""
    iou, _ = pair_iou(corners(a), corners(gt))
    best, _ = iou.max(dim=1)
    per_gt = iou.max(dim=0).values
    keep = (iou == per_gt[None]).any(1)
    labels = torch.full_like(best, -1.0)
    labels[best < 0.3] = 0
    labels[best >= 0.7] = 1
    return torch.where(keep, 1.0, labels), best, per_gt


def giou_cost(logits: Tensor, boxes: Tensor, gt: Tensor, label: Tensor) -> Tensor:
    """DETR's matching cost."""
    prob = logits.softmax(-1)
    a, b = corners(boxes), corners(gt)
    iou, union = pair_iou(a, b)
    wh = (torch.max(a[:, None, 2:], b[:, 2:]) - torch.min(a[:, None, :2], b[:, :2])).clamp(min=0)
    hull = wh[:, :, 0] * wh[:, :, 1]
    giou = iou - (hull - union) / hull.clamp(min=1e-6)
    return 5 * torch.cdist(boxes, gt, p=1) - prob[:, label] - 2 * giou


def focal_cost(logits: Tensor, label: Tensor) -> Tensor:
    p = logits.sigmoid()
    neg = 0.75 * p**2 * -(1 - p + 1e-8).log()
    pos = 0.25 * (1 - p) ** 2 * -(p + 1e-8).log()
    c = pos[:, label] - neg[:, label]
    return c - c.amin(dim=0, keepdim=True)


def matrix_nms(masks: Tensor, scores: Tensor) -> Tensor:
    """SOLOv2's decay, masks sorted by score."""
    m = (masks > 0).flatten(1).float()
    n = m.shape[0]
    inter = m @ m.t()
    area = m.sum(1).expand(n, n)
    iou = (inter / (area + area.t() - inter).clamp(min=1)).triu(diagonal=1)
    comp = iou.max(0)[0].expand(n, n).t()
    decay = (torch.exp(-2.0 * iou**2) / torch.exp(-2.0 * comp**2)).min(0)[0]
    return scores * decay


def matrix_nms_linear(iou: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
    iou = (iou.sigmoid() * (labels[:, None] == labels[None])).triu_(1)
    comp = iou.amax(0)
    return scores.sigmoid() * ((1 - iou) / (1 - comp[:, None])).amin(dim=0)


def soft_nms(iou: Tensor, scores: Tensor) -> Tensor:
    """One parallel step: the product of the decays of all that score higher."""
    higher = scores[None, :] > scores[:, None]
    decay = torch.where(higher, torch.exp(-iou.square() / 0.5), 1.0)
    return scores * decay.prod(-1)


def cluster_nms(iou: Tensor, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Fast NMS, and boxes merged by the overlaps that are left."""
    keep = iou.triu(diagonal=1).max(dim=0)[0] <= 0.5
    w = (iou > 0.5).to(boxes.dtype) * scores.sigmoid()[None] + 1e-7
    return torch.mm(w, boxes) / w.sum(1, keepdim=True), keep


def centre_peaks(h: Tensor) -> tuple[Tensor, Tensor]:
    """CenterNet: local maxima and the best of each class."""
    h = h.sigmoid()
    peak = F.max_pool2d(h, 3, stride=1, padding=1)
    h = h * (peak == h).float()
    return h.flatten(2).topk(10).values, h.flatten(1).amax(-1)


def focal(logits: Tensor, target: Tensor) -> Tensor:
    """RetinaNet: label 0 is background, 1 is to be ignored."""
    hot = F.one_hot(target, logits.shape[-1])[..., 2:].to(logits.dtype)
    x = logits[..., 2:]
    p = x.sigmoid()
    ce = F.binary_cross_entropy_with_logits(x, hot, reduction="none")
    pt = p * hot + (1 - p) * (1 - hot)
    loss = (0.25 * hot + 0.75 * (1 - hot)) * ce * (1 - pt) ** 2
    valid = (target != 1).unsqueeze(-1)
    return (loss * valid).sum() / (target > 1).sum().clamp(min=1)


def gaussian_focal(logits: Tensor, heat: Tensor) -> Tensor:
    """CenterNet's."""
    p = torch.clamp(logits.sigmoid(), min=1e-4, max=1 - 1e-4)
    pos, neg = heat.eq(1).float(), heat.lt(1).float()
    pl = torch.log(p) * torch.pow(1 - p, 2) * pos
    nl = torch.log(1 - p) * torch.pow(p, 2) * torch.pow(1 - heat, 4) * neg
    n = pos.sum()
    return torch.where(n == 0, -nl.sum(), -(pl.sum() + nl.sum()) / n.clamp(min=1))


def multiclass_focal(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    logp = F.log_softmax(logits, dim=1)
    ignore = target == 0
    lp = logp.gather(1, target.unsqueeze(1)).squeeze(1)
    loss = -((1 - lp.exp()) ** 2) * lp
    loss = loss.masked_fill(ignore, 0.0)
    return loss.sum() / (~ignore).sum(), loss.amax((1, 2))


def dice(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Per class, classes that are not there left out of the mean."""
    p = logits.softmax(1)
    hot = F.one_hot(target, logits.shape[1]).permute(0, 3, 1, 2).to(p.dtype)
    dims = (0, 2, 3)
    inter, total = (p * hot).sum(dims), (p + hot).sum(dims)
    d = (2 * inter + 1) / (total + 1)
    there = hot.sum(dims) > 0
    return d, 1 - (d * there).sum() / there.sum()


def tversky(logits: Tensor, target: Tensor) -> Tensor:
    p, t = logits.sigmoid().flatten(1), target.flatten(1).float()
    tp, fp, fn = (p * t).sum(1), (p * (1 - t)).sum(1), ((1 - p) * t).sum(1)
    return (1 - (tp + 1) / (tp + 0.3 * fp + 0.7 * fn + 1)).pow(0.75).mean()


def mask_cost(masks: Tensor, gt: Tensor) -> Tensor:
    """Mask2Former: sigmoid and dice costs by products."""
    x, t = masks.flatten(1), gt.flatten(1).float()
    pos, neg = F.softplus(-x), F.softplus(x)
    ce = (torch.einsum("nc,mc->nm", pos, t) + torch.einsum("nc,mc->nm", neg, 1 - t)) / x.shape[1]
    p = x.sigmoid()
    d = 1 - (2 * torch.einsum("nc,mc->nm", p, t) + 1) / (p.sum(-1)[:, None] + t.sum(-1)[None, :] + 1)
    return ce + d


def mean_iou(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    c = logits.shape[1]
    pred = F.one_hot(logits.argmax(1), c)
    true = F.one_hot(target, c)
    inter = (pred & true).flatten(1, 2).sum(1)
    union = (pred | true).flatten(1, 2).sum(1)
    iou = inter / union
    return iou, torch.nanmean(iou, dim=-1)


def panoptic(masks: Tensor, cls: Tensor) -> tuple[Tensor, Tensor]:
    """Which mask a pixel belongs to, weighted by its class's score; how sure."""
    score = cls.softmax(-1)[..., :-1].amax(-1)
    p = score[:, :, None, None] * masks.sigmoid()
    return p.amax(1), p.sum(1)


def integral(x: Tensor) -> tuple[Tensor, Tensor]:
    """GFL: the expectation of a distribution over distances, and the loss between neighbouring bins."""
    p = F.softmax(x.reshape(-1, x.shape[-1]), dim=1)
    proj = torch.linspace(0, x.shape[-1] - 1, x.shape[-1], device=x.device)
    return F.linear(p, proj.type_as(p)[None]).reshape(x.shape[:-1]), p.topk(4, dim=1).values.mean(1)


def keypoints(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Soft-argmax of heat maps, coordinates in -1 .. 1, and their variance."""
    hh, ww = h.shape[-2:]
    p = h.flatten(2).softmax(-1).view_as(h)
    xs = torch.linspace(-1, 1, ww, device=h.device, dtype=torch.float32)
    ys = torch.linspace(-1, 1, hh, device=h.device, dtype=torch.float32)
    x = (p.sum(2) * xs).sum(-1)
    y = (p.sum(3) * ys).sum(-1)
    var = (p * ((xs[None, :] - x[..., None, None]) ** 2 + (ys[:, None] - y[..., None, None]) ** 2)).sum((-1, -2))
    return torch.stack([x, y], -1), p.amax((-1, -2)), var


def decode_keypoints(h: Tensor) -> tuple[Tensor, Tensor]:
    """The peak of each map, -1 where nothing is above 0."""
    v, at = h.flatten(2).max(-1)
    xy = torch.stack([at % h.shape[-1], torch.div(at, h.shape[-1], rounding_mode="floor")], -1).float()
    return torch.where((v > 0)[..., None], xy, -1.0), v


def ap(score: Tensor, hit: Tensor) -> Tensor:
    """Average precision of detections that lie sorted: precision made monotone from behind."""
    tp = hit.float().cumsum(-1)
    n = torch.arange(1, hit.shape[-1] + 1, device=hit.device)
    precision = tp / n
    envelope = precision.flip(-1).cummax(-1).values.flip(-1)
    return (envelope * hit).sum(-1) / hit.sum(-1).clamp(min=1) * score.mean(-1)


def simota(iou: Tensor, cost: Tensor) -> tuple[Tensor, Tensor]:
    """Dynamic k from the best overlaps, and the threshold in costs."""
    iou = iou.sigmoid()
    k = iou.topk(10, dim=1).values.sum(1).int().clamp(min=1)
    low = cost.topk(10, dim=1, largest=False).values
    return k, low.gather(1, (k - 1).clamp(max=9).long()[:, None])[:, 0]


def roi_pool(f: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Regions as separable triangle weights, normalised."""
    c = torch.arange(f.shape[-1], device=f.device)
    r = torch.arange(f.shape[-2], device=f.device)
    wx = (1 - (x[:, None] - c).abs()).clamp(min=0)
    wy = (1 - (y[:, None] - r).abs()).clamp(min=0)
    wx, wy = wx / (wx.sum(-1, keepdim=True) + 1e-6), wy / (wy.sum(-1, keepdim=True) + 1e-6)
    return torch.einsum("chw,nh,nw->nc", f, wy, wx)


# -- features ----------------------------------------------------------------------------------------------------------


def se(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    s = x.mean((2, 3))
    s = torch.sigmoid(F.linear(F.relu(F.linear(s, w1)), w2))
    return x * s[:, :, None, None]


def cbam_channel(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    avg = F.adaptive_avg_pool2d(x, 1).flatten(1)
    top = F.adaptive_max_pool2d(x, 1).flatten(1)
    a = torch.relu(avg @ w1.t()) @ w2.t() + torch.relu(top @ w1.t()) @ w2.t()
    return x * a.sigmoid().unsqueeze(-1).unsqueeze(-1)


def cbam_spatial(x: Tensor) -> Tensor:
    s = torch.cat([x.max(1, keepdim=True)[0], x.mean(1, keepdim=True)], dim=1)
    return x * torch.sigmoid(s.sum(1, keepdim=True) - s.mean((1, 2, 3), keepdim=True))


def global_context(x: Tensor, w: Tensor) -> Tensor:
    """GCNet: one attention over all places."""
    f = x.flatten(2)
    a = torch.softmax(torch.einsum("c,bcn->bn", w, f), -1)
    return x + torch.bmm(f, a.unsqueeze(2)).unsqueeze(-1)


def simam(x: Tensor) -> Tensor:
    n = x.shape[2] * x.shape[3] - 1
    d = (x - x.mean(dim=[2, 3], keepdim=True)).pow(2)
    v = d.sum(dim=[2, 3], keepdim=True) / n
    return x * torch.sigmoid(d / (4 * (v + 1e-4)) + 0.5)


def generalised_mean(x: Tensor, p: Tensor) -> Tensor:
    """GeM with a learnt exponent, normalised."""
    return F.normalize(x.clamp(min=1e-6).pow(p).mean((-1, -2)).pow(1.0 / p), dim=-1)


def netvlad(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
    x = F.normalize(x, p=2, dim=1)
    a = F.softmax(torch.einsum("kc,bcn->bkn", w, x), dim=1)
    v = torch.einsum("bkn,bcn->bkc", a, x) - a.sum(-1)[..., None] * c
    return F.normalize(F.normalize(v, dim=2).flatten(1), dim=1)


def superpixels(f: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Soft assignments and the centres that they give."""
    d = f.square().sum(-1, keepdim=True) + c.square().sum(-1)[:, None] - 2 * f @ c.mT
    q = (-d).softmax(-1)
    new = q.mT @ f / q.sum(1).clamp(min=1e-6)[..., None]
    return new, d.amin(-1)


def deformable(v: Tensor, offs: Tensor, logits: Tensor, at: Tensor) -> Tensor:
    """Values gathered at sampling places, weights of a softmax over levels and points."""
    q = logits.shape[1]
    w = logits.softmax(-1) * torch.exp(-offs.pow(2))
    g = torch.gather(v.unsqueeze(1).expand(-1, q, -1, -1, -1), 2,
                     at.permute(0, 1, 3, 2)[..., None].expand(-1, -1, -1, -1, v.shape[-1]))
    return (g.permute(0, 1, 3, 2, 4) * w.unsqueeze(-1)).sum(3).flatten(2)


# -- depth, flow, patches ----------------------------------------------------------------------------------------------


def silog(pred: Tensor, gt: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    g = torch.log(pred + 1e-6) - torch.log(gt + 1e-6)
    g = torch.where(keep, g, torch.zeros_like(g))
    n = keep.sum((1, 2))
    d = g.pow(2).sum((1, 2)) / n - 0.85 * (g.sum((1, 2)) / n) ** 2
    return torch.sqrt(d.clamp(min=0) + 1e-9) * 10, n


def silog_var(pred: Tensor, gt: Tensor) -> Tensor:
    g = (pred.log() - gt.log()).flatten(1)
    return (torch.var(g, dim=1) + 0.15 * torch.pow(torch.mean(g, 1), 2)).sqrt()


def midas(pred: Tensor, gt: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scale and shift by least squares, then the error."""
    m = keep.to(pred.dtype)
    a00, a01, a11 = (m * pred * pred).sum((1, 2)), (m * pred).sum((1, 2)), m.sum((1, 2))
    b0, b1 = (m * pred * gt).sum((1, 2)), (m * gt).sum((1, 2))
    det = a00 * a11 - a01 * a01
    s = torch.where(det != 0, (a11 * b0 - a01 * b1) / det, 0.0)
    t = torch.where(det != 0, (-a01 * b0 + a00 * b1) / det, 0.0)
    r = m * (s[:, None, None] * pred + t.view(-1, 1, 1) - gt)
    return s, t, (r * r).sum((1, 2)) / (2 * a11)


def berhu(pred: Tensor, gt: Tensor) -> Tensor:
    d = (pred - gt).abs()
    c = 0.2 * d.flatten(1).max(1).values[:, None, None]
    return torch.where(d <= c, d, (d**2 + c**2) / (2 * c + 1e-9)).mean((1, 2))


def delta_accuracy(pred: Tensor, gt: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    ratio = torch.max(pred / gt, gt / pred)
    rel = ((pred - gt).abs() / gt).mean(-1)
    return (ratio < 1.25).to(pred.dtype).mean(-1), (ratio < 1.25**2).sum(-1), rel


def soft_argmin(cost: Tensor) -> tuple[Tensor, Tensor]:
    """PSMNet's disparities, and how peaked the distribution is."""
    p = F.softmax(-cost, dim=1)
    d = torch.arange(cost.shape[1], dtype=p.dtype, device=p.device).view(1, -1, 1, 1)
    disp = torch.sum(p * d, 1, keepdim=True)
    ent = -(p * torch.log(p.clamp(min=1e-9))).sum(1)
    return disp, ent


def stereo(left: Tensor, right: Tensor) -> Tensor:
    """A winner of the correlation over all places left of it."""
    c = torch.einsum("chi,chj->hij", left, right) / math.sqrt(left.shape[0])
    i = torch.arange(c.shape[1], device=c.device)
    c = c.masked_fill(i[None, :] > i[:, None], float("-inf"))
    p = torch.softmax(c, -1)
    return i - (p * i).sum(-1)


def depth_planes(volume: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """MVSNet: expected depth and the mass of the four planes around it."""
    p = torch.softmax(volume, 1)
    depth = torch.einsum("bdhw,d->bhw", p, z)
    four = 4 * F.avg_pool3d(F.pad(p.unsqueeze(1), pad=(0, 0, 0, 0, 1, 2)), (4, 1, 1), stride=1, padding=0).squeeze(1)
    at = (p * torch.arange(z.shape[0], device=z.device, dtype=torch.float)[None, :, None, None]).sum(1).long()
    return depth, torch.gather(four, 1, at.unsqueeze(1)).squeeze(1)


def variance_volume(v: Tensor, keep: Tensor) -> Tensor:
    """Variances over views, of those that see the point."""
    m = keep[:, :, None].to(v.dtype)
    n = m.sum(0).clamp(min=1)
    s, ss = (v * m).sum(0), (v.pow(2) * m).sum(0)
    return ss.div(n).sub(s.div(n).pow(2))


def raft(f1: Tensor, f2: Tensor) -> tuple[Tensor, Tensor]:
    """GMFlow: global matching, flow as an expectation of coordinates."""
    b, c, h, w = f1.shape
    corr = torch.matmul(f1.flatten(2).permute(0, 2, 1), f2.view(b, c, -1)) / (c**0.5)
    prob = F.softmax(corr, dim=-1)
    y, x = torch.meshgrid(torch.arange(h, device=f1.device), torch.arange(w, device=f1.device), indexing="ij")
    grid = torch.stack([x, y], 0).float()
    g = grid.view(1, 2, -1).repeat(b, 1, 1).permute(0, 2, 1)
    flow = torch.matmul(prob.float(), g).view(b, h, w, 2).permute(0, 3, 1, 2) - grid
    return flow, prob.max(-1)[0].view(b, h, w)


def dual_softmax(f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """LoFTR: both softmaxes, mutual nearest neighbours above a threshold."""
    s = torch.einsum("bnc,bmc->bnm", f, g) / 0.1 / f.shape[-1]
    conf = F.softmax(s, 1) * F.softmax(s, 2)
    mask = conf > 0.0
    mask = mask & (conf == conf.max(dim=2, keepdim=True)[0]) & (conf == conf.max(dim=1, keepdim=True)[0])
    return conf, mask.any(2)


def ncc(a: Tensor, b: Tensor) -> Tensor:
    a, b = a.flatten(1), b.flatten(1)
    a = (a - a.mean(1, keepdim=True)) / (a.std(1, unbiased=False, keepdim=True) + 1e-5)
    b = (b - b.mean(1, keepdim=True)) / (b.std(1, unbiased=False, keepdim=True) + 1e-5)
    return (a @ b.t()) / a.shape[1]


def zncc(a: Tensor, b: Tensor) -> Tensor:
    """Of patches in a search window: one centred template, many windows."""
    a0 = a - a.mean((-1, -2), keepdim=True)
    b0 = b - b.mean(dim=(-2, -1), keepdim=True)
    num = (a0[:, None] * b0).sum((-1, -2))
    den = (a0.pow(2).sum((-1, -2))[:, None] * b0.pow(2).sum((-1, -2))).sqrt()
    return torch.where(den > 1e-6, num / den, torch.zeros_like(den))


def census(x: Tensor) -> tuple[Tensor, Tensor]:
    """Census of 3 x 3: distances between rows that lie below one another."""
    p = F.unfold(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3).view(x.shape[0], 9, *x.shape[2:])
    bits = (p > x).to(torch.int32)
    return (bits[:, :, 1:] != bits[:, :, :-1]).sum(1), bits.sum(1).float().mean((1, 2))


def ratio_test(d: Tensor) -> tuple[Tensor, Tensor]:
    """Lowe's."""
    two = d.topk(2, dim=-1, largest=False).values
    ok = two[..., 0] < 0.8 * two[..., 1]
    return torch.where(ok, two[..., 0], torch.full_like(two[..., 0], float("inf"))), ok.float().mean(-1)


def root_sift(x: Tensor) -> Tensor:
    x = x.clone()
    x /= x.norm(dim=-1, keepdim=True) + 1e-7
    x.clamp_(max=0.2)
    x = x / x.abs().sum(-1, keepdim=True).clamp(min=1e-12)
    return x.sqrt()


def hog(mag: Tensor, angle: Tensor) -> Tensor:
    """Orientations in nine bins, blocks normalised twice (L2-Hys)."""
    k = torch.floor(angle * 9 / math.pi).long() % 9
    h = (F.one_hot(k, 9) * mag[..., None]).sum(-2)
    h = h / torch.sqrt(h.square().sum(-1, keepdim=True) + 1e-10)
    h = h.clamp(max=0.2)
    return h / torch.sqrt(h.square().sum(-1, keepdim=True) + 1e-10)


def harris(ix: Tensor, iy: Tensor) -> Tensor:
    a, b, c = (ix * ix).mean(-1), (iy * iy).mean(-1), (ix * iy).mean(-1)
    r = a * b - c * c - 0.05 * (a + b) ** 2
    return r / r.abs().amax(-1, keepdim=True).clamp(min=1e-12)


def photometric(x: Tensor, warped: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest error over source views, where one is valid."""
    e = (x[:, None] - warped).abs().mean(2)
    e = e.masked_fill(~keep, float("inf"))
    best = e.min(1)[0]
    ok = torch.isfinite(best)
    return torch.where(ok, best, 0.0).sum((1, 2)) / ok.sum((1, 2)).clamp(min=1), ok


def exposure_fusion(x: Tensor) -> Tensor:
    """Mertens: contrast, saturation and exposedness, normalised over the pictures."""
    s = x.std(1, keepdim=True)
    e = torch.exp(-((x - 0.5) ** 2) / (2 * 0.2**2)).prod(1, keepdim=True)
    w = s * e + 1e-12
    w = w / w.sum(0, keepdim=True)
    return (w * x).sum(0)


def occupancy(logits: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Log-odds of measurements, clamped, and the entropy of the map."""
    l = (torch.logit(logits.sigmoid(), eps=1e-4) * w).sum(-1).clamp(-3.5, 3.5)
    p = torch.sigmoid(l)
    return p, -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p)).mean(-1)


def tsdf(d: Tensor, w: Tensor, trunc: Tensor) -> tuple[Tensor, Tensor]:
    """Views fused into truncated distances; those behind the surface do not count."""
    t = torch.clamp(d / trunc, -1, 1)
    m = (d > -trunc).to(d.dtype) * w
    total = m.sum(0)
    return torch.where(total > 0, (t * m).sum(0) / total, torch.ones_like(total)), total


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    p = partial(made, "scenes")

    def r(what: str, fn: Callable[..., Any], by: Callable[..., Ranked], *ins: In, only: tuple[str, ...] = ()) -> Program:
        return Program("scenes", what, fn, ins, ranked=by, only=only)

    def keep(*shape: int) -> In:
        return of("keep", *shape, dtype="bool", kind="keep")

    def label(name: str, *shape: int, high: int) -> In:
        return of(name, *shape, dtype="i64", kind="label", high=high)

    def pos(name: str, *shape: int, dtype: str = "f32") -> In:
        return of(name, *shape, dtype=dtype, kind="positive")

    yield p("f32 130x65 nerf", nerf, of("sigma", 130, 65), of("rgb", 130, 65, 3), pos("z", 130, 65), only=MILD)
    yield p("f32 65x130 nerf log", nerf_log, of("sigma", 65, 130), of("rgb", 65, 130, 3), pos("delta", 65, 130), only=TAME)
    yield p("f16 65x130 nerf log", nerf_log, *(of(n, 65, *s, dtype="f16", kind=k) for n, s, k in
            (("sigma", (130,), "data"), ("rgb", (130, 3), "data"), ("delta", (130,), "positive"))), only=MILD)
    yield p("f32 33x64 nerf shifted", nerf_shifted, of("sigma", 33, 64), pos("delta", 33, 64), pos("t", 33, 64))
    yield p("f32 33x65 distortion", distortion, of("w", 33, 65), of("t", 33, 66))
    yield p("f32 33x65 distortion scan", distortion_scan, pos("w", 33, 65), of("m", 33, 65), only=TAME)
    yield p("f32 65x66 sample pdf", sample_pdf, pos("w", 65, 66), only=TAME)
    yield p("f32 65x63x20 inverse cdf", inverse_cdf, pos("w", 65, 63), of("u", 65, 20), of("bins", 65, 63), only=("normal",))
    yield p("f32 65x130 median depth", median_depth, of("sigma", 65, 130, scale=0.1), pos("delta", 65, 130),
            of("z", 65, 130), only=("normal", "zeros"))
    yield p("f32 65x33 splat", splat, of("xy", 65, 2), of("mean", 33, 2), pos("conic", 33, 3), pos("opacity", 33),
            of("colour", 33, 3), only=("normal",))
    yield p("f32 9x1000 blend", blend, of("logits", 9, 1000), of("colour", 9, 1000, 3))
    yield p("bf16 9x130 blend", blend, of("logits", 9, 130, dtype="bf16"), of("colour", 9, 130, 3, dtype="bf16"))
    yield p("f32 130x9 oit", oit, of("alpha", 130, 9), of("colour", 130, 9, 3), of("z", 130, 9, scale=100.0))
    yield p("f32 130x33 spheres", spheres, of("o", 130, 3), of("d", 130, 3), of("c", 33, 3), pos("r", 33), only=("normal",))
    yield p("f32 65x20 planes", planes, of("o", 65, 3, scale=0.1), of("d", 65, 3), of("n", 20, 3), pos("h", 20),
            only=("normal", "outlier"))
    yield p("f32 65x33 slabs", slabs, of("o", 65, 3), of("d", 65, 3), of("lo", 33, 3, shift=-1.0, scale=0.1),
            of("hi", 33, 3, shift=1.0, scale=0.1))
    yield p("f32 65x33 soft rasterizer", soft_rasterizer, of("d", 65, 33), of("z", 65, 33), of("colour", 65, 33, 3),
            pos("gamma"),
            only=TAME)
    yield p("f32 3x33x65 surface normals", surface_normals, of("z", 3, 33, 65))
    yield p("bf16 3x130x3 eikonal", eikonal, of("g", 3, 130, 3, dtype="bf16"), keep(3, 130))

    yield p("f32 3x130x3 normalise cloud", normalise_cloud, of("p", 3, 130, 3))
    yield p("f16 3x1000x3 normalise cloud", normalise_cloud, of("p", 3, 1000, 3, dtype="f16"))
    yield p("f32 3x65x3 normalise cloud in place", normalise_cloud_in_place, of("p", 3, 65, 3), keep(3, 65))
    yield p("f32 3x65x2 hartley", hartley, of("p", 3, 65, 2))
    yield p("f32 3x130x3 kabsch", kabsch, of("p", 3, 130, 3), of("q", 3, 130, 3), pos("w", 3, 130))
    yield p("f32 5x65x3 umeyama", umeyama, of("p", 5, 65, 3, shift=10.0), of("q", 5, 65, 3))
    yield p("f32 65x17x3 pca", pca, of("p", 65, 17, 3), keep(65, 17))
    yield p("f32 3x65x130 icp weights", icp_weights, pos("d2", 3, 65, 130), pos("c"))
    yield p("f16 2x65x70x32 soft correspondence", soft_correspondence, of("f", 2, 65, 32, dtype="f16"),
            of("g", 2, 70, 32, dtype="f16"), of("q", 2, 70, 3, dtype="f16"))
    yield p("f32 2x65x70 fscore", fscore, of("a", 2, 65, 3), of("b", 2, 70, 3), pos("tau"), only=("normal",))
    yield p("f32 130x65 hausdorff part", hausdorff_part, of("a", 130, 3), of("b", 65, 3))
    yield p("f32 2x65x65 repulsion", repulsion, pos("d", 2, 65, 65))
    yield p("f32 130x33 ball query", ball_query, of("x", 130, 3), of("c", 33, 3), of("f", 130, 8), only=("normal", "zeros"))
    yield p("f32 2x65x3 three interpolate", three_interpolate, pos("d", 2, 65, 3), of("f", 2, 20, 17),
            label("at", 2, 65, 3, high=20))
    yield p("f32 130x4 quaternions", quaternions, of("q", 130, 4))
    yield p("f32 33x7 mean quaternion", mean_quaternion, of("q", 33, 7, 4), pos("w", 33, 7), only=("normal",))
    yield p("bf16 3x65x6 six d", six_d, of("x", 3, 65, 6, dtype="bf16"), only=MILD)
    yield p("f32 65x6 six d", six_d, of("x", 65, 6), only=("normal", "ties", "zeros"))
    yield p("f32 130 geodesic", geodesic, of("a", 130, 3, 3, scale=0.3), of("b", 130, 3, 3), only=MILD)
    yield p("f32 3x130 sampson", sampson, of("f", 3, 3, 3), of("p", 3, 130, 2), of("q", 3, 130, 2), only=TAME)
    yield p("f32 3x65 reprojection", reprojection, of("p", 3, 65, 3, shift=2.0), of("k", 3, 3), of("uv", 3, 65, 2), keep(3, 65),
            only=(*TAME, "hidden", "open"))
    yield r("f32 130x65 plane inliers", plane_inliers, by_cost, of("p", 130, 3, scale=0.1), of("n", 65, 3),
            of("d", 65, scale=0.01),
            only=("normal",))

    yield p("f32 3x3x33x65 grey world", grey_world, pos("x", 3, 3, 33, 65))
    yield p("f16 2x3x33x65 max rgb", max_rgb, pos("x", 2, 3, 33, 65, dtype="f16"))
    yield p("f32 2x3x33x65 shades of grey", shades_of_grey, of("x", 2, 3, 33, 65))
    yield p("f32 2x3x33x65 reinhard", reinhard, pos("x", 2, 3, 33, 65))
    yield p("f32 3x33x65 stretch", stretch, of("x", 3, 33, 65), only=("ties", "zeros"))
    yield p("f32 3x1000 stretch bytes", stretch_bytes, of("x", 3, 1000, scale=30.0, shift=128.0), only=("zeros", "ties"))
    yield p("f32 3x1000 percentile stretch", percentile_stretch, of("x", 3, 1000))
    yield p("bf16 3x257 percentile stretch", percentile_stretch, of("x", 3, 257, dtype="bf16"))
    yield p("f32 2x3x33x65 reinhard transfer", reinhard_transfer, of("x", 2, 3, 33, 65), of("y", 2, 3, 20, 31))
    yield p("f16 2x5x33x65 adain", adain, of("c", 2, 5, 33, 65, dtype="f16"), of("s", 2, 5, 16, 17, dtype="f16"),
            of("alpha", dtype="f16", kind="weight"))
    yield p("f32 2x5x9x33 instance norm masked", instance_norm_masked, of("x", 2, 5, 9, 33), keep(2, 9, 33))
    yield p("f16 2x5x9x33 instance norm masked", instance_norm_masked, of("x", 2, 5, 9, 33, dtype="f16"), keep(2, 9, 33),
            only=(*MILD, "outlier", "hidden", "open", "nan:x", "inf:x"))
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
    yield p("f16 3x257 hard histogram", hard_histogram, of("x", 3, 257, dtype="f16"),
            of("edges", 17, dtype="f16"))
    yield p("f32 3x256 otsu", otsu, pos("h", 3, 256), only=("normal", "ties", "zeros"))
    yield p("f32 2x1x17x33 bilateral", bilateral, of("x", 2, 1, 17, 33), pos("space", 25))
    yield p("f32 2x130 joint bilateral", joint_bilateral, of("guide", 2, 130, 3), of("x", 2, 130), keep(2, 130))
    yield p("f32 2x65x49 non local means", non_local_means, of("patches", 2, 65, 49), of("values", 2, 65, 1), pos("h"),
            only=TAME)
    yield p("f32 130x25 guided", guided, of("i", 130, 25), of("p", 130, 25), only=("normal", "ties", "zeros"))
    yield p("f32 2x3x17x33 dark channel", dark_channel, pos("x", 2, 3, 17, 33), pos("air", 3))
    yield p("f32 2x3x17x33 saturation", saturation, of("x", 2, 3, 17, 33), only=("normal", "outlier", "tiny"))
    yield p("f32 2x5x17x33 local contrast", local_contrast, of("x", 2, 5, 17, 33))
    yield p("f32 2x17x33 edge aware", edge_aware, pos("d", 2, 1, 17, 33), of("img", 2, 3, 17, 33))
    yield p("f32 5x130 quantile norm", quantile_norm, of("x", 5, 130), only=("normal", "ties"))

    yield p("f32 130x9 anchors", anchors, of("a", 130, 4), of("gt", 9, 4), only=("normal",))
    yield p("f32 130x91x9 giou cost", giou_cost, of("logits", 130, 91), of("boxes", 130, 4), of("gt", 9, 4),
            label("label", 9, high=91), only=TAME)
    yield p("f16 130x20x9 focal cost", focal_cost, of("logits", 130, 20, dtype="f16"), label("label", 9, high=20))
    yield p("f32 33x9x17 matrix nms", matrix_nms, of("masks", 33, 9, 17), of("scores", 33))
    yield p("f32 65 matrix nms linear", matrix_nms_linear, of("iou", 65, 65), of("scores", 65), label("labels", 65, high=4),
            only=MILD)
    yield p("f32 65 soft nms", soft_nms, of("iou", 65, 65), of("scores", 65))
    yield p("f32 65 cluster nms", cluster_nms, of("iou", 65, 65), of("boxes", 65, 4), of("scores", 65))
    yield p("f32 2x5x17x33 centre peaks", centre_peaks, of("h", 2, 5, 17, 33))
    yield p("f16 3x65x22 focal", focal, of("logits", 3, 65, 22, dtype="f16"), label("target", 3, 65, high=22))
    yield p("f32 2x3x17x33 gaussian focal", gaussian_focal, of("logits", 2, 3, 17, 33), of("heat", 2, 3, 17, 33))
    yield p("bf16 2x20x9x17 multiclass focal", multiclass_focal, of("logits", 2, 20, 9, 17, dtype="bf16"),
            label("target", 2, 9, 17, high=20))
    yield p("f32 2x7x9x17 dice", dice, of("logits", 2, 7, 9, 17), label("target", 2, 9, 17, high=5))
    yield p("f16 3x17x33 tversky", tversky, of("logits", 3, 17, 33, dtype="f16"),
            of("target", 3, 17, 33, dtype="bool", kind="keep"))
    yield p("f32 20x9x17 mask cost", mask_cost, of("masks", 20, 9, 17), of("gt", 7, 9, 17, dtype="bool", kind="keep"))
    yield p("f32 2x7x9x17 mean iou", mean_iou, of("logits", 2, 7, 9, 17), label("target", 2, 9, 17, high=6),
            only=("normal", "outlier"))
    yield p("f16 2x20x9x17 panoptic", panoptic, of("masks", 2, 20, 9, 17, dtype="f16"), of("cls", 2, 20, 8, dtype="f16"))
    yield p("f16 65x4x17 integral", integral, of("x", 65, 4, 17, dtype="f16"))
    yield p("f32 2x17x16x12 keypoints", keypoints, of("h", 2, 17, 16, 12), only=TAME)
    yield p("f16 2x5x33x17 keypoints", keypoints, of("h", 2, 5, 33, 17, dtype="f16"), only=TAME)
    yield p("f32 2x17x16x12 decode keypoints", decode_keypoints, of("h", 2, 17, 16, 12), only=("normal", "outlier", "big"))
    yield p("f32 5x130 ap", ap, of("score", 5, 130), of("hit", 5, 130, dtype="bool", kind="keep"))
    yield p("f32 9x130 simota", simota, of("iou", 9, 130, shift=-1.0), of("cost", 9, 130), only=("normal",))
    yield p("f32 5x17x33x20 roi pool", roi_pool, of("f", 5, 17, 33), of("y", 20, scale=5.0, shift=8.0),
            of("x", 20, scale=10.0, shift=16.0), only=("normal", "zeros"))

    yield p("f32 2x32x17x33 se", se, of("x", 2, 32, 17, 33), of("w1", 4, 32, kind="weight"), of("w2", 32, 4, kind="weight"))
    yield p("bf16 2x32x9x17 cbam channel", cbam_channel, of("x", 2, 32, 9, 17, dtype="bf16"),
            of("w1", 4, 32, dtype="bf16", kind="weight"), of("w2", 32, 4, dtype="bf16", kind="weight"))
    yield p("f32 2x32x9x17 cbam spatial", cbam_spatial, of("x", 2, 32, 9, 17))
    yield p("f32 2x32x17x33 global context", global_context, of("x", 2, 32, 17, 33), of("w", 32, kind="weight"))
    yield p("f16 2x5x17x33 simam", simam, of("x", 2, 5, 17, 33, dtype="f16"))
    yield p("f32 2x33x9x17 generalised mean", generalised_mean, of("x", 2, 33, 9, 17),
            of("p", 1, kind="weight", scale=0.1, shift=3.0),
            only=TAME)
    yield p("f32 2x16x130x8 netvlad", netvlad, of("x", 2, 16, 130), of("w", 8, 16), of("c", 8, 16), only=TAME)
    yield p("f32 2x257x9x5 superpixels", superpixels, of("f", 2, 257, 5), of("c", 2, 9, 5), only=("normal", "ties", "zeros"))
    yield p("f16 2x33x4x12 deformable", deformable, of("v", 2, 65, 4, 16, dtype="f16"), of("offs", 2, 33, 4, 12, dtype="f16"),
            of("logits", 2, 33, 4, 12, dtype="f16"), label("at", 2, 33, 4, 12, high=65))

    yield p("f32 3x17x33 silog", silog, pos("pred", 3, 17, 33), pos("gt", 3, 17, 33), keep(3, 17, 33),
            only=(*TAME, "hidden", "open"))
    yield p("f32 3x17x33 silog var", silog_var, pos("pred", 3, 17, 33), pos("gt", 3, 17, 33))
    yield p("f32 3x17x33 midas", midas, of("pred", 3, 17, 33), of("gt", 3, 17, 33), keep(3, 17, 33),
            only=(*MILD, "hidden", "open"))
    yield p("f32 3x17x33 berhu", berhu, of("pred", 3, 17, 33), of("gt", 3, 17, 33))
    yield p("f16 3x1000 delta accuracy", delta_accuracy, pos("pred", 3, 1000, dtype="f16"), pos("gt", 3, 1000, dtype="f16"),
            only=("normal",))
    yield p("f32 2x48x9x17 soft argmin", soft_argmin, of("cost", 2, 48, 9, 17))
    yield p("f16 16x9x65 stereo", stereo, of("left", 16, 9, 65, dtype="f16"), of("right", 16, 9, 65, dtype="f16"))
    yield p("f32 2x33x9x17 depth planes", depth_planes, of("volume", 2, 33, 9, 17), of("z", 33, kind="weight"),
            only=("normal",))
    yield p("f32 5x130x16 variance volume", variance_volume, of("v", 5, 130, 16), keep(5, 130), only=(*MILD, "hidden"))
    yield p("f16 2x32x9x17 flow", raft, of("f1", 2, 32, 9, 17, dtype="f16"), of("f2", 2, 32, 9, 17, dtype="f16"))
    yield p("f32 2x65x70x16 dual softmax", dual_softmax, of("f", 2, 65, 16), of("g", 2, 70, 16), only=("normal",))
    yield p("f32 65x33x49 ncc", ncc, of("a", 65, 7, 7), of("b", 33, 7, 7))
    yield p("f32 33x9x7x7 zncc", zncc, of("a", 33, 7, 7), of("b", 33, 9, 7, 7), only=("normal", "outlier"))
    yield p("f32 2x1x17x33 census", census, of("x", 2, 1, 17, 33))
    yield p("f32 65x130 ratio test", ratio_test, pos("d", 65, 130))
    yield p("f32 65x128 root sift", root_sift, pos("x", 65, 128))
    yield p("f32 65x64 hog", hog, pos("mag", 65, 64), of("angle", 65, 64), only=MILD)
    yield p("f32 3x130x25 harris", harris, of("ix", 3, 130, 25), of("iy", 3, 130, 25))
    yield p("f32 2x3x3x9x17 photometric", photometric, of("x", 2, 3, 9, 17), of("warped", 2, 4, 3, 9, 17), keep(2, 4, 9, 17))
    yield p("f32 5x3x17x33 exposure fusion", exposure_fusion, of("x", 5, 3, 17, 33, shift=0.5, scale=0.2), only=TAME)
    yield p("f32 65x20 occupancy", occupancy, of("logits", 65, 20), of("w", 65, 20, kind="weight"))
    yield p("f32 9x1000 tsdf", tsdf, of("d", 9, 1000), pos("w", 9, 1000), pos("trunc"))
