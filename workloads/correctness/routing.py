"""Choosing: mixture-of-experts routers, argmax and topk, and what 8-bit quantisation makes of a row's maximum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from workloads.correctness.program import In, Program, alternate

Fn = Callable[..., Any]
MAX8 = 448.0


def logits(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).float()


def by_logit(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return logits(x, w), logits(x, w)


def by_chance(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return logits(x, w), torch.softmax(logits(x, w), -1)


def by_gate(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return logits(x, w), torch.sigmoid(logits(x, w))


def softmax_topk(k: int) -> Fn:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        values, places = torch.topk(torch.softmax(logits(x, w), -1), k, -1)
        return values, places

    return fn


def topk_softmax(k: int) -> Fn:
    """Mixtral, gpt-oss: the softmax is over the chosen."""

    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        values, places = torch.topk(logits(x, w), k, -1)
        return torch.softmax(values, -1), places

    return fn


def normed_topk(k: int) -> Fn:
    """Qwen3: the chosen weights are made to sum to one."""

    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        values, places = torch.topk(torch.softmax(logits(x, w), -1), k, -1)
        return (values / values.sum(-1, keepdim=True)).to(x.dtype), places

    return fn


def sigmoid_topk(k: int) -> Fn:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        values, places = torch.topk(torch.sigmoid(logits(x, w)), k, -1)
        return values, places

    return fn


def argmax_softmax(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Switch: one expert."""
    p = torch.softmax(logits(x, w), -1)
    values, places = p.max(-1)
    return values, places


def routers() -> Iterator[Program]:
    for dtype in ("f16", "bf16"):
        for tokens, width, experts, k in ((65, 96, 64, 6), (33, 200, 128, 8), (40, 64, 60, 4)):
            ins = (In("x", (tokens, width), dtype), In("w", (width, experts), dtype, "weight", width**-0.5))
            ways = {"softmax topk": (softmax_topk(k), by_chance), "topk softmax": (topk_softmax(k), by_logit),
                    "normed": (normed_topk(k), by_chance), "sigmoid": (sigmoid_topk(k), by_gate),
                    "one": (argmax_softmax, by_chance)}
            for what, (fn, ranked) in ways.items():
                if tokens == 65 or what in ("softmax topk", "normed"):
                    yield Program("routing", f"{dtype} {tokens}x{width}x{experts} k{k} {what}", fn, ins, ranked=ranked)


def alone(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x


def chance(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, torch.softmax(x.float(), -1)


def negated(x: Tensor) -> tuple[Tensor, Tensor]:
    return -x, -x


def unlikely(x: Tensor) -> tuple[Tensor, Tensor]:
    return -x, -torch.softmax(x.float(), -1)


def argmax(x: Tensor) -> Tensor:
    return x.argmax(-1)


def argmin(x: Tensor) -> Tensor:
    return x.argmin(-1)


def top(k: int) -> Fn:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        values, places = torch.topk(x, k, -1)
        return values, places

    return fn


def peak(x: Tensor) -> tuple[Tensor, Tensor]:
    values, places = x.max(-1)
    return values, places


def confident(x: Tensor) -> tuple[Tensor, Tensor]:
    """The class and its probability."""
    values, places = torch.softmax(x.float(), -1).max(-1)
    return values, places


def softmax_topk_row(x: Tensor) -> tuple[Tensor, Tensor]:
    values, places = torch.topk(torch.softmax(x.float(), -1), 5, -1)
    return values, places


def span(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amax(-1), x.amin(-1)


def picked() -> Iterator[Program]:
    for dtype in ("f16", "bf16", "f32"):
        for what, fn in (("max and place", peak), ("confident", confident), ("softmax topk5", softmax_topk_row),
                         ("max and min", span), ("top3", top(3))):
            ins = (In("x", (9, 777), dtype, scale=3.0),)
            ranked = chance if what in ("confident", "softmax topk5") else alone
            yield Program("places", f"{dtype} 9x777 {what}", fn, ins, ranked=ranked)
            if dtype != "f16" and ranked is chance:  # a row that no block holds
                long = (In("x", (3, 40000), dtype, scale=3.0),)
                yield Program("places", f"{dtype} 3x40000 {what}", fn, long, ranked=ranked)
    yield Program("places", "f32 9x777 argmax beside logsumexp", lambda x: (x.argmax(-1), torch.logsumexp(x, -1)),
                  (In("x", (9, 777), "f32"),), ranked=alone)
    yield Program("places", "f32 9x777 argmin beside sum", lambda x: (x.argmin(-1), x.exp().sum(-1)),
                  (In("x", (9, 777), "f32"),), ranked=negated)


# -- 8 bits ------------------------------------------------------------------------------------------------------------


def token_scale(x: Tensor) -> tuple[Tensor, Tensor]:
    s = x.float().abs().amax(-1, keepdim=True) / MAX8
    return (x.float() / s).to(torch.float8_e4m3fn), s


def token_clamped(x: Tensor) -> tuple[Tensor, Tensor]:
    s = (x.float().abs().amax(-1, keepdim=True) / MAX8).clamp(min=1e-12)
    return (x.float() / s).clamp(-MAX8, MAX8).to(torch.float8_e4m3fn), s


def token_product(x: Tensor) -> tuple[Tensor, Tensor]:
    m = x.float().abs().amax(-1, keepdim=True)
    return (MAX8 * x.float() / m).to(torch.float8_e4m3fn), m / MAX8


def token_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    s = x.float().abs().amax(-1, keepdim=True) / 127.0
    return torch.round(x.float() / s).to(torch.int8), s


def normed_token(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
    s = h.abs().amax(-1, keepdim=True) / MAX8
    return (h / s).to(torch.float8_e4m3fn), s


def quantised_product(x: Tensor, w: Tensor, ws: Tensor) -> Tensor:
    m = x.float().abs().amax(-1, keepdim=True)
    a = (MAX8 * x.float() / m).to(torch.float8_e4m3fn)
    return ((a.float() @ w.float().T) * (m / MAX8) * ws).to(torch.bfloat16)


def divided_product(x: Tensor, w: Tensor, ws: Tensor) -> Tensor:
    s = x.float().abs().amax(-1, keepdim=True) / MAX8
    a = (x.float() / s).to(torch.float8_e4m3fn)
    return ((a.float() @ w.float().T) * s * ws).to(torch.bfloat16)


QUANT: dict[str, Fn] = {"scale": token_scale, "clamped": token_clamped, "product": token_product, "int8": token_int8,
                        "rms": normed_token}


def eight() -> Iterator[Program]:
    for dtype in ("f16", "bf16", "f32"):
        for what, fn in QUANT.items():
            defined = ("normal", "ties", "outlier", "spread", "big") if what == "int8" else ()  # NaN has no integer
            yield Program("quant", f"{dtype} 33x1000 {what}", fn, (In("x", (33, 1000), dtype),), only=defined)
    for dtype in ("bf16", "f16"):
        for what, fn in (("scaled", quantised_product), ("divided", divided_product)):
            for m, k, n in ((65, 256, 96), (130, 320, 128)):
                ins = (In("x", (m, k), dtype), In("w", (n, k), "e4m3", "weight"), In("ws", (n,), "f32", "weight", 0.1, 1.0))
                yield Program("quant+product", f"{dtype} {m}x{k}x{n} {what}", fn, ins)


def programs() -> Iterator[Program]:
    yield from routers()
    yield from alternate(picked(), 2)
    yield from alternate(eight(), 2)


