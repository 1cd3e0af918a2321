"""What the steps of drawn programs do: tables of small torch functions by kind, in spellings that people use.

Functions with jumps (:data:`JUMPS`) are for values that are given, not computed: on computed ones a rounding decides them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Axis = int | tuple[int, ...]
JUMPS = frozenset({"sign", "floor", "any", "count", "where", "fill"})

MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu, "abs": torch.abs, "neg": torch.neg,
    "square": torch.square, "scale": lambda x: x * 0.37, "shift": lambda x: x + 0.75, "clamp": lambda x: x.clamp(-1.5, 2.0),
    "gelu": F.gelu, "silu": F.silu, "root": lambda x: (x.abs() + 1e-3).sqrt(), "recip": lambda x: 1 / (1 + x.abs()),
    "sin": torch.sin, "log1p": lambda x: torch.log1p(x.abs()), "exp": lambda x: torch.exp(x.clamp(max=4.0)),
    "softplus": F.softplus, "sign": torch.sign, "rsqrt": lambda x: torch.rsqrt(x * x + 1e-5), "floor": torch.floor,
    "hard": F.hardtanh, "leaky": F.leaky_relu, "expm1": lambda x: torch.expm1(x.clamp(max=3.0)),
    "finite": lambda x: torch.nan_to_num(x, 0.0, 1e3, -1e3),
    "elu": F.elu, "mish": F.mish, "logsigmoid": F.logsigmoid, "swish": F.hardswish, "cube": lambda x: x.clamp(-2, 2) ** 3,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "erf": torch.erf, "atan": torch.atan, "soft": F.softsign,
    "places": lambda x: x + torch.arange(x.shape[-1], device=x.device) * 0.01}

PAIRS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "max": torch.maximum, "min": torch.minimum,
    "div": lambda a, b: a / (b.abs() + 0.5), "where": lambda a, b: torch.where(a > b, a, b * 0.5),
    "gate": lambda a, b: a * torch.sigmoid(b), "length": lambda a, b: (a * a + b * b + 1e-4).sqrt(),
    "fill": lambda a, b: a.masked_fill(b < 0, 0.25), "lerp": lambda a, b: torch.lerp(a, b, 0.3), "less": lambda a, b: 2 - a * b,
    "joint": lambda a, b: torch.logaddexp(a, b), "swiglu": lambda a, b: F.silu(a) * b,
    "beside": lambda a, b: torch.cat([a, b], -1), "below": lambda a, b: torch.cat([a, b], -2),
    "angle": lambda a, b: torch.atan2(a, b.abs() + 1.0)}

FOLDS: dict[str, Callable[[Tensor, Any, bool], Tensor]] = {
    "sum": lambda x, d, k: x.sum(d, keepdim=k), "mean": lambda x, d, k: x.mean(d, keepdim=k),
    "amax": lambda x, d, k: x.amax(d, keepdim=k), "amin": lambda x, d, k: x.amin(d, keepdim=k),
    "var": lambda x, d, k: x.var(d, keepdim=k), "std": lambda x, d, k: x.std(d, correction=0, keepdim=k),
    "lse": lambda x, d, k: torch.logsumexp(x, d, keepdim=k), "meansq": lambda x, d, k: (x * x).mean(d, keepdim=k),
    "norm2": lambda x, d, k: torch.linalg.vector_norm(x, dim=d, keepdim=k),
    "norm1": lambda x, d, k: torch.linalg.vector_norm(x, 1, dim=d, keepdim=k),
    "norminf": lambda x, d, k: torch.linalg.vector_norm(x, float("inf"), dim=d, keepdim=k),
    "any": lambda x, d, k: (x > 1).any(d, keepdim=k).to(x.dtype),
    "count": lambda x, d, k: (x > 0.5).to(x.dtype).sum(d, keepdim=k)}

NORMS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "softmax": lambda x, d: torch.softmax(x, d), "logsoftmax": lambda x, d: torch.log_softmax(x, d),
    "unit": lambda x, d: F.normalize(x, dim=d), "sharp": lambda x, d: torch.softmax(x * 3.0, d),
    "center": lambda x, d: x - x.mean(d, keepdim=True), "softmin": lambda x, d: F.softmin(x, d),
    "standard": lambda x, d: (x - x.mean(d, keepdim=True)) * torch.rsqrt(x.var(d, keepdim=True, correction=0) + 1e-5),
    "rms": lambda x, d: x * torch.rsqrt((x * x).mean(d, keepdim=True) + 1e-6),
    "range": lambda x, d: (x - x.amin(d, keepdim=True)) / (x.amax(d, keepdim=True) - x.amin(d, keepdim=True) + 1e-3),
    "share": lambda x, d: x.abs() / (x.abs().sum(d, keepdim=True) + 1e-3),
    "peak": lambda x, d: x / x.abs().amax(d, keepdim=True).clamp_min(1e-3),
    "odds": lambda x, d: torch.sigmoid(x) / torch.sigmoid(x).sum(d, keepdim=True),
    "entropy": lambda x, d: -(torch.softmax(x, d) * torch.log_softmax(x, d)).sum(d, keepdim=True)}

MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "turn": lambda x: x.transpose(-1, -2), "flip": lambda x: x.flip(-1), "roll": lambda x: torch.roll(x, 3, -1),
    "rotate": lambda x: torch.cat([-x[..., x.shape[-1] // 2:], x[..., : x.shape[-1] // 2]], -1),
    "first": lambda x: x[..., : x.shape[-1] // 2], "even": lambda x: x[..., ::2], "pad": lambda x: F.pad(x, (1, 2)),
    "tail": lambda x: x[..., 1:, :], "twice": lambda x: torch.cat([x, x * 0.5], -1), "tril": torch.tril,
    "merge": lambda x: x.flatten(0, x.dim() - 2), "pairs": lambda x: x.unflatten(-1, (x.shape[-1] // 2, 2)),
    "heads": lambda x: x.unflatten(-1, (2, x.shape[-1] // 2)).transpose(-2, -3), "last": lambda x: x[..., -1:, :],
    "repeat": lambda x: x.repeat_interleave(2, -2), "steps": lambda x: x.unfold(-1, 4, 2)}

SCANS: dict[str, Callable[[Tensor], Tensor]] = {"cumsum": lambda x: x.cumsum(-1), "lcse": lambda x: torch.logcumsumexp(x, -1)}

POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "avg of 3": lambda x: F.avg_pool1d(x, 3, 2), "max of 3": lambda x: F.max_pool1d(x, 3, 2),
    "slide": lambda x: F.avg_pool1d(x, 5, 1, 2)}

TOPS: dict[str, Callable[[Tensor], Tensor]] = {
    "top values": lambda x: x.topk(3, -1).values, "top share": lambda x: torch.softmax(x.topk(4, -1).values, -1),
    "top sum": lambda x: x.topk(2, -1).values.sum(-1, keepdim=True)}


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT * q.shape[-1] ** -0.5


def _distance(x: Tensor, y: Tensor) -> Tensor:
    return (x[..., :, None, :] - y[..., None, :, :]).square().sum(-1)


ATTENDS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "plain": lambda q, k, v: torch.softmax(_scores(q, k), -1) @ v,
    "capped": lambda q, k, v: torch.softmax(5 * torch.tanh(_scores(q, k) / 5), -1) @ v,
    "sigmoids": lambda q, k, v: torch.sigmoid(_scores(q, k)) @ v,
    "wide": lambda q, k, v: torch.softmax(_scores(q, k).float(), -1).to(v.dtype) @ v,
    "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    "sdpa causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "linear": lambda q, k, v: (F.elu(q) + 1) @ ((F.elu(k) + 1).mT @ v) / v.shape[-2],
    "cosine": lambda q, k, v: torch.softmax(F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * 8, -1) @ v,
    "squared": lambda q, k, v: torch.relu(_scores(q, k)).square() @ v / k.shape[-2],
    "doubly": lambda q, k, v: F.normalize(torch.softmax(_scores(q, k), -1), p=1, dim=-2) @ v}

OUTERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "distance": _distance, "nearest": lambda x, y: _distance(x, y).amin(-1),
    "rbf": lambda x, y: torch.exp(-_distance(x, y) / 99),
    "additive": lambda x, y: torch.tanh(x[..., :, None, :] + y[..., None, :, :]).mean(-1),
    "outer": lambda x, y: (x[..., :, None] * y[..., None, :]).mean(-3)}

HIDES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "hidden softmax": lambda x, h: torch.softmax(x.masked_fill(~h, float("-inf")), -1),
    "finite softmax": lambda x, h: torch.softmax(torch.where(h, x, torch.finfo(x.dtype).min), -1),
    "hidden mean": lambda x, h: (x * h).sum(-1, keepdim=True) / h.sum(-1, keepdim=True).clamp(min=1),
    "hidden max": lambda x, h: x.masked_fill(~h, -1e4).amax(-1, keepdim=True), "zeroed": lambda x, h: torch.where(h, x, 0.0),
    "hidden attention": lambda x, h: torch.softmax(_scores(x, x).masked_fill(~h, float("-inf")), -1) @ x}


def _label(x: Tensor, e: Tensor) -> Tensor:
    return torch.arange(x.shape[-1], device=x.device) == e[..., None]


LABELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross": lambda x, e: torch.logsumexp(x, -1) - x.gather(-1, e[..., None])[..., 0],
    "pick": lambda x, e: x.gather(-1, e[..., None]), "left": lambda x, e: torch.softmax(x, -1) - _label(x, e).to(x.dtype),
    "margin": lambda x, e: torch.log_softmax(torch.where(_label(x, e), x - 0.3, x), -1),
    "among": lambda x, e: (torch.softmax(x, -1) * _label(x, e)).sum(-1, keepdim=True)}

TAKES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "selected": lambda x, r: x.index_select(-2, r), "taken": lambda x, r: x[..., r, :],
    "bag": lambda x, r: x[..., r, :].mean(-2, keepdim=True), "weighed": lambda x, r: torch.softmax(x[..., r, :], -1)}

KINDS: dict[str, tuple[dict[str, Callable[..., Any]], str, int]] = {
    "map": (MAPS, "f", 18), "pair": (PAIRS, "ff", 24), "fold": (FOLDS, "f", 20), "norm": (NORMS, "f", 18),
    "move": (MOVES, "f", 10), "scan": (SCANS, "f", 2), "pool": (POOLS, "f", 3), "top": (TOPS, "f", 2),
    "attend": (ATTENDS, "fff", 30), "outer": (OUTERS, "ff", 6), "hide": (HIDES, "fb", 20), "label": (LABELS, "fi", 24),
    "take": (TAKES, "fi", 12), "dot": ({"product": torch.matmul, "turned": lambda a, b: a @ b.mT}, "ff", 12),
    "cast": ({"to": lambda x: x}, "f", 3)}
"""By kind: its functions, what they read (floats, booleans, integers), and how often it is tried."""


@dataclass(frozen=True)
class Step:
    """``kind`` and ``what`` of :data:`KINDS`, the values it reads, and the axis or axes it is along (and whether they stay)."""

    kind: str
    what: str
    reads: tuple[int, ...]
    axis: Axis = -1
    keep: bool = True

    def __str__(self) -> str:
        return f"{self.what} over two" if isinstance(self.axis, tuple) and self.kind in ("fold", "norm") else self.what

    def of(self, values: list[Tensor], low: torch.dtype) -> Tensor:
        """The step's value. Floats of two dtypes meet in float32, in products as ``low``; raises what torch raises."""
        read, make = [values[i] for i in self.reads], KINDS[self.kind][0][self.what]
        floats = [x for x in read if x.is_floating_point()]
        if len({x.dtype for x in floats}) > 1:
            to = low if self.kind in ("dot", "attend") else torch.float32
            read = [x.to(to) if x.is_floating_point() else x for x in read]
        match self.kind:
            case "fold":
                return make(*read, self.axis, self.keep)
            case "norm":
                return make(*read, self.axis)
            case "cast":
                return read[0].float() if read[0].dtype == low else read[0].to(low)
        return make(*read)
