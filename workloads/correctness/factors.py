"""Functions of exponentials with one factor (softpick), the scores of all heads weighed into one (an indexer), reductions of
two axes of a product, softplus and what is made of it, windows, places that floats make, a scalar beside rows, places in
columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.correctness.program import TAME, In, Program


def picked(x: Tensor) -> Tensor:
    m = x.float().amax(-1, keepdim=True)
    e = torch.exp(x.float() - m) - torch.exp(-m)
    return (F.relu(e) / (e.abs().sum(-1, keepdim=True) + 1e-6)).to(x.dtype)


def softpick(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Weights that need not sum to 1, and so no sink."""
    return picked((q @ k.mT).float() * q.shape[-1] ** -0.5).to(v.dtype) @ v


def apart(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    m = x.float().amax(-1, keepdim=True)
    p, q = torch.exp(x.float() - m), torch.exp(z.float() - m)
    return (p - q).abs().sum(-1), torch.maximum(p, q).sum(-1)


def index(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    """Scores of all heads as one, by which keys are chosen (sparse attention of DeepSeek)."""
    return (torch.einsum("thd,sd->ths", q, k).float().relu() * w[..., None]).sum(1)


def greatest(q: Tensor, k: Tensor) -> Tensor:
    s = (q @ k.mT).float() * q.shape[-1] ** -0.5
    hidden = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)
    return (9.0 / s.masked_fill(hidden, -1e30).amax((-1, -2)).abs().clamp(min=0.1)).clamp(max=1.0)


def energy(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT).float().square().sum((-2, -1))


def size(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT).float().abs().mean()


def soft(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return F.softplus(x) * 2, F.logsigmoid(x) * 2, F.mish(x) * 2


def steep(x: Tensor) -> tuple[Tensor, Tensor]:
    return F.softplus(x, beta=3.0, threshold=5.0) - x, torch.log1p(x.abs()) * 2


def logits(x: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(x.float(), y.float().sigmoid(), reduction="none") * 2


def sticks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each key takes its part of what the later ones have left."""
    z = (q @ k.mT).float() * q.shape[-1] ** -0.5
    lower = torch.ones(z.shape[-2:], dtype=torch.bool, device=z.device).tril(-1)
    keep = F.logsigmoid(-z).masked_fill(~lower, 0.0)
    rest = keep.flip(-1).cumsum(-1).flip(-1) - keep
    return torch.where(lower, (F.logsigmoid(z) + rest).exp(), 0.0).to(v.dtype) @ v


def counted(q: Tensor, k: Tensor, v: Tensor, e: Tensor) -> Tensor:
    """Positions counted by gates, between two of the table (CoPE)."""
    s = (q @ k.mT).float() * q.shape[-1] ** -0.5
    p = torch.sigmoid(s).flip(-1).cumsum(-1).flip(-1).clamp(max=e.shape[-1] - 1.0)
    z, w = (q @ e).float(), p - p.floor()
    a, b = z.gather(-1, p.floor().long()), z.gather(-1, p.ceil().long())
    return (s + a * (1 - w) + b * w).softmax(-1).to(v.dtype) @ v


def rolling(x: Tensor) -> Tensor:
    w = x.float().unfold(-1, 20, 1)
    return w.mean(-1) / (w.std(-1) + 0.1)


def windows(x: Tensor) -> Tensor:
    return x.unfold(1, 6, 4).softmax(-1)


def blocks(x: Tensor) -> Tensor:
    return x.unfold(-1, 8, 8).float().square().sum(-1).sqrt() + 1


def planar(z: Tensor, u: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    wu = (w * u).sum()
    u = u + (F.softplus(wu) - 1 - wu) * w / ((w * w).sum() + 0.1)
    t = torch.tanh(z @ w + b)
    return z + u * t[:, None], torch.log((1 + (1 - t * t)[:, None] * w @ u).abs() + 0.1)


def least(x: Tensor) -> Tensor:
    return (x * 2).argmin(1)


def turned(x: Tensor) -> tuple[Tensor, Tensor]:
    s = (x * -2).double().movedim(1, -1)
    return s, s


def whole(x: Tensor) -> Tensor:
    """Among numbers of which float32 has one for several."""
    return (x + 2**30).argmax(1)


def of_whole(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.double(), x.double()


def amounts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * 3 + 2**30
    return y.amax(1), y.amin(1), (x.to(torch.int32) + 2**26).amax(-1)


def programs() -> Iterator[Program]:
    def of(what: str, fn: Callable[..., Any], *ins: In, only: tuple[str, ...] = ()) -> Program:
        return Program("factors", f"{ins[0].dtype} {'x'.join(map(str, ins[0].shape))} {what}", fn, ins, only=only)

    def x(shape: tuple[int, ...], dtype: str = "f32", name: str = "x") -> In:
        return In(name, shape, dtype)

    for shape, dtype in (((200, 4000), "f32"), ((60, 333), "f16"), ((5, 20000), "f32"), ((300, 128), "bf16")):
        yield of("picked", picked, x(shape, dtype))
        yield of("apart", apart, x(shape, dtype), x(shape, dtype, "z"))
    for b, n, m, d, dtype in ((2, 256, 256, 64, "bf16"), (1, 130, 333, 32, "bf16"), (2, 128, 200, 64, "f16"),
                              (2, 64, 96, 32, "f32")):
        yield of("softpick", softpick, x((b, 2, n, d), dtype, "q"), x((b, 2, m, d), dtype, "k"), x((b, 2, m, d), dtype, "v"))
    for t, h, s, d, dtype in ((100, 64, 1024, 64, "f16"), (50, 64, 333, 128, "bf16"), (40, 16, 500, 32, "f16"),
                              (30, 64, 256, 32, "f32")):
        yield of("index", index, x((t, h, d), dtype, "q"), x((s, d), dtype, "k"), x((t, h), "f32", "w"))
    for b, n, m, d, dtype in ((4, 256, 256, 64, "f16"), (3, 300, 200, 32, "bf16"), (2, 128, 128, 48, "f32")):
        for fn, what in ((greatest, "greatest"), (energy, "energy"), (size, "size")):
            yield of(what, fn, x((b, 2, n, d), dtype, "q"), x((b, 2, m, d), dtype, "k"))
    for shape, dtype in (((300, 515), "f32"), ((200, 256), "f16")):
        yield of("soft", soft, x(shape, dtype))
        yield of("steep", steep, x(shape, dtype))
        yield of("logits", logits, x(shape, dtype), x(shape, dtype, "y"))
    for b, n, d, dtype in ((2, 128, 32, "f16"), (1, 200, 64, "bf16"), (1, 96, 32, "f32")):
        yield of("sticks", sticks, *(x((b, 2, n, d), dtype, a) for a in "qkv"))
        yield of("counted", counted, *(x((b, 2, n, d), dtype, a) for a in "qkv"), x((d, 16), dtype, "e"), only=TAME)
    for shape, dtype in (((200, 252), "f32"), ((64, 100), "f16")):
        yield of("rolling", rolling, x(shape, dtype))
    yield of("windows", windows, x((40, 102, 24)))
    yield of("windows", windows, x((100, 62, 7), "f16"))
    yield of("blocks", blocks, x((300, 515), "bf16"))
    for n, d in ((4200, 64), (9000, 33)):
        yield of("planar", planar, x((n, d), "f32", "z"), x((d,), "f32", "u"), x((d,), "f32", "w"), x((1,), "f32", "b"))
    for shape, dtype in (((8, 300, 64), "f32"), ((16, 100, 512), "f16"), ((3, 77, 200), "f32")):
        yield Program("factors", f"{dtype} {'x'.join(map(str, shape))} least", least, (x(shape, dtype),), ranked=turned)
    for shape in ((70, 300), (33, 1024), (3, 20000)):
        labels = In("x", shape, "i64", "label", high=1 << 20)
        name = f"i64 {'x'.join(map(str, shape))}"
        yield Program("factors", f"{name} whole", whole, (labels,), ranked=of_whole)
        yield Program("factors", f"{name} amounts", amounts, (labels,))
