"""Thirty-two more models that nothing was tuned for. FURTHER: partial and interleaved rotary embeddings, parallel blocks, norms
behind sums, windows, ALiBi, relative positions, layer scale, attention over reduced keys, experts, sinks. ODDER: convolutions
between tokens, local windows, pools, Fourier transforms, unrolled scans, conformers."""

from __future__ import annotations

from workloads.case import Case
from workloads.models.others import ALONE, IMAGES, WORDS, Other

ENDS = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WIDE = {**ENDS, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4, "num_attention_heads": 16}
BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 6, "num_attention_heads": 12}

FURTHER = (
    Other("mistral", "Mistral", "input_ids", "bf16", (1, 4096), 4096, 436_207_616,
          {**ENDS, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 2, "num_attention_heads": 32,
           "num_key_value_heads": 8, "sliding_window": 1024}, fixed=ALONE),
    Other("olmo2", "Olmo2", "input_ids", "bf16", (2, 2048), 4096, 268_435_456, WIDE, fixed=ALONE),
    Other("phi2", "Phi", "input_ids", "f16", (2, 1024), 2048, 314_572_800,
          {**WIDE, "hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 32, "partial_rotary_factor": 0.4},
          fixed=ALONE),
    Other("cohere", "Cohere", "input_ids", "bf16", (2, 1024), 2048, 268_435_456, WIDE, fixed=ALONE),
    Other("opt", "OPT", "input_ids", "f16", (2, 1024), 2048, 201_326_592,
          {**ENDS, "hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 4, "num_attention_heads": 32,
           "word_embed_proj_dim": 2048}, fixed=ALONE),
    Other("mpt", "Mpt", "input_ids", "bf16", (2, 1024), 2048, 201_326_592,
          {"vocab_size": WORDS, "d_model": 2048, "n_heads": 16, "n_layers": 4}, "eager", ALONE),
    Other("gptj", "GPTJ", "input_ids", "f16", (2, 1024), 2048, 201_326_592,
          {"vocab_size": WORDS, "n_embd": 2048, "n_layer": 4, "n_head": 16, "rotary_dim": 64, "bos_token_id": 1,
           "eos_token_id": 2}, "eager", ALONE),
    Other("roberta", "Roberta", "input_ids", "f16", (16, 510), 8160, 75_497_472,
          {**ENDS, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6, "num_attention_heads": 16}),
    Other("mpnet", "MPNet", "input_ids", "f16", (16, 510), 8160, 42_467_328, {**ENDS, **BASE}, "eager"),
    Other("esm2", "Esm", "input_ids", "f16", (8, 512), 4096, 78_643_200,
          {**ENDS, "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 4, "num_attention_heads": 20,
           "position_embedding_type": "rotary", "token_dropout": False, "mask_token_id": 3}),
    Other("dinov2", "Dinov2", "pixel_values", "f16", IMAGES, 32 * 257, 42_467_328,
          {"num_hidden_layers": 6, "patch_size": 14, "image_size": 224}),
    Other("siglip", "SiglipVision", "pixel_values", "f16", IMAGES, 32 * 196, 42_467_328, BASE),
    Other("segformer", "Segformer", "pixel_values", "f16", (8, 3, 512, 512), 8 * 256, 2_310_144, {}, "eager"),
    Other("gemma3", "Gemma3Text", "input_ids", "bf16", (2, 2048), 4096, 107_347_968,
          {**ENDS, "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 4, "num_attention_heads": 4,
           "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512}, fixed=ALONE),
    Other("mixtral", "Mixtral", "input_ids", "bf16", (1, 1024), 1024, 121_634_816,
          {**ENDS, "hidden_size": 2048, "intermediate_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 16,
           "num_key_value_heads": 4}, fixed=ALONE),
    Other("gpt-oss", "GptOss", "input_ids", "bf16", (1, 1024), 1024, 30_408_704,
          {**ENDS, "hidden_size": 1024, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16,
           "num_key_value_heads": 4, "head_dim": 64, "num_local_experts": 8}, "eager", ALONE),
)
ODDER = (
    Other("pvt2", "PvtV2", "pixel_values", "f16", (16, 3, 224, 224), 784, 2_392_064, {}, "eager"),
    Other("cvt", "Cvt", "pixel_values", "f16", (16, 3, 224, 224), 800, 18_628_608, {}, "eager"),
    Other("mobilevit", "MobileViT", "pixel_values", "f16", (16, 3, 256, 256), 1024, 2_893_824, {}, "eager"),
    Other("levit", "Levit", "pixel_values", "f16", IMAGES, 512, 8_290_304, {}, "eager"),
    Other("swin2", "Swinv2", "pixel_values", "f16", (16, 3, 256, 256), 1024, 27_509_760,
          {"image_size": 256, "window_size": 8}, "eager"),
    Other("poolformer", "PoolFormer", "pixel_values", "f16", (16, 3, 224, 224), 16, 0, {}, "eager"),
    Other("convnext2", "ConvNextV2", "pixel_values", "f16", (16, 3, 224, 224), 784, 25_878_528, {}, "eager"),
    Other("videomae", "VideoMAE", "pixel_values", "f16", (2, 16, 3, 224, 224), 3136, 42_467_328, {"num_hidden_layers": 6}),
    Other("conformer", "Wav2Vec2Conformer", "input_values", "f16", (8, 80000), 1992, 47_579_136,
          {"num_hidden_layers": 4, "apply_spec_augment": False, "position_embeddings_type": "rotary"}, "eager"),
    Other("hubert", "Hubert", "input_values", "f16", (8, 80000), 1992, 28_704_768,
          {"num_hidden_layers": 4, "apply_spec_augment": False}),
    Other("albert", "Albert", "input_ids", "f16", (16, 512), 8192, 13_762_560,
          {**ENDS, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 4}),
    Other("olmoe", "Olmoe", "input_ids", "bf16", (1, 1024), 1024, 8_388_608,
          {**ENDS, "hidden_size": 1024, "intermediate_size": 512, "num_hidden_layers": 2,
           "num_attention_heads": 16, "num_experts": 16}, fixed=ALONE),
    Other("fnet", "FNet", "input_ids", "f32", (8, 512), 4096, 18_874_368, {**ENDS, "num_hidden_layers": 4}, "eager"),
    Other("mobilebert", "MobileBert", "input_ids", "f16", (16, 384), 6144, 5_472_256,
          {**ENDS, "num_hidden_layers": 6}, "eager"),
    Other("mamba", "Mamba", "input_ids", "f32", (1, 64), 64, 3_342_336,
          {**ENDS, "hidden_size": 512, "num_hidden_layers": 2}, "eager", fixed=ALONE),
    Other("dpt", "DPT", "pixel_values", "f16", (8, 3, 384, 384), 4616, 42_467_328,
          {"num_hidden_layers": 6, "is_hybrid": False}),
)


def cases() -> list[Case]:
    return [*(o.case("further") for o in FURTHER), *(o.case("odder") for o in ODDER)]
