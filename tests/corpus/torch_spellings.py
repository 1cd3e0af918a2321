"""Rows of the corpus as plain torch functions: what a model contains before anybody calls it a cascade.

``SPELLINGS[name]`` is (function, shapes of its float arguments by the cascade's input names). The function returns the
cascade's outputs, in order; a test holds both spellings to the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def softmax_value(x: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(x, -1) @ v


def softmax_scaled(x: Tensor, v: Tensor) -> Tensor:
    p = torch.exp((x - x.amax(-1, keepdim=True)) / 8.0)
    return p @ v / p.sum(-1, keepdim=True)


def variance(x: Tensor) -> tuple[Tensor, Tensor]:
    mean = x.mean(-1, keepdim=True)
    return mean[..., 0], ((x - mean) * (x - mean)).mean(-1)


def variance_pow(x: Tensor) -> Tensor:
    return (x - x.sum(-1, keepdim=True) / 256.0).pow(2).sum(-1)


def covariance(x: Tensor, y: Tensor) -> Tensor:
    return ((x - x.mean(-1, keepdim=True)) * (y - y.mean(-1, keepdim=True))).sum(-1)


def third_moment(x: Tensor) -> Tensor:
    return (x - x.mean()).pow(3).sum()


def fourth_moment(x: Tensor) -> Tensor:
    d = x - x.mean()
    v = d.pow(2).sum()
    return d.pow(4).sum() * x.shape[0] / (v * v)


def inertia(w: Tensor, x: Tensor) -> Tensor:
    c = (w[:, None] * x).sum(0) / w.sum()
    return (w * ((x - c) * (x - c)).sum(-1)).sum()


def stable_norm(x: Tensor) -> Tensor:
    m = x.abs().amax(-1, keepdim=True)
    return m[..., 0] * (x / m).pow(2).sum(-1).sqrt()


def rmsnorm_gemm(x: Tensor, w: Tensor) -> Tensor:
    return (x * torch.rsqrt((x * x).sum(-1, keepdim=True) / 512.0 + 1e-06)) @ w


def layernorm(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), g, b, 1e-05)


def layernorm_gemm(x: Tensor, w: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) * (x - mean)).mean(-1, keepdim=True)
    return ((x - mean) * torch.rsqrt(var + 1e-05)) @ w


def max_of_normalised(x: Tensor) -> Tensor:
    return (x * torch.rsqrt((x * x).sum(-1, keepdim=True) / 128.0 + 1e-06)).amax(-1)


def value_range(x: Tensor) -> Tensor:
    return (x - x.amin(-1, keepdim=True)).amax(-1)


def relative_max(x: Tensor) -> Tensor:
    return (x.abs() / (x.abs().sum(-1, keepdim=True) + 1e-06)).amax(-1)


def route(x: Tensor) -> tuple[Tensor, Tensor]:
    found = torch.topk(torch.softmax(x, -1), 2, -1)
    return found.values, found.indices


def route_one(x: Tensor) -> tuple[Tensor, Tensor]:
    found = torch.topk(torch.softmax(x, -1), 1, -1)
    return found.values, found.indices


def masked_window(x: Tensor, v: Tensor) -> Tensor:
    i, j = torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])[None, :]
    keep = (j <= i) & (i - j < 32)
    return torch.softmax(x.masked_fill(~keep, float("-inf")), -1) @ v


def performer(c1: Tensor, c2: Tensor) -> Tensor:
    r1 = c1.amax(-1, keepdim=True)
    r2 = torch.exp(c1 - r1).sum(-1, keepdim=True)
    return (0.7 * torch.exp(c1 - r1 - 0.5 * c2[:, None]) / r2).sum(-1)


def entropy(x: Tensor) -> Tensor:
    d = x - x.amax(-1, keepdim=True)
    t = torch.exp(d).sum(-1)
    return torch.log(t) - (torch.exp(d) * d).sum(-1) / t


def collision(x: Tensor) -> Tensor:
    return torch.softmax(x, -1).square().sum(-1)


def logsumexp_value(x: Tensor, v: Tensor) -> Tensor:
    return torch.exp(x - torch.logsumexp(x, -1, keepdim=True)) @ v


def cosine_similarity(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1) * torch.rsqrt((x * x).sum(-1) * (y * y).sum(-1) + 1e-12)


def quant_gemm_unrounded(a: Tensor, w: Tensor) -> Tensor:
    return (448.0 * a / a.abs().amax(-1, keepdim=True)) @ w


def gated_scale(x: Tensor, w: Tensor) -> Tensor:
    return (x * torch.sigmoid(x.mean(-1, keepdim=True))) @ w


def sparsemax(x: Tensor) -> Tensor:
    return torch.clamp(x - (x.amax() - 1.0), min=0).sum()


def mean_absolute_deviation(x: Tensor) -> Tensor:
    return (x - x.mean()).abs().sum()


def reduced_temperature(x: Tensor) -> Tensor:
    return torch.exp(x / x.abs().sum()).sum()


def top_p(x: Tensor) -> Tensor:
    p = torch.softmax(x, -1)
    return torch.where(p > 0.05, p, 0.0).sum()


ROW = {"x": (6, 40)}
Spelling = tuple[Callable[..., Any], dict[str, tuple[int, ...]]]

SPELLINGS: dict[str, Spelling] = {
    "softmax": (softmax, ROW), "softmax_value": (softmax_value, {"x": (6, 40), "v": (40, 8)}),
    "softmax_scaled": (softmax_scaled, {"x": (6, 40), "v": (40, 8)}), "variance": (variance, ROW),
    "variance_pow": (variance_pow, {"x": (6, 256)}), "covariance": (covariance, {"x": (6, 40), "y": (6, 40)}),
    "third_moment": (third_moment, {"x": (40,)}), "fourth_moment": (fourth_moment, {"x": (40,)}),
    "inertia": (inertia, {"w": (40,), "x": (40, 3)}), "stable_norm": (stable_norm, ROW),
    "rmsnorm_gemm": (rmsnorm_gemm, {"x": (6, 512), "w": (512, 8)}),
    "layernorm": (layernorm, {"x": (6, 40), "g": (40,), "b": (40,)}),
    "layernorm_gemm": (layernorm_gemm, {"x": (6, 40), "w": (40, 8)}),
    "max_of_normalised": (max_of_normalised, {"x": (6, 128)}), "range": (value_range, ROW),
    "relative_max": (relative_max, ROW), "route": (route, ROW), "route_one": (route_one, ROW),
    "masked_window": (masked_window, {"x": (128, 128), "v": (128, 8)}),
    "performer": (performer, {"c1": (6, 40), "c2": (6,)}), "entropy": (entropy, ROW), "collision": (collision, ROW),
    "logsumexp_value": (logsumexp_value, {"x": (6, 40), "v": (40, 8)}),
    "cosine_similarity": (cosine_similarity, {"x": (6, 40), "y": (6, 40)}),
    "quant_gemm_unrounded": (quant_gemm_unrounded, {"a": (6, 40), "w": (40, 8)}),
    "gated_scale": (gated_scale, {"x": (6, 40), "w": (40, 8)})}
"""Rows that fuse."""

REFUSED: dict[str, Spelling] = {
    "sparsemax": (sparsemax, {"x": (40,)}), "mean_absolute_deviation": (mean_absolute_deviation, {"x": (40,)}),
    "reduced_temperature": (reduced_temperature, {"x": (40,)}), "top_p": (top_p, {"x": (40,)})}
"""Rows that do not."""
