"""Ten models that nothing was tuned for, from transformers' own configurations with fewer layers: what a user may come with.

Operations are counted from below: linear layers at the fewest rows that they have, nothing of attention or convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from workloads.case import Case, normal, size
from workloads.models.common import Result, drawn, model_case, tokens_of

WORDS = 32000


@dataclass(frozen=True)
class Other:
    """``family``: the stem of transformers' classes. ``shape``: of the argument. ``rows``: that linear layers see at least, of
    all the batch; ``weights``: elements of theirs. ``fixed``: further arguments of a call."""

    name: str
    family: str
    argument: str
    dtype: str
    shape: tuple[int, ...]
    rows: int
    weights: int
    config: dict[str, Any]
    attention: str = "sdpa"
    fixed: tuple[tuple[str, Any], ...] = ()

    def module(self) -> torch.nn.Module:
        import transformers

        config = getattr(transformers, f"{self.family}Config")(**self.config, attn_implementation=self.attention)
        return drawn(lambda: Result(getattr(transformers, f"{self.family}Model")(config), self.argument, **dict(self.fixed)),
                     self.dtype)

    def inputs(self) -> Callable[[str, int], tuple[torch.Tensor, ...]]:
        if self.argument == "input_ids":
            batch, length = self.shape
            return tokens_of(batch, length, WORDS)
        return lambda device, seed: (normal(self.shape, self.dtype, device, seed),)

    def case(self, kind: str = "others") -> Case:
        given = 8 * prod(self.shape) if self.argument == "input_ids" else size(self.shape, self.dtype)
        return model_case(self.name, self.dtype, self.shape[0], self.module, self.inputs(), 2 * self.rows * self.weights,
                          2 * self.weights + given, {"shape": str(self.shape)}, (kind,))


ALONE = (("use_cache", False),)
IMAGES = (32, 3, 224, 224)
OTHERS = (
    Other("modernbert", "ModernBert", "input_ids", "bf16", (8, 1024), 8192, 30_081_024,
          {"vocab_size": WORDS, "num_hidden_layers": 6, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
           "cls_token_id": 1, "sep_token_id": 2}),
    Other("phi3", "Phi3", "input_ids", "bf16", (1, 2048), 2048, 452_984_832,
          {"vocab_size": WORDS, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 4,
           "num_attention_heads": 32, "pad_token_id": 0}, fixed=ALONE),
    Other("bloom", "Bloom", "input_ids", "f16", (4, 1024), 4096, 75_497_472,
          {"vocab_size": WORDS, "hidden_size": 1024, "n_layer": 6, "n_head": 16}, "eager", ALONE),
    Other("gpt-neox", "GPTNeoX", "input_ids", "f16", (2, 2048), 4096, 201_326_592,
          {"vocab_size": WORDS, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4,
           "num_attention_heads": 16, "rotary_pct": 0.25}, fixed=ALONE),
    Other("falcon", "Falcon", "input_ids", "bf16", (2, 1024), 2048, 213_516_288,
          {"vocab_size": WORDS, "hidden_size": 2304, "num_hidden_layers": 4, "num_attention_heads": 36, "num_kv_heads": 1,
           "multi_query": True, "parallel_attn": True, "alibi": False, "bias": False}, fixed=ALONE),
    Other("deberta", "DebertaV2", "input_ids", "f16", (8, 512), 4096, 28_311_552,
          {"vocab_size": WORDS, "hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12,
           "intermediate_size": 3072, "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm",
           "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0, "position_biased_input": False,
           "max_relative_positions": -1}, "eager"),
    Other("beit", "Beit", "pixel_values", "f16", IMAGES, 32 * 197, 42_467_328,
          {"num_hidden_layers": 6, "use_relative_position_bias": True}),
    Other("swin", "Swin", "pixel_values", "f16", IMAGES, 32 * 49, 27_426_816, {}),
    Other("convnext", "ConvNext", "pixel_values", "f16", IMAGES, 32 * 49, 25_878_528, {}, "eager"),
    Other("wav2vec2", "Wav2Vec2", "input_values", "f16", (8, 80000), 8 * 249, 42_860_544,
          {"num_hidden_layers": 6, "apply_spec_augment": False}),
)


def cases() -> list[Case]:
    return [o.case() for o in OTHERS]
