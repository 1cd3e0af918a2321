"""What is done with logits: filters of samplers, penalties, beams, acceptance, and the losses of preference
and policy training on
log-probabilities that are gathered."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import CALM, TAME, Program, made, of

Ranked = tuple[Tensor, Tensor]


# -- filters -----------------------------------------------------------------------------------------------------------


def min_p(logits: Tensor) -> Tensor:
    probs = torch.softmax(logits, dim=-1)
    top = probs.amax(-1, keepdim=True)
    return logits.masked_fill(probs < 0.05 * top, -float("inf")).softmax(-1)


def temperature_topk(logits: Tensor, t: Tensor) -> Tensor:
    logits = logits / t.clamp(min=1e-3)
    v, _ = torch.topk(logits, 20)
    logits = torch.where(logits < v[:, [-1]], -float("inf"), logits)
    return F.softmax(logits, dim=-1)


def top_p(logits: Tensor) -> Tensor:
    """The mass of each nucleus, in sorted order."""
    probs, _ = torch.sort(F.softmax(logits.float(), dim=-1), dim=-1, descending=True)
    before = probs.cumsum(dim=-1) - probs
    kept = probs.masked_fill(before > 0.9, 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)


def top_p_sorted(probs: Tensor) -> tuple[Tensor, Tensor]:
    """Of rows that are sorted already: what stays, and how many."""
    p = probs / probs.sum(-1, keepdim=True)
    mask = torch.cumsum(p, -1) - p > 0.8
    q = torch.where(mask, 0.0, p)
    return q / q.sum(-1, keepdim=True), (~mask).sum(-1).float()


def typical(logits: Tensor) -> tuple[Tensor, Tensor]:
    """transformers': how far each surprise is from the entropy."""
    normalized = F.log_softmax(logits, dim=-1)
    p = torch.exp(normalized)
    ent = -(normalized * p).nansum(-1, keepdim=True)
    return torch.abs((-normalized) - ent), ent.squeeze(-1)


def eta(logits: Tensor) -> Tensor:
    p = logits.softmax(dim=-1)
    entropy = -(p * torch.log(p.clamp_min(1e-10))).sum(-1)
    eps = torch.tensor(3e-4)
    cut = torch.min(eps, torch.sqrt(eps) * torch.exp(-entropy))[..., None]
    return logits.masked_fill(p < cut, torch.finfo(logits.dtype).min)


def top_a(logits: Tensor) -> Tensor:
    p = logits.float().softmax(-1)
    limit = p.max(-1, keepdim=True).values.pow(2) * 0.2
    p = p * (p >= limit)
    return (p / p.sum(-1, keepdim=True)).to(logits.dtype)


def repetition(logits: Tensor, seen: Tensor) -> Tensor:
    score = torch.where(logits < 0, logits * 1.2, logits / 1.2)
    return torch.log_softmax(torch.where(seen, score, logits), dim=-1)


def penalties(logits: Tensor, counts: Tensor) -> Tensor:
    """OpenAI's: by frequency and by presence."""
    logits = logits - 0.3 * counts.to(logits.dtype) - 0.5 * (counts > 1).to(logits.dtype)
    return torch.softmax(logits / 0.7, dim=-1, dtype=torch.float32)


def gumbel_max(logits: Tensor, u: Tensor) -> Tensor:
    g = -torch.log(-torch.log(u.clamp(1e-6, 1 - 1e-6)))
    return torch.argmax(logits / 0.8 + g, dim=-1)


def by_gumbel(logits: Tensor, u: Tensor) -> Ranked:
    s = logits / 0.8 - torch.log(-torch.log(u.clamp(1e-6, 1 - 1e-6)))
    return s, s


def gumbel_softmax(logits: Tensor, u: Tensor) -> Tensor:
    """Hard forward, soft gradient: as it is written."""
    g = -torch.log(-torch.log(u + 1e-10) + 1e-10)
    soft = ((logits + g) / 0.5).softmax(-1)
    return soft * (soft == soft.amax(-1, keepdim=True)) - soft.detach() + soft


def guided(cond: Tensor, uncond: Tensor) -> Tensor:
    c, u = F.log_softmax(cond, -1), F.log_softmax(uncond, -1)
    return F.log_softmax(u + 1.5 * (c - u), dim=-1)


def guided_rescale(cond: Tensor, uncond: Tensor) -> Tensor:
    """diffusers' rescale_noise_cfg."""
    cfg = uncond + 7.5 * (cond - uncond)
    std_text = cond.std(dim=list(range(1, cond.ndim)), keepdim=True)
    std_cfg = cfg.std(dim=list(range(1, cfg.ndim)), keepdim=True)
    return 0.7 * (cfg * (std_text / std_cfg)) + 0.3 * cfg


def contrastive_decoding(expert: Tensor, amateur: Tensor) -> Tensor:
    e, a = torch.log_softmax(expert, -1), torch.log_softmax(amateur, -1)
    cut = math.log(0.1) + e.max(-1, keepdim=True).values
    return torch.where(e < cut, float("-inf"), e - 0.5 * a)


# -- beams and acceptance ----------------------------------------------------------------------------------------------


def beams(logits: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Two candidates to each of 4 beams, over all beams' words."""
    b, k, v = logits.shape
    logp = F.log_softmax(logits, dim=-1) + scores[:, :, None]
    top, at = torch.topk(logp.view(b, k * v), 2 * k, dim=1)
    return top, torch.div(at, v, rounding_mode="floor").float().mul(0.0), logp.amax((1, 2))


def confidence(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Greedy: the token, its log-probability, and the margin to the second."""
    logp = logits.log_softmax(-1)
    two, at = logp.topk(2, dim=-1)
    return at[..., 0], two[..., 0], two[..., 0] - two[..., 1]


def by_logits(logits: Tensor) -> Ranked:
    return logits, logits.log_softmax(-1)


def acceptance(p: Tensor, q: Tensor, token: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Speculative decoding: who is accepted, and the residual distribution."""
    p, q = p.softmax(-1), q.softmax(-1)
    pt, qt = p.gather(-1, token[..., None]).squeeze(-1), q.gather(-1, token[..., None]).squeeze(-1)
    ratio = (pt / qt.clamp_min(1e-20)).clamp(max=1.0)
    r = (p - q).clamp(min=0)
    return ratio * (u < 2).float(), r / r.sum(-1, keepdim=True).clamp_min(1e-9)


def degeneration(h: Tensor, prev: Tensor, probs: Tensor) -> Tensor:
    """Contrastive search: confidence less the largest similarity to the context."""
    h, prev = h / h.norm(dim=2, keepdim=True), prev / prev.norm(dim=2, keepdim=True)
    penalty, _ = torch.matmul(prev, h.transpose(1, 2)).squeeze(-1).max(dim=-1)
    return 0.4 * probs - 0.6 * penalty


def mbr(x: Tensor, logw: Tensor) -> tuple[Tensor, Tensor]:
    """Expected utility of each candidate under the others' weights."""
    x = F.normalize(x, dim=-1)
    u = torch.einsum("bnd,bmd->bnm", x, x)
    w = logw.softmax(-1)
    e = (u * w[:, None, :]).sum(-1)
    return e, e.amax(-1)


# -- numbers and losses ------------------------------------------------------------------------------------------------


def perplexity(logits: Tensor, labels: Tensor, keep: Tensor) -> Tensor:
    logp = F.log_softmax(logits[:, :-1].float(), dim=-1)
    ll = logp.gather(2, labels[:, 1:, None]).squeeze(2)
    m = keep[:, 1:].float()
    return torch.exp(-(ll * m).sum(1) / m.sum(1).clamp(min=1))


def entropy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """trl's entropy_from_logits, and the varentropy beside it."""
    pd = F.softmax(logits, dim=-1)
    h = torch.logsumexp(logits, dim=-1) - torch.sum(pd * logits, dim=-1)
    logp = logits - logits.logsumexp(-1, keepdim=True)
    return h, (pd * (logp + h.unsqueeze(-1)) ** 2).sum(-1)


def selective(logits: Tensor, index: Tensor) -> Tensor:
    """trl's selective_log_softmax."""
    at = torch.gather(logits, dim=-1, index=index.unsqueeze(-1)).squeeze(-1)
    return at - torch.logsumexp(logits, dim=-1)


def dpo(policy: Tensor, ref: Tensor, labels: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """The first half of the batch is chosen, the second rejected."""
    def logps(z: Tensor) -> Tensor:
        per = torch.gather(z.log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)
        return (per * keep).sum(-1)
    d = logps(policy) - logps(ref)
    chosen, rejected = d.chunk(2)
    margin = 0.1 * (chosen - rejected)
    return -F.logsigmoid(margin).mean(), margin


def ppo(logits: Tensor, actions: Tensor, old: Tensor, adv: Tensor) -> tuple[Tensor, Tensor]:
    logp = logits - logits.logsumexp(dim=-1, keepdim=True)
    new = logp.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    ratio = (new - old).clamp(-20, 20).exp()
    loss = -torch.min(ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv).mean()
    return loss, -(logp.exp() * logp).sum(-1).mean()


def grpo(logp: Tensor, old: Tensor, ref: Tensor, rewards: Tensor, keep: Tensor) -> Tensor:
    """Groups of 4 answers, k3 for the KL."""
    g = rewards.view(-1, 4)
    adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    ratio = torch.exp(logp - old)
    kl = torch.exp(ref - logp) - (ref - logp) - 1
    loss = -(torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv) - 0.04 * kl)
    m = keep.to(loss.dtype)
    return ((loss * m).sum(-1) / m.sum(-1).clamp(min=1.0)).mean()


def token_kl(p: Tensor, q: Tensor, keep: Tensor) -> Tensor:
    lp, lq = F.log_softmax(p.float(), -1), F.log_softmax(q.float(), -1)
    kl = (lp.exp() * (lp - lq)).sum(-1)
    return torch.where(keep, kl, 0.0).sum() / keep.sum()


def jsd(p: Tensor, q: Tensor) -> Tensor:
    """Generalised (GKD), of log-softmaxes, beta 0.3."""
    lp, lq = F.log_softmax(p / 0.9, -1), F.log_softmax(q / 0.9, -1)
    mix = torch.logsumexp(torch.stack([lp + math.log(0.7), lq + math.log(0.3)]), dim=0)
    return (0.3 * (lq.exp() * (lq - mix)) + 0.7 * (lp.exp() * (lp - mix))).sum(-1)


def z_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    lse = torch.logsumexp(logits.float(), dim=-1)
    nll = lse - logits.float().gather(-1, labels[..., None])[..., 0]
    return nll.mean() + 1e-4 * lse.square().mean(), (nll < math.log(2)).float().mean()


def kto(policy: Tensor, ref: Tensor) -> tuple[Tensor, Tensor]:
    d = policy - ref
    z = d.mean().clamp(min=0)
    return 1 - torch.sigmoid(0.1 * (d - z)), z


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    p = partial(made, "decoding")
    fit = ("normal", "outlier", "tiny")
    yield p("f32 9x1000 min p", min_p, of("logits", 9, 1000, scale=3.0), only=("normal", "outlier"))
    yield p("f32 9x1000 temperature top k", temperature_topk, of("logits", 9, 1000, scale=3.0), of("t", 9, 1, kind="positive"),
            only=("normal", "outlier"))
    yield p("bf16 9x777 top p", top_p, of("logits", 9, 777, dtype="bf16", scale=3.0), only=("normal",))
    yield p("f32 33x257 sorted top p", top_p_sorted, of("probs", 33, 257, kind="positive"), only=("normal",))
    yield p("f32 9x1000 typical", typical, of("logits", 9, 1000, scale=3.0))
    yield p("f32 9x777 eta", eta, of("logits", 9, 777, scale=3.0), only=("normal",))
    yield p("f16 9x1000 top a", top_a, of("logits", 9, 1000, dtype="f16", scale=3.0), only=("normal", "outlier"))
    yield p("f32 9x1000 repetition", repetition, of("logits", 9, 1000, scale=3.0),
            of("seen", 9, 1000, dtype="bool", kind="keep"))
    yield p("f16 9x777 penalties", penalties, of("logits", 9, 777, dtype="f16", scale=3.0),
            of("counts", 9, 777, dtype="i64", kind="label", high=4))
    yield Program("decoding", "f32 9x777 gumbel max", gumbel_max, (of("logits", 9, 777), of("u", 9, 777, kind="weight",
                  scale=0.1, shift=0.5)), ranked=by_gumbel)
    yield p("f32 9x257 gumbel softmax", gumbel_softmax, of("logits", 9, 257), of("u", 9, 257, kind="weight", scale=0.08,
            shift=0.5), only=("normal",))
    yield p("f32 9x1000 guided", guided, of("cond", 9, 1000), of("uncond", 9, 1000))
    yield p("f16 3x4x33x31 guided rescale", guided_rescale, of("cond", 3, 4, 33, 31, dtype="f16"),
            of("uncond", 3, 4, 33, 31, dtype="f16"))
    yield p("f32 9x1000 contrastive", contrastive_decoding, of("expert", 9, 1000, scale=3.0), of("amateur", 9, 1000),
            only=fit[:2])
    yield p("f32 3x4x257 beams", beams, of("logits", 3, 4, 257, scale=2.0), of("scores", 3, 4), only=fit[:2])
    yield Program("decoding", "bf16 9x1000 confidence", confidence, (of("logits", 9, 1000, dtype="bf16", scale=3.0),),
                  ranked=by_logits)
    yield p("f32 4x5x257 acceptance", acceptance, of("p", 4, 5, 257), of("q", 4, 5, 257),
            of("token", 4, 5, dtype="i64", kind="label", high=257), of("u", 4, 5, kind="weight", scale=0.1), only=fit[:2])
    yield p("f32 5x130x64 degeneration", degeneration, of("h", 5, 1, 64), of("prev", 5, 130, 64),
            of("probs", 5, kind="positive"),
            only=TAME)
    yield p("f32 3x65x64 mbr", mbr, of("x", 3, 65, 64), of("logw", 3, 65), only=TAME)
    yield p("bf16 3x33x777 perplexity", perplexity, of("logits", 3, 33, 777, dtype="bf16"),
            of("labels", 3, 33, dtype="i64", kind="label", high=777), of("keep", 3, 33, dtype="bool", kind="keep"))
    yield p("f32 33x777 entropy", entropy, of("logits", 33, 777), only=TAME)
    yield p("bf16 3x33x1000 selective", selective, of("logits", 3, 33, 1000, dtype="bf16"),
            of("index", 3, 33, dtype="i64", kind="label", high=1000))
    yield p("f32 4x20x257 dpo", dpo, of("policy", 4, 20, 257), of("ref", 4, 20, 257),
            of("labels", 4, 20, dtype="i64", kind="label", high=257), of("keep", 4, 20, dtype="bool", kind="keep"))
    yield p("f32 33x130 ppo", ppo, of("logits", 33, 130), of("actions", 33, dtype="i64", kind="label", high=130),
            of("old", 33, kind="weight", shift=-5.0), of("adv", 33), only=TAME)
    yield p("f32 8x130 grpo", grpo, *(of(n, 8, 130, kind="weight", scale=0.3, shift=-1.0) for n in ("logp", "old", "ref")),
            of("rewards", 8), of("keep", 8, 130, dtype="bool", kind="keep"))
    yield p("bf16 3x20x777 token kl", token_kl, of("p", 3, 20, 777, dtype="bf16"), of("q", 3, 20, 777, dtype="bf16"),
            of("keep", 3, 20, dtype="bool", kind="keep"), only=CALM)
    yield p("f32 33x257 jsd", jsd, of("p", 33, 257), of("q", 33, 257), only=CALM)
    yield p("f16 3x20x1000 z loss", z_loss, of("logits", 3, 20, 1000, dtype="f16"),
            of("labels", 3, 20, dtype="i64", kind="label", high=1000), only=CALM)
    yield p("f32 130 kto", kto, of("policy", 130), of("ref", 130))
