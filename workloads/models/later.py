"""Twenty more of transformers' models that nothing was tuned for: chunks and windows of keys, embeddings of each layer, state
spaces beside experts, cosines of windows, groups of channels, pyramids, conformers, spectrograms.

Weights are elements of linear layers, of experts none; convolutions count nothing."""

from __future__ import annotations

from workloads.case import Case
from workloads.models.further import ENDS, WIDE
from workloads.models.others import ALONE, Other
from workloads.models.unseen import Part

TWO = {**WIDE, "num_hidden_layers": 2}
FEWER = (16, 3, 224, 224)
SMALL = {**ENDS, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 3, "num_attention_heads": 12}
LATER = (
    Other("llama-4", "Llama4Text", "input_ids", "bf16", (2, 1024), 2048, 83_902_464,
          {**TWO, "intermediate_size_mlp": 8192, "intermediate_size": 2048, "num_key_value_heads": 4, "head_dim": 128,
           "num_local_experts": 8, "interleave_moe_layer_step": 2, "attention_chunk_size": 512}, fixed=ALONE),
    Other("gemma4", "Gemma4Text", "input_ids", "bf16", (2, 1024), 2048, 141_557_760,
          {**TWO, "num_key_value_heads": 4, "head_dim": 256, "num_attention_heads": 8, "vocab_size_per_layer_input": 32000,
           "layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 0}, fixed=ALONE),
    Other("roformer", "RoFormer", "input_ids", "f16", (8, 512), 4096, 21_233_664, {**SMALL, "embedding_size": 768}, "eager"),
    Other("squeezebert", "SqueezeBert", "input_ids", "f16", (8, 512), 4096, 589_824, {**SMALL, "embedding_size": 768}, "eager"),
    Other("bigcode", "GPTBigCode", "input_ids", "bf16", (2, 1024), 2048, 127_401_984,
          {"vocab_size": 32000, "n_embd": 2048, "n_layer": 3, "n_head": 16}, fixed=ALONE),
    Other("granite-hybrid", "GraniteMoeHybrid", "input_ids", "bf16", (2, 512), 1024, 15_499_264,
          {**TWO, "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 512,
           "shared_intermediate_size": 1024, "num_local_experts": 8, "num_experts_per_tok": 2, "mamba_n_heads": 32,
           "mamba_d_state": 128, "position_embedding_type": "rope", "layer_types": ["mamba", "attention"]}, fixed=ALONE),
    Other("glm4-lite", "Glm4MoeLite", "input_ids", "bf16", (1, 1024), 1024, 76_808_192,
          {**TWO, "num_key_value_heads": 16, "intermediate_size": 6144, "moe_intermediate_size": 512, "n_routed_experts": 16,
           "num_experts_per_tok": 4, "mlp_layer_types": ["dense", "sparse"]}, fixed=ALONE),
    Other("zamba2", "Zamba2", "input_ids", "bf16", (2, 512), 1024, 48_857_088,
          {**TWO, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8, "num_key_value_heads": 8,
           "num_hidden_layers": 3, "layers_block_type": ["mamba", "mamba", "hybrid"], "n_mamba_heads": 32,
           "use_mamba_kernels": False, "hybrid_layer_ids": [2]}, fixed=ALONE),
    Other("nanochat", "NanoChat", "input_ids", "bf16", (2, 1024), 2048, 92_274_688,
          {**TWO, "num_key_value_heads": 8}, fixed=ALONE),
    Other("exaone4", "Exaone4", "input_ids", "bf16", (1, 4096), 4096, 121_634_816,
          {**TWO, "num_key_value_heads": 4, "sliding_window": 1024,
           "layer_types": ["sliding_attention", "full_attention"]}, fixed=ALONE),
    Other("swinv2", "Swinv2", "pixel_values", "f16", FEWER, 784, 20_403_200, {"depths": [2, 2, 2, 2]}, "eager"),
    Other("regnet", "RegNet", "pixel_values", "f16", FEWER, 784, 0, {}, "eager"),
    Other("resnet18", "ResNet", "pixel_values", "f16", FEWER, 784, 0, {"depths": [2, 2, 2, 2], "layer_type": "basic",
          "hidden_sizes": [64, 128, 256, 512], "embedding_size": 64}, "eager"),
    Part("superpoint", "SuperPoint", "input", "f16", (4, 1, 480, 640), 1, 0, {}, "eager", kind="ForKeypointDetection",
         inside="encoder"),
    Other("sew", "SEW", "input_values", "f16", (4, 80000), 496, 29_884_416,
          {"num_hidden_layers": 4, "apply_spec_augment": False}, "eager"),
    Other("w2v-conformer", "Wav2Vec2Conformer", "input_values", "f16", (4, 80000), 996, 37_552_128,
          {"num_hidden_layers": 3, "apply_spec_augment": False, "position_embeddings_type": "relative"}, "eager"),
    Other("w2v-bert", "Wav2Vec2Bert", "input_features", "f16", (4, 512, 160), 2048, 63_078_400,
          {"num_hidden_layers": 3, "apply_spec_augment": False}, "eager"),
    Other("ast", "AST", "input_values", "f16", (8, 1024, 128), 9712, 28_311_552, {"num_hidden_layers": 4}),
    Other("sam2", "Sam2Vision", "pixel_values", "f16", (2, 3, 512, 512), 512, 26_763_264,
          {"backbone_config": {"model_type": "sam2_hiera_det_model", "image_size": [512, 512]},
           "backbone_feature_sizes": [[128, 128], [64, 64], [32, 32]]}, "eager"),
    Other("olmo3", "Olmo3", "input_ids", "bf16", (1, 4096), 4096, 121_634_816,
          {**TWO, "num_key_value_heads": 4, "sliding_window": 1024,
           "layer_types": ["sliding_attention", "full_attention"]}, fixed=ALONE),
)


def cases() -> list[Case]:
    return [o.case("later") for o in LATER]
