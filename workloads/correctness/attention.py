"""Attention in the spellings people use: where the scale stands and how it is written, which casts, how masks are filled, what
the softmax is called, what else is returned. One spelling is a :class:`Way`; programs are products over ways and shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional as F

from workloads.correctness.program import DTYPES, HALVES, NEG_INF, In, Program, alternate


@dataclass(frozen=True)
class Way:
    """One spelling. scale: ``/``, ``*`` on scores; ``q*``, ``q/``, ``qk*`` before the product; ``odd`` a plain number;
    empty for none. wide: ``scores`` or ``inputs`` made float32. softmax: ``softmax``, ``f32`` (its dtype argument),
    ``hand`` (exp, amax, sum), ``last`` (divided after the product), ``log`` (exp of log_softmax). cap: a soft-cap. mask:
    which keys are visible; fill: how it is applied (``add``: as a sum of 0 and -inf). bias: ``tile`` or ``alibi``. also: a
    further result. back: weights go back to the values' dtype before the product. group: query heads per key head."""

    scale: str = "/"
    wide: str = ""
    softmax: str = "softmax"
    cap: float = 0.0
    mask: str = ""
    fill: str = "-inf"
    bias: str = ""
    also: str = ""
    back: bool = True
    group: str = ""
    sink: str = ""

    def __str__(self) -> str:
        parts = [f"s{self.scale}" if self.scale else "", f"wide-{self.wide}" if self.wide else "",
                 self.softmax if self.softmax != "softmax" else "", f"cap{self.cap:g}" if self.cap else "",
                 f"{self.mask} {self.fill}" if self.mask else "", self.bias, f"+{self.also}" if self.also else "",
                 "" if self.back else "kept", self.group, self.sink]
        return " ".join(p for p in parts if p) or "plain"


@dataclass(frozen=True)
class Shape:
    """b batches, h query and g key heads, i queries, l keys, head dimension d."""

    b: int = 1
    h: int = 2
    g: int = 2
    i: int = 200
    l: int = 333
    d: int = 64

    def __str__(self) -> str:
        heads = f"h{self.h}" if self.h == self.g else f"h{self.h}/{self.g}"
        return f"{self.b}x{heads} {self.i}x{self.l} d{self.d}"


def visible(mask: str, i: torch.Tensor, j: torch.Tensor, queries: int, keys: int) -> torch.Tensor:
    """Which key ``j`` (a row) a query ``i`` (a column) sees; positions end together."""
    at = i + (keys - queries)
    match mask:
        case "causal":
            return j <= at
        case "top-left":
            return j <= i
        case "window":
            return (j <= at) & (at - j < 50)
        case "wide window":
            return (j <= at) & (at - j < 300)
        case "band":
            return (at - j).abs() <= 2
        case "prefix":
            return (j <= at) | (j < 70)
        case "dilated":
            return ((at - j) % 3 == 0) & (j <= at)
        case "none-seen":
            return (j <= i - 40) & (j % 2 == 0)
    raise ValueError(mask)


def masked(way: Way, s: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    value = {"finfo.min": torch.finfo(s.dtype).min, "-1e4": -1e4, "-1e9": -1e9}.get(way.fill, NEG_INF)
    match way.fill:
        case "where":
            return torch.where(keep, s, NEG_INF)
        case "add":
            return s + torch.where(keep, 0.0, NEG_INF).to(s.dtype)
        case "add min":
            return s + (1.0 - keep.to(s.dtype)) * torch.finfo(s.dtype).min
        case _:
            return s.masked_fill(~keep, value)


def scores(way: Way, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    c = math.sqrt(q.shape[-1])
    if way.wide == "inputs":
        q, k = q.float(), k.float()
    match way.scale:
        case "q*":
            q = q * (1 / c)
        case "q/":
            q = q / c
        case "qk*":
            q, k = q * c**-0.5, k * c**-0.5
    s = torch.einsum("bhid,bhjd->bhij", q, k) if way.scale == "einsum" else q @ k.transpose(-1, -2)
    if way.wide == "scores":
        s = s.float()
    match way.scale:
        case "/":
            s = s / c
        case "*" | "einsum":
            s = s * (1 / c)
        case "odd":
            s = s * 0.173
    return way.cap * torch.tanh(s / way.cap) if way.cap else s


def weights(way: Way, s: torch.Tensor) -> torch.Tensor:
    match way.softmax:
        case "f32":
            return torch.softmax(s, -1, dtype=torch.float32)
        case "log":
            return torch.log_softmax(s, -1).exp()
        case "hand":
            e = torch.exp(s - s.amax(-1, keepdim=True))
            return e / e.sum(-1, keepdim=True)
    return torch.softmax(s, -1)


def further(also: str, s: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    match also:
        case "lse":
            return torch.logsumexp(s, -1)
        case "max":
            return s.amax(-1)
        case "weights":
            return p
        case "entropy":
            return -(p.float() * torch.log_softmax(s.float(), -1)).sum(-1)
    raise ValueError(also)


def attention(way: Way) -> Callable[..., Any]:
    """The function of one spelling. Inputs after q, k, v, as the way asks: mask, bias or slopes, sinks."""

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor) -> Any:
        more = list(rest)
        dtype, n = q.dtype, q.shape[1] // k.shape[1]
        if way.group == "repeat":
            k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
        if way.group == "expand":
            k, v = (t[:, :, None].expand(-1, -1, n, -1, -1).reshape(t.shape[0], -1, *t.shape[2:]) for t in (k, v))
        if way.group == "view":
            q = q.view(q.shape[0], k.shape[1], n, *q.shape[2:])
            k, v = k[:, :, None], v[:, :, None]
        s = scores(way, q, k)
        i = torch.arange(s.shape[-2], device=q.device)[:, None]
        j = torch.arange(s.shape[-1], device=q.device)[None, :]
        keep = None
        if way.mask == "data":
            s = s + more.pop(0) if way.fill == "given" else masked(way, s, more.pop(0))
        elif way.mask == "document":
            ours, theirs = more.pop(0), more.pop(0)
            s = masked(way, s, ours[:, None, :, None] == theirs[:, None, None, :])
        elif way.mask:
            keep = visible(way.mask, i, j, s.shape[-2], s.shape[-1])
            s = s if way.fill == "weights" else masked(way, s, keep)
        if way.bias == "tile":
            s = s + more.pop(0)
        if way.bias == "alibi":
            s = s + more.pop(0)[:, None, None] * (j - i - (s.shape[-1] - s.shape[-2]))
        if way.sink:
            return sunk(way, s, v, more.pop(0)).to(dtype)
        if way.softmax == "last":
            e = torch.exp(s - s.amax(-1, keepdim=True))
            p = e
            out = (e.to(v.dtype) @ v) / e.sum(-1, keepdim=True).to(v.dtype)
        else:
            p = weights(way, s)
            if keep is not None and way.fill == "weights":
                p = p.masked_fill(~keep, 0.0)
                p = p / p.sum(-1, keepdim=True)
            out = p.to(v.dtype) @ v if way.back else p @ v.to(p.dtype)
        out = out.flatten(1, 2) if way.group == "view" else out
        return (out.to(dtype), further(way.also, s, p)) if way.also else out.to(dtype)

    return fn


def sunk(way: Way, s: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """A learned logit per head that takes weight and gives nothing: as an extra column, or in the denominator."""
    column = sinks[None, :, None, None].to(s.dtype)
    if way.sink == "sink-cat":
        p = torch.softmax(torch.cat([s, column.expand(s.shape[0], -1, s.shape[2], 1)], -1), -1)[..., :-1]
        return p.to(v.dtype) @ v
    m = torch.maximum(s.amax(-1, keepdim=True), column) if way.sink == "sink-max" else s.amax(-1, keepdim=True)
    e = torch.exp(s - m)
    p = e / (e.sum(-1, keepdim=True) + torch.exp(column - m))
    return p.to(v.dtype) @ v


def library(causal: bool = False, masked: bool = False, grouped: bool = False,
            scale: float | None = None) -> Callable[..., Any]:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[0] if masked else None, is_causal=causal,
                                              enable_gqa=grouped, scale=scale)

    return fn


def qkv(s: Shape, dtype: str) -> tuple[In, In, In]:
    return (In("q", (s.b, s.h, s.i, s.d), dtype), In("k", (s.b, s.g, s.l, s.d), dtype), In("v", (s.b, s.g, s.l, s.d), dtype))


def inputs(way: Way, s: Shape, dtype: str) -> tuple[In, ...]:
    more: list[In] = []
    if way.mask == "data":
        more.append(In("mask", (s.b, 1, s.i, s.l), dtype, "hide", NEG_INF) if way.fill == "given"
                    else In("keep", (s.b, 1, s.i if way.fill != "where" else 1, s.l), "bool", "keep"))
    if way.mask == "document":
        more += [In("ours", (s.b, s.i), "i64", "segments", high=5), In("theirs", (s.b, s.l), "i64", "segments", high=5)]
    if way.bias == "tile":
        more.append(In("bias", (s.b, s.h, s.i, s.l), dtype))
    if way.bias == "alibi":
        more.append(In("slopes", (s.h,), "f32", "weight", 0.1))
    if way.sink:
        more.append(In("sinks", (s.h,), dtype, "weight"))
    return (*qkv(s, dtype), *more)


def program(family: str, way: Way, s: Shape, dtype: str, strategy: str = "", splits: int = 0) -> Program:
    return Program(family, f"{dtype} {s} {way}", attention(way), inputs(way, s, dtype), strategy, splits)


def spelled(*wides: str) -> Iterator[Program]:
    for dtype in HALVES:
        for wide in wides:
            for scale in ("/", "*", "q*", "q/", "qk*", "odd", "einsum", ""):
                yield program("mha", Way(scale, wide), Shape(), dtype)


def mha() -> Iterator[Program]:
    base = Shape()
    for dtype in HALVES:
        for softmax in ("f32", "hand", "last", "log"):
            for wide in ("", "scores"):
                yield program("mha", Way("*", wide, softmax), base, dtype)
        for also in ("lse", "max", "weights", "entropy"):
            for wide in ("", "scores"):
                yield program("mha", Way("/", wide, also=also), base, dtype)
        yield program("mha", Way("/", "scores", back=False), base, dtype)
        yield program("mha", Way("/", "inputs", back=False), base, dtype)
        for d in (32, 80, 96, 128, 256):
            yield program("mha", Way("*", "scores"), replace(base, d=d, i=130, l=257), dtype)
        for strategy, splits in (("single", 0), ("resident", 0), ("multi", 2), ("multi", 5)):
            yield program("mha", Way("/", "scores", also="lse"), base, dtype, strategy, splits)
        for i, l in ((1, 1), (64, 1), (3, 65), (128, 128)):
            yield program("mha", Way("*"), replace(base, i=i, l=l), dtype)
        for name, way in (("sdpa", library()), ("sdpa scale", library(scale=0.31)), ("sdpa causal", library(causal=True))):
            yield Program("mha", f"{dtype} {base} {name}", way, qkv(replace(base, l=200 if "causal" in name else 333), dtype))
        keep = In("keep", (1, 1, 200, 333), "bool", "keep")
        yield Program("mha", f"{dtype} {base} sdpa mask", library(masked=True), (*qkv(base, dtype), keep))
        given = In("mask", (1, 1, 200, 333), dtype, "hide", NEG_INF)
        yield Program("mha", f"{dtype} {base} sdpa added mask", library(masked=True), (*qkv(base, dtype), given))
    for scale in ("/", "q*"):
        yield program("mha", Way(scale), replace(base, i=65, l=130), "f32")


def handmade() -> Iterator[Program]:
    """Weights that are scaled before they are rounded, and weights that a mask without the batch hides."""
    base = replace(Shape(), i=65, l=130, d=32)

    def scaled(dtype: torch.dtype) -> Callable[..., Any]:
        def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            weights = (torch.softmax((q @ k.mT).float() * 0.2, -1) * 10).to(dtype)
            return weights.float() @ v.float()
        return fn

    def hidden(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        s = (q @ k.mT).float() / 8
        e = torch.exp(s - s.amax(-1, keepdim=True)).masked_fill(~keep, 0)
        return (e / e.sum(-1, keepdim=True)).to(v.dtype) @ v

    for dtype in HALVES:
        yield Program("mha", f"{dtype} {base} scaled weights", scaled(DTYPES[dtype]), qkv(base, dtype))
        yield Program("mha", f"{dtype} {base} scaled weights of 8 bits", scaled(torch.float8_e4m3fn), qkv(base, dtype))
        yield Program("masks", f"{dtype} {base} by hand, without the batch", hidden,
                      (*qkv(base, dtype), In("keep", (65, 130), "bool", "keep")))


def masks() -> Iterator[Program]:
    base = Shape(i=200, l=333)
    for dtype in HALVES:
        for mask in ("causal", "window", "band", "prefix", "dilated", "none-seen"):
            for fill in ("-inf", "finfo.min"):
                yield program("masks", Way("*", "scores", mask=mask, fill=fill), base, dtype)
        for fill in ("-1e4", "where", "add", "add min", "weights"):
            yield program("masks", Way("*", "scores", mask="causal", fill=fill), base, dtype)
            yield program("masks", Way("/", mask="none-seen", fill=fill), base, dtype)
        yield program("masks", Way("*", mask="top-left"), replace(base, i=333, l=200), dtype)
        for fill in ("-inf", "finfo.min", "where", "-1e4", "given"):
            yield program("masks", Way("/", "scores" if fill != "given" else "", mask="data", fill=fill), base, dtype)
        for fill in ("-inf", "finfo.min"):
            yield program("masks", Way("*", "scores", mask="document", fill=fill), base, dtype)
        yield program("masks", Way("*", "scores", mask="causal", also="lse"), base, dtype, "multi", 3)
        yield program("masks", Way("*", "scores", mask="data", also="lse"), base, dtype, "multi", 3)


def scored() -> Iterator[Program]:
    """Soft-caps, biases and sinks, alone and together, in several orders."""
    base = Shape()
    for dtype in HALVES:
        for wide in ("", "scores"):
            yield program("scored", Way("/", wide, cap=30.0), base, dtype)
            yield program("scored", Way("*", wide, cap=50.0, mask="causal"), base, dtype)
            yield program("scored", Way("*", wide, bias="tile"), base, dtype)
            yield program("scored", Way("/", wide, bias="alibi"), base, dtype)
        yield program("scored", Way("*", "scores", bias="alibi", mask="causal"), base, dtype)
        yield program("scored", Way("*", "scores", bias="tile", mask="data"), base, dtype)
        yield program("scored", Way("*", "scores", cap=20.0, bias="tile", mask="window", also="lse"), base, dtype)
        yield program("scored", Way("", "scores", bias="tile"), base, dtype)
        for sink in ("sink-cat", "sink-max", "sink-sum"):
            yield program("sinks", Way("*", "scores", sink=sink), base, dtype)
        yield program("sinks", Way("*", "scores", mask="causal", sink="sink-max"), base, dtype)
        yield program("sinks", Way("*", "scores", mask="window", sink="sink-cat"), base, dtype)


def of_eight_bits(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    s = (q.float() @ k.float().mT) * q.shape[-1] ** -0.5
    return (torch.softmax(s, -1) @ v.float()).bfloat16()


def of_eight_bits_rounded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    s = ((q.float() @ k.float().mT) * q.shape[-1] ** -0.5).bfloat16()
    return torch.softmax(s.float(), -1).bfloat16() @ v.bfloat16()


def eight() -> Iterator[Program]:
    """Queries, keys and values of 8 bits, as scores are and rounded."""
    for n, m, d in ((200, 333, 64), (130, 1000, 128)):
        ins = (In("q", (1, 2, n, d), "e4m3"), *(In(x, (1, 2, m, d), "e4m3") for x in "kv"))
        yield Program("scored", f"e4m3 1xh2 {n}x{m} d{d} s*", of_eight_bits, ins)
        yield Program("scored", f"e4m3 1xh2 {n}x{m} d{d} s* rounded", of_eight_bits_rounded, ins)


def programs() -> Iterator[Program]:
    yield from spelled("", "scores")
    yield from alternate(spelled("inputs"))
    yield from alternate(mha())
    yield from alternate(masks())
    yield from handmade()
    yield from alternate(scored())
    yield from eight()
