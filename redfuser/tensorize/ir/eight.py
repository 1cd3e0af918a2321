"""Products of 8 bits as Hopper's matrix units add them up: every 32 terms they cut off what stands below 13 bits of the larger
of the sum and what is added to it (docs/decisions/0010)."""

from __future__ import annotations

import numpy as np

TERMS, BITS = 32, 13


def added(total: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """``total + x @ y``, of which ``x`` and ``y`` are numbers of 8 bits in float32."""
    for k in range(0, x.shape[-1], TERMS):
        part = x[..., k:k + TERMS] @ y[..., k:k + TERMS, :]
        _, exponent = np.frexp(np.maximum(np.abs(total), np.abs(part)))
        whole = total + part
        unit = np.ldexp(np.ones_like(whole), np.maximum(exponent - 1 - BITS, -126))
        with np.errstate(invalid="ignore"):
            total = np.where(np.isfinite(whole), np.trunc(whole / unit) * unit, whole)
    return total
