"""Decoders from transformers, prefill without a cache: GPT-2 medium, Qwen3, Gemma2."""

from __future__ import annotations

from typing import Any

import torch

from workloads.case import Case, size
from workloads.models.common import Result, drawn, flops_of, model_case, tokens_of, unmasked

GPT2_MEDIUM = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 1024, "n_layer": 24, "n_head": 16}
QWEN3 = {"vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
         "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 6}
GEMMA2 = {"vocab_size": 32000, "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8,
          "num_key_value_heads": 4, "head_dim": 256, "num_hidden_layers": 4, "sliding_window": 4096}


def gpt2(dtype: str = "f16", **changes: Any) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(**{**GPT2_MEDIUM, **changes}, attn_implementation=unmasked())
    return drawn(lambda: Result(GPT2Model(config), "input_ids", use_cache=False), dtype)


def qwen3(dtype: str = "bf16", **changes: Any) -> torch.nn.Module:
    """Qwen3-0.6B, some of its layers: norms of queries and keys, grouped attention, SwiGLU."""
    from transformers import Qwen3Config, Qwen3Model

    config = Qwen3Config(**{**QWEN3, **changes}, attn_implementation=unmasked())
    return drawn(lambda: Result(Qwen3Model(config), "input_ids", use_cache=False), dtype)


def gemma2(dtype: str = "bf16", **changes: Any) -> torch.nn.Module:
    """Gemma2-2B, some of its layers: soft-capped scores, every second layer with a window, norms before and behind, GeGLU."""
    from transformers import Gemma2Config, Gemma2Model

    config = Gemma2Config(**{**GEMMA2, **changes}, attn_implementation=unmasked())
    return drawn(lambda: Result(Gemma2Model(config), "input_ids", use_cache=False), dtype)


# -- cases -------------------------------------------------------------------------------------------------------------


def pairs(batch: int, length: int) -> int:
    """Pairs of query and key that causal attention sees."""
    return batch * length * (length + 1) // 2


def gpt2_case(name: str, batch: int, length: int, sets: tuple[str, ...], dtype: str = "f16", **changes: Any) -> Case:
    c = {**GPT2_MEDIUM, **changes}
    n, layers = c["n_embd"], c["n_layer"]
    weights = layers * 12 * n * n
    return model_case(name, dtype, batch, lambda: gpt2(dtype, **changes), tokens_of(batch, length, c["vocab_size"]),
                      flops_of(batch * length, weights, layers * pairs(batch, length), n),
                      2 * weights + 2 * size((batch, length, n), dtype), {"batch": batch, "length": length}, sets)


def gated_case(name: str, make: Any, base: dict[str, Any], batch: int, length: int, sets: tuple[str, ...], dtype: str = "bf16",
               **changes: Any) -> Case:
    """A decoder with grouped attention and a gated feed-forward."""
    c = {**base, **changes}
    n, ff, h, g, d, layers = (c[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
                                             "head_dim", "num_hidden_layers"))
    weights = layers * (2 * n * (h + g) * d + 3 * n * ff)
    return model_case(name, dtype, batch, lambda: make(dtype, **changes), tokens_of(batch, length, c["vocab_size"]),
                      flops_of(batch * length, weights, layers * pairs(batch, length), h * d),
                      2 * weights + 2 * size((batch, length, n), dtype),
                      {"batch": batch, "length": length, "layers": layers}, sets)


def cases() -> list[Case]:
    small = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 16, "num_hidden_layers": 2}
    return [
        gpt2_case("gpt2-medium", 8, 1024, ("paper",)),
        gated_case("qwen3", qwen3, QWEN3, 4, 2048, ("paper",)),
        gated_case("gemma2", gemma2, GEMMA2, 1, 4096, ("paper",)),
        gpt2_case("gpt2-smoke", 2, 24, ("smoke",), "f32", vocab_size=128, n_positions=32, n_embd=64, n_layer=2, n_head=4),
        gated_case("qwen3-smoke", qwen3, QWEN3, 2, 24, ("smoke",), "f32", **small),
        gated_case("gemma2-smoke", gemma2, GEMMA2, 2, 24, ("smoke",), "f32", **small, sliding_window=8),
    ]
