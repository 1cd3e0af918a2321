"""What layers of models that nothing was tuned for compute: matrix memories, short convolutions, positions of lines and columns
and shifted ones, class tokens, late interaction, spans, splines, policies."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.correctness.program import TAME, Program, label, made, mask, of, weight


def memory(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
    """xLSTM's mLSTM, parallel and stabilised."""
    s, d = q.shape[-2:]
    total = F.logsigmoid(f).cumsum(-1)
    gates = total[..., :, None] - total[..., None, :] + i[..., None, :]
    gates = gates.masked_fill(~torch.ones(s, s, dtype=torch.bool, device=q.device).tril(), float("-inf"))
    m = gates.max(dim=-1, keepdim=True).values
    c = (q @ k.transpose(-1, -2)).float() * d ** -0.5 * torch.exp(gates - m)
    n = torch.maximum(c.sum(-1, keepdim=True).abs(), torch.exp(-m))
    return (c / (n + 1e-6)).to(v.dtype) @ v


def short(x: Tensor, w: Tensor, wo: Tensor) -> Tensor:
    """LFM2's gated convolution over three tokens."""
    b, c, v = x.transpose(-1, -2).chunk(3, dim=-2)
    y = F.conv1d(b * v, w, padding=w.shape[-1] - 1, groups=w.shape[0])[..., :x.shape[1]]
    return (c * y).transpose(-1, -2).contiguous() @ wo


def causal(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Mamba's."""
    y = F.conv1d(x.transpose(1, 2), w, b, padding=w.shape[-1] - 1, groups=w.shape[0])[..., :x.shape[1]]
    return F.silu(y).transpose(1, 2)


def separate(x: Tensor, w: Tensor, a: Tensor) -> Tensor:
    """Conv-TasNet's: a dilated convolution of each channel, PReLU, a norm over all of the signal."""
    y = F.prelu(F.conv1d(x, w, padding=4, dilation=4, groups=w.shape[0]), a)
    return F.group_norm(y, 1, eps=1e-8)


def lines_and_columns(q: Tensor, k: Tensor, v: Tensor, h: Tensor, w: Tensor) -> Tensor:
    """SAM's attention over an image."""
    b, n, c = q.shape
    r = q.reshape(b, h.shape[0], w.shape[0], c)
    up, along = torch.einsum("bhwc,hkc->bhwk", r, h), torch.einsum("bhwc,wkc->bhwk", r, w)
    s = (q * c ** -0.5) @ k.transpose(-2, -1) + (up[:, :, :, :, None] + along[:, :, :, None, :]).reshape(b, n, n)
    return torch.softmax(s, dim=-1, dtype=torch.float32).to(q.dtype) @ v


def shifted(q: Tensor, k: Tensor, r: Tensor, v: Tensor) -> Tensor:
    """XLNet's relative positions."""
    x = torch.einsum("bid,bjd->bij", q, r)
    b, n, j = x.shape
    x = x.reshape(b, j, n)[:, 1:].reshape(b, n, j - 1)[..., :n]
    return torch.einsum("bij,bjd->bid", torch.softmax((torch.einsum("bid,bjd->bij", q, k) + x) * 0.25, dim=-1), v)


def class_token(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """DINOv3's: rotary positions of all tokens but the first."""
    def turned(x: Tensor) -> Tensor:
        first, x = x.split((1, cos.shape[0]), dim=-2)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((first, x * cos + torch.cat((-b, a), dim=-1) * sin), dim=-2)

    return F.scaled_dot_product_attention(turned(q), turned(k), v)


def late(q: Tensor, d: Tensor, seen: Tensor) -> Tensor:
    """ColBERT's scores."""
    q, d = F.normalize(q, dim=-1), F.normalize(d, dim=-1)
    s = torch.einsum("qie,dje->qdij", q, d).masked_fill(~seen[None, :, None, :], -9.0)
    return s.max(dim=-1).values.sum(-1)


def spans(x: Tensor, w: Tensor, k: Tensor) -> Tensor:
    """ConvBERT's dynamic convolution over five tokens."""
    b, n, _ = x.shape
    y = F.unfold((x @ w).transpose(1, 2)[..., None], (5, 1), padding=(2, 0)).transpose(1, 2).reshape(b * n * 3, -1, 5)
    return (y @ torch.softmax(k.reshape(b * n * 3, 5, 1), dim=1)).reshape(b, n, -1)


def relaxed(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, alpha: float = 32.0) -> Tensor:
    """CogView's attention, and LayoutLMv3's: scores less their maximum, made small while they are halves."""
    s = (q / q.shape[-1] ** 0.5 @ k.mT + bias / q.shape[-1] ** 0.5) / alpha
    return torch.softmax((s - s.amax(-1).unsqueeze(-1)) * alpha, -1) @ v


def splines(x: Tensor, g: Tensor, w: Tensor, base: Tensor) -> Tensor:
    """FastKAN's layer."""
    basis = torch.exp(-((F.layer_norm(x, x.shape[-1:])[..., None] - g) / 0.57) ** 2)
    return basis.flatten(-2) @ w + F.silu(x) @ base


def policy(logits: Tensor, said: Tensor, old: Tensor, ref: Tensor, gain: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """GRPO's loss."""
    logp = torch.log_softmax(logits.float(), dim=-1)
    entropy = -(logp.exp() * logp).sum(-1)
    lp = logp.gather(-1, said[..., None]).squeeze(-1)
    ratio = torch.exp(lp - old)
    advantage = ((gain - gain.mean()) / (gain.std() + 1e-4))[:, None]
    pg = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    kl = torch.exp(ref - lp) - (ref - lp) - 1
    m = seen.float()
    return ((pg + 0.04 * kl) * m).sum(-1) / m.sum(-1), (entropy * m).sum() / m.sum()


def programs() -> Iterator[Program]:
    for t in ("bf16", "f16", "f32"):
        if t != "f32":  # where a sum of signed weights nearly vanishes, eager's own digits are luck
            yield made("fresh", f"{t} 2x70 d32 matrix memory", memory, *(of(x, 2, 70, 32, dtype=t) for x in "qkv"),
                       of("i", 2, 70), of("f", 2, 70), only=(*TAME, "nan:k", "inf:v", "-inf:i"))  # algebra.md: one weight
        yield made("fresh", f"{t} 2x37x72 short convolution", short, of("x", 2, 37, 216, dtype=t),
                   weight("w", 72, 1, 3, dtype=t), weight("wo", 72, 40, dtype=t, scale=0.1))
        yield made("fresh", f"{t} 2x37x72 causal convolution", causal, of("x", 2, 37, 72, dtype=t),
                   weight("w", 72, 1, 4, dtype=t), weight("b", 72, dtype=t))
    yield made("fresh", "f16 2x24x61 separator", separate, of("x", 2, 24, 61, dtype="f16"), weight("w", 24, 1, 3, dtype="f16"),
               weight("a", 1, dtype="f16"), only=TAME)
    for t in ("f16", "f32"):
        yield made("fresh", f"{t} 3x63 d32 lines and columns", lines_and_columns, *(of(x, 3, 63, 32, dtype=t) for x in "qkv"),
                   weight("h", 7, 7, 32, dtype=t), weight("w", 9, 9, 32, dtype=t))
        yield made("fresh", f"{t} 2x3x50 d16 class token", class_token, *(of(x, 2, 3, 50, 16, dtype=t) for x in "qkv"),
                   weight("cos", 49, 16, dtype=t), weight("sin", 49, 16, dtype=t))
    yield made("fresh", "bf16 3x45 d32 shifted", shifted, of("q", 3, 45, 32, dtype="bf16"), of("k", 3, 45, 32, dtype="bf16"),
               of("r", 3, 90, 32, dtype="bf16"), of("v", 3, 45, 32, dtype="bf16"))
    for t in ("f16", "bf16", "f32"):
        yield made("fresh", f"{t} 3x2x65 d32 relaxed", relaxed, *(of(x, 3, 2, 65, 32, dtype=t) for x in "qkv"),
                   weight("bias", 2, 65, 65, dtype=t))
    for t in ("bf16", "f32"):
        yield made("fresh", f"{t} 5x7x33 d32 late", late, of("q", 5, 9, 32, dtype=t), of("d", 7, 33, 32, dtype=t),
                   mask("seen", 7, 33))
    yield made("fresh", "f16 2x19 spans", spans, of("x", 2, 19, 24, dtype="f16"), weight("w", 24, 48, dtype="f16", scale=0.2),
               of("k", 2, 19, 15, dtype="f16"))
    yield made("fresh", "f32 11x20 splines", splines, of("x", 11, 20), weight("g", 8), weight("w", 160, 12, scale=0.1),
               weight("base", 20, 12, scale=0.2), only=TAME)
    yield made("fresh", "bf16 4x9x211 policy", policy, of("logits", 4, 9, 211, dtype="bf16"), label("said", 4, 9, high=211),
               of("old", 4, 9, shift=-5.0), of("ref", 4, 9, shift=-5.0), of("gain", 4), mask("seen", 4, 9), only=TAME)
