"""Half precision as models have it: what lies between their products, in bfloat16 and float16."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.small.spec import In, Programs

PROGRAMS = Programs()


@PROGRAMS(In((2, 8, 512, 64), "bf16"), In((2, 8, 512, 64), "bf16"), In((2, 8, 512, 64), "bf16"), In((512, 512), "f32", 0.1))
def retention(q: Tensor, k: Tensor, v: Tensor, decay: Tensor) -> Tensor:
    s = (q @ k.mT) * 0.125 * decay.sigmoid().tril().to(q.dtype)
    o = (s @ v).transpose(1, 2)
    return F.rms_norm(o.float(), (64,)).to(q.dtype).flatten(2)


@PROGRAMS(In((2048, 32000), "bf16", 2.0), In((2048,), high=32000))
def with_z_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    x = logits.float()
    z = x.logsumexp(-1)
    nll = z - x.gather(-1, labels[:, None]).squeeze(-1)
    return nll.mean() + 1e-4 * z.pow(2).mean(), (x.argmax(-1) == labels).float().mean()


@PROGRAMS(In((8, 1024, 2048), "bf16"), In((8, 1024, 2048), "bf16"), In((2048,), "bf16"), In((2048,), "bf16"))
def scaled_residual(x: Tensor, y: Tensor, g: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = x + g * y
    n = h.float() * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + 1e-5)
    return h, n.to(x.dtype) * w


@PROGRAMS(In((4, 512, 32000), "bf16", 2.0), In((4, 512, 32000), "bf16", 2.0), In((4, 512), likely=0.8))
def kl_to_reference(logits: Tensor, ref: Tensor, mask: Tensor) -> Tensor:
    p, q = logits.float().log_softmax(-1), ref.float().log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)
    return (kl * mask).sum() / mask.sum().clamp(min=1)


@PROGRAMS(In((4, 512, 32000), "bf16", 2.0), In((4, 512), high=32000), In((4, 512), "f32"), In((4,), "f32"),
          In((4, 512), likely=0.8))
def clipped_policy(logits: Tensor, tokens: Tensor, old: Tensor, adv: Tensor, mask: Tensor) -> Tensor:
    lp = logits.float().log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
    ratio = (lp - old).exp()
    loss = -torch.min(ratio * adv[:, None], ratio.clamp(0.8, 1.2) * adv[:, None])
    return ((loss * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()


@PROGRAMS(In((4096, 4096), "bf16"))
def blocks_to_bytes(x: Tensor) -> tuple[Tensor, Tensor]:
    b = x.float().unflatten(-1, (32, 128))
    s = b.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    return (b / s).to(torch.float8_e4m3fn).flatten(-2), s.squeeze(-1)


@PROGRAMS(In((4096, 4096), "bf16"), In((4096,), "bf16"))
def normed_to_bytes(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    n = F.rms_norm(x, (4096,), w, 1e-6).float()
    s = n.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    return (n / s).to(torch.float8_e4m3fn), s


@PROGRAMS(In((2048, 2 * 5632), "bf16", 2.0))
def clamped_gate(x: Tensor) -> Tensor:
    g, u = x[..., ::2].clamp(max=7.0), x[..., 1::2].clamp(-7.0, 7.0)
    return g * torch.sigmoid(1.702 * g) * (u + 1)


@PROGRAMS(In((2, 2048, 1024), "bf16"), In((1024, 1, 4), "bf16", 0.5), In((1024,), "bf16"))
def short_convolution(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.pad(x.mT, (3, 0)).unfold(-1, 4, 1)
    return F.silu((y * w).sum(-1) + b[:, None]).mT


@PROGRAMS(In((2, 1024, 16, 128), "bf16"), In((2, 1024, 4, 128), "bf16"), In((1024, 64), "f32"))
def turned_interleaved(q: Tensor, k: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    c, s = angle.cos()[:, None], angle.sin()[:, None]

    def turn(x: Tensor) -> Tensor:
        a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2).to(x.dtype)

    return turn(q), turn(k)


@PROGRAMS(In((2, 512, 256), "f16"), In((2, 512), likely=0.9))
def sentence_embedding(x: Tensor, mask: Tensor) -> Tensor:
    m = mask[..., None].to(x.dtype)
    return F.normalize((x * m).sum(1) / m.sum(1).clamp(min=1e-6), dim=-1)


@PROGRAMS(In((256, 512), "f16"), In((1000, 512), "f16"), In((256,), high=1000))
def arc_margin(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    cos = (F.normalize(x.float(), dim=-1) @ F.normalize(w.float(), dim=-1).T).clamp(-1 + 1e-6, 1 - 1e-6)
    phi = cos * 0.8776 - (1 - cos * cos).sqrt() * 0.4794
    hot = F.one_hot(y, 1000).bool()
    return F.cross_entropy(torch.where(hot, phi, cos) * 30, y)


@PROGRAMS(In((512, 128), "f16"), In((512, 128), "f16"), In((4096, 128), "f16"))
def with_a_queue(q: Tensor, k: Tensor, queue: Tensor) -> Tensor:
    q, k, queue = (F.normalize(x.float(), dim=-1) for x in (q, k, queue))
    logits = torch.cat(((q * k).sum(-1, keepdim=True), q @ queue.T), -1) / 0.07
    return F.cross_entropy(logits, torch.zeros(512, dtype=torch.long, device=q.device))


@PROGRAMS(In((512, 128), "bf16"), In((512,), high=10))
def supervised_contrast(x: Tensor, y: Tensor) -> Tensor:
    z = F.normalize(x.float(), dim=-1)
    s = z @ z.T / 0.1
    eye = torch.eye(512, dtype=torch.bool, device=x.device)
    lp = s - s.masked_fill(eye, float("-inf")).logsumexp(-1, keepdim=True)
    same = (y[:, None] == y) & ~eye
    return -((lp * same).sum(-1) / same.sum(-1).clamp(min=1)).mean()


@PROGRAMS(In((4, 320, 64, 64), "bf16"), In((320,), "bf16"), In((320,), "bf16"), In((4, 320), "bf16"))
def time_conditioned(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.silu(F.group_norm(x + t[..., None, None], 32, w, b))


@PROGRAMS(In((2, 16, 256, 8, 64), "bf16"), In((2, 16, 256, 8, 64), "bf16"), In((2, 16, 256, 8, 64), "bf16"))
def over_time(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.permute(0, 2, 3, 1, 4) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).permute(0, 3, 1, 2, 4)


@PROGRAMS(In((1024, 1024), "bf16"), In((1024, 16), "bf16"), In((16, 1024), "bf16"), In((1024,), "bf16"))
def decomposed_weight(w: Tensor, a: Tensor, b: Tensor, m: Tensor) -> Tensor:
    d = w.float() + (a.float() @ b.float()) * 2
    return (m[:, None] * d / d.norm(dim=1, keepdim=True)).to(w.dtype)


@PROGRAMS(In((512, 512, 3, 3), "bf16"), In((8, 512), "bf16"))
def demodulated(w: Tensor, s: Tensor) -> Tensor:
    ws = w[None].float() * s[:, None, :, None, None].float()
    return (ws * torch.rsqrt(ws.pow(2).sum((2, 3, 4), keepdim=True) + 1e-8)).to(w.dtype)


@PROGRAMS(In((1024, 4096), "bf16"), In((1024, 4096), "bf16"), In((1024, 4096), "f32"), In((1024, 4096), "f32", 0.01))
def factored_step(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    g = g.float()
    m = m * 0.9 + g * 0.1
    v = v.abs() * 0.99 + g * g * 0.01
    u = m / (v.sqrt() + 1e-8)
    u = u / (u.pow(2).mean().sqrt()).clamp(min=1)
    return (p.float() * 0.999 - 1e-3 * u).to(p.dtype), m, v


@PROGRAMS(In((512, 512), "bf16"), In((2048, 512), "bf16"), In((2048,), "bf16"))
def norms_together(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    total = torch.stack([x.float().pow(2).sum() for x in (a, b, c)]).sum().sqrt()
    f = (1.0 / (total + 1e-6)).clamp(max=1.0)
    return tuple((x.float() * f).to(x.dtype) for x in (a, b, c))


@PROGRAMS(In((64, 64, 1024), "bf16"), In((64, 64), likely=0.8), In((1024,), "bf16"))
def pooled_by_scores(x: Tensor, mask: Tensor, w: Tensor) -> Tensor:
    s = torch.tanh(x @ w).masked_fill(~mask, -1e4)
    return (s.softmax(-1)[..., None] * x).sum(1)


@PROGRAMS(In((4096, 64), "bf16", 2.0), In((64,), "f32"))
def biased_routing(logits: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    p = logits.float().sigmoid()
    _, i = (p + bias).topk(6, dim=-1)
    w = p.gather(-1, i)
    return w / (w.sum(-1, keepdim=True) + 1e-20) * 2.5, i


@PROGRAMS(In((32, 3, 224, 224), "f16"), In((3,), "f16"), In((3,), "f16"))
def normalised_and_flipped(x: Tensor, m: Tensor, s: Tensor) -> Tensor:
    return ((x - m[:, None, None]) / (s[:, None, None].abs() + 0.1)).flip(-1)


@PROGRAMS(In((16, 12, 197, 64), "f16"), In((16, 12, 197, 64), "f16"))
def rollout_of_heads(q: Tensor, k: Tensor) -> Tensor:
    a = (q @ k.mT * 0.125).softmax(-1).mean(1)
    a = a + torch.eye(197, dtype=a.dtype, device=a.device)
    return a / a.sum(-1, keepdim=True)


@PROGRAMS(In((8, 100, 91), "bf16", 2.0), In((8, 100, 4), "bf16"))
def detections(logits: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    p, label = logits.float().softmax(-1)[..., :-1].max(-1)
    c, w = boxes.float().sigmoid().split(2, -1)
    return p, label, torch.cat((c - w / 2, c + w / 2), -1)


@PROGRAMS(In((4096, 1024), "bf16"), In((4096, 1024), "bf16"), In((1024,), "bf16"), In((1024,), "bf16"), In((1024,), "bf16"))
def gated_then_normed(x: Tensor, z: Tensor, d: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = (x + d * x) * F.silu(z)
    return F.layer_norm(y.unflatten(-1, (8, 128)), (128,)).flatten(-2) * w + b


@PROGRAMS(In((2, 4096, 8, 64), "bf16"), In((2, 4096, 8, 64), "bf16"), In((2, 4096, 8, 64), "bf16"))
def kernel_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.relu(q) + 1e-3, F.relu(k) + 1e-3
    kv = torch.einsum("blhd,blhe->bhde", k, v)
    z = 1 / torch.einsum("blhd,bhd->blh", q, k.sum(1))
    return torch.einsum("blhd,bhde,blh->blhe", q, kv, z)


@PROGRAMS(In((8, 16, 1, 128), "bf16"), In((8, 4, 2048, 128), "bf16"), In((8, 4, 2048, 128), "bf16"), In((8,), high=2048))
def one_token(q: Tensor, k: Tensor, v: Tensor, length: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(4, 1) for x in (k, v))
    s = q @ k.mT * 128**-0.5
    hidden = torch.arange(2048, device=q.device) > length[:, None, None, None]
    return s.masked_fill(hidden, torch.finfo(s.dtype).min).softmax(-1, dtype=torch.float32).to(q.dtype) @ v


@PROGRAMS(In((4, 8, 1024, 64), "f16"), In((4, 8, 1024, 64), "f16"), In((4, 8, 1024, 64), "f16"), In((4, 1024), high=6))
def in_documents(q: Tensor, k: Tensor, v: Tensor, doc: Tensor) -> Tensor:
    doc = doc.sort(-1).values
    same = (doc[:, :, None] == doc[:, None]) & torch.ones(1024, 1024, dtype=torch.bool, device=q.device).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=same[:, None])


@PROGRAMS(In((4, 1024, 512), "bf16"), In((4, 1024, 512), "bf16"))
def losses_of_features(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return F.smooth_l1_loss(a, b), 1 - F.cosine_similarity(a.float(), b.float(), dim=-1).mean()
