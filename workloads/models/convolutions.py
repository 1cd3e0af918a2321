"""Stacks of convolutions in plain PyTorch: a ResNet-50 with batch norms that are given, and the decoder of an image autoencoder
(group norm, SiLU and convolution, one attention, nearest neighbours)."""

from __future__ import annotations

import torch
from torch.nn import functional

from workloads.case import Case, normal, size
from workloads.models.common import drawn, model_case

WIDTHS, DEPTHS = (64, 128, 256, 512), (3, 4, 6, 3)
LEVELS, GROUPS, LATENT, DEPTH = (512, 512, 256, 128), 32, 4, 2


class Bottleneck(torch.nn.Module):
    """1x1, 3x3 and 1x1, each behind it a batch norm, beside a residual: [b, n, h, w] to [b, 4 m, h / stride, w / stride]."""

    def __init__(self, n: int, m: int, stride: int) -> None:
        super().__init__()
        shapes = ((n, m, 1, 1), (m, m, 3, stride), (m, 4 * m, 1, 1), *(((n, 4 * m, 1, stride),) if n != 4 * m else ()))
        self.convs = torch.nn.ModuleList(torch.nn.Conv2d(i, o, k, s, k // 2, bias=False) for i, o, k, s in shapes)
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(o) for _, o, _, _ in shapes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third, *beside = (lambda y, c=c, b=b: b(c(y)) for c, b in zip(self.convs, self.norms, strict=True))
        y = third(functional.relu(second(functional.relu(first(x)))))
        return functional.relu(y + (beside[0](x) if beside else x))


class ResNet(torch.nn.Module):
    """Images [b, 3, h, w] to 1000 numbers each."""

    def __init__(self, widths: tuple[int, ...], depths: tuple[int, ...]) -> None:
        super().__init__()
        self.stem, self.norm = torch.nn.Conv2d(3, widths[0], 7, 2, 3, bias=False), torch.nn.BatchNorm2d(widths[0])
        blocks, n = [], widths[0]
        for level, (m, depth) in enumerate(zip(widths, depths, strict=True)):
            for k in range(depth):
                blocks.append(Bottleneck(n, m, 2 if level and not k else 1))
                n = 4 * m
        self.blocks, self.head = torch.nn.Sequential(*blocks), torch.nn.Linear(n, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


class Residual(torch.nn.Module):
    """Two convolutions behind group norms, beside a residual: [b, n, h, w] to [b, m, h, w]."""

    def __init__(self, n: int, m: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (torch.nn.GroupNorm(groups, c, eps=1e-6) for c in (n, m))
        self.conv1, self.conv2 = (torch.nn.Conv2d(c, m, 3, padding=1) for c in (n, m))
        self.beside = torch.nn.Conv2d(n, m, 1) if n != m else torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv1(functional.silu(self.norm1(x)))
        return self.beside(x) + self.conv2(functional.silu(self.norm2(h)))


class Mixer(torch.nn.Module):
    """Attention of the pixels to each other, in one head."""

    def __init__(self, n: int, groups: int) -> None:
        super().__init__()
        self.norm = torch.nn.GroupNorm(groups, n, eps=1e-6)
        self.q, self.k, self.v, self.o = (torch.nn.Linear(n, n) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x).flatten(2).transpose(1, 2)
        y = functional.scaled_dot_product_attention(*(f(y).unsqueeze(1) for f in (self.q, self.k, self.v))).squeeze(1)
        return x + self.o(y).transpose(1, 2).unflatten(2, x.shape[2:])


class Decoder(torch.nn.Module):
    """Latents [b, 4, h, w] to images [b, 3, 8 h, 8 w]."""

    def __init__(self, widths: tuple[int, ...], groups: int, latent: int, depth: int) -> None:
        super().__init__()
        n = widths[0]
        self.into = torch.nn.Conv2d(latent, n, 3, padding=1)
        self.middle = torch.nn.Sequential(Residual(n, n, groups), Mixer(n, groups), Residual(n, n, groups))
        levels: list[torch.nn.Module] = []
        for k, m in enumerate(widths):
            levels += [Residual(n if i == 0 else m, m, groups) for i in range(depth)]
            if k < len(widths) - 1:
                levels += [torch.nn.Upsample(scale_factor=2.0), torch.nn.Conv2d(m, m, 3, padding=1)]
            n = m
        self.levels = torch.nn.Sequential(*levels)
        self.norm, self.out = torch.nn.GroupNorm(groups, n, eps=1e-6), torch.nn.Conv2d(n, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(functional.silu(self.norm(self.levels(self.middle(self.into(x))))))


# -- cases -------------------------------------------------------------------------------------------------------------


def resnet_case(name: str, batch: int, side: int, sets: tuple[str, ...]) -> Case:
    """Operations of the convolutions, each 2 k k n m a pixel of its result; weights once."""
    at, n, flops, weights = side // 4, 64, 2 * 147 * 64 * (side // 2) ** 2, 147 * 64
    for level, (m, depth) in enumerate(zip(WIDTHS, DEPTHS, strict=True)):
        at //= 2 if level else 1
        for k in range(depth):
            before = at * (2 if level and not k else 1)
            beside = n * 4 * m if n != 4 * m else 0
            flops += 2 * (n * m * before ** 2 + (9 * m * m + 4 * m * m + beside) * at ** 2)
            weights += n * m + 13 * m * m + beside
            n = 4 * m
    return model_case(name, "f16", batch, lambda: drawn(lambda: ResNet(WIDTHS, DEPTHS), "f16"),
                      lambda device, seed: (normal((batch, 3, side, side), "f16", device, seed),),
                      batch * (flops + 2 * n * 1000), 2 * (weights + n * 1000) + size((batch, 3, side, side), "f16"),
                      {"batch": batch, "side": side}, sets)


def decoder_case(name: str, side: int, sets: tuple[str, ...]) -> Case:
    n, at = LEVELS[0], side
    flops = 2 * at ** 2 * (36 * n + 36 * n * n + 4 * n * n) + 4 * at ** 4 * n
    weights = 36 * n + 40 * n * n
    for k, m in enumerate(LEVELS):
        some = 9 * n * m + 9 * m * m * (2 * DEPTH - 1) + (n * m if n != m else 0)
        flops, weights, n = flops + 2 * at ** 2 * some, weights + some, m
        if k < len(LEVELS) - 1:
            at *= 2
            flops, weights = flops + 2 * at ** 2 * 9 * m * m, weights + 9 * m * m
    return model_case(name, "f16", 1, lambda: drawn(lambda: Decoder(LEVELS, GROUPS, LATENT, DEPTH), "f16"),
                      lambda device, seed: (normal((1, 4, side, side), "f16", device, seed),),
                      flops + 2 * at ** 2 * 27 * n, 2 * weights + size((1, 3, at, at), "f16"), {"side": side}, sets)


def cases() -> list[Case]:
    return [resnet_case("resnet50", 32, 224, ("convolutions",)), decoder_case("decoder", 64, ("convolutions",))]
