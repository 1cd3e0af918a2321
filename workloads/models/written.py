"""Seventeen models as people write them by hand, in plain PyTorch and of no library: blocks that mix and that attend, experts
by one-hot products, two towers with their loss, tables of a recommender, a series in patches, volumes along rays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional

from workloads.case import Case, Inputs, normal, size
from workloads.models.attending import Differential, Evoformer, GraphAttention, Joint, NanoGPT, Perceiver, Points
from workloads.models.common import drawn, model_case
from workloads.models.mixing import GMLP, LinearAttention, Mixer, Retention, Stack, StateSpace


class Switch(nn.Module):
    """Experts by one-hot products with a capacity, as Mesh TensorFlow's users write them (2101.03961), top two of them."""

    def __init__(self, n: int, hidden: int, experts: int, capacity: int) -> None:
        super().__init__()
        self.capacity, self.router, self.norm = capacity, nn.Linear(n, experts, bias=False), nn.LayerNorm(n)
        self.up, self.down = nn.Parameter(torch.zeros(experts, n, hidden)), nn.Parameter(torch.zeros(experts, hidden, n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x).flatten(0, 1)
        gates = torch.softmax(self.router(y).float(), -1)
        values, chosen = gates.topk(2, -1)
        values = values / values.sum(-1, keepdim=True)
        mask = functional.one_hot(chosen, gates.shape[-1]).float()
        place = torch.cumsum(mask.flatten(0, 1), 0).view_as(mask) * mask - 1
        mask = mask * ((place < self.capacity) & (place >= 0))
        slot = functional.one_hot(place.clamp(0, self.capacity - 1).long(), self.capacity).float() * mask[..., None]
        combine = torch.einsum("tk,tkec->tec", values, slot).type_as(x)
        inside = torch.einsum("tec,tn->ecn", (combine > 0).type_as(x), y)
        outside = functional.relu(inside @ self.up) @ self.down
        return x + torch.einsum("tec,ecn->tn", combine, outside).view_as(x)


class Towers(nn.Module):
    """Two towers and the loss of their similarities, both ways (2103.00020)."""

    def __init__(self, n: int, hidden: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Sequential(nn.Linear(n, hidden), nn.GELU(), nn.LayerNorm(hidden), nn.Linear(hidden, n))
                              for _ in range(2))
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = functional.normalize(self.one(a), dim=-1), functional.normalize(self.two(b), dim=-1)
        logits = torch.exp(self.scale + 2.6) * a @ b.T
        labels = torch.arange(a.shape[0], device=a.device)
        return (functional.cross_entropy(logits.float(), labels) + functional.cross_entropy(logits.T.float(), labels)) / 2


class Recommender(nn.Module):
    """DLRM (1906.00091): dense features [b, m] and ids [b, tables], pairwise products of all embeddings, a head."""

    def __init__(self, m: int, tables: int, rows: int, n: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, n) for _ in range(tables))
        self.dense = nn.Sequential(nn.Linear(m, 512), nn.ReLU(), nn.Linear(512, n), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.head = nn.Sequential(nn.Linear(pairs + n, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        x = self.dense(dense)
        every = torch.stack([x, *(t(ids[:, i]) for i, t in enumerate(self.tables))], 1)
        products = torch.bmm(every, every.transpose(1, 2))
        i, j = torch.tril_indices(every.shape[1], every.shape[1], -1, device=x.device)
        return torch.sigmoid(self.head(torch.cat((x, products[:, i, j]), 1)))


class Series(nn.Module):
    """PatchTST (2211.14730): each channel of x [b, l, m] by itself, normed by its own past, in patches of 16 every 8."""

    def __init__(self, l: int, n: int, heads: int, layers: int, horizon: int) -> None:
        super().__init__()
        patches = (l - 16) // 8 + 1
        self.patch, self.place = nn.Linear(16, n), nn.Parameter(torch.zeros(patches, n))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(n, heads, 2 * n, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(patches * n, horizon)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, deviation = x.mean(1, keepdim=True), torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5)
        y = ((x - mean) / deviation).transpose(1, 2).unfold(-1, 16, 8)
        y = (self.patch(y) + self.place).flatten(0, 1)
        for layer in self.layers:
            y = layer(y)
        return self.head(y.flatten(1)).view(x.shape[0], x.shape[2], -1).transpose(1, 2) * deviation + mean


class Rays(nn.Module):
    """A radiance field (2003.08934): an MLP of positions [rays, samples, 3] encoded by frequencies, composed along each ray."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList((nn.Linear(63, hidden), *(nn.Linear(hidden, hidden) for _ in range(6))))
        self.density, self.colour = nn.Linear(hidden, 1), nn.Linear(hidden, 3)

    def forward(self, at: torch.Tensor, steps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        waves = at[..., None] * (2.0 ** torch.arange(10, device=at.device)).type_as(at)
        x = torch.cat((at, torch.sin(waves).flatten(-2), torch.cos(waves).flatten(-2)), -1)
        for layer in self.layers:
            x = functional.relu(layer(x))
        alpha = 1 - torch.exp(-functional.relu(self.density(x)[..., 0]) * steps)
        clear = torch.cumprod(torch.cat((torch.ones_like(alpha[:, :1]), 1 - alpha[:, :-1] + 1e-10), -1), -1)
        weights = alpha * clear
        return (weights[..., None] * torch.sigmoid(self.colour(x))).sum(1), (weights * steps).sum(-1)


# -- cases ---------------------------------------------------------------------------------------------------------------

Draw = Callable[[str, int], Inputs]


@dataclass(frozen=True)
class Written:
    """``shapes``: of the arguments, drawn normal unless ``draw`` says otherwise. ``flops``: of all products, counted by torch's
    FlopCounterMode, those of encoder layers and MultiheadAttention by hand. ``whole``: entries of the batch are not apart, so
    that float64 takes all of it."""

    name: str
    dtype: str
    make: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    flops: int
    weights: int
    draw: Draw | None = None
    whole: bool = False
    results: int = 1

    def inputs(self) -> Draw:
        if self.draw is not None:
            return self.draw
        return lambda device, seed: tuple(normal(s, self.dtype, device, seed + i) for i, s in enumerate(self.shapes))

    def case(self) -> Case:
        moved = 2 * self.weights + sum(size(s, self.dtype) for s in self.shapes)
        case = model_case(self.name, self.dtype, self.shapes[0][0], lambda: drawn(self.make, self.dtype), self.inputs(),
                          self.flops, moved, {"shapes": str(self.shapes)}, ("written",), (0,) * len(self.shapes),
                          (0,) * self.results)
        return replace(case, sample=lambda args: args, pick=lambda out: out, sample_note="all") if self.whole else case


def _graph(device: str, seed: int) -> Inputs:
    """Nodes and an adjacency of one in sixteen, each node its own neighbour."""
    x = normal((4, 2048, 256), "f16", device, seed)
    edges = normal((4, 2048, 2048), "f32", device, seed + 1) > 1.53
    return x, edges | torch.eye(2048, dtype=torch.bool, device=device)


def _cloud(device: str, seed: int) -> Inputs:
    generator = torch.Generator(device).manual_seed(seed + 2)
    near = torch.randint(0, 4096, (4, 4096, 16), generator=generator, device=device)
    return normal((4, 4096, 64), "f32", device, seed), normal((4, 4096, 3), "f32", device, seed + 1), near


def _rows(device: str, seed: int) -> Inputs:
    generator = torch.Generator(device).manual_seed(seed + 1)
    return normal((8192, 13), "f32", device, seed), torch.randint(0, 100_000, (8192, 26), generator=generator, device=device)


def _rays(device: str, seed: int) -> Inputs:
    return normal((4096, 64, 3), "f16", device, seed), normal((4096, 64), "f16", device, seed + 1).abs() * 0.1


WRITTEN = (
    Written("mixer", "f16", lambda: Stack(lambda: Mixer(196, 768), 6), ((32, 196, 768),), 399_532_621_824, 29_259_672),
    Written("gmlp", "bf16", lambda: Stack(lambda: GMLP(512, 512), 6), ((16, 512, 512),), 206_158_430_208, 11_046_912),
    Written("retnet", "bf16", lambda: Stack(lambda: Retention(1024, 8), 4), ((4, 1024, 1024),), 377_957_122_048, 37_777_408),
    Written("linear-attention", "bf16", lambda: Stack(lambda: LinearAttention(768, 12), 4), ((8, 2048, 768),),
            940_698_501_120, 28_351_488),
    Written("state-space", "bf16", lambda: Stack(lambda: StateSpace(1024, 128), 4), ((4, 2048, 1024),),
            234_144_923_648, 13_180_992),
    Written("nanogpt", "bf16", lambda: Stack(lambda: NanoGPT(1024, 768, 12), 6), ((8, 1024, 768),),
            850_403_524_608, 42_527_232),
    Written("differential", "bf16", lambda: Stack(lambda: Differential(1024, 8), 4), ((2, 2048, 1024),),
            584_115_552_256, 54_535_680),
    Written("joint", "bf16", lambda: Joint(1536, 24), ((2, 1024, 1536), (2, 256, 1536), (2, 1536)),
            145_068_392_448, 84_980_992),
    Written("perceiver", "f16", lambda: Perceiver(512, 256, 8, 4), ((8, 8192, 512),), 160_658_620_416, 13_793_280),
    Written("evoformer", "bf16", lambda: Stack(lambda: Evoformer(128, 4), 2), ((256, 256, 128),),
            107_508_400_128, 628_992, whole=True),
    Written("graph-attention", "f16", lambda: Stack(lambda: GraphAttention(256, 8), 3), ((4, 2048, 256), (4, 2048, 2048)),
            28_991_029_248, 199_680, _graph),
    Written("points", "f32", lambda: Stack(lambda: Points(64), 2), ((4, 4096, 64), (4, 4096, 3), (4, 4096, 16)),
            9_596_567_552, 42_368, _cloud),
    Written("switch", "bf16", lambda: Stack(lambda: Switch(1024, 4096, 8, 640), 2), ((2, 1024, 1024),),
            257_849_032_704, 134_238_208, whole=True),
    Written("towers", "f16", lambda: Towers(768, 3072), ((4096, 768), (4096, 768)), 103_079_215_104, 9_457_153, whole=True),
    Written("recommender", "f32", lambda: Recommender(13, 26, 100_000, 64), ((8192, 13), (8192, 26)),
            12_672_040_960, 728_641, _rows),
    Written("series", "f32", lambda: Series(512, 128, 8, 3, 96), ((32, 512, 21),), 38_618_923_008, 1_181_920),
    Written("rays", "f16", lambda: Rays(256), ((4096, 64, 3), (4096, 64)), 215_151_017_984, 412_164, _rays, results=2),
)


def cases() -> list[Case]:
    return [w.case() for w in WRITTEN]
