"""Blocks of tokens that attend, as people write them by hand: masks in buffers, two softmaxes, image and text, latents,
triangles, graphs, points."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from workloads.models.mixing import MLP, RMSNorm, heads_of, merged


class NanoGPT(nn.Module):
    """A block with everything written out: one projection, a mask in a buffer, softmax of filled scores."""

    def __init__(self, l: int, n: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.o = heads, nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(n), nn.LayerNorm(n), MLP(n, 4 * n)
        self.register_buffer("mask", torch.tril(torch.ones(l, l)).view(1, 1, l, l))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        l = x.shape[1]
        q, k, v = (heads_of(t, self.heads) for t in self.qkv(self.norm1(x)).split(x.shape[-1], 2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / q.shape[-1] ** 0.5)
        scores = scores.masked_fill(self.mask[:, :, :l, :l] == 0, float("-inf"))
        x = x + self.o(merged(functional.softmax(scores, dim=-1) @ v))
        return x + self.mlp(self.norm2(x))


class Differential(nn.Module):
    """Differential transformer (2410.05258): the difference of two softmaxes, normed by heads; SwiGLU."""

    def __init__(self, n: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(n, n, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(n, 3 * n, False), nn.Linear(n, 3 * n, False), nn.Linear(3 * n, n, False)
        self.norm1, self.norm2, self.inner = RMSNorm(n), RMSNorm(n), RMSNorm(n // heads)
        d = n // heads // 2
        self.q1, self.k1, self.q2, self.k2 = (nn.Parameter(torch.zeros(d)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        q, k = (heads_of(p(y), 2 * self.heads) for p in (self.q, self.k))
        v = heads_of(self.v(y), self.heads)
        hidden = torch.triu(torch.full((x.shape[1], x.shape[1]), float("-inf"), device=x.device), 1).type_as(x)
        weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5 + hidden, -1, dtype=torch.float32).type_as(x)
        weights = weights.unflatten(1, (self.heads, 2))
        mixed = torch.exp((self.q1 * self.k1).sum()) - torch.exp((self.q2 * self.k2).sum()) + 0.8
        out = self.inner((weights[:, :, 0] - mixed * weights[:, :, 1]) @ v) * 0.2
        x = x + self.o(merged(out))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Joint(nn.Module):
    """A double block of a text-to-image transformer (2403.03206): image x [b, l, n] and text y [b, m, n] attend together, each
    modulated by c [b, n], with rotated queries and keys behind RMS norms."""

    def __init__(self, n: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.condition = nn.ModuleList(nn.Linear(n, 6 * n) for _ in range(2))
        self.qkv = nn.ModuleList(nn.Linear(n, 3 * n) for _ in range(2))
        self.o = nn.ModuleList(nn.Linear(n, n) for _ in range(2))
        self.mlp = nn.ModuleList(MLP(n, 4 * n) for _ in range(2))
        self.norms = nn.ModuleList(RMSNorm(n // heads) for _ in range(4))

    def rotated(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)

    def forward(self, x: torch.Tensor, y: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        said = [m(functional.silu(c))[:, None].chunk(6, -1) for m in self.condition]
        q, k, v = [], [], []
        for i, t in enumerate((y, x)):
            shift, scale = said[i][:2]
            t = functional.layer_norm(t, t.shape[-1:]) * (1 + scale) + shift
            parts = [heads_of(p, self.heads) for p in self.qkv[i](t).chunk(3, -1)]
            q.append(self.norms[2 * i](parts[0]))
            k.append(self.norms[2 * i + 1](parts[1]))
            v.append(parts[2])
        q, k, v = (torch.cat(parts, 2) for parts in (q, k, v))
        d = q.shape[-1]
        angle = torch.arange(q.shape[2], device=x.device)[:, None] * 1e4 ** (-torch.arange(0, d, 2, device=x.device) / d)
        cos, sin = angle.cos().type_as(x), angle.sin().type_as(x)
        out = merged(functional.scaled_dot_product_attention(self.rotated(q, cos, sin), self.rotated(k, cos, sin), v))
        done = []
        for i, (t, part) in enumerate(((y, out[:, :y.shape[1]]), (x, out[:, y.shape[1]:]))):
            _, _, gate, shift, scale, last = said[i]
            t = t + gate * self.o[i](part)
            done.append(t + last * self.mlp[i](functional.layer_norm(t, t.shape[-1:]) * (1 + scale) + shift))
        return torch.cat(done, 1)


class Perceiver(nn.Module):
    """Latents that read x [b, l, n] once and then attend among themselves (2103.03206)."""

    def __init__(self, n: int, latents: int, heads: int, layers: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.zeros(latents, n))
        self.read = nn.MultiheadAttention(n, heads, batch_first=True)
        self.norm, self.norms = nn.LayerNorm(n), nn.LayerNorm(n)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(n, heads, 4 * n, activation="gelu", batch_first=True,
                                                               norm_first=True) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        z = self.norms(self.latents).expand(x.shape[0], -1, -1)
        z = z + self.read(z, x, x, need_weights=False)[0]
        for layer in self.layers:
            z = layer(z)
        return z


class Evoformer(nn.Module):
    """Of a pair z [r, r, c] (AlphaFold 2): a triangle's product, a triangle's attention and a transition."""

    def __init__(self, c: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.out, self.norm2, self.norm3 = (nn.LayerNorm(c) for _ in range(4))
        self.a, self.b, self.ga, self.gb, self.g, self.z = (nn.Linear(c, c) for _ in range(6))
        self.q, self.k, self.v = (nn.Linear(c, c, bias=False) for _ in range(3))
        self.bias, self.mlp = nn.Linear(c, heads, bias=False), MLP(c, 4 * c)
        self.gate, self.o = nn.Linear(c, c), nn.Linear(c, c)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        y = self.norm(z)
        a, b = torch.sigmoid(self.ga(y)) * self.a(y), torch.sigmoid(self.gb(y)) * self.b(y)
        z = z + torch.sigmoid(self.g(y)) * self.z(self.out(torch.einsum("ikc,jkc->ijc", a, b)))
        y = self.norm2(z)
        q, k, v = (heads_of(p(y), self.heads) for p in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5 + self.bias(y).permute(2, 0, 1), -1)
        z = z + self.o(torch.sigmoid(self.gate(y)) * merged(weights @ v))
        return z + self.mlp(self.norm3(z))


class GraphAttention(nn.Module):
    """GAT (1710.10903) over a dense adjacency: nodes x [b, l, n], edges [b, l, l]."""

    def __init__(self, n: int, heads: int) -> None:
        super().__init__()
        self.heads, self.value, self.norm = heads, nn.Linear(n, n, bias=False), nn.LayerNorm(n)
        self.left, self.right = nn.Parameter(torch.zeros(heads, n // heads)), nn.Parameter(torch.zeros(heads, n // heads))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        h = heads_of(self.value(x), self.heads)
        to, of = (h * self.left[:, None]).sum(-1), (h * self.right[:, None]).sum(-1)
        scores = functional.leaky_relu(to[..., :, None] + of[..., None, :], 0.2)
        weights = torch.softmax(scores.masked_fill(~edges[:, None], torch.finfo(x.dtype).min), -1)
        return self.norm(x + functional.elu(merged(weights @ h)))


class Points(nn.Module):
    """Point transformer (2012.09164): of each point [b, l, n] its ``near`` [b, l, s], weighed by channel."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(n, n) for _ in range(3))
        self.place, self.weigh, self.norm = nn.Linear(3, n), MLP(n, n), nn.LayerNorm(n)

    def forward(self, x: torch.Tensor, places: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
        batch = torch.arange(x.shape[0], device=x.device)[:, None, None]
        q, k, v = self.q(x), self.k(x)[batch, near], self.v(x)[batch, near]
        place = self.place(places[:, :, None] - places[batch, near])
        weights = torch.softmax(self.weigh(q[:, :, None] - k + place), 2)
        return self.norm(x + (weights * (v + place)).sum(2))
