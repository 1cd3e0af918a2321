"""Normalisations, whole where Relax has the operator, computed in float32 for the half dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from redfuser.frontend.aten.context import FLOATS, Context, Decline, accumulator, converts
from redfuser.tvm_compat import dtype_of, relax, shape_of

op = relax.op


def _filled(value: float, shape: tuple[int, ...], dtype: str) -> Any:
    return relax.const(np.full(shape, value, dtype), dtype)


@converts("aten.layer_norm.default")
def layer_norm(c: Context, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5,
               cudnn_enable: bool = True) -> Any:
    if dtype_of(input) not in FLOATS:
        raise Decline(f"layer_norm of {dtype_of(input)}")
    acc = accumulator(dtype_of(input))
    shape = tuple(int(s) for s in normalized_shape)
    rank = len(shape_of(input))
    gamma = c.cast(weight, acc, "weight") if weight is not None else _filled(1.0, shape, acc)
    beta = c.cast(bias, acc, "bias") if bias is not None else _filled(0.0, shape, acc)
    axes = list(range(rank - len(shape), rank))
    return c.in_wide(lambda w: op.nn.layer_norm(w, gamma, beta, axes, float(eps)), input)


@converts("aten.native_layer_norm.default")
def native_layer_norm(c: Context, input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    """The result alone: the mean and the reciprocal deviation exist only for training."""
    return (layer_norm(c, input, normalized_shape, weight, bias, eps), None, None)


@converts("aten.rms_norm.default")
def rms_norm(c: Context, input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    if dtype_of(input) not in FLOATS:
        raise Decline(f"rms_norm of {dtype_of(input)}")
    acc = accumulator(dtype_of(input))
    shape = tuple(int(s) for s in normalized_shape)
    rank = len(shape_of(input))
    if eps is None:
        eps = torch.finfo(torch.float64 if acc == "float64" else torch.float32).eps
    gamma = c.cast(weight, acc, "weight") if weight is not None else _filled(1.0, shape, acc)
    axes = list(range(rank - len(shape), rank))
    return c.in_wide(lambda w: op.nn.rms_norm(w, gamma, axes, float(eps)), input)


@converts("aten.group_norm.default")
def group_norm(c: Context, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5,
               cudnn_enabled: bool = True) -> Any:
    rank = len(shape_of(input))
    if dtype_of(input) not in FLOATS or rank < 3:
        raise Decline("group_norm of integers or without spatial dimensions")
    acc = accumulator(dtype_of(input))
    channels = shape_of(input)[1]
    gamma = c.cast(weight, acc, "weight") if weight is not None else _filled(1.0, (channels,), acc)
    beta = c.cast(bias, acc, "bias") if bias is not None else _filled(0.0, (channels,), acc)
    axes = list(range(2, rank))
    return c.in_wide(lambda w: op.nn.group_norm(w, gamma, beta, int(num_groups), 1, axes, float(eps)), input)
