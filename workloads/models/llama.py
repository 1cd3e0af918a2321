"""A LLaMA-style stack (RMSNorm, rotary positions, grouped attention, SwiGLU) in plain PyTorch, for prefill and for one decode
step against a KV cache."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from workloads.case import Case, Inputs, normal, size
from workloads.models.common import drawn, model_case

LLAMA_8B = {"hidden": 4096, "heads": 32, "kv_heads": 8, "intermediate": 14336}


class RMSNorm(torch.nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.float()
        return self.weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Layer(torch.nn.Module):
    """One decoder layer. ``past`` is the keys and values [b, kv_heads, past, d] before this step, or None."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, intermediate: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.d = heads, kv_heads, hidden // heads
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False)  # noqa: E731
        self.norm1, self.norm2 = RMSNorm(hidden), RMSNorm(hidden)
        self.q, self.o = linear(hidden, hidden), linear(hidden, hidden)
        self.k, self.v = linear(hidden, kv_heads * self.d), linear(hidden, kv_heads * self.d)
        self.gate, self.up, self.down = linear(hidden, intermediate), linear(hidden, intermediate), linear(intermediate, hidden)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, past: tuple[torch.Tensor, torch.Tensor] | None,
                ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        b, s, _ = x.shape
        h = self.norm1(x)
        q, k, v = (p(h).view(b, s, -1, self.d).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        keys, values = (k, v) if past is None else (torch.cat((past[0], k), 2), torch.cat((past[1], v), 2))
        group = self.heads // self.kv_heads
        a = functional.scaled_dot_product_attention(q, keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1),
                                                    is_causal=past is None)
        x = x + self.o(a.transpose(1, 2).reshape(b, s, -1))
        h = self.norm2(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h)), k, v


class Stack(torch.nn.Module):
    """A LLaMA-style decoder stack from hidden states to hidden states; ``past`` > 0 makes it one decode step, which takes
    the caches [layers, 2, b, kv_heads, past, d] and also returns the new keys and values [layers, 2, b, kv_heads, 1, d]."""

    def __init__(self, layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, length: int, past: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(hidden, heads, kv_heads, intermediate) for _ in range(layers))
        self.norm = RMSNorm(hidden)
        d = hidden // heads
        angle = torch.arange(past, past + length)[:, None] * 500000.0 ** (-torch.arange(0, d, 2) / d)
        self.register_buffer("cos", torch.cat((angle, angle), -1).cos())
        self.register_buffer("sin", torch.cat((angle, angle), -1).sin())

    def forward(self, x: torch.Tensor, caches: torch.Tensor | None = None) -> Any:
        new = []
        for i, layer in enumerate(self.layers):
            x, k, v = layer(x, self.cos, self.sin, None if caches is None else (caches[i, 0], caches[i, 1]))
            new.append(torch.stack((k, v)))
        x = self.norm(x)
        return x if caches is None else (x, torch.stack(new))


def llama(length: int, past: int, dtype: str = "f16", layers: int = 4, **shape: int) -> torch.nn.Module:
    return drawn(lambda: Stack(layers, **{**LLAMA_8B, **shape}, length=length, past=past), dtype)


def llama_case(name: str, batch: int, length: int, past: int, sets: tuple[str, ...], dtype: str = "f16", layers: int = 4,
               **shape: int) -> Case:
    c = {**LLAMA_8B, **shape}
    n, h, g, ff = c["hidden"], c["heads"], c["kv_heads"], c["intermediate"]
    d = n // h
    caches = (layers, 2, batch, g, past, d)
    weights = layers * (2 * n * n + 2 * n * g * d + 3 * n * ff)
    pairs = sum(range(past + 1, past + length + 1))

    def inputs(device: str, seed: int) -> Inputs:
        x = normal((batch, length, n), dtype, device, 2 * seed)
        return (x, normal(caches, dtype, device, 2 * seed + 1)) if past else (x,)

    moved = 2 * weights + 2 * size((batch, length, n), dtype) + (size(caches, dtype) if past else 0)
    return model_case(name, dtype, batch, lambda: llama(length, past, dtype, layers, **shape), inputs,
                      2 * weights * batch * length + 4 * layers * batch * n * pairs, moved,
                      {"batch": batch, "length": length, "past": past, "layers": layers}, sets,
                      batch_dims=(0, 2) if past else (0,), out_dims=(0, 2) if past else (0,))


def cases() -> list[Case]:
    small = {"hidden": 64, "heads": 4, "kv_heads": 2, "intermediate": 96}
    return [
        llama_case("llama4-prefill", 1, 2048, 0, ("paper",)),
        llama_case("llama4-decode", 1, 1, 4095, ("paper",)),
        llama_case("llama4-decode-b8", 8, 1, 4095, ("paper",)),
        llama_case("llama-smoke", 2, 24, 0, ("smoke",), "f32", 2, **small),
        llama_case("llama-decode-smoke", 2, 1, 23, ("smoke",), "f32", 2, **small),
    ]
