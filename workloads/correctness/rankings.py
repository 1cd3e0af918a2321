"""Rankings: losses of lists and pairs, metrics of ranks, clicks, and running sums from either end."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import CALM, TAME, Program, label, made, mask, of, positive, weight

# -- losses ------------------------------------------------------------------------------------------------------------


def listnet(s: Tensor, y: Tensor, keep: Tensor) -> Tensor:
    s = s.masked_fill(~keep, float("-inf"))
    y = y.masked_fill(~keep, float("-inf"))
    p = torch.softmax(y, dim=1)
    log_q = torch.log(torch.softmax(s, dim=1) + 1e-10)
    return torch.mean(-torch.sum(p * log_q, dim=1))


def listmle(s: Tensor, keep: Tensor) -> Tensor:
    """allRank's: scores in the order of the labels, sums from behind."""
    s = s.masked_fill(~keep, float("-inf"))
    top = s.max(dim=1, keepdim=True).values
    s = s - top
    sums = torch.cumsum(s.exp().flip(dims=[1]), dim=1).flip(dims=[1])
    loss = torch.log(sums + 1e-10) - s
    loss[~keep] = 0.0
    return torch.mean(torch.sum(loss, dim=1))


def listmle_flipped(s: Tensor, eps: Tensor) -> Tensor:
    """Log of sums from behind, with a small number that comes as a tensor."""
    top = torch.amax(s, 1, True)
    e = torch.exp(s - top)
    c = torch.flip(torch.cumsum(torch.flip(e, (1,)), 1), (1,))
    return (torch.log(c + eps) + top - s).sum(1)


def behind(x: Tensor) -> Tensor:
    """Sums from behind without a flip."""
    c = x.cumsum(-1)
    return x.sum(-1, keepdim=True) - c + x


def exclusive(x: Tensor) -> tuple[Tensor, Tensor]:
    c = torch.cumsum(x, 1) - x
    return c, (c * x).sum(1)


def approx_ndcg(s: Tensor, y: Tensor) -> Tensor:
    """Ranks by sigmoids of differences."""
    rank = 1.0 + torch.sigmoid((s.unsqueeze(1) - s.unsqueeze(2)) / 0.1).sum(-1) - 0.5
    gain = 2.0**y - 1
    return 1 - (gain / torch.log2(1.0 + rank)).sum(-1) / gain.sum(-1).clamp(min=1e-6)


def lambda_rank(s: Tensor, y: Tensor) -> Tensor:
    diff = s[:, :, None] - s[:, None, :]
    pairs = y[:, :, None] > y[:, None, :]
    delta = (2.0 ** y[:, :, None] - 2.0 ** y[:, None, :]).abs()
    loss = F.softplus(-diff) * delta
    return torch.where(pairs, loss, torch.zeros_like(loss)).sum(dim=(1, 2)) / pairs.sum(dim=(1, 2)).clamp(min=1)


def popularity(s: Tensor, count: Tensor) -> Tensor:
    """Debiased by counts that are integers."""
    logq = torch.log(count.to(s.dtype) / count.sum())
    return F.log_softmax(s - logq.where(count > 0, torch.zeros_like(logq)), dim=1)


# -- metrics -----------------------------------------------------------------------------------------------------------


def metrics(s: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rank of the target by counting, its reciprocal, recall and NDCG at 10."""
    own = s.gather(1, target.unsqueeze(1))
    rank = (s > own).sum(dim=1) + 1
    return (1.0 / rank.float()).mean(), (rank <= 10).float().mean(), \
        torch.where(rank <= 10, 1 / torch.log2(rank.float() + 1), 0.0).mean()


def dcg(gain: Tensor, keep: Tensor) -> Tensor:
    discount = 1 / torch.log2(torch.arange(gain.shape[1], device=gain.device, dtype=gain.dtype) + 2)
    gain = torch.where(keep, 2**gain - 1, 0.0)
    best, _ = gain.sort(dim=1, descending=True)
    ideal = (best * discount).sum(1)
    return torch.where(ideal == 0, 0.0, (gain * discount).sum(1) / ideal.clamp(min=1e-9))


def average_precision(y: Tensor) -> Tensor:
    """Relevance in the order of the scores: means of the precisions at each hit."""
    hits = torch.cumsum(y.float(), dim=1)
    precision = hits / torch.arange(1, y.shape[1] + 1, device=y.device)
    return (precision * y).sum(1) / y.sum(1).clamp(min=1)


def hit_rates(s: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of top ten: hits, precision, reciprocal rank of the first."""
    _, at = s.topk(10, dim=1)
    hits = (at == y[:, None]).to(torch.float32)
    rr = (hits / torch.arange(1, 11, device=s.device)).max(1).values
    return hits.sum(1), hits.mean(), rr


def auc(s: Tensor, y: Tensor) -> Tensor:
    d = s.unsqueeze(-1) - s.unsqueeze(-2)
    w = y.unsqueeze(-1) * (1 - y).unsqueeze(-2)
    return ((d > 0).to(s.dtype) * w + 0.5 * (d == 0).to(s.dtype) * w).sum((-1, -2)) / w.sum((-1, -2)).clamp(min=1)


def mean_reciprocal(s: Tensor, y: Tensor) -> Tensor:
    """Ties counted in half."""
    own = s.gather(1, y[:, None])
    return (1 / (1 + (s > own).sum(1) + 0.5 * ((s == own).sum(1) - 1))).mean()


def counterfactual(r: Tensor, logp: Tensor, logq: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """IPS, clipped, and self-normalised."""
    w = torch.exp(logp - logq)
    c = torch.clamp(w, max=10.0)
    return (w * r).mean(-1), (c * r).mean(-1), (w * r).sum(-1) / w.sum(-1)


def cascade_click(a: Tensor) -> tuple[Tensor, Tensor]:
    """A click model: examined only where nothing before was clicked."""
    p = torch.sigmoid(a)
    keep = torch.cumprod(1 - p, dim=-1)
    before = torch.cat([torch.ones_like(keep[..., :1]), keep[..., :-1]], dim=-1)
    return before * p, keep[..., -1]


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    ledger = partial(made, "ledgers")
    account = partial(made, "accounts")
    yield ledger("f32 65x130 listnet", listnet, of("s", 65, 130), of("y", 65, 130), mask("keep", 65, 130))
    yield ledger("f32 33x130 listmle", listmle, of("s", 33, 130), mask("keep", 33, 130))
    yield account("f32 33x130 listmle", listmle_flipped, of("s", 33, 130), positive("eps", scale=1e-8))
    yield account("f32 33x130 behind", behind, positive("x", 33, 130), only=CALM)
    yield account("f32 33x65 exclusive", exclusive, of("x", 33, 65), only=CALM)
    yield ledger("f32 33x65 approx ndcg", approx_ndcg, of("s", 33, 65), weight("y", 33, 65), only=TAME)
    yield ledger("f32 9x65 lambda rank", lambda_rank, of("s", 9, 65), weight("y", 9, 65))
    yield account("f32 33x130 popularity", popularity, of("s", 33, 130), label("count", 130, high=9))

    yield ledger("f32 65x1000 metrics", metrics, of("s", 65, 1000), label("target", 65, high=1000))
    yield ledger("f32 65x33 dcg", dcg, weight("gain", 65, 33), mask("keep", 65, 33))
    yield ledger("i64 65x130 average precision", average_precision, label("y", 65, 130))
    yield account("f32 65x1000 hit rates", hit_rates, of("s", 65, 1000), label("y", 65, high=1000), only=("normal", "outlier"))
    yield account("f32 9x65 auc", auc, of("s", 9, 65), weight("y", 9, 65, scale=0.3, shift=0.5))
    yield account("f32 65x130 mean reciprocal", mean_reciprocal, of("s", 65, 130), label("y", 65, high=130))
    yield ledger("f32 33x257 counterfactual", counterfactual, of("r", 33, 257), of("logp", 33, 257), of("logq", 33, 257))
    yield ledger("f32 65x33 cascade click", cascade_click, of("a", 65, 33))
