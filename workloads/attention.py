"""Attention as plain PyTorch, and its variants: causal, grouped, ALiBi, soft-capped, windowed, with a prefix, among documents
(workloads of Neptune and Flashlight). Masks are comparisons of positions, or of the documents' numbers, which are an input;
scores are float32, as flash and flex attention compute them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from workloads.case import Attention, Case, Inputs, normal, size

DOCUMENTS = 12


class Plain(torch.nn.Module):
    """softmax(q kT * scale) v by scaled_dot_product_attention: what models write."""

    def __init__(self, spec: Attention) -> None:
        super().__init__()
        self.spec = spec

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        s = self.spec
        if s.kv_heads != s.heads:
            k = k.repeat_interleave(s.heads // s.kv_heads, 1)
            v = v.repeat_interleave(s.heads // s.kv_heads, 1)
        # one query row is the last position: it sees every key, and torch's is_causal would align it with the first
        return functional.scaled_dot_product_attention(q, k, v, is_causal=s.causal and q.shape[2] > 1, scale=s.scale)


class Spelled(torch.nn.Module):
    """The same written out, with what scaled_dot_product_attention cannot say: soft-cap, ALiBi bias, sliding window, a prefix,
    documents."""

    def __init__(self, spec: Attention) -> None:
        super().__init__()
        self.spec = spec
        self.register_buffer("slopes", 2.0 ** (-8.0 * torch.arange(1, spec.heads + 1) / spec.heads))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, document: torch.Tensor | None = None) -> torch.Tensor:
        s = self.spec
        if s.kv_heads != s.heads:
            k = k.repeat_interleave(s.heads // s.kv_heads, 1)
            v = v.repeat_interleave(s.heads // s.kv_heads, 1)
        p = (q.float() @ k.float().mT) * s.scale
        if s.softcap:
            p = s.softcap * torch.tanh(p / s.softcap)
        i = torch.arange(k.shape[2] - q.shape[2], k.shape[2], device=q.device)[:, None]
        l = torch.arange(k.shape[2], device=q.device)[None, :]
        if s.alibi:
            p = p + self.slopes[: q.shape[1], None, None] * (l - i)
        if s.window:
            p = p.masked_fill((l > i) | (l <= i - s.window), float("-inf"))
        elif s.prefix:
            p = p.masked_fill((l > i) & (l >= s.prefix), float("-inf"))
        elif s.causal:
            p = p.masked_fill(l > i, float("-inf"))
        if document is not None:
            p = p.masked_fill(document[:, None, :, None] != document[:, None, None, :], float("-inf"))
        return (torch.softmax(p, -1) @ v.float()).to(q.dtype)


def visible(spec: Attention, q: int, kv: int) -> int:
    """Pairs of query and key that the mask lets through; query row 0 stands at position kv - q."""
    if spec.window:
        return sum(min(i + 1, spec.window) for i in range(kv - q, kv))
    if spec.prefix:
        return sum(max(i + 1, spec.prefix) for i in range(kv - q, kv))
    if spec.documents:
        return int((torch.bincount(documents(kv)) ** 2).sum())
    return sum(range(kv - q + 1, kv + 1)) if spec.causal else q * kv


def documents(length: int) -> torch.Tensor:
    """The document of each place: ``DOCUMENTS`` of random lengths, the same for every seed, since they decide the work."""
    starts = torch.randperm(length - 1, generator=torch.Generator().manual_seed(11))[: DOCUMENTS - 1] + 1
    return torch.bucketize(torch.arange(length), starts.sort().values, right=True)


def make(workload: str, name: str, spec: Attention, batch: int, q: int, kv: int, d: int, dtype: str = "f16",
         sets: tuple[str, ...] = ("paper",), note: str = "") -> Case:
    """An attention case over q [batch, heads, q, d] and k, v [batch, kv_heads, kv, d]."""
    shapes = ((batch, spec.heads, q, d), (batch, spec.kv_heads, kv, d), (batch, spec.kv_heads, kv, d))

    def inputs(device: str, seed: int) -> Inputs:
        drawn = tuple(normal(s, dtype, device, 3 * seed + i) for i, s in enumerate(shapes))
        return (*drawn, documents(kv).expand(batch, kv).contiguous().to(device)) if spec.documents else drawn

    # float64 scores of the sample stay below 2 GiB: whole batch entries, else one group of heads of the first entry
    scores = 8 * spec.heads * q * kv
    whole = max(1, min(batch, (2 << 30) // scores)) if scores <= 2 << 30 else 0
    group = spec.heads // spec.kv_heads

    def sample(args: Inputs) -> Inputs:
        if whole:
            return tuple(a[:whole] for a in args)
        return args[0][:1, :group], args[1][:1, :1], args[2][:1, :1], *(a[:1] for a in args[3:])

    def pick(out: Any) -> Any:
        return out[:whole] if whole else out[:1, :group]

    module = Plain if spec.plain else Spelled
    sample_note = (f"batch 0:{whole} of {batch}" if whole < batch else "all") if whole else f"heads 0:{group} of batch 0"
    sub = spec if whole else replace(spec, heads=group, kv_heads=1)
    return Case(
        workload, name, dtype, {"batch": batch, "heads": spec.heads, "kv_heads": spec.kv_heads, "q": q, "kv": kv, "d": d},
        build=lambda: module(spec), inputs=inputs, flops=4 * batch * spec.heads * visible(spec, q, kv) * d,
        bytes=sum(size(s, dtype) for s in shapes) + size(shapes[0], dtype) + 8 * batch * kv * spec.documents, sets=sets,
        note=note, attention=spec,
        sample=sample, pick=pick, sample_note=sample_note, sample_build=None if whole else lambda: _narrow(module, spec, sub),
    )


def _narrow(module: type[torch.nn.Module], spec: Attention, sub: Attention) -> torch.nn.Module:
    """The program for the sample's heads: slopes of ALiBi stay those of the whole."""
    part = module(sub)
    if isinstance(part, Spelled):
        part.slopes = Spelled(spec).slopes[: sub.heads]
    return part


def flashlight() -> list[Case]:
    """bfloat16, 16384 places, 16 heads of 64 (and over 2): what Flashlight measures."""
    scale, n = 64 ** -0.5, 16384
    spec = Attention(16, 16, scale)
    kinds = {"vanilla": spec, "alibi": replace(spec, causal=True, alibi=True), "causal": replace(spec, causal=True),
             "softcap": replace(spec, causal=True, softcap=30.0), "window": replace(spec, causal=True, window=256),
             "prefix": replace(spec, causal=True, prefix=256), "document": replace(spec, documents=True)}
    out = []
    for name, kind in kinds.items():
        out += [make("attention", f"{name}-d64-{n}{tail}", replace(kind, kv_heads=g), 1, n, n, 64, "bf16", ("flashlight",))
                for g, tail in ((16, ""), (2, "-grouped"))]
        if name in ("prefix", "document"):
            small = replace(kind, heads=4, kv_heads=2, scale=0.25, prefix=20 if kind.prefix else 0)
            out.append(make("attention", f"{name}-smoke", small, 2, 48, 48, 16, "bf16", ("smoke",)))
    return out


def cases() -> list[Case]:
    """Causal, GQA, ALiBi, soft-cap and window at fp16, batch 1; prefill over S and decode of one row against S."""
    d = 128
    scale = d ** -0.5
    family = {
        "global": Attention(32, 32, scale),
        "causal": Attention(32, 32, scale, causal=True),
        "gqa": Attention(64, 8, scale, causal=True),
        "alibi": Attention(32, 32, scale, causal=True, alibi=True),
        "softcap": Attention(32, 16, scale, causal=True, softcap=50.0),
        "window": Attention(32, 16, scale, causal=True, window=4096),
    }
    out = []
    for name, spec in family.items():
        for s in (512, 1024, 2048, 4096, 8192, 16384, 32768):
            sets = ("paper", "headline") if s == 8192 else ("paper",)
            out.append(make("attention", f"{name}-prefill-{s}", spec, 1, s, s, d, sets=sets))
            sets = ("paper", "headline") if s == 32768 else ("paper",)
            out.append(make("attention", f"{name}-decode-{s}", spec, 1, 1, s, d, sets=sets))
        small = Attention(4, 4 * spec.kv_heads // spec.heads or 1, 0.25, spec.causal, 20 if spec.window else 0, spec.softcap,
                          spec.alibi)
        out.append(make("attention", f"{name}-smoke", small, 2, 48, 48, 16, sets=("smoke",)))
        out.append(make("attention", f"{name}-decode-smoke", small, 2, 1, 48, 16, sets=("smoke",)))
    return out + flashlight()
