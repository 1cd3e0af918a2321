"""MHA: softmax(q kT / sqrt(d)) v in fp16, the encoder prefill (H1-H6) and decode (H7-H9) shapes of the RedFuser paper,
and the causal prefill of long prompts."""

from __future__ import annotations

from workloads.attention import make
from workloads.case import Attention, Case

# name: (batch, heads, queries, keys, head dim, the model it comes from)
PAPER = {
    "H1": (32, 8, 512, 512, 64, "BERT-Small"),
    "H2": (32, 12, 512, 512, 64, "BERT-Base"),
    "H3": (32, 16, 512, 512, 64, "BERT-Large"),
    "H4": (32, 12, 256, 256, 64, "ViT-Base"),
    "H5": (32, 16, 256, 256, 64, "ViT-Large"),
    "H6": (32, 16, 256, 256, 80, "ViT-Huge"),
    "H7": (32, 64, 1, 1024, 128, "LLaMA-65B decode"),
    "H8": (32, 64, 1, 2048, 128, "LLaMA-65B decode"),
    "H9": (32, 64, 1, 4096, 128, "LLaMA-65B decode"),
}


def cases() -> list[Case]:
    out = [make("mha", name, Attention(h, h, d ** -0.5), b, q, kv, d, note=model)
           for name, (b, h, q, kv, d, model) in PAPER.items()]
    causal = Attention(32, 32, 128 ** -0.5, causal=True)
    out.append(make("mha", "causal-8192", causal, 1, 8192, 8192, 128, sets=("long",), note="32 heads, one prompt"))
    grouped = Attention(64, 8, 128 ** -0.5)
    out += [make("mha", f"gqa-decode-{kv}", grouped, 8, 1, kv, 128, sets=("long",), note="64 heads over 8")
            for kv in (4096, 32768)]
    out.append(make("mha", "gqa-decode-64x4096", grouped, 64, 1, 4096, 128, sets=("long",), note="64 heads over 8"))
    out += [make("mha", f"{name}d64-4096", Attention(16, 16, 0.125, causal=name != ""), 4, 4096, 4096, 64, sets=("long",))
            for name in ("", "causal-")]
    out += [
        make("mha", "smoke-64", Attention(4, 4, 0.125), 2, 80, 80, 64, sets=("smoke",)),
        make("mha", "smoke-80", Attention(2, 2, 80 ** -0.5), 2, 33, 65, 80, sets=("smoke",)),
        make("mha", "smoke-decode", Attention(4, 4, 0.125), 2, 1, 96, 64, sets=("smoke",)),
    ]
    return out
