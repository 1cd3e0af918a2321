"""Block stacks with experts from transformers: Qwen3-MoE and DeepSeek-V3, the latter narrower than life."""

from __future__ import annotations

from typing import Any

import torch

from workloads.case import Case, size
from workloads.models.common import Result, drawn, flops_of, model_case, tokens_of, unmasked
from workloads.models.language import pairs

QWEN3_MOE = {"vocab_size": 32000, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
             "num_hidden_layers": 2, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
             "intermediate_size": 6144}
DEEPSEEK = {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "moe_intermediate_size": 1024,
            "num_hidden_layers": 2, "first_k_dense_replace": 1, "num_attention_heads": 32, "q_lora_rank": 1536,
            "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64,
            "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "n_shared_experts": 1}


def qwen3_moe(dtype: str = "bf16", **changes: Any) -> torch.nn.Module:
    """Qwen3-30B-A3B, some of its layers: a softmax router, the best 8 of 128 experts, grouped products."""
    from transformers import Qwen3MoeConfig, Qwen3MoeModel

    config = Qwen3MoeConfig(**{**QWEN3_MOE, **changes}, decoder_sparse_step=1, norm_topk_prob=True,
                            attn_implementation=unmasked(), experts_implementation="grouped_mm")
    return drawn(lambda: Result(Qwen3MoeModel(config), "input_ids", use_cache=False), dtype)


def deepseek(dtype: str = "bf16", **changes: Any) -> torch.nn.Module:
    """DeepSeek-V3's blocks, a dense one and one of experts: latent attention, a sigmoid router over groups of experts, a shared
    expert. The hidden size is 2048 instead of 7168, with 32 heads for 128 and 64 experts for 256."""
    from transformers import DeepseekV3Config, DeepseekV3Model

    config = DeepseekV3Config(**{"num_key_value_heads": 32, **DEEPSEEK, **changes}, attn_implementation=unmasked(),
                              experts_implementation="grouped_mm")
    return drawn(lambda: Result(DeepseekV3Model(config), "input_ids", use_cache=False), dtype)


# -- cases -------------------------------------------------------------------------------------------------------------


def qwen3_moe_case(name: str, batch: int, length: int, sets: tuple[str, ...], dtype: str = "bf16", **changes: Any) -> Case:
    c = {**QWEN3_MOE, **changes}
    n, h, g, d, layers, e, top, ff = (c[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
                                                     "num_hidden_layers", "num_experts", "num_experts_per_tok",
                                                     "moe_intermediate_size"))
    always = layers * (2 * n * (h + g) * d + n * e)
    return model_case(name, dtype, batch, lambda: qwen3_moe(dtype, **changes), tokens_of(batch, length, c["vocab_size"]),
                      flops_of(batch * length, always + layers * top * 3 * n * ff, layers * pairs(batch, length), h * d),
                      2 * (always + layers * e * 3 * n * ff) + 2 * size((batch, length, n), dtype),
                      {"batch": batch, "length": length, "layers": layers}, sets)


def deepseek_case(name: str, batch: int, length: int, sets: tuple[str, ...], dtype: str = "bf16", **changes: Any) -> Case:
    c = {**DEEPSEEK, **changes}
    n, h, layers, dense, e, top, ff = (c[k] for k in ("hidden_size", "num_attention_heads", "num_hidden_layers",
                                                      "first_k_dense_replace", "n_routed_experts", "num_experts_per_tok",
                                                      "moe_intermediate_size"))
    nope, rope, v, q_rank, rank = (c[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank",
                                                  "kv_lora_rank"))
    attention = n * q_rank + q_rank * h * (nope + rope) + n * (rank + rope) + rank * h * (nope + v) + h * v * n
    always = layers * attention + dense * 3 * n * c["intermediate_size"] + (layers - dense) * (n * e + 3 * n * ff)
    return model_case(name, dtype, batch, lambda: deepseek(dtype, **changes), tokens_of(batch, length, c["vocab_size"]),
                      2 * batch * length * (always + (layers - dense) * top * 3 * n * ff)
                      + 2 * layers * pairs(batch, length) * h * (nope + rope + v),
                      2 * (always + (layers - dense) * e * 3 * n * ff) + 2 * size((batch, length, n), dtype),
                      {"batch": batch, "length": length, "layers": layers}, sets)


def cases() -> list[Case]:
    small = {"vocab_size": 128, "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 96,
             "moe_intermediate_size": 32, "num_experts_per_tok": 2}
    return [
        qwen3_moe_case("qwen3-moe", 2, 2048, ("paper",)),
        deepseek_case("deepseek-v3", 2, 2048, ("paper",)),
        qwen3_moe_case("qwen3-moe-smoke", 2, 24, ("smoke",), "f32", **small, num_key_value_heads=2, head_dim=16, num_experts=8),
        deepseek_case("deepseek-smoke", 2, 24, ("smoke",), "f32", **small, num_key_value_heads=4, q_lora_rank=32,
                      kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16, n_routed_experts=8, n_group=4,
                      topk_group=2),
    ]
