"""Pictures: norms, pools and classes of pixels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.small.spec import In, Programs

PROGRAMS = Programs()


@PROGRAMS(In((32, 256, 56, 56), "f16"), In((16, 256), "f16", 0.1), In((256, 16), "f16", 0.1))
def squeeze_excite(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    return x * torch.sigmoid(F.relu(x.mean((2, 3)) @ w1.T) @ w2.T)[:, :, None, None]


@PROGRAMS(In((8, 64, 128, 128)))
def instance_norm(x: Tensor) -> Tensor:
    return F.relu(F.instance_norm(x))


@PROGRAMS(In((4, 320, 64, 64), "f16"), In((320,), "f16"), In((320,), "f16"))
def group_norm(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 32, w, c))


@PROGRAMS(In((16, 96, 56, 56), "f16"), In((96,), "f16"), In((96,), "f16"))
def layer_norm_of_channels(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
    u = x.mean(1, keepdim=True)
    s = (x - u).pow(2).mean(1, keepdim=True)
    return w[:, None, None] * ((x - u) / torch.sqrt(s + 1e-6)) + c[:, None, None]


@PROGRAMS(In((16, 64, 112, 112), "f16"), In((64,), "f16"), In((64,), "f16"))
def rms_norm_of_channels(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
    y = x * torch.rsqrt(x.float().pow(2).mean(1, keepdim=True) + 1e-6).to(x.dtype)
    return y * w[:, None, None] + c[:, None, None]


@PROGRAMS(In((32, 17, 64, 48)))
def soft_argmax(x: Tensor) -> Tensor:
    p = x.flatten(2).softmax(-1).view(x.shape)
    down, across = torch.arange(64.0, device=x.device), torch.arange(48.0, device=x.device)
    return torch.stack(((p.sum(2) * across).sum(-1), (p.sum(3) * down).sum(-1)), -1)


@PROGRAMS(In((8, 21, 256, 256), "f16"))
def class_of_pixels(x: Tensor) -> Tensor:
    p = x.softmax(1).max(1)
    return p.values * (p.indices > 0)


@PROGRAMS(In((8, 150, 128, 128), "f16"), In((8, 128, 128), high=150))
def loss_of_pixels(x: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), t, reduction="none")


@PROGRAMS(In((8, 19, 256, 256), "f16"))
def entropy_of_pixels(x: Tensor) -> Tensor:
    p = x.float().softmax(1)
    return -(p * torch.log(p + 1e-8)).sum(1)


@PROGRAMS(In((8, 150, 128, 128), "f16"))
def softmax_of_pixels(x: Tensor) -> Tensor:
    return x.softmax(1)


@PROGRAMS(In((64, 64, 64, 64), "f16"))
def generalised_mean(x: Tensor) -> Tensor:
    return F.avg_pool2d(x.clamp(min=1e-6).pow(3), (64, 64)).pow(1 / 3)


@PROGRAMS(In((32, 2048, 7, 7), "f16"))
def pooled_and_normed(x: Tensor) -> Tensor:
    return F.normalize(x.mean((2, 3)), dim=-1)


@PROGRAMS(In((4, 512, 32, 32), "f16"), In((4, 512, 32, 32), "f16"))
def cross_correlation(a: Tensor, c: Tensor) -> Tensor:
    a, c = F.normalize(a - a.mean(1, keepdim=True), dim=1), F.normalize(c - c.mean(1, keepdim=True), dim=1)
    return (a * c).sum(1)


@PROGRAMS(In((2, 3, 512, 512)))
def local_statistics(x: Tensor) -> Tensor:
    m = F.avg_pool2d(x, 11, 1)
    v = F.avg_pool2d(x * x, 11, 1) - m * m
    return (2 * m + 0.01) / (m * m + v.abs() + 0.01)


@PROGRAMS(In((128, 3, 224, 224)), In((3,)), In((3,)))
def normalised_pictures(x: Tensor, m: Tensor, s: Tensor) -> Tensor:
    return ((x / 255 - m[:, None, None]) / (s.abs() + 0.5)[:, None, None]).half()


@PROGRAMS(In((64, 196, 768), "f16"), In((768,), "f16"), In((768,), "f16"), In((1000, 768), "f16", 0.02))
def head_of_patches(x: Tensor, w: Tensor, c: Tensor, o: Tensor) -> Tensor:
    return F.linear(F.layer_norm(x, (768,), w, c).mean(1), o)


@PROGRAMS(In((16, 256, 64, 64), "f16"), In((16, 256, 64, 64), "f16"))
def all_pairs_of_pixels(x: Tensor, g: Tensor) -> Tensor:
    q, k, v = x.flatten(2).mT, x.flatten(2), g.flatten(2).mT
    return F.normalize(q, dim=-1) @ (F.normalize(k, dim=1) @ v / 4096)
