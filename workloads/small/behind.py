"""What is behind a row: steps of optimisers, joined statistics, filters whose taps are written out, positions that a view has
skewed; rendering, hidden Markov models, losses over pairs; long columns."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.correctness import behind
from workloads.small.spec import In, Programs

PROGRAMS = P = Programs()

P(In((512, 400)), In((512, 400)), In((512, 400), likely=0.9))(behind.coverage)
P(In((4194304,)), In((4194304,)), In((4194304,), scale=0.1), In((4194304,), scale=0.01))(behind.clipped_step)
P(In((512, 401)), In((512, 401)), In((512, 401), likely=0.5))(behind.label_step)
P(In((16, 1, 256, 256)))(behind.edges_kept)
P(In((2, 8, 512, 64), "f16"), In((2, 8, 512, 64), "f16"), In((2, 8, 512, 64), "f16"), In((8, 1023, 64), "f16"))(behind.skewed)
P(In((4096, 4096), "bf16"), In((4096,), "bf16"))(behind.shared_exponents)
P(In((8192, 32, 64), "f16"), In((8192, 32), likely=0.7))(behind.aggregated)
P(In((32, 256, 56, 56), "f16"))(behind.of_channels)
P(In((65536, 256)))(behind.moments)


@P(In((32768, 64)), In((32768, 64, 3)), In((32768, 64)))
def rendered_rays(density: Tensor, colour: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    t = t.abs().cumsum(-1)
    step = torch.cat([t[:, 1:] - t[:, :-1], torch.full_like(t[:, :1], 1e10)], -1)
    alpha = 1 - torch.exp(-F.relu(density) * step)
    seen = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
    w = alpha * seen
    return (w[..., None] * colour.sigmoid()).sum(-2), (w * t).sum(-1), w.sum(-1)


@P(In((256, 256)), In((256, 256)), In((256, 256)))
def hidden_markov(alpha: Tensor, trans: Tensor, seen: Tensor) -> Tensor:
    return torch.logsumexp(alpha[:, :, None] + trans.log_softmax(-1)[None], dim=1) + seen


@P(In((512, 128)), In((1000, 128)), In((512,), high=1000))
def proxy_anchor(x: Tensor, p: Tensor, y: Tensor) -> Tensor:
    c = F.normalize(x, dim=-1) @ F.normalize(p, dim=-1).T
    m = F.one_hot(y, 1000).bool()
    own, others = torch.where(m, torch.exp(-32 * (c - 0.1)), 0).sum(0), torch.where(m, 0, torch.exp(32 * (c + 0.1))).sum(0)
    return torch.log1p(own).sum() / (m.sum(0) > 0).sum() + torch.log1p(others).sum() / 1000


@P(In((8192, 1)), In((8192, 200)))
def greatest_of_pairs(positive: Tensor, negative: Tensor) -> Tensor:
    w = negative.softmax(-1)
    return (-torch.log((w * torch.sigmoid(positive - negative)).sum(-1) + 1e-10) + (w * negative.square()).sum(-1)).mean()


@P(In((4, 256, 512), "f16"), In((4, 256, 512), "f16"), In((4, 256, 512), "f16"), In((256, 256), scale=0.2))
def attention_free(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    k = torch.exp(k.float() - k.float().amax(1, keepdim=True))
    above, below = (torch.einsum("ts,bsd->btd", torch.exp(w), x) for x in (k * v.float(), k))
    return (torch.sigmoid(q.float()) * above / below).half()


@P(In((64, 32000), "bf16", 3), In((64, 32000), "bf16", 3))
def contrastive_decoding(expert: Tensor, amateur: Tensor) -> Tensor:
    e, a = expert.float().log_softmax(-1), amateur.float().log_softmax(-1)
    return torch.where(e >= e.amax(-1, keepdim=True) + math.log(0.1), 1.5 * e - 0.5 * a, float("-inf"))


@P(In((16384, 1024)))
def column_sums(x: Tensor) -> Tensor:
    return x.sum(0)


@P(In((32, 1024, 512)))
def largest_and_place(x: Tensor) -> tuple[Tensor, Tensor]:
    largest, place = x.max(1)
    return largest, place
