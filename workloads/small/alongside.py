"""Maps beside reductions that read what these read, rows of two tensors, spreads of surprisal."""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.correctness import alongside
from workloads.small.spec import In, Programs

PROGRAMS = P = Programs()

P(*[In((2048, 2048))] * 3)(alongside.lion)
P(In((64, 128256), "bf16", 3.0), In((64, 1)))(alongside.varentropy)
P(In((16, 256, 56, 56)), In((16, 256, 56, 56)))(alongside.restyled)


@P(In((1024, 512, 3, 3)), In((1024, 512, 3, 3)))
def centred_and_clipped(w: Tensor, g: Tensor) -> Tensor:
    """A gradient, centred, no longer than a hundredth of the filter that it belongs to."""
    g = g - g.mean((1, 2, 3), keepdim=True)
    least = w.square().sum((1, 2, 3), keepdim=True).sqrt().clamp(min=1e-3)
    n = g.square().sum((1, 2, 3), keepdim=True).sqrt().clamp(min=1e-6)
    return torch.where(n > 0.01 * least, g * (0.01 * least / n), g)


@P(In((16, 3, 256, 256)), In((16, 3, 256, 256)))
def edges_and_error(a: Tensor, b: Tensor) -> Tensor:
    """Charbonnier's error of a picture, and that of its edges."""
    x = (a[..., 1:] - a[..., :-1]) - (b[..., 1:] - b[..., :-1])
    y = (a[..., 1:, :] - a[..., :-1, :]) - (b[..., 1:, :] - b[..., :-1, :])
    return (a - b).square().add(1e-6).sqrt().mean() + 0.1 * (x.abs().mean() + y.abs().mean())


@P(In((1024, 64)), In((1024, 32)))
def independence(x: Tensor, y: Tensor) -> Tensor:
    """Hilbert-Schmidt's criterion of two samples."""
    def centred(a: Tensor) -> Tensor:
        k = torch.exp(-torch.cdist(a, a).square() / (2 * a.shape[1]))
        return k - k.mean(0) - k.mean(1, keepdim=True) + k.mean()

    return (centred(x) * centred(y)).sum() / 1023**2


@P(In((512, 256)), In((512, 256)))
def energy_distance(x: Tensor, y: Tensor) -> Tensor:
    return 2 * torch.cdist(x, y).mean() - torch.cdist(x, x).mean() - torch.cdist(y, y).mean()


@P(In((16, 3, 64, 64)), In((16, 3, 64, 64)))
def kept_in_range(x: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """A picture without its noise, clipped to what is usual and scaled back, and the mean of each."""
    x = (x - 0.6 * e) / 0.8
    s = x.abs().flatten(1).amax(-1).clamp(min=1.0)[:, None, None, None]
    x = torch.minimum(torch.maximum(x, -s), s) / s
    return 0.9 * x + 0.43 * e, x.mean((1, 2, 3))


@P(In((1024, 32)))
def kernel_centred(x: Tensor) -> Tensor:
    """A Gaussian kernel less the means of its rows, of its columns, and of all."""
    k = torch.exp(-(x.square().sum(-1)[:, None] + x.square().sum(-1) - 2 * x @ x.T) / 32)
    return k - k.mean(0) - k.mean(1)[:, None] + k.mean()


@P(In((4096, 4096), "bf16"), In((16,)))
def delayed_scale(x: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
    """To 8 bits by a scale of the greatest before, and the greatest for the next."""
    s = 448 / history.abs().amax().clamp(min=1e-3)
    return (x.float() * s).clamp(-448, 448).to(torch.float8_e4m3fn), x.float().abs().amax()
