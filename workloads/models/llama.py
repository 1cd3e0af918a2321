"""Whole models with random weights: BERT-base and ViT-B/16 from their public configurations, and a LLaMA-style stack
(RMSNorm, rotary positions, grouped attention, SwiGLU) for prefill and for one decode step against a KV cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.nn import functional

from workloads.case import DTYPES, Case, Inputs, normal, size

BERT_BASE = {"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
             "intermediate_size": 3072, "max_position_embeddings": 512}
VIT_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
            "image_size": 224, "patch_size": 16}
LLAMA_8B = {"hidden": 4096, "heads": 32, "kv_heads": 8, "intermediate": 14336}


class LastHidden(torch.nn.Module):
    """A transformers model whose result is its last hidden state."""

    def __init__(self, model: torch.nn.Module, argument: str) -> None:
        super().__init__()
        self.model, self.argument = model, argument

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(**{self.argument: x}).last_hidden_state


@lru_cache(maxsize=1)
def unmasked() -> str:
    """The name of an attention for encoders whose tokens all count: plain SDPA. Where a graph is traced or captured,
    transformers' own writes out a mask that hides nothing, and with it every baseline loses its fast attention kernel."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    def attend(module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, scaling: float | None = None,
               **_: Any) -> tuple[torch.Tensor, None]:
        return functional.scaled_dot_product_attention(q, k, v, scale=scaling).transpose(1, 2).contiguous(), None

    AttentionInterface.register("redfuser_unmasked", attend)
    AttentionMaskInterface.register("redfuser_unmasked", lambda *_, **__: None)
    return "redfuser_unmasked"


def bert(dtype: str = "f16", **changes: Any) -> torch.nn.Module:
    """BERT without its pooler, weights from seed 0."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(**{**BERT_BASE, **changes}, attn_implementation=unmasked())
    return LastHidden(BertModel(config, add_pooling_layer=False), "input_ids").eval().to(DTYPES[dtype])


def vit(dtype: str = "f16", **changes: Any) -> torch.nn.Module:
    """ViT without its pooler, weights from seed 0."""
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    config = ViTConfig(**{**VIT_BASE, **changes}, attn_implementation=unmasked())
    return LastHidden(ViTModel(config, add_pooling_layer=False), "pixel_values").eval().to(DTYPES[dtype])


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
    """The stack, weights from seed 0, scaled so that hidden states stay of order one."""
    torch.manual_seed(0)
    return Stack(layers, **{**LLAMA_8B, **shape}, length=length, past=past).eval().to(DTYPES[dtype])


# -- cases -------------------------------------------------------------------------------------------------------------


def model_case(name: str, dtype: str, batch: int, build: Callable[[], torch.nn.Module], inputs: Callable[[str, int], Inputs],
               flops: int, moved: int, params: dict[str, Any], sets: tuple[str, ...], batch_dims: tuple[int, ...] = (0,),
               out_dims: tuple[int, ...] = (0,)) -> Case:
    """A model case whose float64 sample is the first ``keep`` entries of the batch; the dims say where each argument and
    result carries the batch."""
    keep = min(batch, 2)

    def narrow(values: Any, dims: tuple[int, ...]) -> tuple[Any, ...]:
        values = values if isinstance(values, tuple) else (values,)
        return tuple(v.narrow(d, 0, keep) for v, d in zip(values, dims, strict=True))

    def pick(out: Any) -> Any:
        return narrow(out, out_dims)

    return Case("models", name, dtype, params, build=lru_cache(maxsize=1)(build), inputs=inputs, flops=flops, bytes=moved,
                sets=sets, sample=lambda args: narrow(args, batch_dims), pick=pick,
                sample_note="all" if keep == batch else f"batch 0:{keep} of {batch}")


def encoder_flops(batch: int, tokens: int, hidden: int, intermediate: int, layers: int) -> int:
    """Contractions of a BERT-like encoder: four projections, two attention contractions, two feed-forward ones."""
    return layers * batch * (8 * tokens * hidden ** 2 + 4 * tokens ** 2 * hidden + 4 * tokens * hidden * intermediate)


def bert_case(name: str, batch: int, tokens: int, sets: tuple[str, ...], dtype: str = "f16", **changes: Any) -> Case:
    c = {**BERT_BASE, **changes}
    n, ff, layers = c["hidden_size"], c["intermediate_size"], c["num_hidden_layers"]
    weights = 2 * (layers * (4 * n * n + 2 * n * ff) + tokens * n)

    def inputs(device: str, seed: int) -> Inputs:
        generator = torch.Generator(device).manual_seed(seed)
        return (torch.randint(0, c["vocab_size"], (batch, tokens), generator=generator, device=device),)

    return model_case(name, dtype, batch, lambda: bert(dtype, **changes), inputs, encoder_flops(batch, tokens, n, ff, layers),
                      weights + 2 * size((batch, tokens, n), dtype), {"batch": batch, "tokens": tokens}, sets)


def vit_case(name: str, batch: int, sets: tuple[str, ...], dtype: str = "f16", **changes: Any) -> Case:
    c = {**VIT_BASE, **changes}
    n, ff, layers, side, patch = (c[k] for k in ("hidden_size", "intermediate_size", "num_hidden_layers", "image_size",
                                                 "patch_size"))
    tokens = (side // patch) ** 2 + 1
    shape = (batch, 3, side, side)
    embed = 2 * batch * (tokens - 1) * n * 3 * patch * patch
    weights = 2 * (layers * (4 * n * n + 2 * n * ff) + n * 3 * patch * patch)
    return model_case(name, dtype, batch, lambda: vit(dtype, **changes),
                      lambda device, seed: (normal(shape, dtype, device, seed),),
                      encoder_flops(batch, tokens, n, ff, layers) + embed,
                      weights + size(shape, dtype) + size((batch, tokens, n), dtype), {"batch": batch, "tokens": tokens}, sets)


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
    encoder = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    return [
        bert_case("bert-base", 32, 512, ("paper",)),
        vit_case("vit-b16", 32, ("paper",)),
        llama_case("llama4-prefill", 1, 2048, 0, ("paper",)),
        llama_case("llama4-decode", 1, 1, 4095, ("paper",)),
        llama_case("llama4-decode-b8", 8, 1, 4095, ("paper",)),
        bert_case("bert-smoke", 2, 20, ("smoke",), "f32", **encoder, vocab_size=128, max_position_embeddings=64),
        vit_case("vit-smoke", 2, ("smoke",), "f32", **encoder, image_size=32, patch_size=8),
        llama_case("llama-smoke", 2, 24, 0, ("smoke",), "f32", 2, **small),
        llama_case("llama-decode-smoke", 2, 1, 23, ("smoke",), "f32", 2, **small),
    ]
