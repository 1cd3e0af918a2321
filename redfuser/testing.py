"""Helpers for tests of programs that use RedFuser: inputs that can fail a check, and the check itself.

``torch.zeros`` or unscaled ``randn`` make many wrong kernels look right: scores near zero leave every softmax uniform.
:func:`inputs` draws data whose statistics exercise the program, reproducibly from a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from redfuser import numerics


def inputs(*shapes: Sequence[int], dtype: torch.dtype = torch.float16, scale: float = 1.0, seed: int = 0,
           device: str = "cpu") -> tuple[torch.Tensor, ...]:
    """One normal tensor per shape with standard deviation ``scale``, the same for a seed on every device."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return tuple((torch.randn(tuple(s), generator=generator, device="cpu") * scale).to(dtype).to(device) for s in shapes)


def assert_within_rule(ours: Callable[..., Any], model: Callable[..., Any], args: Sequence[Any] = (),
                       kwargs: Mapping[str, Any] | None = None, factor: float = numerics.FACTOR) -> list[numerics.Check]:
    """Run both and hold ``ours`` to the numerics rule against ``model``. Raises NumericsError RF801 with every figure;
    returns the checks, each with its ratio."""
    checks = numerics.check(ours, model, args, kwargs, factor)
    numerics.require(checks)
    return checks
