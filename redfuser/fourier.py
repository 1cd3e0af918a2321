"""Fourier transforms between tensors of real numbers, as operators of torch: complex values are pairs along a last axis of 2.

    torch.ops.redfuser.fft_r2c(x, [1], 0, True)      [B, N] --> [B, N / 2 + 1, 2]
    torch.ops.redfuser.fft_c2c(z, [1], 0, True)      [B, N, 2] --> [B, N, 2]
    torch.ops.redfuser.fft_c2r(z, [1], 2, 8)         [B, 5, 2] --> [B, 8]

The arguments are those of ``aten._fft_r2c`` and its like, which they call; dimensions are counted from the first. Those take
the length of a real result on trust: what a saved graph says of it is held to what the transform reads
(:mod:`redfuser.runtime.operators`).
"""

from __future__ import annotations

import torch

R2C, C2C, C2R = "redfuser.fft_r2c.default", "redfuser.fft_c2c.default", "redfuser.fft_c2r.default"
DTYPES = (torch.float32, torch.float64)


def fft_r2c(x: torch.Tensor, dim: list[int], norm: int, onesided: bool) -> torch.Tensor:
    return torch.view_as_real(torch.ops.aten._fft_r2c.default(x, dim, norm, onesided).contiguous().resolve_conj())


def fft_c2c(z: torch.Tensor, dim: list[int], norm: int, forward: bool) -> torch.Tensor:
    return torch.view_as_real(torch.ops.aten._fft_c2c.default(_whole(z), dim, norm, forward).contiguous().resolve_conj())


def fft_c2r(z: torch.Tensor, dim: list[int], norm: int, last: int) -> torch.Tensor:
    return torch.ops.aten._fft_c2r.default(_whole(z), dim, norm, last).contiguous()


def _whole(z: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(z.contiguous())


_library = torch.library.Library("redfuser", "FRAGMENT")
for _name, _last, _run in (("r2c", "bool onesided", fft_r2c), ("c2c", "bool forward", fft_c2c), ("c2r", "int last", fft_c2r)):
    _library.define(f"fft_{_name}(Tensor x, int[] dim, int norm, {_last}) -> Tensor")
    _library.impl(f"fft_{_name}", _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"redfuser::fft_{_name}", _run, lib=_library)
