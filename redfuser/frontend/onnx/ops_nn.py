"""Contractions, convolutions, normalisations and attention of ONNX, in torch."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from redfuser.frontend.onnx.node import Call, Unsupported, implements

_BRIEF: dict[str, Any] = {
    "MatMul": lambda call, a, b: torch.matmul(a, b),
    "Einsum": lambda call, *xs: torch.einsum(call.get("equation").decode(), *xs),
    "GlobalAveragePool": lambda call, x: torch.mean(x, list(range(2, x.dim())), True),
    "GlobalMaxPool": lambda call, x: torch.amax(x, list(range(2, x.dim())), True),
}
for _name, _h in _BRIEF.items():
    implements(_name)(_h)


@implements("LpNormalization")
def lp_norm(call: Call, x: Tensor) -> Tensor:
    """Rows of zeros stay zero."""
    norm = torch.linalg.vector_norm(x, call.get("p", 2), [call.get("axis", -1)], True)
    return torch.where(norm == 0, 0.0, x / norm)


@implements("Gemm")
def gemm(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a = a.t() if call.get("transA", 0) else a
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    if alpha == 1 and beta == 1 and c is not None and c.dim() == 1:
        # the usual fully connected layer, in one rounding
        return F.linear(a, b if call.get("transB", 0) else b.t(), c)
    b = b.t() if call.get("transB", 0) else b
    if c is None:
        return torch.matmul(a, b) if alpha == 1 else torch.matmul(a, b) * alpha
    return torch.addmm(torch.broadcast_to(c, (a.shape[0], b.shape[1])), a, b, alpha=alpha, beta=beta)


def _padding(call: Call, x: Tensor, kernel: list[int], stride: list[int], dilation: list[int]
             ) -> tuple[list[int], list[int]]:
    auto = call.get("auto_pad", b"NOTSET").decode()
    rank = len(kernel)
    if auto in ("NOTSET", ""):
        pads = list(call.get("pads") or [0] * 2 * rank)
        return pads[:rank], pads[rank:]
    if auto == "VALID":
        return [0] * rank, [0] * rank
    before, after = [], []
    for i, n in enumerate(x.shape[2:]):
        total = max((math.ceil(n / stride[i]) - 1) * stride[i] + (kernel[i] - 1) * dilation[i] + 1 - n, 0)
        small, large = total // 2, total - total // 2
        before.append(small if auto == "SAME_UPPER" else large)
        after.append(large if auto == "SAME_UPPER" else small)
    return before, after


def _padded(x: Tensor, before: list[int], after: list[int], value: float = 0.0) -> tuple[Tensor, list[int]]:
    """Symmetric padding is left to the operator; uneven padding is done first."""
    if before == after:
        return x, before
    flat = [n for b, a in zip(reversed(before), reversed(after), strict=True) for n in (b, a)]
    return F.pad(x, flat, "constant", value), [0] * len(before)


@implements("Conv")
def conv(call: Call, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    rank = w.dim() - 2
    stride, dilation = list(call.get("strides") or [1] * rank), list(call.get("dilations") or [1] * rank)
    x, pad = _padded(x, *_padding(call, x, list(w.shape[2:]), stride, dilation))
    f = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}.get(rank)
    if f is None:
        raise Unsupported(f"a convolution over {rank} dimensions")
    return f(x, w, b, stride, pad, dilation, call.get("group", 1))


@implements("ConvTranspose")
def conv_transpose(call: Call, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    rank = w.dim() - 2
    if call.get("output_shape") or call.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise Unsupported("ConvTranspose with output_shape or auto_pad")
    pads = list(call.get("pads") or [0] * 2 * rank)
    if pads[:rank] != pads[rank:]:
        raise Unsupported("ConvTranspose with uneven padding")
    f = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[rank]
    return f(x, w, b, list(call.get("strides") or [1] * rank), pads[:rank],
             list(call.get("output_padding") or [0] * rank), call.get("group", 1),
             list(call.get("dilations") or [1] * rank))


@implements("MaxPool")
def max_pool(call: Call, x: Tensor) -> Any:
    kernel = list(call.get("kernel_shape"))
    rank = len(kernel)
    stride, dilation = list(call.get("strides") or [1] * rank), list(call.get("dilations") or [1] * rank)
    if call.outputs > 1 or call.get("storage_order", 0):
        raise Unsupported("MaxPool with indices")
    before, after = _padding(call, x, kernel, stride, dilation)
    if any(2 * p > n for p, n in zip(before, kernel, strict=True)):
        raise Unsupported("MaxPool with a padding of more than half a window")
    x, pad = _padded(x, before, after, -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min)
    f = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[rank]
    return f(x, kernel, stride, pad, dilation, bool(call.get("ceil_mode", 0)))


@implements("AveragePool")
def average_pool(call: Call, x: Tensor) -> Tensor:
    kernel = list(call.get("kernel_shape"))
    rank = len(kernel)
    stride = list(call.get("strides") or [1] * rank)
    before, after = _padding(call, x, kernel, stride, [1] * rank)
    wide = any(2 * p > n for p, n in zip(before, kernel, strict=True))
    if wide or before != after or any(d != 1 for d in call.get("dilations") or ()):
        raise Unsupported("AveragePool with uneven padding, a padding of more than half a window, or dilation")
    f = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[rank]
    return f(x, kernel, stride, before, bool(call.get("ceil_mode", 0)), bool(call.get("count_include_pad", 0)))


@implements("LayerNormalization")
def layer_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Any:
    if call.outputs > 1:
        raise Unsupported("LayerNormalization with statistics as results")
    axis = call.get("axis", -1) % x.dim()
    shape = tuple(x.shape[axis:])
    scale = torch.broadcast_to(scale, shape)
    bias = torch.broadcast_to(bias, shape) if bias is not None else None
    return F.layer_norm(x, shape, scale, bias, call.get("epsilon", 1e-5))


@implements("RMSNormalization", "SimplifiedLayerNormalization", "com.microsoft::SimplifiedLayerNormalization")
def rms_norm(call: Call, x: Tensor, scale: Tensor) -> Tensor:
    """Normalised in stash_type (float32), rounded, and only then scaled, as the operator is defined."""
    if call.outputs > 1:
        raise Unsupported("RMSNormalization with statistics as results")
    axis = call.get("axis", -1) % x.dim()
    shape = tuple(x.shape[axis:])
    if x.dtype == torch.float32:
        return F.rms_norm(x, shape, torch.broadcast_to(scale, shape), call.get("epsilon", 1e-5))
    return F.rms_norm(x.float(), shape, None, call.get("epsilon", 1e-5)).to(x.dtype) * scale


@implements("com.microsoft::SkipSimplifiedLayerNormalization")
def skip_rms_norm(call: Call, x: Tensor, skip: Tensor, scale: Tensor, bias: Tensor | None = None) -> Any:
    total = x + skip if bias is None else x + skip + bias
    y = F.rms_norm(total, (x.shape[-1],), scale, call.get("epsilon", 1e-5))
    return (y, None, None, total) if call.outputs > 1 else y


@implements("com.microsoft::SkipLayerNormalization")
def skip_layer_norm(call: Call, x: Tensor, skip: Tensor, scale: Tensor, beta: Tensor | None = None,
                    bias: Tensor | None = None) -> Any:
    total = x + skip if bias is None else x + skip + bias
    y = F.layer_norm(total, (x.shape[-1],), scale, beta, call.get("epsilon", 1e-5))
    return (y, None, None, total) if call.outputs > 1 else y


@implements("GroupNormalization")
def group_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups = call.get("num_groups")
    if call.opset < 21:  # one scale per group, not per channel
        scale, bias = (torch.repeat_interleave(t, x.shape[1] // groups, 0) for t in (scale, bias))
    return F.group_norm(x, groups, scale, bias, call.get("epsilon", 1e-5))


@implements("InstanceNormalization")
def instance_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return F.group_norm(x, x.shape[1], scale, bias, call.get("epsilon", 1e-5))


@implements("BatchNormalization")
def batch_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    if call.get("training_mode", 0) or call.outputs > 1:
        raise Unsupported("BatchNormalization in training mode")
    return F.batch_norm(x, mean, var, scale, bias, False, 0.0, call.get("epsilon", 1e-5))


@implements("Attention")
def attention(call: Call, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, past_key: Tensor | None = None,
              past_value: Tensor | None = None, valid: Tensor | None = None) -> Any:
    """Opset 23: 4-D ``[batch, heads, length, dim]`` or 3-D with the head counts as attributes, shared key/value heads, an
    optional cache (queries come after it), soft-capping before the mask."""
    if valid is not None or call.get("qk_matmul_output_mode", 0) or call.outputs > 3:
        raise Unsupported("Attention with padded caches or with its scores as a result")
    flat = q.dim() == 3
    batch, length = q.shape[0], q.shape[-2]
    if flat:
        heads, shared = call.get("q_num_heads"), call.get("kv_num_heads")
        q = q.reshape(batch, length, heads, -1).transpose(1, 2)
        k = k.reshape(batch, k.shape[1], shared, -1).transpose(1, 2)
        v = v.reshape(batch, v.shape[1], shared, -1).transpose(1, 2)
    if past_key is not None and past_value is not None:
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    scale = call.get("scale") or 1 / math.sqrt(q.shape[-1])
    cap = call.get("softcap", 0.0)
    causal = bool(call.get("is_causal", 0))
    past = past_key.shape[2] if past_key is not None else 0
    if not cap and not (causal and (mask is not None or past)):
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale,
                                           enable_gqa=q.shape[1] != k.shape[1])
    else:
        y = _attention(q, k, v, mask, causal, past, scale, cap)
    if flat:
        y = y.transpose(1, 2).reshape(batch, length, -1)
    return (y, k, v)[: call.outputs] if call.outputs > 1 else y


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, past: int, scale: float,
               cap: float) -> Tensor:
    repeats = q.shape[1] // k.shape[1]
    k, v = (torch.repeat_interleave(t, repeats, 1) if repeats > 1 else t for t in (k, v))
    s = torch.matmul(q.float(), k.float().transpose(-1, -2)) * scale
    if cap:
        s = torch.tanh(s / cap) * cap
    if causal:
        i, j = torch.arange(s.shape[-2], device=s.device)[:, None], torch.arange(s.shape[-1], device=s.device)
        s = torch.where(j <= i + past, s, -math.inf)
    if mask is not None:
        s = torch.where(mask, s, -math.inf) if mask.dtype == torch.bool else s + mask.float()
    p = torch.softmax(s, -1)
    if mask is not None:
        p = torch.where(torch.isnan(p), 0.0, p)  # a row that the mask hides as a whole yields zero
    return torch.matmul(p, v.float()).to(q.dtype)


@implements("RotaryEmbedding")
def rotary(call: Call, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None) -> Tensor:
    """Opset 23, 4-D or 3-D with ``num_heads``."""
    flat = x.dim() == 3
    if flat:
        x = x.reshape(x.shape[0], x.shape[1], call.get("num_heads"), -1).transpose(1, 2)
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    width = call.get("rotary_embedding_dim", 0) or x.shape[-1]
    half = width // 2
    cos, sin = cos[..., :half].unsqueeze(1), sin[..., :half].unsqueeze(1)
    turned, rest = x[..., :width], x[..., width:]
    if call.get("interleaved", 0):
        a, b = turned[..., 0::2], turned[..., 1::2]
        y = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    else:
        a, b = turned[..., :half], turned[..., half:]
        y = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
    y = torch.cat([y, rest], -1) if width < x.shape[-1] else y
    return y.transpose(1, 2).flatten(-2) if flat else y
