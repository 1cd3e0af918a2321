"""The rule every result is held to, in one place and without torch: tests, checks, bench and users apply this one.

    error(ours) <= FACTOR * error(unfused) + tiny(dtype) * size        for the maximum and for the RMS error

The truth is float64 computed from the same low-precision inputs; ``error(unfused)`` is that of the program as written, in
its own precision; ``size`` is the maximum (or RMS) of the truth. ``tiny`` allows for a baseline that happens to round
luckily, or that accumulates in float64 (torch's variance on a CPU). :mod:`redfuser.numerics` applies the rule to torch
tensors, :mod:`redfuser.acrf.check.stability` to cascades.
"""

from __future__ import annotations

from redfuser.dtypes import UNIT

FACTOR = 2.0
ACCUMULATOR = 4 * UNIT["f32"]
"""What sums accumulated in float32 may always be off by, whatever the dtype of the result."""


FLUSHED = {"f32": 2.0**-126, "bf16": 2.0**-126, "f16": 2.0**-24, "e5m2": 2.0**-16, "e4m3": 2.0**-9}
"""What no result is held to: below it kernels may flush float32 (and bfloat16) to 0; of the others, their smallest number."""


def tiny(dtype: str) -> float:
    """Half the error of storing one result in ``dtype``, or the accumulators' where that is more; 0 for integers and bool,
    which are not rounded."""
    return max(UNIT[dtype] / 2, ACCUMULATOR) if dtype in UNIT else 0.0


def limit(worst: float, rms: float, size: float, size_rms: float, dtype: str, factor: float = FACTOR) -> tuple[float, float]:
    """The largest maximum and RMS error that pass, given those of the unfused program and the truth's size."""
    allowed = tiny(dtype)
    least = FLUSHED.get(dtype, 0.0)
    return factor * worst + allowed * size + least, factor * rms + allowed * size_rms + least
