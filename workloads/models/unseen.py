"""Twenty-two more of transformers' models that nothing was tuned for: delta rules and lightning, keys that an indexer chooses,
state spaces beside attention, streams that mix, sparse and landmark and pooled attention over long texts, characters, layouts,
video in three axes, detectors with deformable attention, mobile convolutions, codecs and vocoders.

Weights are elements of linear layers, and of as many experts' as a token meets; convolutions count nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from workloads.case import Case
from workloads.models.common import drawn, unmasked
from workloads.models.further import ENDS, WIDE
from workloads.models.others import ALONE, IMAGES, Other


class Named(torch.nn.Module):
    """A transformers model as a function of one tensor to the result of a name."""

    def __init__(self, model: torch.nn.Module, argument: str, result: str, fixed: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.argument, self.result, self.fixed = model, argument, result, fixed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = getattr(self.model(**{self.argument: x}, **self.fixed), self.result)
        return found


@dataclass(frozen=True)
class Part(Other):
    """``kind``: the class of the family that is taken. ``inside``: the part of it. ``result``: the name of what that gives."""

    kind: str = "Model"
    inside: str = ""
    result: str = "last_hidden_state"

    def module(self) -> torch.nn.Module:
        import transformers

        unmasked()  # an attention that a configuration may name

        def made() -> torch.nn.Module:
            config = getattr(transformers, f"{self.family}Config")(**self.config, attn_implementation=self.attention)
            model = getattr(transformers, f"{self.family}{self.kind}")(config)
            return Named(model.get_submodule(self.inside), self.argument, self.result, dict(self.fixed))

        return drawn(made, self.dtype)


UNSEEN = (
    Other("qwen3.5", "Qwen3_5Text", "input_ids", "bf16", (2, 256), 512, 39_878_656,
          {**WIDE, "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 2, "num_attention_heads": 8,
           "num_key_value_heads": 2, "linear_num_value_heads": 16, "layer_types": ["linear_attention", "full_attention"]},
          fixed=ALONE),
    Other("kimi-linear", "KimiLinear", "input_ids", "bf16", (2, 256), 512, 42_827_776,
          {**WIDE, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 8,
           "num_key_value_heads": 8, "moe_intermediate_size": 512, "num_local_experts": 16, "num_experts_per_tok": 4,
           "layer_types": ["linear_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse"]},
          fixed=ALONE),
    Other("minimax", "MiniMax", "input_ids", "bf16", (1, 1024), 1024, 132_120_576,
          {**WIDE, "intermediate_size": 4096, "num_hidden_layers": 2, "num_key_value_heads": 4,
           "layer_types": ["linear_attention", "full_attention"]}, fixed=ALONE),
    Other("falcon-h1", "FalconH1", "input_ids", "bf16", (2, 512), 1024, 27_836_416,
          {**WIDE, "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 8,
           "num_key_value_heads": 2, "mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_state": 128, "mamba_chunk_size": 256},
          fixed=ALONE),
    Other("bitnet", "BitNet", "input_ids", "bf16", (2, 1024), 2048, 277_872_640,
          {**WIDE, "hidden_size": 2560, "intermediate_size": 6912, "num_attention_heads": 20, "num_key_value_heads": 5},
          fixed=ALONE),
    Other("diffllama", "DiffLlama", "input_ids", "bf16", (2, 1024), 2048, 251_658_240,
          {**WIDE, "num_attention_heads": 32, "num_key_value_heads": 16}, fixed=ALONE),
    Other("deepseek-v3.2", "DeepseekV32", "input_ids", "bf16", (1, 1024), 1024, 80_019_456,
          {**WIDE, "intermediate_size": 6144, "num_hidden_layers": 2, "num_key_value_heads": 16, "moe_intermediate_size": 512,
           "n_routed_experts": 16, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4, "q_lora_rank": 768,
           "index_topk": 256, "index_n_heads": 16, "mlp_layer_types": ["dense", "sparse"]}, "eager", ALONE),
    Other("gemma3n", "Gemma3nText", "input_ids", "bf16", (2, 1024), 2048, 275_808_576,
          {**ENDS, "num_hidden_layers": 4, "intermediate_size": 8192, "vocab_size_per_layer_input": 32000,
           "num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
           "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]}, fixed=ALONE),
    Other("bigbird", "BigBird", "input_ids", "f16", (2, 2048), 4096, 21_233_664, {**ENDS, "num_hidden_layers": 3}, "eager"),
    Part("nystromformer", "Nystromformer", "input_ids", "f32", (4, 2048), 8192, 28_311_552,
         {**ENDS, "num_hidden_layers": 4, "max_position_embeddings": 2048, "segment_means_seq_len": 2048}, "redfuser_unmasked"),
    Other("funnel", "Funnel", "input_ids", "f16", (8, 512), 1024, 56_623_104,
          {"vocab_size": 32000, "block_sizes": [2, 2, 2], "pad_token_id": 0}, "eager"),
    Other("canine", "Canine", "input_ids", "f16", (4, 2048), 2048, 42_467_328,
          {"num_hidden_layers": 4, "bos_token_id": 1, "eos_token_id": 2}, "eager"),
    Other("layoutlmv3", "LayoutLMv3", "input_ids", "f16", (16, 510), 8160, 28_311_552,
          {**ENDS, "num_hidden_layers": 4, "visual_embed": False}, "eager"),
    Part("moonshine", "Moonshine", "input_values", "f16", (8, 80000), 1656, 8_306_688,
         {"hidden_size": 416, "intermediate_size": 1664, "encoder_num_hidden_layers": 4}, inside="encoder"),
    Part("dac", "Dac", "input_values", "f32", (2, 1, 32000), 200, 0, {}, "eager", result="audio_values"),
    Part("univnet", "UnivNet", "input_features", "f16", (4, 128, 100), 400, 0, {}, "eager", result="waveforms"),
    Other("rt-detr", "RTDetr", "pixel_values", "f16", (4, 3, 640, 640), 1200, 4_091_392,
          {"decoder_layers": 3, "anchor_image_size": [640, 640]}, "eager"),
    Other("vitdet", "VitDet", "pixel_values", "f16", (2, 3, 512, 512), 2048, 42_467_328,
          {"num_hidden_layers": 6, "image_size": 512, "window_block_indices": [0, 1, 3, 4], "window_size": 14,
           "residual_block_indices": [2, 5], "use_relative_position_embeddings": True}, "eager"),
    Other("vjepa2", "VJEPA2", "pixel_values_videos", "f16", (1, 16, 3, 256, 256), 2048, 50_331_648,
          {"num_hidden_layers": 4, "frames_per_clip": 16, "pred_num_hidden_layers": 2}, fixed=(("skip_predictor", True),)),
    Other("swiftformer", "SwiftFormer", "pixel_values", "f16", IMAGES, 1568, 265_536, {}, "eager"),
    Other("mobilenet2", "MobileNetV2", "pixel_values", "f16", IMAGES, 1568, 0, {}, "eager"),
    Other("patchtsmixer", "PatchTSMixer", "past_values", "f32", (64, 512, 21), 43008, 359_028,
          {"context_length": 512, "patch_length": 16, "patch_stride": 16, "num_input_channels": 21, "d_model": 128,
           "num_layers": 4, "mode": "mix_channel"}, "eager"),
)


def cases() -> list[Case]:
    return [o.case("unseen") for o in UNSEEN]
