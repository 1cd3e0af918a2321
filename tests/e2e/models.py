"""The model zoo: real architectures from their public configurations, random weights, shrunk in depth and vocabulary.

Head counts and head dimensions are the real ones, hidden sizes where two cores allow; short sequences. Every function
returns ``(module, example inputs)`` with the module in eval mode; weights are seeded and depend on the arguments alone.

* ``dtype``: of the weights (and of floating inputs); inputs of language models are token ids.
* ``attention``: transformers' implementation, ``"sdpa"`` or ``"eager"`` (a manual softmax with its masks and casts).
* ``experts``: transformers' MoE implementation, ``"batched_mm"`` or ``"grouped_mm"`` (the eager one cannot be exported).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

Example = tuple[nn.Module, tuple[Tensor, ...]]


class Hidden(nn.Module):
    """A transformers encoder as a function of its first input (and a padding mask) to its last hidden state."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        inputs = {self.name: x} if attention_mask is None else {self.name: x, "attention_mask": attention_mask}
        return self.model(**inputs).last_hidden_state


class Logits(nn.Module):
    """A transformers language model as a function of token ids (and a padding mask) to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits


class Decode(nn.Module):
    """One decode step: the next token's ids and one key and one value tensor per layer ``[batch, heads, past, dim]`` in;
    logits and the grown cache out, in the same order."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, *cache: Tensor) -> tuple[Tensor, ...]:
        from transformers import DynamicCache

        past = DynamicCache(ddp_cache_data=list(zip(cache[::2], cache[1::2], strict=True)))
        out = self.model(input_ids=input_ids, past_key_values=past, use_cache=True)
        grown = [t for layer in out.past_key_values.layers for t in (layer.keys, layer.values)]
        return (out.logits, *grown)


def _ready(make: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:  # transformers draws all of them again
        patch.setattr(nn.Linear, "reset_parameters", lambda _: None)
        model = make()
    # the default initialisation gives almost uniform attention; these weights make the scores spread over a few units
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1 and ("q_proj" in name or "k_proj" in name or "query" in name or "key" in name):
                p.mul_(3.0)
    return model.eval().to(dtype)


def _ids(batch: int, seq: int, vocab: int) -> Tensor:
    return torch.randint(0, vocab, (batch, seq), generator=torch.Generator().manual_seed(1))


def bert_base(dtype: torch.dtype = torch.float32, attention: str = "sdpa", batch: int = 2, seq: int = 16,
              layers: int = 1, vocab: int = 512, padded: bool = False) -> Example:
    """BERT-base: 12 heads of 64. ``padded`` adds a padding mask input whose last quarter is padding."""
    from transformers import BertConfig, BertModel

    config = BertConfig(num_hidden_layers=layers, vocab_size=vocab, attn_implementation=attention)
    module = Hidden(_ready(lambda: BertModel(config, add_pooling_layer=False), dtype), "input_ids")
    return module, _padding(_ids(batch, seq, vocab), padded)


def vit_base(dtype: torch.dtype = torch.float32, attention: str = "sdpa", batch: int = 1, image: int = 224,
             layers: int = 1) -> Example:
    """ViT-B/16: 12 heads of 64, 197 tokens at 224 pixels."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(num_hidden_layers=layers, image_size=image, attn_implementation=attention)
    module = Hidden(_ready(lambda: ViTModel(config, add_pooling_layer=False), dtype), "pixel_values")
    return module, (torch.randn(batch, 3, image, image, generator=torch.Generator().manual_seed(1)).to(dtype),)


def _llama_config(attention: str, layers: int, vocab: int, intermediate: int = 8192) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(hidden_size=2048, intermediate_size=intermediate, num_attention_heads=32, num_key_value_heads=8,
                       head_dim=64, num_hidden_layers=layers, vocab_size=vocab, attn_implementation=attention)


def llama(dtype: torch.dtype = torch.float32, attention: str = "sdpa", batch: int = 1, seq: int = 16, layers: int = 1,
          vocab: int = 512, padded: bool = False, intermediate: int = 8192) -> Example:
    """LLaMA-3.2-1B's shape, prefill: 32 heads of 64 over 8 key/value heads. ``padded``: left padding as data."""
    from transformers import LlamaForCausalLM

    config = _llama_config(attention, layers, vocab, intermediate)
    module = Logits(_ready(lambda: LlamaForCausalLM(config), dtype))
    return module, _padding(_ids(batch, seq, vocab), padded, left=True)


def llama_decode(dtype: torch.dtype = torch.float32, attention: str = "sdpa", batch: int = 2, past: int = 24,
                 layers: int = 1, vocab: int = 512) -> Example:
    """LLaMA-3.2-1B's shape, one token against a cache of ``past`` tokens given as tensors."""
    from transformers import LlamaForCausalLM

    module = Decode(_ready(lambda: LlamaForCausalLM(_llama_config(attention, layers, vocab)), dtype))
    g = torch.Generator().manual_seed(2)
    cache = [torch.randn(batch, 8, past, 64, generator=g).to(dtype) for _ in range(2 * layers)]
    return module, (_ids(batch, 1, vocab), *cache)


def qwen3(dtype: torch.dtype = torch.float32, attention: str = "sdpa", batch: int = 1, seq: int = 16, layers: int = 1,
          vocab: int = 512) -> Example:
    """Qwen3-0.6B: 16 heads of 128 over 8, query and key norms."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(hidden_size=1024, intermediate_size=3072, num_attention_heads=16, num_key_value_heads=8,
                         head_dim=128, num_hidden_layers=layers, vocab_size=vocab, attn_implementation=attention)
    return Logits(_ready(lambda: Qwen3ForCausalLM(config), dtype)), (_ids(batch, seq, vocab),)


def gemma2(dtype: torch.dtype = torch.float32, attention: str = "eager", batch: int = 1, seq: int = 24, layers: int = 2,
           vocab: int = 512) -> Example:
    """Gemma2-2B: 8 heads of 256 over 4, soft-capped scores; the first layer has a sliding window (8 here, so that it
    bites at this length), the second none. transformers offers it with eager attention only."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(hidden_size=2304, intermediate_size=2304, num_attention_heads=8, num_key_value_heads=4,
                          head_dim=256, num_hidden_layers=layers, vocab_size=vocab, sliding_window=8,
                          attn_implementation=attention)
    return Logits(_ready(lambda: Gemma2ForCausalLM(config), dtype)), (_ids(batch, seq, vocab),)


def qwen3_moe(dtype: torch.dtype = torch.float32, attention: str = "sdpa", experts: str = "batched_mm", batch: int = 1,
              seq: int = 8, layers: int = 1, vocab: int = 512) -> Example:
    """Qwen3-30B-A3B: 32 heads of 128 over 4, softmax router of 128 experts (narrow ones here), top 8."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(hidden_size=2048, num_attention_heads=32, num_key_value_heads=4, head_dim=128,
                            num_hidden_layers=layers, vocab_size=vocab, num_experts=128, num_experts_per_tok=8,
                            moe_intermediate_size=32, intermediate_size=1024, decoder_sparse_step=1,
                            norm_topk_prob=True, attn_implementation=attention, experts_implementation=experts)
    return Logits(_ready(lambda: Qwen3MoeForCausalLM(config), dtype)), (_ids(batch, seq, vocab),)


def mixtral(dtype: torch.dtype = torch.float32, attention: str = "sdpa", experts: str = "batched_mm", batch: int = 1,
            seq: int = 8, layers: int = 1, vocab: int = 512) -> Example:
    """Mixtral-8x7B: 32 heads of 128 over 8, hidden size 4096, router of 8 experts (narrow ones here), top 2."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(hidden_size=4096, intermediate_size=128, num_attention_heads=32, num_key_value_heads=8,
                           num_hidden_layers=layers, vocab_size=vocab, num_local_experts=8, num_experts_per_tok=2,
                           attn_implementation=attention, experts_implementation=experts)
    return Logits(_ready(lambda: MixtralForCausalLM(config), dtype)), (_ids(batch, seq, vocab),)


def deepseek_v3(dtype: torch.dtype = torch.float32, attention: str = "sdpa", experts: str = "batched_mm",
                batch: int = 1, seq: int = 8, layers: int = 1, vocab: int = 512) -> Example:
    """DeepSeek-V3: latent attention with 128 heads of 128 + 64 (values 128), sigmoid router with groups, top 8. The
    hidden size is 1024 instead of 7168, and 64 narrow experts stand for 256."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(hidden_size=1024, intermediate_size=1024, moe_intermediate_size=32,
                              num_hidden_layers=layers, first_k_dense_replace=0, num_attention_heads=128,
                              num_key_value_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
                              qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=64, num_experts_per_tok=8,
                              n_group=8, topk_group=4, n_shared_experts=1, vocab_size=vocab,
                              attn_implementation=attention, experts_implementation=experts)
    return Logits(_ready(lambda: DeepseekV3ForCausalLM(config), dtype)), (_ids(batch, seq, vocab),)


def _padding(ids: Tensor, padded: bool, left: bool = False) -> tuple[Tensor, ...]:
    if not padded:
        return (ids,)
    mask = torch.ones_like(ids)
    n = max(1, ids.shape[1] // 4)
    mask[0, : n] = 0 if left else 1
    mask[0, -n:] = 1 if left else 0
    return ids, mask


MODELS: dict[str, Callable[..., Example]] = {
    "bert": bert_base, "vit": vit_base, "llama": llama, "llama-decode": llama_decode, "qwen3": qwen3, "gemma2": gemma2,
    "qwen3-moe": qwen3_moe, "mixtral": mixtral, "deepseek-v3": deepseek_v3,
}
"""Every model by its short name."""
