"""Sixteen more of transformers' models that nothing was tuned for: cross attention, two streams, sandwiched and one-sided
norms, windows with decomposed positions, focal and depthwise and short convolutions, gated positions, masked units, chunks."""

from __future__ import annotations

from workloads.case import Case
from workloads.models.further import BASE, ENDS, WIDE
from workloads.models.others import ALONE, IMAGES, Other

FEWER = (16, 3, 224, 224)
FRESH = (
    Other("bart", "Bart", "input_ids", "bf16", (8, 512), 4096, 88_080_384,
          {**ENDS, "d_model": 1024, "encoder_layers": 3, "decoder_layers": 3, "forced_eos_token_id": 2,
           "decoder_start_token_id": 2}, fixed=ALONE),
    Other("xlnet", "XLNet", "input_ids", "f16", (8, 512), 4096, 18_874_368,
          {"vocab_size": 32000, "d_model": 768, "n_layer": 4, "n_head": 12, "d_inner": 3072}, "eager", (("use_mems", False),)),
    Other("glm4", "Glm4", "input_ids", "bf16", (2, 1024), 2048, 239_075_328,
          {**WIDE, "num_key_value_heads": 2, "head_dim": 128}, fixed=ALONE),
    Other("starcoder2", "Starcoder2", "input_ids", "bf16", (2, 1024), 2048, 171_966_464,
          {**WIDE, "num_key_value_heads": 2, "sliding_window": None}, fixed=ALONE),
    Other("nemotron", "Nemotron", "input_ids", "bf16", (2, 1024), 2048, 176_160_768,
          {**WIDE, "num_key_value_heads": 4, "head_dim": 128}, fixed=ALONE),
    Other("sam", "SamVision", "pixel_values", "f16", (2, 3, 512, 512), 2048, 42_467_328,
          {"num_hidden_layers": 6, "image_size": 512, "global_attn_indexes": [2, 5]}, "eager"),
    Other("focalnet", "FocalNet", "pixel_values", "f16", FEWER, 784, 23_735_232, {}, "eager"),
    Other("efficientnet", "EfficientNet", "pixel_values", "f16", FEWER, 784, 0,
          {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280, "image_size": 224}, "eager"),
    Other("timesformer", "Timesformer", "pixel_values", "f16", (2, 8, 3, 224, 224), 3136, 40_108_032, {"num_hidden_layers": 4},
          "eager"),
    Other("patchtst", "PatchTST", "past_values", "f32", (32, 512, 21), 672, 591_872,
          {"num_input_channels": 21, "context_length": 512, "patch_length": 16, "patch_stride": 16, "d_model": 128}, "eager"),
    Other("wavlm", "WavLM", "input_values", "f16", (8, 80000), 1992, 28_706_816,
          {"num_hidden_layers": 4, "apply_spec_augment": False}, "eager"),
    Other("lfm2", "Lfm2", "input_ids", "bf16", (2, 1024), 2048, 199_229_440,
          {**WIDE, "num_key_value_heads": 4, "block_ff_dim": 8192, "layer_types": ["conv", "conv", "full_attention", "conv"]},
          fixed=ALONE),
    Other("convbert", "ConvBert", "input_ids", "f16", (8, 512), 4096, 26_035_200, {**ENDS, "num_hidden_layers": 4}, "eager"),
    Other("hiera", "Hiera", "pixel_values", "f16", FEWER, 784, 50_319_360, {}, "eager"),
    Other("mamba2", "Mamba2", "input_ids", "bf16", (2, 512), 1024, 13_172_736,
          {**ENDS, "hidden_size": 1024, "num_heads": 32, "head_dim": 64, "n_groups": 1, "num_hidden_layers": 2},
          "eager", ALONE),
    Other("dinov3", "DINOv3ViT", "pixel_values", "f16", IMAGES, 32 * 196, 42_467_328,
          {**BASE, "patch_size": 16, "image_size": 224}),
)


def cases() -> list[Case]:
    return [o.case("fresh") for o in FRESH]
