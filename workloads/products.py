"""A norm into a product, a product into a loss, and a norm between two products: RMSNorm(x) W and LayerNorm(x) W with x [rows,
width], W [width, out]; the cross-entropy of x Wt with W [vocabulary, width], whose logits nobody wants in memory; h = x Wt + r
and RMSNorm(h) Vt, as a transformer's layers go on, with the norm's weight and without. bfloat16."""

from __future__ import annotations

import torch
from torch.nn import functional

from workloads.case import Case, Inputs, normal, size
from workloads.norms import EPS, Function

VOCABULARY = 32000


def rmsnorm_product(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x.float()
    return ((h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype) * g) @ w


def layernorm_product(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:], g, None, EPS) @ w


def linear_loss(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy((x @ w.mT).float(), y, reduction="none")


def residual_rms(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = r + functional.linear(x, w)
    return h, functional.linear(functional.rms_norm(h, h.shape[-1:], None, EPS), v)


def residual_rms_weighted(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, v: torch.Tensor,
                          g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = r + functional.linear(x, w)
    return h, functional.linear(functional.rms_norm(h, h.shape[-1:], g, EPS), v)


NORMS = {"rmsnorm": rmsnorm_product, "layernorm": layernorm_product}


def normed(name: str, rows: int, width: int, out: int, sets: tuple[str, ...], dtype: str = "bf16") -> Case:
    shapes = ((rows, width), (width,), (width, out))

    def inputs(device: str, seed: int) -> Inputs:
        x, g, w = (normal(s, dtype, device, 3 * seed + i) for i, s in enumerate(shapes))
        return x, 1 + 0.1 * g, w * width ** -0.5

    return Case("products", f"{name}-{rows}x{width}x{out}", dtype, {"rows": rows, "width": width, "out": out},
                build=lambda: Function(NORMS[name]), inputs=inputs, flops=2 * rows * width * out,
                bytes=sum(size(s, dtype) for s in (*shapes, (rows, out))), sets=sets,
                sample=lambda args: (args[0][:256], *args[1:]), pick=lambda r: r[:256], sample_note="rows 0:256")


def loss(rows: int, width: int, vocabulary: int, sets: tuple[str, ...], dtype: str = "bf16") -> Case:
    def inputs(device: str, seed: int) -> Inputs:
        generator = torch.Generator(device).manual_seed(seed)
        y = torch.randint(vocabulary, (rows,), generator=generator, device=device)
        return (normal((rows, width), dtype, device, 2 * seed),
                normal((vocabulary, width), dtype, device, 2 * seed + 1, 3 * width ** -0.5), y)

    return Case("products", f"linear-loss-{rows}x{width}x{vocabulary}", dtype,
                {"rows": rows, "width": width, "vocabulary": vocabulary}, build=lambda: Function(linear_loss), inputs=inputs,
                flops=2 * rows * width * vocabulary,
                bytes=size((rows, width), dtype) + size((vocabulary, width), dtype) + 12 * rows, sets=sets,
                sample=lambda args: (args[0][:256], args[1], args[2][:256]), pick=lambda r: r[:256], sample_note="rows 0:256")


def between(rows: int, width: int, out: int, sets: tuple[str, ...], weighted: bool = False, dtype: str = "bf16") -> Case:
    shapes = ((rows, width), (rows, width), (width, width), (out, width)) + (((width,),) if weighted else ())

    def inputs(device: str, seed: int) -> Inputs:
        x, r, w, v, *g = (normal(s, dtype, device, 5 * seed + i) for i, s in enumerate(shapes))
        return (x, r, w * width ** -0.5, v * width ** -0.5, *(1 + 0.1 * t for t in g))

    return Case("products", f"residual-rmsnorm{'-weighted' * weighted}-{rows}x{width}x{out}", dtype,
                {"rows": rows, "width": width, "out": out},
                build=lambda: Function(residual_rms_weighted if weighted else residual_rms), inputs=inputs,
                flops=2 * rows * width * (width + out),
                bytes=sum(size(s, dtype) for s in (*shapes, (rows, width), (rows, out))), sets=sets,
                sample=lambda args: (args[0][:256], args[1][:256], *args[2:]), pick=lambda r: tuple(t[:256] for t in r),
                sample_note="rows 0:256")


def cases() -> list[Case]:
    out = [normed("rmsnorm", 4096, 4096, 4096, ("paper",)), normed("layernorm", 4096, 4096, 1024, ("paper",)),
           normed("rmsnorm", 4096, 1024, 3072, ("paper",)), loss(4096, 4096, VOCABULARY, ("paper",)),
           between(16384, 4096, 4096, ("paper",)), between(16384, 4096, 4096, ("paper",), weighted=True)]
    smoke = [between(33, 96, 48, ("smoke",), weighted) for weighted in (False, True)]
    return [*out, *smoke, *(normed(n, 33, 96, 48, ("smoke",)) for n in NORMS), loss(33, 64, 200, ("smoke",))]
