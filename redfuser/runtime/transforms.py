"""Rules of the Fourier transforms that a saved graph may call (:mod:`redfuser.fourier`): what fits, and what comes out."""

from __future__ import annotations

from typing import Any

from redfuser import fourier
from redfuser.runtime.shapes import Rule, Shaped, need, tensor


def _r2c(x: Any, dim: Any, norm: Any, onesided: Any) -> Shaped:
    shape = _checked(x, tensor(x).rank, dim, norm)
    need(isinstance(onesided, bool), "a transform that is one-sided or not")
    if onesided:
        shape[dim[-1]] = shape[dim[-1]] // 2 + 1
    return x.like((*shape, 2))


def _c2c(z: Any, dim: Any, norm: Any, forward: Any) -> Shaped:
    shape = _pairs(z, dim, norm)
    need(isinstance(forward, bool), "a transform forward or back")
    return z.like((*shape, 2))


def _c2r(z: Any, dim: Any, norm: Any, last: Any) -> Shaped:
    shape = _pairs(z, dim, norm)
    need(isinstance(last, int) and not isinstance(last, bool) and last > 0 and last // 2 + 1 == shape[dim[-1]],
         "a real result as long as the transform's operand")
    shape[dim[-1]] = last
    return z.like(tuple(shape))


def _pairs(z: Any, dim: Any, norm: Any) -> list[int]:
    need(tensor(z).rank > 0 and z.shape[-1] == 2, "pairs of real numbers along the last axis")
    return _checked(z, z.rank - 1, dim, norm)


def _checked(x: Any, rank: int, dim: Any, norm: Any) -> list[int]:
    """The shape of what is transformed, of ``rank`` axes."""
    need(x.dtype in fourier.DTYPES and min(x.shape, default=0) > 0, "a Fourier transform of such a tensor")
    need(isinstance(dim, (list, tuple)) and len(dim) > 0 and len(set(dim)) == len(dim)
         and all(isinstance(d, int) and not isinstance(d, bool) and 0 <= d < rank for d in dim), "dimensions of a transform")
    need(isinstance(norm, int) and not isinstance(norm, bool) and 0 <= norm <= 2, "a norm of a transform")
    return list(x.shape[:rank])


RULES: dict[str, Rule] = {fourier.R2C: _r2c, fourier.C2C: _c2c, fourier.C2R: _c2r}
