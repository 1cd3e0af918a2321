"""Blocks of diffusion models in plain PyTorch: a stack of DiT blocks, and one level of an SDXL-like UNet."""

from __future__ import annotations

import torch
from torch.nn import functional

from workloads.case import Case, normal, size
from workloads.models.common import drawn, flops_of, model_case

DIT_XL = {"hidden": 1152, "heads": 16, "layers": 8}
SDXL_640 = {"channels": 640, "heads": 10, "context": 2048, "depth": 2, "groups": 32}


def heads_of(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[b, l, n] -> [b, heads, l, n / heads]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class Attention(torch.nn.Module):
    """Attention of x [b, l, n] to itself or to ``context`` [b, m, c]."""

    def __init__(self, n: int, heads: int, context: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (torch.nn.Linear(i, n, bias=bias) for i in (n, context, context))
        self.o = torch.nn.Linear(n, n)

    def forward(self, x: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        y = x if context is None else context
        q, k, v = (heads_of(p(z), self.heads) for p, z in ((self.q, x), (self.k, y), (self.v, y)))
        return self.o(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class DiTBlock(torch.nn.Module):
    """adaLN-Zero: norms without weights, shifted, scaled and gated by what the condition c [b, n] says."""

    def __init__(self, n: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (torch.nn.LayerNorm(n, eps=1e-6, elementwise_affine=False) for _ in range(2))
        self.attention = Attention(n, heads, n, True)
        self.up, self.down = torch.nn.Linear(n, 4 * n), torch.nn.Linear(4 * n, n)
        self.condition = torch.nn.Linear(n, 6 * n)

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(functional.silu(c)).unsqueeze(1).chunk(6, -1)
        x = x + gate1 * self.attention(self.norm1(x) * (1 + scale1) + shift1)
        h = self.up(self.norm2(x) * (1 + scale2) + shift2)
        return x + gate2 * self.down(functional.gelu(h, approximate="tanh"))


class DiT(torch.nn.Module):
    """DiT-XL's blocks: tokens [b, l, n] and a condition [b, n] to tokens."""

    def __init__(self, hidden: int, heads: int, layers: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(DiTBlock(hidden, heads) for _ in range(layers))

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, c)
        return x


class Residual(torch.nn.Module):
    """Two convolutions behind group norms, with the time embedding t [b, 4 n] between."""

    def __init__(self, n: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (torch.nn.GroupNorm(groups, n) for _ in range(2))
        self.conv1, self.conv2 = (torch.nn.Conv2d(n, n, 3, padding=1) for _ in range(2))
        self.time = torch.nn.Linear(4 * n, n)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        h = self.conv1(functional.silu(self.norm1(x)))
        h = h + self.time(functional.silu(t))[:, :, None, None]
        return x + self.conv2(functional.silu(self.norm2(h)))


class Transformer(torch.nn.Module):
    """Self-attention, cross-attention and GEGLU, each behind a layer norm."""

    def __init__(self, n: int, heads: int, context: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (torch.nn.LayerNorm(n) for _ in range(3))
        self.own, self.cross = Attention(n, heads, n, False), Attention(n, heads, context, False)
        self.up, self.down = torch.nn.Linear(n, 8 * n), torch.nn.Linear(4 * n, n)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        x = x + self.own(self.norm1(x))
        x = x + self.cross(self.norm2(x), context)
        h, gate = self.up(self.norm3(x)).chunk(2, -1)
        return x + self.down(h * functional.gelu(gate))


class UNetLevel(torch.nn.Module):
    """One level of SDXL's UNet, twice a residual block and a spatial transformer: x [b, n, h, w], a time embedding [b, 4 n] and
    the prompt [b, 77, c]."""

    def __init__(self, channels: int, heads: int, context: int, depth: int, groups: int) -> None:
        super().__init__()
        self.residuals = torch.nn.ModuleList(Residual(channels, groups) for _ in range(2))
        self.norms = torch.nn.ModuleList(torch.nn.GroupNorm(groups, channels, eps=1e-6) for _ in range(2))
        self.into, self.out = (torch.nn.ModuleList(torch.nn.Linear(channels, channels) for _ in range(2)) for _ in range(2))
        self.transformers = torch.nn.ModuleList(
            torch.nn.ModuleList(Transformer(channels, heads, context) for _ in range(depth)) for _ in range(2))

    def forward(self, x: torch.Tensor, t: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        for residual, norm, into, blocks, out in zip(self.residuals, self.norms, self.into, self.transformers, self.out,
                                                     strict=True):
            x = residual(x, t)
            h = into(norm(x).flatten(2).transpose(1, 2))
            for block in blocks:  # type: ignore[attr-defined]
                h = block(h, context)
            x = x + out(h).transpose(1, 2).unflatten(2, x.shape[2:])
        return x


# -- cases -------------------------------------------------------------------------------------------------------------


def dit_case(name: str, batch: int, tokens: int, sets: tuple[str, ...], dtype: str = "f16", **changes: int) -> Case:
    c = {**DIT_XL, **changes}
    n, layers = c["hidden"], c["layers"]
    return model_case(name, dtype, batch, lambda: drawn(lambda: DiT(**c), dtype),
                      lambda device, seed: (normal((batch, tokens, n), dtype, device, 2 * seed),
                                            normal((batch, n), dtype, device, 2 * seed + 1)),
                      flops_of(batch * tokens, layers * 12 * n * n, layers * batch * tokens ** 2, n)
                      + 2 * batch * layers * 6 * n * n,
                      2 * layers * 18 * n * n + 2 * size((batch, tokens, n), dtype),
                      {"batch": batch, "tokens": tokens, "layers": layers}, sets, batch_dims=(0, 0))


def unet_case(name: str, batch: int, side: int, words: int, sets: tuple[str, ...], dtype: str = "f16", **changes: int) -> Case:
    c = {**SDXL_640, **changes}
    n, depth, context = c["channels"], c["depth"], c["context"]
    pixels = side * side
    convolved, mixed = 2 * 2 * 9 * n * n, 2 * (2 * n * n + depth * (6 * n * n + 12 * n * n))
    prompt = 2 * depth * 2 * n * context
    flops = flops_of(batch * pixels, convolved + mixed, 2 * depth * batch * pixels * (pixels + words), n) \
        + 2 * batch * words * prompt
    return model_case(name, dtype, batch, lambda: drawn(lambda: UNetLevel(**c), dtype),
                      lambda device, seed: (normal((batch, n, side, side), dtype, device, 3 * seed),
                                            normal((batch, 4 * n), dtype, device, 3 * seed + 1),
                                            normal((batch, words, context), dtype, device, 3 * seed + 2)),
                      flops, 2 * (convolved + mixed + prompt) + 2 * size((batch, n, side, side), dtype),
                      {"batch": batch, "side": side}, sets, batch_dims=(0, 0, 0))


def cases() -> list[Case]:
    return [
        dit_case("dit-xl", 16, 256, ("paper",)),
        unet_case("sdxl-block", 2, 64, 77, ("paper",)),
        dit_case("dit-smoke", 2, 20, ("smoke",), "f32", hidden=64, heads=4, layers=2),
        unet_case("sdxl-smoke", 2, 6, 7, ("smoke",), "f32", channels=64, heads=4, context=48, depth=1, groups=8),
    ]
