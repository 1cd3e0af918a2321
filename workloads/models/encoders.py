"""Encoders from transformers: BERT-base, ViT-B/16, Whisper, T5 and CLIP's two towers."""

from __future__ import annotations

from typing import Any

import torch

from workloads.case import Case, normal, size
from workloads.models.common import Result, drawn, flops_of, model_case, tokens_of, unmasked

BERT_BASE = {"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
             "intermediate_size": 3072, "max_position_embeddings": 512}
VIT_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
            "image_size": 224, "patch_size": 16}
WHISPER_BASE = {"d_model": 512, "encoder_layers": 6, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048, "num_mel_bins": 80,
                "max_source_positions": 1500, "decoder_layers": 1, "decoder_ffn_dim": 64, "decoder_attention_heads": 8,
                "vocab_size": 64, "pad_token_id": 0}
T5_BASE = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "vocab_size": 32128}
CLIP_TEXT = {"vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
             "num_attention_heads": 8, "max_position_embeddings": 77}
CLIP_VISION = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
               "image_size": 224, "patch_size": 14}


def bert(dtype: str = "f16", **changes: Any) -> torch.nn.Module:
    """BERT without its pooler."""
    from transformers import BertConfig, BertModel

    config = BertConfig(**{**BERT_BASE, **changes}, attn_implementation=unmasked())
    return drawn(lambda: Result(BertModel(config, add_pooling_layer=False), "input_ids"), dtype)


def vit(dtype: str = "f16", **changes: Any) -> torch.nn.Module:
    """ViT without its pooler."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(**{**VIT_BASE, **changes}, attn_implementation=unmasked())
    return drawn(lambda: Result(ViTModel(config, add_pooling_layer=False), "pixel_values"), dtype)


def whisper(dtype: str = "f16", **changes: Any) -> torch.nn.Module:
    """Whisper's encoder, from mel spectrograms."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(**{**WHISPER_BASE, **changes}, attn_implementation=unmasked())
    return drawn(lambda: Result(WhisperEncoder(config), "input_features"), dtype)


def t5(dtype: str = "bf16", **changes: Any) -> torch.nn.Module:
    """T5's encoder: RMS norms, a bias of relative positions, no scale. In float16 it looks for infinities on the host."""
    from transformers import T5Config, T5EncoderModel

    config = T5Config(**{**T5_BASE, **changes}, use_cache=False, attn_implementation=unmasked())
    return drawn(lambda: Result(T5EncoderModel(config), "input_ids"), dtype)


def clip_text(dtype: str = "f16", **changes: Any) -> torch.nn.Module:
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(**{**CLIP_TEXT, **changes}, attn_implementation=unmasked())
    return drawn(lambda: Result(CLIPTextModel(config), "input_ids"), dtype)


def clip_vision(dtype: str = "f16", **changes: Any) -> torch.nn.Module:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(**{**CLIP_VISION, **changes}, attn_implementation=unmasked())
    return drawn(lambda: Result(CLIPVisionModel(config), "pixel_values"), dtype)


# -- cases -------------------------------------------------------------------------------------------------------------


def layer_weights(n: int, ff: int, layers: int) -> int:
    """Elements of the matrices of encoder layers: four projections and a feed-forward of two."""
    return layers * (4 * n * n + 2 * n * ff)


def bert_case(name: str, batch: int, tokens: int, sets: tuple[str, ...], dtype: str = "f16", **changes: Any) -> Case:
    c = {**BERT_BASE, **changes}
    n, ff, layers = c["hidden_size"], c["intermediate_size"], c["num_hidden_layers"]
    weights = layer_weights(n, ff, layers)
    return model_case(name, dtype, batch, lambda: bert(dtype, **changes), tokens_of(batch, tokens, c["vocab_size"]),
                      flops_of(batch * tokens, weights, layers * batch * tokens ** 2, n),
                      2 * (weights + tokens * n) + 2 * size((batch, tokens, n), dtype), {"batch": batch, "tokens": tokens},
                      sets)


def image_case(name: str, make: Any, base: dict[str, Any], batch: int, sets: tuple[str, ...], dtype: str = "f16",
               **changes: Any) -> Case:
    """A vision transformer: patches of an image and a class token."""
    c = {**base, **changes}
    n, ff, layers, side, patch = (c[k] for k in ("hidden_size", "intermediate_size", "num_hidden_layers", "image_size",
                                                 "patch_size"))
    tokens = (side // patch) ** 2 + 1
    shape = (batch, 3, side, side)
    embed = n * 3 * patch * patch
    weights = layer_weights(n, ff, layers)
    return model_case(name, dtype, batch, lambda: make(dtype, **changes),
                      lambda device, seed: (normal(shape, dtype, device, seed),),
                      flops_of(batch * tokens, weights, layers * batch * tokens ** 2, n) + 2 * batch * (tokens - 1) * embed,
                      2 * (weights + embed) + size(shape, dtype) + size((batch, tokens, n), dtype),
                      {"batch": batch, "tokens": tokens}, sets)


def whisper_case(name: str, batch: int, sets: tuple[str, ...], dtype: str = "f16", **changes: Any) -> Case:
    c = {**WHISPER_BASE, **changes}
    n, ff, layers, mels, tokens = (c[k] for k in ("d_model", "encoder_ffn_dim", "encoder_layers", "num_mel_bins",
                                                  "max_source_positions"))
    shape = (batch, mels, 2 * tokens)
    weights = layer_weights(n, ff, layers)
    stem = 2 * batch * tokens * 3 * n * (2 * mels + n)
    return model_case(name, dtype, batch, lambda: whisper(dtype, **changes),
                      lambda device, seed: (normal(shape, dtype, device, seed),),
                      flops_of(batch * tokens, weights, layers * batch * tokens ** 2, n) + stem,
                      2 * weights + size(shape, dtype) + size((batch, tokens, n), dtype),
                      {"batch": batch, "tokens": tokens}, sets)


def t5_case(name: str, batch: int, tokens: int, sets: tuple[str, ...], dtype: str = "bf16", **changes: Any) -> Case:
    c = {**T5_BASE, **changes}
    n, ff, layers, inner = c["d_model"], c["d_ff"], c["num_layers"], c["num_heads"] * c["d_kv"]
    weights = layers * (4 * n * inner + 2 * n * ff)
    return model_case(name, dtype, batch, lambda: t5(dtype, **changes), tokens_of(batch, tokens, c["vocab_size"]),
                      flops_of(batch * tokens, weights, layers * batch * tokens ** 2, inner),
                      2 * weights + 2 * size((batch, tokens, n), dtype), {"batch": batch, "tokens": tokens}, sets)


def clip_text_case(name: str, batch: int, sets: tuple[str, ...], dtype: str = "f16", **changes: Any) -> Case:
    c = {**CLIP_TEXT, **changes}
    n, ff, layers, tokens = (c[k] for k in ("hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"))
    weights = layer_weights(n, ff, layers)
    return model_case(name, dtype, batch, lambda: clip_text(dtype, **changes), tokens_of(batch, tokens, c["vocab_size"]),
                      flops_of(batch * tokens, weights, layers * batch * tokens * (tokens + 1) // 2, n),
                      2 * weights + 2 * size((batch, tokens, n), dtype), {"batch": batch, "tokens": tokens}, sets)


def cases() -> list[Case]:
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    image = {**small, "image_size": 32, "patch_size": 8}
    return [
        bert_case("bert-base", 32, 512, ("paper",)),
        image_case("vit-b16", vit, VIT_BASE, 32, ("paper",)),
        whisper_case("whisper-encoder", 8, ("paper",)),
        t5_case("t5-encoder", 16, 512, ("paper",)),
        clip_text_case("clip-text", 64, ("paper",)),
        image_case("clip-vision", clip_vision, CLIP_VISION, 16, ("paper",)),
        bert_case("bert-smoke", 2, 20, ("smoke",), "f32", **small, vocab_size=128, max_position_embeddings=64),
        image_case("vit-smoke", vit, VIT_BASE, 2, ("smoke",), "f32", **image),
        whisper_case("whisper-smoke", 2, ("smoke",), "f32", d_model=64, encoder_layers=2, encoder_attention_heads=4,
                     encoder_ffn_dim=96, num_mel_bins=16, max_source_positions=20),
        t5_case("t5-smoke", 2, 20, ("smoke",), "f32", d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, vocab_size=128),
        clip_text_case("clip-text-smoke", 2, ("smoke",), "f32", **small, vocab_size=128, max_position_embeddings=20),
        image_case("clip-vision-smoke", clip_vision, CLIP_VISION, 2, ("smoke",), "f32", **image),
    ]
