"""Pairs: distances, assignments, scores of two sets, steps of chains."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.small.spec import In, Programs

PROGRAMS = Programs()


@PROGRAMS(In((16384, 64)), In((512, 64)))
def nearest_centre(x: Tensor, c: Tensor) -> Tensor:
    return (x.pow(2).sum(-1, keepdim=True) - 2 * x @ c.T + c.pow(2).sum(-1)).amin(-1)


@PROGRAMS(In((16384, 64)), In((1024, 64)))
def codebook(x: Tensor, c: Tensor) -> Tensor:
    return c[torch.cdist(x, c).argmin(-1)]


@PROGRAMS(In((4, 2048, 3)), In((4, 2048, 3)))
def chamfer(a: Tensor, c: Tensor) -> Tensor:
    d = (a[:, :, None] - c[:, None]).pow(2).sum(-1)
    return d.min(2).values.mean(1) + d.min(1).values.mean(1)


@PROGRAMS(In((4096, 16)), In((8192, 16)), In((8192, 8)))
def kernel_regression(x: Tensor, c: Tensor, y: Tensor) -> Tensor:
    d = (x * x).sum(-1)[:, None] + (c * c).sum(-1) - 2 * x @ c.T
    return torch.softmax(-0.5 * d, -1) @ y


@PROGRAMS(In((4096, 64)), In((4096, 64)))
def discrepancy(a: Tensor, c: Tensor) -> Tensor:
    def near(x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(-torch.cdist(x, y).pow(2) / 64).mean()

    return near(a, a) + near(c, c) - 2 * near(a, c)


@PROGRAMS(In((1024, 64)), In((1024, 64)))
def city_blocks(a: Tensor, c: Tensor) -> Tensor:
    return (a[:, None] - c[None]).abs().sum(-1)


@PROGRAMS(In((2048, 128)), In((2048, 128)))
def triplet(a: Tensor, c: Tensor) -> Tensor:
    d = torch.cdist(a, c)
    own = torch.eye(2048, device=a.device, dtype=torch.bool)
    return (d.diagonal() - d.masked_fill(own, float("inf")).amin(1) + 0.2).relu()


@PROGRAMS(In((32, 100, 4)), In((32, 50, 4)))
def overlaps(a: Tensor, c: Tensor) -> Tensor:
    a, c = a[:, :, None], c[:, None]
    low, high = torch.maximum(a[..., :2], c[..., :2]), torch.minimum(a[..., 2:], c[..., 2:])
    i = (high - low).clamp(min=0).prod(-1)
    both = (a[..., 2:] - a[..., :2]).abs().prod(-1) + (c[..., 2:] - c[..., :2]).abs().prod(-1) - i
    return (i / (both + 1)).amax(-1)


@PROGRAMS(In((32, 128), "f16"), In((1000, 128, 128), "f16"))
def late_interaction(q: Tensor, d: Tensor) -> Tensor:
    return torch.einsum("qe,nte->nqt", q, d).amax(-1).sum(-1)


@PROGRAMS(In((2048, 8, 32), "f16"), In((2048, 8), "f16"), In((2048, 8), "f16"), In((2048, 2048), likely=0.1))
def dense_graph_attention(x: Tensor, left: Tensor, right: Tensor, adjacent: Tensor) -> Tensor:
    e = F.leaky_relu(left[:, None] + right[None], 0.2).masked_fill(~adjacent[..., None], float("-inf"))
    return torch.einsum("ijh,jhd->ihd", e.softmax(1), x)


@PROGRAMS(In((256, 48)), In((16, 256, 48)), In((48, 48)))
def chain_of_tags(a: Tensor, e: Tensor, t: Tensor) -> Tensor:
    for i in range(16):
        a = torch.logsumexp(a[:, :, None] + t, 1) + e[i]
    return torch.logsumexp(a, -1)


@PROGRAMS(In((16, 512, 512)))
def sinkhorn(x: Tensor) -> Tensor:
    for _ in range(5):
        x = x - torch.logsumexp(x, -1, keepdim=True)
        x = x - torch.logsumexp(x, -2, keepdim=True)
    return x.exp()


@PROGRAMS(In((100000, 64)), In((100000,), high=5000))
def segment_mean(x: Tensor, i: Tensor) -> Tensor:
    s = torch.zeros(5000, 64, device=x.device).index_add(0, i, x)
    n = torch.zeros(5000, device=x.device).index_add(0, i, torch.ones(100000, device=x.device))
    return s / n.clamp(min=1)[:, None]


@PROGRAMS(In((512, 1024)), In((1024, 1024), scale=0.03))
def spectral_norm(x: Tensor, w: Tensor) -> Tensor:
    u = F.normalize(torch.ones(1024, device=x.device), dim=0)
    v = F.normalize(w @ u, dim=0)
    u = F.normalize(w.T @ v, dim=0)
    return x @ (w / (v @ w @ u)).T
