"""Nine more models as people write them by hand: a denoiser, tables, matrix memories, sets, waves, splines, codes, and the ends
of two trainings."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workloads.case import Case, Inputs, normal
from workloads.correctness.fresh import policy
from workloads.models.written import Written


class Res(nn.Module):
    """A residual block of a denoiser: group norms, SiLU, and the time as scale and shift."""

    def __init__(self, i: int, o: int, time: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(32, i), nn.GroupNorm(32, o)
        self.a, self.b = nn.Conv2d(i, o, 3, padding=1), nn.Conv2d(o, o, 3, padding=1)
        self.time = nn.Linear(time, 2 * o)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.a(F.silu(self.first(x)))
        scale, shift = self.time(F.silu(t))[:, :, None, None].chunk(2, dim=1)
        return self.skip(x) + self.b(F.silu(self.second(h) * (1 + scale) + shift))


class Spatial(nn.Module):
    """Attention over the places of an image."""

    def __init__(self, c: int, heads: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out, self.heads = nn.GroupNorm(32, c), nn.Conv1d(c, 3 * c, 1), nn.Conv1d(c, c, 1), heads

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x).view(b, c, h * w)).view(b * self.heads, 3, c // self.heads, h * w).unbind(1)
        weight = torch.einsum("bct,bcs->bts", q * (c // self.heads) ** -0.25, k * (c // self.heads) ** -0.25)
        a = torch.einsum("bts,bcs->bct", torch.softmax(weight.float(), dim=-1).to(v.dtype), v)
        return x + self.out(a.reshape(b, c, h * w)).view(b, c, h, w)


class Denoiser(nn.Module):
    def __init__(self, c: int = 128) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, c, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(c, 4 * c), nn.SiLU(), nn.Linear(4 * c, 4 * c))
        self.down = nn.ModuleList([Res(c, c, 4 * c), Res(c, 2 * c, 4 * c), Res(2 * c, 4 * c, 4 * c)])
        self.middle = nn.ModuleList([Res(4 * c, 4 * c, 4 * c), Spatial(4 * c, 8), Res(4 * c, 4 * c, 4 * c)])
        self.up = nn.ModuleList([Res(8 * c, 2 * c, 4 * c), Res(4 * c, c, 4 * c), Res(2 * c, c, 4 * c)])
        self.norm, self.out, self.c = nn.GroupNorm(32, c), nn.Conv2d(c, 4, 3, padding=1), c

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        f = torch.exp(torch.arange(self.c // 2, device=x.device) * (-9.2103 / (self.c // 2)))
        a = t.float()[:, None] * f[None]
        e = self.time(torch.cat([a.cos(), a.sin()], dim=-1).to(x.dtype))
        h, kept = self.stem(x), []
        for block in self.down:
            h = block(h, e)
            kept.append(h)
            h = F.avg_pool2d(h, 2)
        for block in self.middle:
            h = block(h) if isinstance(block, Spatial) else block(h, e)
        for block in self.up:
            h = block(torch.cat([F.interpolate(h, scale_factor=2.0, mode="nearest"), kept.pop()], dim=1), e)
        return self.out(F.silu(self.norm(h)))


class Tabular(nn.Module):
    """FT-Transformer: a token of each column, ReGLU, and the first token's logits."""

    def __init__(self, columns: int, d: int, heads: int, layers: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(columns, d)), nn.Parameter(torch.randn(columns, d))
        self.first, self.heads = nn.Parameter(torch.randn(1, 1, d)), heads
        self.layers = nn.ModuleList(nn.ModuleDict({
            "n1": nn.LayerNorm(d), "qkv": nn.Linear(d, 3 * d), "o": nn.Linear(d, d), "n2": nn.LayerNorm(d),
            "up": nn.Linear(d, 8 * d // 3 * 2), "down": nn.Linear(8 * d // 3, d)}) for _ in range(layers))
        self.norm, self.out = nn.LayerNorm(d), nn.Linear(d, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.first.expand(x.shape[0], -1, -1), x[..., None] * self.weight + self.bias], dim=1)
        for m in self.layers:
            b, n, d = h.shape
            q, k, v = m["qkv"](m["n1"](h)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
            h = h + m["o"](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
            a, g = m["up"](m["n2"](h)).chunk(2, dim=-1)
            h = h + m["down"](a * F.relu(g))
        return self.out(F.relu(self.norm(h[:, 0])))


class MatrixMemory(nn.Module):
    """xLSTM's mLSTM in its parallel, stabilised form."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(d), nn.Linear(d, 3 * d)
        self.gates, self.out = nn.Linear(d, 2 * heads), nn.Linear(d, d)
        self.group, self.heads = nn.GroupNorm(heads, d), heads

    def forward(self, x: Tensor) -> Tensor:
        b, s, d = x.shape
        h = self.norm(x)
        q, k, v = (y.view(b, s, self.heads, -1).transpose(1, 2) for y in self.qkv(h).chunk(3, dim=-1))
        i, f = self.gates(h).float().transpose(1, 2).chunk(2, dim=1)
        total = F.logsigmoid(f).cumsum(-1)
        log_d = total[..., :, None] - total[..., None, :] + i[..., None, :]
        log_d = log_d.masked_fill(~torch.ones(s, s, dtype=torch.bool, device=x.device).tril(), float("-inf"))
        m = log_d.max(dim=-1, keepdim=True).values
        c = (q @ k.transpose(-1, -2)).float() * (d // self.heads) ** -0.5 * torch.exp(log_d - m)
        n = torch.maximum(c.sum(-1, keepdim=True).abs(), torch.exp(-m))
        o = (c / (n + 1e-6)).to(v.dtype) @ v
        o = self.group(o.transpose(1, 2).reshape(b * s, d)).view(b, s, d)
        return x + self.out(o)


class Induced(nn.Module):
    """Set Transformer: attention to induced points and back, post-norm."""

    def __init__(self, d: int, heads: int, points: int) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.randn(1, points, d))
        self.inward, self.back = (nn.MultiheadAttention(d, heads, batch_first=True) for _ in range(2))
        self.n1, self.n2, self.n3, self.n4 = (nn.LayerNorm(d) for _ in range(4))
        self.f1, self.f2 = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        p = self.points.expand(x.shape[0], -1, -1)
        h = self.n1(p + self.inward(p, x, x, need_weights=False)[0])
        h = self.n2(h + F.relu(self.f1(h)))
        y = self.n3(x + self.back(x, h, h, need_weights=False)[0])
        return self.n4(y + F.relu(self.f2(y)))


class Separator(nn.Module):
    """Conv-TasNet's blocks: norms over all of a signal, PReLU, dilated depthwise convolutions, and masks."""

    def __init__(self, channels: int, hidden: int, blocks: int) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv1d(1, channels, 16, stride=8), nn.ConvTranspose1d(channels, 1, 16, stride=8)
        self.norm = nn.GroupNorm(1, channels, eps=1e-8)
        self.blocks = nn.ModuleList(nn.Sequential(
            nn.Conv1d(channels, hidden, 1), nn.PReLU(), nn.GroupNorm(1, hidden, eps=1e-8),
            nn.Conv1d(hidden, hidden, 3, padding=2**i, dilation=2**i, groups=hidden), nn.PReLU(),
            nn.GroupNorm(1, hidden, eps=1e-8), nn.Conv1d(hidden, channels, 1)) for i in range(blocks))
        self.masks = nn.Conv1d(channels, 2 * channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        w = F.relu(self.encode(x))
        h = self.norm(w)
        for block in self.blocks:
            h = h + block(h)
        m = self.masks(h).view(x.shape[0], 2, *w.shape[1:]).softmax(dim=1)
        return self.decode((m * w[:, None]).flatten(0, 1)).view(x.shape[0], 2, -1)


class Splines(nn.Module):
    """FastKAN: layers of Gaussians of the normalised inputs."""

    def __init__(self, sizes: tuple[int, ...], grid: int = 8) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(i) for i in sizes[:-1])
        self.splines = nn.ModuleList(nn.Linear(i * grid, o, bias=False) for i, o in zip(sizes, sizes[1:], strict=False))
        self.base = nn.ModuleList(nn.Linear(i, o) for i, o in zip(sizes, sizes[1:], strict=False))
        self.register_buffer("grid", torch.linspace(-2, 2, grid))

    def forward(self, x: Tensor) -> Tensor:
        for norm, spline, base in zip(self.norms, self.splines, self.base, strict=True):
            basis = torch.exp(-((norm(x)[..., None] - self.grid) / (4 / 7)) ** 2)
            x = spline(basis.flatten(-2)) + base(F.silu(x))
        return x


class Codes(nn.Module):
    """VQ-VAE: nearest codes of an encoder's places, what they cost, and how many are used."""

    def __init__(self, c: int, codes: int) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, c, 4, 2, 1), nn.ReLU(), nn.Conv2d(c, c, 4, 2, 1), nn.ReLU(),
                                    nn.Conv2d(c, 64, 1))
        self.decode = nn.Sequential(nn.ConvTranspose2d(64, c, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(c, 3, 4, 2, 1))
        self.book, self.codes = nn.Embedding(codes, 64), codes

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = self.encode(x).permute(0, 2, 3, 1).contiguous()
        flat = z.view(-1, 64)
        d = (flat**2).sum(1, keepdim=True) + (self.book.weight**2).sum(1) - 2 * flat @ self.book.weight.t()
        at = d.argmin(dim=1)
        q = self.book(at).view_as(z)
        loss = F.mse_loss(q, z) + 0.25 * F.mse_loss(z, q)
        used = F.one_hot(at, self.codes).to(z.dtype).mean(0)
        return self.decode((z + (q - z)).permute(0, 3, 1, 2)), loss, torch.exp(-(used * torch.log(used + 1e-10)).sum())


class Policy(nn.Module):
    """GRPO's loss of a policy's logits: log-probabilities of what was said, the clipped ratio, the reference's divergence."""

    def forward(self, logits: Tensor, said: Tensor, old: Tensor, ref: Tensor, gain: Tensor,
                mask: Tensor) -> tuple[Tensor, Tensor]:
        loss, entropy = policy(logits, said, old, ref, gain, mask)
        return loss.mean(), entropy


class Late(nn.Module):
    """ColBERT: every query against every document by its best words, and the contrastive loss."""

    def __init__(self, d: int, e: int) -> None:
        super().__init__()
        self.project = nn.Linear(d, e, bias=False)

    def forward(self, q: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        q, d = F.normalize(self.project(q), dim=-1), F.normalize(self.project(d), dim=-1)
        scores = torch.einsum("qie,dje->qdij", q, d).max(dim=-1).values.sum(-1)
        return scores, F.cross_entropy(scores.float() / 0.05, torch.arange(q.shape[0], device=q.device))


def _said(device: str, seed: int) -> Inputs:
    g = torch.Generator(device).manual_seed(seed + 7)
    old = normal((8, 512), "f32", device, seed + 1) - 10
    return (normal((8, 512, 32000), "bf16", device, seed), torch.randint(0, 32000, (8, 512), generator=g, device=device), old,
            normal((8, 512), "f32", device, seed + 2) * 0.1 + old, normal((8,), "f32", device, seed + 3),
            torch.rand((8, 512), generator=g, device=device) < 0.8)


def _noised(device: str, seed: int) -> Inputs:
    return normal((8, 4, 64, 64), "f16", device, seed), torch.arange(1, 9, device=device, dtype=torch.float16) * 100


HAND = (
    Written("denoiser", "f16", lambda: Denoiser(128), ((8, 4, 64, 64), (8,)), 118_290_907_136, 22_711_684, _noised),
    Written("tabular", "f16", lambda: Tabular(40, 192, 8, 3), ((4096, 40),), 445_740_220_416, 1_351_682),
    Written("matrix-memory", "bf16", lambda: nn.Sequential(*(MatrixMemory(1024, 4) for _ in range(4))), ((4, 1024, 1024),),
            206_426_865_664, 16_842_784),
    Written("sets", "f16", lambda: nn.Sequential(*(Induced(256, 8, 64) for _ in range(3))), ((64, 1024, 256),),
            136_902_082_560, 2_029_056),
    Written("separator", "f16", lambda: Separator(128, 512, 6), ((8, 1, 32000),), 53_398_487_040, 852_365),
    Written("splines", "f32", lambda: Splines((784, 256, 256, 10)), ((4096, 784),), 19_818_086_400, 2_422_314),
    Written("codes", "f32", lambda: Codes(128, 1024), ((32, 3, 128, 128),), 33_822_867_456, 479_683, whole=True, results=3),
    Written("policy", "bf16", Policy, ((8, 512, 32000), (8, 512), (8, 512), (8, 512), (8,), (8, 512)), 0, 0, _said, whole=True,
            results=2),
    Written("late", "bf16", lambda: Late(768, 128), ((64, 32, 768), (64, 180, 768)), 8_707_375_104, 98_304, whole=True,
            results=2),
)


def cases() -> list[Case]:
    return [replace(w.case(), sets=("fresh",)) for w in HAND]
