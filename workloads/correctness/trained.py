"""What training asks of scores: losses of classes, pairs, preferences and ensembles, and routers with what balances them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import Program, made, of

# -- losses ------------------------------------------------------------------------------------------------------------


def sigmoid_focal(x: Tensor, y: Tensor) -> Tensor:
    """RetinaNet: alpha-balanced, summed over classes, normalised by the positives."""
    t = F.one_hot(y, x.shape[-1]).to(x.dtype)
    p = torch.sigmoid(x)
    ce = F.binary_cross_entropy_with_logits(x, t, reduction="none")
    p_t = p * t + (1 - p) * (1 - t)
    loss = (0.25 * t + 0.75 * (1 - t)) * ce * (1 - p_t) ** 2
    return loss.sum((-1, -2)) / t.sum((-1, -2)).clamp(min=1)


def lm_loss_z(x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """PaLM: shifted cross-entropy with z-loss and smoothing, ignored labels, nested results."""
    h = x[:, :-1].float()
    t = y[:, 1:]
    lse = torch.logsumexp(h, dim=-1)
    own = h.gather(-1, t.unsqueeze(-1)).squeeze(-1)
    smooth = lse - h.mean(-1)
    nll = lse - own
    mask = (t != 0).float()
    per = (0.9 * nll + 0.1 * smooth + 1e-4 * lse.square()) * mask
    return per.sum() / mask.sum().clamp_min(1.0), {"nll": (nll * mask).sum(-1), "z": lse.square().mean(), "n": mask.sum()}


def dpo(pc: Tensor, pr: Tensor, rc: Tensor, rr: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a = ((pc - rc) * keep).sum(-1)
    b = ((pr - rr) * keep).sum(-1)
    margin = 0.1 * (a - b)
    return -F.logsigmoid(margin), 0.1 * a.detach(), (margin > 0).float().mean()


def grpo(lp: Tensor, old: Tensor, ref: Tensor, r: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Group advantages, clipped ratios, the k3 estimate of the divergence, a mean over the answer's tokens."""
    g = r.view(-1, 4)
    adv = ((g - g.mean(dim=1, keepdim=True)) / (g.std(dim=1, keepdim=True) + 1e-4)).view(-1, 1)
    ratio = torch.exp(lp - old)
    obj = torch.min(ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv)
    kl = torch.exp(ref - lp) - (ref - lp) - 1
    per = -(obj - 0.04 * kl)
    m = keep.to(per.dtype)
    return ((per * m).sum(1) / m.sum(1)).mean(), (kl * m).sum(1) / m.sum(1)


def nt_xent(a: Tensor, b: Tensor) -> Tensor:
    """SimCLR: both views in one batch."""
    z = F.normalize(torch.cat([a, b], 0), dim=1)
    s = (z @ z.t()) / 0.5
    n = a.shape[0]
    s = s.masked_fill(torch.eye(2 * n, device=s.device, dtype=torch.bool), -9e15)
    pos = torch.cat([torch.diag(s, n), torch.diag(s, -n)])
    return (-pos + torch.logsumexp(s, dim=-1)).mean()


def sup_con(x: Tensor, y: Tensor) -> Tensor:
    z = F.normalize(x.float(), p=2, dim=-1)
    logits = torch.div(torch.matmul(z, z.T), 0.07)
    logits = logits - logits.max(dim=1, keepdim=True)[0].detach()
    same = torch.eq(y.view(-1, 1), y.view(1, -1)).float()
    other = 1 - torch.eye(x.shape[0], device=x.device)
    mask = same * other
    exp = torch.exp(logits) * other
    log_prob = logits - torch.log(exp.sum(1, keepdim=True) + 1e-12)
    return -(mask * log_prob).sum(1) / mask.sum(1).clamp(min=1e-8)


def clip_loss(i: Tensor, t: Tensor, scale: Tensor) -> Tensor:
    i = i / i.norm(dim=-1, keepdim=True)
    t = t / t.norm(dim=-1, keepdim=True)
    per_image = scale.clamp(max=4.6052).exp() * i @ t.t()
    labels = torch.arange(i.shape[0], device=i.device)
    return (F.cross_entropy(per_image.float(), labels) + F.cross_entropy(per_image.t().float(), labels)) / 2


def siglip(i: Tensor, t: Tensor) -> Tensor:
    s = F.normalize(i, dim=-1) @ F.normalize(t, dim=-1).T * 10.0 - 10.0
    sign = 2 * torch.eye(i.shape[0], device=i.device) - 1
    return -F.logsigmoid(sign * s.float()).sum(-1).mean()


def batch_hard(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distances as cdist expands them, hardest positive by a product with a mask, hardest negative by adding the maximum."""
    h = x.float()
    sq = h.pow(2).sum(1)
    d2 = sq[:, None] - 2.0 * h @ h.t() + sq[None, :]
    d = torch.sqrt(d2.clamp(min=1e-12))
    same = y[None, :] == y[:, None]
    hardest_p = (d * same).amax(1)
    hardest_n = (d + d.amax(1, keepdim=True) * same).amin(1)
    return F.relu(hardest_p - hardest_n + 0.3), hardest_p, hardest_n


def dice_iou(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    p = torch.sigmoid(x).flatten(2)
    g = (y > 0).to(x.dtype).flatten(2)
    inter = torch.einsum("bcn,bcn->bc", p, g)
    union = p.sum(-1) + g.sum(-1)
    bce = F.binary_cross_entropy_with_logits(x.flatten(2), g, reduction="none").mean(-1)
    return {"dice": 1 - (2 * inter + 1.0) / (union + 1.0), "iou": inter / (union - inter + 1e-7), "bce": bce}


def wasserstein(x: Tensor, y: Tensor) -> Tensor:
    p, q = x.softmax(-1), y.softmax(-1)
    return (torch.cumsum(p, -1) - torch.cumsum(q, -1)).abs().sum(-1)


def crps(x: Tensor, y: Tensor) -> Tensor:
    """The fair ensemble score, over an axis that leads."""
    skill = (x - y[None]).abs().mean(0)
    spread = (x[:, None] - x[None, :]).abs().sum((0, 1)) / (2 * x.shape[0] * (x.shape[0] - 1))
    return skill - spread


def ordinal(x: Tensor, y: Tensor) -> Tensor:
    """CORAL: levels by comparison with arange."""
    levels = (y[:, None] > torch.arange(x.shape[1], device=x.device)[None, :]).to(x.dtype)
    return -(F.logsigmoid(x) * levels + (F.logsigmoid(x) - x) * (1 - levels)).sum(1)


def huber_rows(x: Tensor, y: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    d = (x - y).abs()
    l = torch.where(d < 0.5, d * d, d - 0.25)
    return (l * keep).sum(-1) / keep.sum(-1).clamp(min=1), torch.where(keep, d, torch.zeros_like(d)).amax(-1)


def distill(s: Tensor, t: Tensor, y: Tensor) -> Tensor:
    """Hinton: temperatures, both losses, batchmean."""
    soft = F.kl_div(F.log_softmax(s / 4, 1), F.log_softmax(t / 4, 1), log_target=True, reduction="batchmean") * 16
    return 0.7 * soft + 0.3 * F.cross_entropy(s, y, ignore_index=0)


# -- routing -----------------------------------------------------------------------------------------------------------


def deepseek_gate(x: Tensor, w: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """V3: two best per group, four of eight groups, a bias in the choice alone."""
    scores = F.linear(x.float(), w.float()).sigmoid()
    choice = scores + bias
    groups = choice.view(x.shape[0], 8, -1).topk(2, dim=-1)[0].sum(dim=-1)
    best = torch.topk(groups, k=4, dim=-1, sorted=False)[1]
    mask = torch.zeros_like(groups).scatter_(1, best, 1).bool()
    masked = choice.masked_fill(~mask.unsqueeze(-1).expand(-1, 8, choice.shape[1] // 8).reshape(x.shape[0], -1), 0.0)
    idx = torch.topk(masked, k=6, dim=-1, sorted=False)[1]
    weights = scores.gather(1, idx)
    return weights.sum(-1), (weights / (weights.sum(-1, keepdim=True) + 1e-20) * 2.5).sort(-1).values


def capacity(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Switch: place in the expert's queue by a running sum of one-hots; what overflows is dropped. With the aux loss."""
    p = x.float().softmax(-1)
    gate, e = p.max(-1)
    hot = F.one_hot(e, x.shape[-1]).float()
    place = (hot.cumsum(0) * hot).sum(-1)
    kept = gate * (place <= 12)
    return kept, (hot.mean(0) * p.mean(0)).sum() * x.shape[-1], place


def expert_choice(x: Tensor) -> tuple[Tensor, Tensor]:
    s = x.float().softmax(-1)
    g, _ = torch.topk(s.t(), 9, dim=-1)
    return g, g.sum(-1)


def mixtral_balance(x: Tensor) -> Tensor:
    p = F.softmax(x.float(), -1)
    _, chosen = torch.topk(p, 2, dim=-1)
    mask = F.one_hot(chosen, x.shape[-1])
    per = mask.float().mean(0)
    return (per * p.mean(0)[None]).sum() * x.shape[-1]


def noisy(x: Tensor, w: Tensor, wn: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    clean = x @ w
    noise = F.softplus(x @ wn) + 1e-2
    g = torch.softmax((clean + e * noise).float(), -1)
    imp = g.sum(0)
    return g, imp.float().var() / (imp.float().mean() ** 2 + 1e-10)


def sinkhorn(x: Tensor) -> Tensor:
    q = torch.exp(x / 0.5).t()
    q = q / q.sum()
    for _ in range(3):
        q = q / q.sum(dim=1, keepdim=True) / q.shape[0]
        q = q / q.sum(dim=0, keepdim=True) / q.shape[1]
    return (q * q.shape[1]).t()


def product_keys(q: Tensor, k1: Tensor, k2: Tensor) -> Tensor:
    a, b = q.chunk(2, -1)
    s1, s2 = (a @ k1.t()).float(), (b @ k2.t()).float()
    v1, v2 = s1.topk(4, -1).values, s2.topk(4, -1).values
    return (v1[:, :, None] + v2[:, None, :]).flatten(1).topk(4, -1).values.softmax(-1)


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    p = partial(made, "trained")
    yield p("f32 3x150x20 focal", sigmoid_focal, of("x", 3, 150, 20, scale=2.0),
            of("y", 3, 150, dtype="i64", kind="label", high=20))
    yield p("bf16 2x33x1025 lm with z", lm_loss_z, of("x", 2, 33, 1025, dtype="bf16", scale=3.0),
            of("y", 2, 33, dtype="i64", kind="label", high=1025))
    yield p("f32 7x333 dpo", dpo, *(of(n, 7, 333, shift=-2.0) for n in ("pc", "pr", "rc", "rr")),
            of("keep", 7, 333, dtype="bool", kind="keep"))
    yield p("f32 12x257 grpo", grpo, *(of(n, 12, 257, scale=0.3, shift=-2.0) for n in ("lp", "old", "ref")), of("r", 12),
            of("keep", 12, 257, dtype="bool", kind="keep"))
    yield p("f32 65x64 nt-xent", nt_xent, of("a", 65, 64), of("b", 65, 64))
    yield p("bf16 130x96 supcon", sup_con, of("x", 130, 96, dtype="bf16"), of("y", 130, dtype="i64", kind="label", high=9))
    yield p("f16 150x80 clip", clip_loss, of("i", 150, 80, dtype="f16"), of("t", 150, 80, dtype="f16"),
            of("scale", dtype="f16", kind="weight", scale=0.1, shift=2.0), only=("normal", "outlier"))
    yield p("bf16 150x64 siglip", siglip, of("i", 150, 64, dtype="bf16"), of("t", 150, 64, dtype="bf16"))
    yield p("f16 140x48 batch hard", batch_hard, of("x", 140, 48, dtype="f16"),
            of("y", 140, dtype="i64", kind="label", high=12))
    yield p("f32 3x4x30x41 dice", dice_iou, of("x", 3, 4, 30, 41), of("y", 3, 4, 30, 41))
    yield p("f32 9x1000 wasserstein", wasserstein, of("x", 9, 1000, scale=2.0), of("y", 9, 1000, scale=2.0))
    yield p("f32 20x700 crps", crps, of("x", 20, 700), of("y", 700))
    yield p("f16 77x33 ordinal", ordinal, of("x", 77, 33, dtype="f16"), of("y", 77, dtype="i64", kind="label", high=34))
    yield p("f16 7x1025 huber", huber_rows, of("x", 7, 1025, dtype="f16"), of("y", 7, 1025, dtype="f16"),
            of("keep", 7, 1025, dtype="bool", kind="keep"))
    yield p("f32 33x1000 distill", distill, of("s", 33, 1000, scale=3.0), of("t", 33, 1000, scale=3.0),
            of("y", 33, dtype="i64", kind="label", high=1000))
    yield p("bf16 65x96x64 deepseek", deepseek_gate, of("x", 65, 96, dtype="bf16"),
            of("w", 64, 96, dtype="bf16", kind="weight", scale=0.1), of("bias", 64, kind="weight", scale=0.1),
            only=("normal", "outlier"))
    yield p("f32 150x8 capacity", capacity, of("x", 150, 8), only=("normal", "outlier"))
    yield p("f16 150x16 expert choice", expert_choice, of("x", 150, 16, dtype="f16"))
    yield p("f32 150x60 balance", mixtral_balance, of("x", 150, 60), only=("normal",))
    yield p("f16 130x64x32 noisy", noisy, of("x", 130, 64, dtype="f16"), of("w", 64, 32, dtype="f16", kind="weight", scale=0.1),
            of("wn", 64, 32, dtype="f16", kind="weight", scale=0.1), of("e", 130, 32, dtype="f16"))
    yield p("f32 130x33 sinkhorn", sinkhorn, of("x", 130, 33))
    yield p("bf16 65x128x100 product keys", product_keys, of("q", 65, 128, dtype="bf16"),
            of("k1", 100, 64, dtype="bf16", kind="weight"), of("k2", 100, 64, dtype="bf16", kind="weight"),
            only=("normal", "outlier"))
