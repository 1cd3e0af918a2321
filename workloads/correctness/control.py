"""Reinforcement learning and control: returns, clipped losses, quantiles of returns, weights of samples, preferences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.correctness.program import CALM, MILD, TAME, Program, label, made, mask, of, positive, weight


def gae(r: Tensor, v: Tensor, done: Tensor) -> tuple[Tensor, Tensor]:
    """Generalised advantages as one product with a triangle of discounts, then whitened."""
    nd = done.to(r.dtype)
    delta = r[:, :-1] + 0.99 * v[:, 1:] * nd[:, :-1] - v[:, :-1]
    t = delta.shape[1]
    i = torch.arange(t, device=r.device)
    decay = torch.where(i[:, None] >= i[None, :], (0.99 * 0.95) ** (i[:, None] - i[None, :]).clamp(min=0).to(r.dtype), 0.0)
    adv = delta @ decay
    return (adv - adv.mean()) / (adv.std() + 1e-8), adv + v[:, :-1]


def discounted(r: Tensor) -> tuple[Tensor, Tensor]:
    g = torch.pow(0.97, torch.arange(r.size(-1), device=r.device, dtype=r.dtype))
    ret = torch.flip(torch.cumsum(torch.flip(r * g, dims=[-1]), dim=-1), dims=[-1])
    ret = ret / g
    return ret, (ret - ret.mean(-1, keepdim=True)).div(ret.std(-1, keepdim=True).clamp(min=1e-6))


def ppo(logits: Tensor, old: Tensor, a: Tensor, adv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logp = F.log_softmax(logits, dim=-1)
    logp_a = logp.gather(-1, a.unsqueeze(-1)).squeeze(-1)
    old_a = torch.log_softmax(old, -1).gather(-1, a.unsqueeze(-1)).squeeze(-1)
    ratio = (logp_a - old_a).exp()
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    surr = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
    ent = -(logp.exp() * logp).sum(-1)
    approx_kl = ((ratio - 1) - (logp_a - old_a)).mean()
    return -surr.mean() - 0.01 * ent.mean(), approx_kl, ((ratio - 1).abs() > 0.2).float().mean()


def policy_kl(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    lp, lq = p.float().log_softmax(-1), q.float().log_softmax(-1)
    return (lp.exp() * (lp - lq)).sum(-1), torch.distributions.Categorical(logits=p.float(), validate_args=False).entropy()


def vtrace(lp: Tensor, lb: Tensor, r: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    rho = torch.exp(lp - lb)
    clipped = torch.clamp(rho, max=1.0)
    delta = clipped[:, :-1] * (r[:, :-1] + 0.99 * v[:, 1:] - v[:, :-1])
    c = torch.cumprod(0.95 * clipped[:, :-1], dim=1)
    return (c * delta).sum(1), torch.sum(rho, 1).square() / torch.sum(rho**2, 1)


def dueling(h: Tensor, wa: Tensor, wv: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    adv = torch.einsum("bh,ah->ba", h, wa)
    val = h @ wv
    q = val + adv - adv.mean(dim=1, keepdim=True)
    return q.gather(1, a[:, None])[:, 0], q.max(1)[0]


def double_dqn(q: Tensor, nq: Tensor, tq: Tensor, a: Tensor, r: Tensor, done: Tensor) -> tuple[Tensor, Tensor]:
    best = nq.argmax(dim=1, keepdim=True)
    target = r + 0.99 * done.float() * tq.gather(1, best).squeeze(1)
    td = target - q.gather(1, a.unsqueeze(1)).squeeze(1)
    return F.smooth_l1_loss(td, torch.zeros_like(td)), td.abs()


def c51(logits: Tensor, nxt: Tensor, r: Tensor, nd: Tensor) -> Tensor:
    """The projection as a product with triangular weights, and the cross entropy with it."""
    n = logits.shape[-1]
    z = torch.linspace(-10.0, 10.0, n, device=r.device)
    dz = 20.0 / (n - 1)
    tz = (r[:, None] + 0.99 * nd.float()[:, None] * z).clamp(-10.0, 10.0)
    w = (1 - (tz[:, None, :] - z[None, :, None]).abs() / dz).clamp(0, 1)
    m = (w * torch.softmax(nxt, -1)[:, None, :]).sum(-1)
    return -(m * F.log_softmax(logits, dim=-1)).sum(-1)


def c51_value(logits: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.linspace(-10, 10, logits.shape[-1], device=logits.device, dtype=logits.dtype)
    p = logits.softmax(dim=-1)
    q = (p * z).sum(dim=-1)
    return q, q.argmax(dim=-1)


def quantile_huber(theta: Tensor, target: Tensor) -> Tensor:
    n = theta.size(-1)
    tau = (torch.arange(n, device=theta.device, dtype=torch.float32) + 0.5) / n
    u = target.unsqueeze(-2) - theta.unsqueeze(-1)
    hub = torch.where(u.abs() <= 1.0, 0.5 * u.pow(2), u.abs() - 0.5)
    loss = (tau[:, None] - (u.detach() < 0).float()).abs() * hub
    return loss.mean(-1).sum(-1)


def iqn(h: Tensor, tau: Tensor, w: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
    i = torch.arange(1, w.shape[1] + 1, device=h.device)
    phi = F.relu(F.linear(torch.cos(math.pi * i * tau[..., None]), w))
    q = torch.matmul(h[:, None, :] * phi, head)
    return q.mean(1), q.std(1)


def tanh_gaussian(mu: Tensor, log_std: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
    log_std = -5 + 0.5 * 7 * (torch.tanh(log_std) + 1)
    u = mu + log_std.exp() * eps
    logp = (-0.5 * eps**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
    logp = logp - (2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1)
    return torch.tanh(u), logp


def sac_target(q: Tensor, logp: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """The least of an ensemble less the entropy, and a soft least beside it."""
    soft = -torch.logsumexp(-q * 5.0, dim=0) / 5.0 + math.log(q.shape[0]) / 5.0
    return r + 0.99 * (q.min(dim=0).values - 0.2 * logp), (soft - q.mean(0)) / (q.std(0) + 1e-3)


def cql(q: Tensor, a: Tensor, lp: Tensor) -> Tensor:
    data = q.gather(1, a.view(-1, 1)).squeeze(1)
    return (torch.logsumexp(q - lp, dim=1) - data).mean() + 0.5 * F.mse_loss(data, q.mean(1))


def awr(adv: Tensor, logp: Tensor) -> tuple[Tensor, Tensor]:
    adv = (adv - adv.mean()) / (adv.std() + 1e-5)
    w = torch.clamp(torch.exp(adv / 0.3), max=20.0)
    return -(w * logp).sum() / w.sum(), w.sum().pow(2) / w.pow(2).sum()


def mpo(q: Tensor, logp: Tensor, eta: Tensor) -> tuple[Tensor, Tensor]:
    """[samples, states]: weights, the policy's loss and the temperature's."""
    t = F.softplus(eta) + 1e-6
    w = torch.softmax(q / t, dim=0)
    dual = t * (0.1 + (torch.logsumexp(q / t, 0) - math.log(q.shape[0])).mean())
    return -(w * logp).sum(0).mean(), dual


def mppi(cost: Tensor, noise: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    beta = cost.min()
    w = torch.exp(-(cost - beta) / 0.7)
    w = w / w.sum()
    return u + torch.einsum("k,kta->ta", w, noise), 1.0 / (w**2).sum()


def cem(score: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    top = torch.topk(score, 10, dim=0).indices
    elite = x.index_select(0, top)
    mean, var = elite.mean(dim=0), elite.var(dim=0, unbiased=False)
    return 0.1 * mean + 0.9, torch.sqrt(0.1 + 0.9 * var)


def soft_cem(score: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    w = torch.exp(score - score.amax(1, keepdim=True))
    w = w / (w.sum(1, keepdim=True) + 1e-9)
    mean = torch.sum(w[..., None] * x, dim=1)
    return mean, ((w[..., None] * (x - mean[:, None]) ** 2).sum(1)).sqrt()


def lqr(x: Tensor, u: Tensor, q: Tensor, r: Tensor, goal: Tensor) -> Tensor:
    d = x - goal
    stage = torch.einsum("bti,ij,btj->bt", d, q, d) + (u @ r * u).sum(-1)
    return 0.5 * stage.sum(-1) + (d[:, -1] ** 2).sum(-1)


def particles(logw: Tensor, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    ll = logw - 0.5 * ((x - z[:, None]) ** 2).sum(-1) / 0.25
    lw = ll - ll.logsumexp(-1, keepdim=True)
    w = lw.exp()
    mean = (w.unsqueeze(1) @ x).squeeze(1)
    cov = (w[..., None] * (x - mean[:, None])).mT @ (x - mean[:, None])
    return mean, cov, torch.exp(-torch.logsumexp(2 * lw, -1))


def belief(b: Tensor, t: Tensor, o: Tensor) -> tuple[Tensor, Tensor]:
    p = torch.matmul(b, t.softmax(-1)) * o
    n = p.sum(-1, keepdim=True)
    b2 = p / n.clamp_min(1e-12)
    return b2, torch.log(n.squeeze(-1) + 1e-12)


def running(x: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Chan's merge of a batch's moments, and the batch in them."""
    n, k = 1000.0, x.shape[0]
    bv, bm = torch.var_mean(x, dim=0, correction=0)
    d = bm - mean
    m = mean + d * k / (n + k)
    v = (var * n + bv * k + d**2 * n * k / (n + k)) / (n + k)
    return ((x - m) / torch.sqrt(v + 1e-8)).clamp(-10, 10), m, v


def popart(h: Tensor, w: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    mu, sigma = g.mean(), (g.pow(2).mean() - g.mean().pow(2)).clamp(min=1e-4).sqrt()
    v = F.linear(h, w / sigma, (b - mu) / sigma).squeeze(-1)
    return v, 0.5 * (v - (g - mu) / sigma).pow(2).mean()


def mixture(pi: Tensor, mu: Tensor, ls: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Mixture-of-gaussians head: log density and mean action."""
    e = (a[:, None] - mu) * torch.exp(-ls)
    comp = -0.5 * (e**2 + 2 * ls + math.log(2 * math.pi)).sum(-1)
    lp = torch.log_softmax(pi, -1)
    return torch.logsumexp(lp + comp, -1), torch.einsum("bk,bka->ba", lp.exp(), mu)


def successor(psi: Tensor, w: Tensor, nxt: Tensor, phi: Tensor) -> tuple[Tensor, Tensor]:
    q = torch.einsum("bad,d->ba", nxt, F.normalize(w, dim=0))
    best = q.max(1, keepdim=True).indices
    pick = torch.take_along_dim(nxt, best[..., None].expand(-1, 1, nxt.shape[-1]), dim=1)[:, 0]
    return (psi - phi - 0.95 * pick).square().mean(-1), q.softmax(-1)


def decision(x: Tensor, w: Tensor, o: Tensor, g: Tensor) -> Tensor:
    """A causal block of returns, states and actions."""
    b, n, d = x.shape
    h = F.layer_norm(x, (d,), g)
    q, k, v = (h @ w).view(b, n, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
    s = q @ k.transpose(-1, -2) * (d // 2) ** -0.5
    s = s.masked_fill(torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), torch.finfo(s.dtype).min)
    y = (s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d)
    return x + y @ o


def programs() -> Iterator[Program]:
    c = partial(made, "control")
    yield c("f32 5x38 gae", gae, of("r", 5, 38), of("v", 5, 38), mask("done", 5, 38), only=CALM)
    yield c("f32 7x61 discounted", discounted, of("r", 7, 61), only=TAME)
    for dt in ("f32", "bf16"):
        yield c(f"{dt} 37x18 ppo", ppo, of("logits", 37, 18, dtype=dt), of("old", 37, 18, dtype=dt), label("a", 37, high=18),
                of("adv", 37, dtype=dt), only=MILD)
        yield c(f"{dt} 2x37x24 policy kl", policy_kl, of("p", 2, 37, 24, dtype=dt), of("q", 2, 37, 24, dtype=dt),
                only=(*CALM, "big"))
        yield c(f"{dt} 19x51 c51 value", c51_value, of("logits", 19, 51, dtype=dt),
                only=MILD)
    yield c("f32 9x43 vtrace", vtrace, of("lp", 9, 43, scale=0.3), of("lb", 9, 43, scale=0.3), of("r", 9, 43), of("v", 9, 43),
            only=MILD)
    yield c("f32 33x27 dueling", dueling, of("h", 33, 27), of("wa", 6, 27), of("wv", 27, 1), label("a", 33, high=6))
    yield c("f16 31x17 double dqn", double_dqn, of("q", 31, 17, dtype="f16"), of("nq", 31, 17, dtype="f16"),
            of("tq", 31, 17, dtype="f16"), label("a", 31, high=17), of("r", 31), mask("done", 31))
    yield c("f32 13x51 c51", c51, of("logits", 13, 51), of("nxt", 13, 51), of("r", 13, scale=3.0), mask("nd", 13), only=TAME)
    yield c("f32 5x31 quantile huber", quantile_huber, of("theta", 5, 31), of("target", 5, 31))
    yield c("f32 7x9 iqn", iqn, of("h", 7, 21), weight("tau", 7, 9, scale=0.2, shift=0.5), of("w", 21, 15), of("head", 21, 5),
            only=MILD)
    yield c("f32 23x7 tanh gaussian", tanh_gaussian, of("mu", 23, 7), of("log_std", 23, 7), of("eps", 23, 7), only=TAME)
    yield c("f32 5x67 sac target", sac_target, of("q", 5, 67), of("logp", 67), of("r", 67))
    yield c("f32 29x41 cql", cql, of("q", 29, 41), label("a", 29, high=41), of("lp", 29, 41))
    yield c("f32 211 awr", awr, of("adv", 211), of("logp", 211), only=TAME)
    yield c("f32 20x13 mpo", mpo, of("q", 20, 13), of("logp", 20, 13), weight("eta", 1), only=TAME)
    yield c("f32 129x9x3 mppi", mppi, of("cost", 129), of("noise", 129, 9, 3), of("u", 9, 3))
    yield c("f32 75x11 cem", cem, of("score", 75), of("x", 75, 11), only=("normal", "outlier", "tiny"))
    for dt in ("f32", "f16"):
        yield c(f"{dt} 4x53x6 soft cem", soft_cem, of("score", 4, 53, dtype=dt), of("x", 4, 53, 6, dtype=dt), only=MILD)
    yield c("f32 9x14x5 lqr", lqr, of("x", 9, 14, 5), of("u", 9, 14, 3), of("q", 5, 5), of("r", 3, 3), of("goal", 5))
    yield c("f32 5x97x4 particles", particles, of("logw", 5, 97), of("x", 5, 97, 4), of("z", 5, 4), only=TAME)
    yield c("f32 11x29 belief", belief, positive("b", 11, 29), of("t", 29, 29), positive("o", 11, 29))
    yield c("f32 85x19 running", running, of("x", 85, 19), of("mean", 19), positive("var", 19))
    yield c("f32 47x25 popart", popart, of("h", 47, 25), of("w", 1, 25), of("b", 1), of("g", 47), only=TAME)
    yield c("f32 17x5x9 mixture", mixture, of("pi", 17, 5), of("mu", 17, 5, 9), of("ls", 17, 5, 9, scale=0.5), of("a", 17, 9),
            only=TAME)
    yield c("f32 11x7x23 successor", successor, of("psi", 11, 23), of("w", 23), of("nxt", 11, 7, 23), of("phi", 11, 23),
            only=("normal", "tiny", "big"))
    for dt in ("f32", "bf16"):
        yield c(f"{dt} 2x21x20 decision", decision, of("x", 2, 21, 20, dtype=dt), of("w", 20, 60, dtype=dt),
                of("o", 20, 20, dtype=dt), weight("g", 20, dtype=dt))
