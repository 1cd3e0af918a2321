"""torch's fast path for encoders, written out: two operators that ``nn.TransformerEncoderLayer`` and
``nn.MultiheadAttention`` call in place of their parts where nobody asks for gradients. torch has no decomposition of either.

    _native_multi_head_attention(x, x, x, ...)  -->  linear, softmax(q k^T, without what the mask names) v, linear
    _transformer_encoder_layer_fwd(x, ...)      -->  that, two layer norms and two linear layers

As torch's kernels have it: a mask says with whatever is not 0 what is hidden (also one of floats, whose values count for
nothing else), and a row that is hidden whole is NaN.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from redfuser.frontend import untracked

SOURCE, PADDING = 0, 1
"""Kinds of masks: (queries, keys), and (batch, keys). Any other has the shape of the scores."""


def native_multi_head_attention(
        query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor, qkv_bias: Tensor,
        proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True,
        average_attn_weights: bool = True, mask_type: int | None = None) -> tuple[Tensor, Tensor | None]:
    """The result of (batch, queries, embed_dim), and the weights where they are wanted."""
    width = embed_dim // num_head

    def heads(x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[1], num_head, width).transpose(1, 2)

    if query is key and key is value:
        q, k, v = F.linear(query, qkv_weight, qkv_bias).split(embed_dim, -1)
    else:
        parts = zip((query, key, value), qkv_weight.split(embed_dim), qkv_bias.split(embed_dim), strict=True)
        q, k, v = (F.linear(x, w, b) for x, w, b in parts)
    scores = (heads(q) * width ** -0.5) @ heads(k).transpose(-1, -2)
    if mask is not None:
        hidden = mask.to(torch.bool)
        scores = scores.masked_fill(hidden[:, None, None] if mask_type == PADDING else hidden, -torch.inf)
    weights = torch.softmax(scores, -1)
    result = F.linear((weights @ heads(v)).transpose(1, 2).reshape(query.shape), proj_weight, proj_bias)
    if not need_weights:
        return result, None
    return result, weights.mean(1) if average_attn_weights else weights


def transformer_encoder_layer(
        src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor,
        proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Tensor, norm_bias_1: Tensor,
        norm_weight_2: Tensor, norm_bias_2: Tensor, ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor,
        ffn_bias_2: Tensor, mask: Tensor | None = None, mask_type: int | None = None) -> Tensor:
    """A layer's result, of ``src``'s shape. On a GPU torch's GELU of this operator is the one with a tanh, as in torch's own
    decomposition of ``_addmm_activation``."""
    def norm_1(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attention(x: Tensor) -> Tensor:
        return native_multi_head_attention(x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask,
                                           False, True, mask_type)[0]

    def feed_forward(x: Tensor) -> Tensor:
        x = F.linear(x, ffn_weight_1, ffn_bias_1)
        x = F.gelu(x, approximate="tanh" if x.is_cuda else "none") if use_gelu else F.relu(x)
        return F.linear(x, ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attention(norm_1(src))
        return x + feed_forward(norm_2(x))
    x = norm_1(src + attention(src))
    return norm_2(x + feed_forward(x))


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._native_multi_head_attention.default: native_multi_head_attention,
    torch.ops.aten._transformer_encoder_layer_fwd.default: transformer_encoder_layer,
}
"""For the table of a program's decompositions."""

_CALLED: dict[Any, Callable[..., Any]] = {
    **DECOMPOSITIONS,
    torch._native_multi_head_attention: native_multi_head_attention,
    torch._transformer_encoder_layer_fwd: transformer_encoder_layer,
    **untracked.CALLED,
}


def written_out(gm: fx.GraphModule) -> fx.GraphModule:
    """``gm`` with these functions for the operators; ``gm`` itself where it holds none. The graph that was given is left as it
    was: what is not ours goes on with it."""
    if not any(n.op == "call_function" and n.target in _CALLED for n in gm.graph.nodes):
        return gm
    graph = copy.deepcopy(gm.graph)
    for node in graph.nodes:
        if node.op == "call_function":
            node.target = _CALLED.get(node.target, node.target)
    return fx.GraphModule(gm, graph)
