"""What a machine without a GPU is asked for, in float32: rows, attention, and models at the sizes that people run there."""

from __future__ import annotations

from dataclasses import replace

import torch

from workloads import attention, norms
from workloads.case import Attention, Case
from workloads.models import encoders, language

ROWS = (("softmax", 1024, 1024), ("softmax", 4096, 4096), ("softmax", 32, 32768), ("log-softmax", 1024, 1024),
        ("log-softmax", 4096, 4096), ("layernorm", 4096, 768), ("layernorm", 8192, 4096), ("rmsnorm", 4096, 768),
        ("rmsnorm", 8192, 4096))
"""(function, rows, columns)."""
ATTENTION = {
    "512": (1, 12, 12, 512, 64, False), "1024": (4, 8, 8, 1024, 64, False), "1024-causal": (4, 8, 8, 1024, 64, True),
    "d128": (1, 8, 8, 1024, 128, False), "d128-causal": (1, 8, 8, 1024, 128, True), "grouped": (1, 16, 4, 1024, 64, True),
    "smoke": (1, 2, 1, 40, 16, True),
}
"""(batch, heads, heads of keys, tokens, columns of a head, causal)."""


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(x, -1)


def rows(name: str, n: int, columns: int) -> Case:
    if name != "log-softmax":
        return norms.rowwise(name, n, columns, "f32", ())
    like = norms.rowwise("softmax", n, columns, "f32", ())
    return replace(like, name=f"{name}-{n}x{columns}", build=lambda: norms.Function(log_softmax))


def attended(name: str, batch: int, heads: int, kv_heads: int, tokens: int, d: int, causal: bool) -> Case:
    spec = Attention(heads, kv_heads, d ** -0.5, causal)
    return attention.make("cpu", f"attention-{name}", spec, batch, tokens, tokens, d, "f32")


def models() -> list[Case]:
    sizes = [(batch, tokens) for batch in (1, 4) for tokens in (128, 512)]
    bert = [encoders.bert_case(f"bert-base-{b}x{n}", b, n, (), "f32") for b, n in sizes]
    return [*bert, encoders.image_case("vit-small", encoders.vit, encoders.VIT_BASE, 1, (), "f32", hidden_size=384,
                                       num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536),
            language.gpt2_case("gpt2", 1, 256, (), "f32", n_embd=768, n_layer=12, n_head=12)]


def cases() -> list[Case]:
    found = [*(rows(*r) for r in ROWS), *(attended(name, *a) for name, a in ATTENTION.items()), *models()]
    return [replace(c, workload="cpu", sets=("smoke" if "smoke" in c.name else "cpu",)) for c in found]
