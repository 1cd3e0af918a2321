"""Blocks without softmax, as people write them by hand: mixers, retention, linear attention, a state space in chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def heads_of(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[..., l, n] -> [..., heads, l, n / heads]."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def merged(x: torch.Tensor) -> torch.Tensor:
    """[..., heads, l, d] -> [..., l, heads * d]."""
    return x.transpose(-3, -2).flatten(-2)


class RMSNorm(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.weight


class MLP(nn.Module):
    def __init__(self, n: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(n, hidden), nn.Linear(hidden, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x)))


class Stack(nn.Module):
    """Blocks in turn, each of which gets what the model got besides."""

    def __init__(self, block: Callable[[], nn.Module], layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(layers))

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> Any:
        for block in self.blocks:
            x = block(x, *more)
        return x


class Mixer(nn.Module):
    """MLP-Mixer (2105.01601) of x [b, l, n]."""

    def __init__(self, l: int, n: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(n), nn.LayerNorm(n)
        self.tokens, self.channels = MLP(l, n // 2), MLP(n, 4 * n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class GMLP(nn.Module):
    """gMLP (2105.08050): half of the channels gate the others behind a product along the tokens."""

    def __init__(self, l: int, n: int) -> None:
        super().__init__()
        self.norm, self.gated = nn.LayerNorm(n), nn.LayerNorm(2 * n)
        self.up, self.spatial, self.down = nn.Linear(n, 4 * n), nn.Conv1d(l, l, 1), nn.Linear(2 * n, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u, v = functional.gelu(self.up(self.norm(x))).chunk(2, -1)
        return x + self.down(u * (self.spatial(self.gated(v)) + 1.0))


class Retention(nn.Module):
    """Parallel retention (2307.08621): scores decay with the distance, rows are scaled by their sums, heads are normed."""

    def __init__(self, n: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.g, self.o = (nn.Linear(n, n, bias=False) for _ in range(5))
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(n), nn.LayerNorm(n), MLP(n, 2 * n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        q, k, v = (heads_of(p(y), self.heads) for p in (self.q, self.k, self.v))
        at = torch.arange(x.shape[1], device=x.device)
        rate = torch.log(1 - 2.0 ** (-5 - torch.arange(self.heads, device=x.device)))
        far = (at[:, None] - at[None, :]).float()
        decay = torch.where(far >= 0, torch.exp(far * rate[:, None, None]), 0.0)
        decay = decay / decay.sum(-1, keepdim=True).sqrt()
        scores = (q @ k.mT * q.shape[-1] ** -0.5) * decay.to(q.dtype)
        scores = scores / scores.detach().abs().sum(-1, keepdim=True).clamp(1, 5e4)
        out = functional.layer_norm(scores @ v, (q.shape[-1],))
        x = x + self.o(functional.silu(self.g(y)) * merged(out))
        return x + self.mlp(self.norm2(x))


class LinearAttention(nn.Module):
    """Attention with ``elu(x) + 1`` for an exponential (2006.16236), of all tokens to all."""

    def __init__(self, n: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.o = heads, nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(n), nn.LayerNorm(n), MLP(n, 4 * n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads_of(t, self.heads) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        state = torch.einsum("bhld,bhle->bhde", k, v)
        z = 1 / (torch.einsum("bhld,bhd->bhl", q, k.sum(-2)) + 1e-6)
        x = x + self.o(merged(torch.einsum("bhld,bhde,bhl->bhle", q, state, z)))
        return x + self.mlp(self.norm2(x))


class StateSpace(nn.Module):
    """Mamba-2's state space in chunks (2405.21060, listing 1), of x [b, l, n] with heads of 64 and states of 64."""

    def __init__(self, n: int, chunk: int) -> None:
        super().__init__()
        self.chunk, self.heads, self.states = chunk, n // 64, 64
        self.inside = nn.Linear(n, 2 * n + 2 * self.states + self.heads, bias=False)
        self.norm, self.gated, self.o = RMSNorm(n), RMSNorm(n), nn.Linear(n, n, bias=False)
        self.rate = nn.Parameter(torch.zeros(self.heads))

    @staticmethod
    def between(a: torch.Tensor) -> torch.Tensor:
        """[..., l] -> [..., l, l]: sums of a from behind column j to row i, -inf above the diagonal."""
        sums = torch.cumsum(a, -1)
        seen = torch.ones(a.shape[-1], a.shape[-1], dtype=torch.bool, device=a.device).tril()
        return (sums[..., :, None] - sums[..., None, :]).masked_fill(~seen, -torch.inf)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, l, n = x.shape
        z, u, keys, queries, step = self.inside(self.norm(x)).split((n, n, self.states, self.states, self.heads), -1)
        step = functional.softplus(step.float())
        u = (u.unflatten(-1, (self.heads, 64)) * step[..., None]).unflatten(1, (-1, self.chunk))
        keys, queries = (t.float().unflatten(1, (-1, self.chunk)) for t in (keys, queries))
        a = (-torch.exp(self.rate.float()) * step).unflatten(1, (-1, self.chunk)).permute(0, 3, 1, 2)
        sums = torch.cumsum(a, -1)
        inner = torch.einsum("bcln,bcsn,bhcls,bcshp->bclhp", queries, keys, torch.exp(self.between(a)), u)
        states = torch.einsum("bcln,bhcl,bclhp->bchpn", keys, torch.exp(sums[..., -1:] - sums), u)
        states = torch.cat((torch.zeros_like(states[:, :1]), states), 1)
        passed = torch.exp(self.between(functional.pad(sums[..., -1], (1, 0))))
        states = torch.einsum("bhzc,bchpn->bzhpn", passed, states)[:, :-1]
        outer = torch.einsum("bcln,bchpn,bhcl->bclhp", queries, states, torch.exp(sums))
        y = (inner + outer).reshape(b, l, n).type_as(x)
        return x + self.o(self.gated(y * functional.silu(z)))
