"""Clouds of points: normalised, aligned and compared, their neighbourhoods, rotations, and errors of camera geometry."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import MILD, TAME, Program, label, made, mask, of, positive

# -- clouds ------------------------------------------------------------------------------------------------------------


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


# -- rotations and cameras ---------------------------------------------------------------------------------------------


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


def by_cost(p: Tensor, n: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    c = -(p @ F.normalize(n, dim=-1).t() + d).abs().square().clamp(max=0.05**2).sum(0)
    return c, c


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    p = partial(made, "scenes")
    yield p("f32 3x130x3 normalise cloud", normalise_cloud, of("p", 3, 130, 3))
    yield p("f16 3x1000x3 normalise cloud", normalise_cloud, of("p", 3, 1000, 3, dtype="f16"))
    yield p("f32 3x65x3 normalise cloud in place", normalise_cloud_in_place, of("p", 3, 65, 3), mask("keep", 3, 65))
    yield p("f32 3x65x2 hartley", hartley, of("p", 3, 65, 2))
    yield p("f32 3x130x3 kabsch", kabsch, of("p", 3, 130, 3), of("q", 3, 130, 3), positive("w", 3, 130))
    yield p("f32 5x65x3 umeyama", umeyama, of("p", 5, 65, 3, shift=10.0), of("q", 5, 65, 3))
    yield p("f32 65x17x3 pca", pca, of("p", 65, 17, 3), mask("keep", 65, 17))
    yield p("f32 3x65x130 icp weights", icp_weights, positive("d2", 3, 65, 130), positive("c"))
    yield p("f16 2x65x70x32 soft correspondence", soft_correspondence, of("f", 2, 65, 32, dtype="f16"),
            of("g", 2, 70, 32, dtype="f16"), of("q", 2, 70, 3, dtype="f16"))
    yield p("f32 2x65x70 fscore", fscore, of("a", 2, 65, 3), of("b", 2, 70, 3), positive("tau"), only=("normal",))
    yield p("f32 130x65 hausdorff part", hausdorff_part, of("a", 130, 3), of("b", 65, 3))
    yield p("f32 2x65x65 repulsion", repulsion, positive("d", 2, 65, 65))
    yield p("f32 130x33 ball query", ball_query, of("x", 130, 3), of("c", 33, 3), of("f", 130, 8), only=("normal", "zeros"))
    yield p("f32 2x65x3 three interpolate", three_interpolate, positive("d", 2, 65, 3), of("f", 2, 20, 17),
            label("at", 2, 65, 3, high=20))

    yield p("f32 130x4 quaternions", quaternions, of("q", 130, 4))
    yield p("f32 33x7 mean quaternion", mean_quaternion, of("q", 33, 7, 4), positive("w", 33, 7), only=("normal",))
    yield p("bf16 3x65x6 six d", six_d, of("x", 3, 65, 6, dtype="bf16"), only=MILD)
    yield p("f32 65x6 six d", six_d, of("x", 65, 6), only=("normal", "ties", "zeros"))
    yield p("f32 130 geodesic", geodesic, of("a", 130, 3, 3, scale=0.3), of("b", 130, 3, 3), only=MILD)
    yield p("f32 3x130 sampson", sampson, of("f", 3, 3, 3), of("p", 3, 130, 2), of("q", 3, 130, 2), only=TAME)
    yield p("f32 3x65 reprojection", reprojection, of("p", 3, 65, 3, shift=2.0), of("k", 3, 3), of("uv", 3, 65, 2),
            mask("keep", 3, 65), only=(*TAME, "hidden", "open"))
    yield p("f32 130x65 plane inliers", plane_inliers, of("p", 130, 3, scale=0.1), of("n", 65, 3), of("d", 65, scale=0.01),
            only=("normal",), ranked=by_cost)
