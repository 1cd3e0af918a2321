"""Normalisations, whole where Relax has the operator in their dtype, computed in float32 for the half dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from redfuser.frontend.aten.context import FLOATS, Context, Decline, accumulator, converts
from redfuser.tvm_compat import dtype_of, relax, shape_of

op = relax.op


def _filled(value: float, shape: tuple[int, ...], dtype: str) -> Any:
    return relax.const(np.full(shape, value, dtype), dtype)


def _written_out(c: Context, x: Any, axes: list[int], eps: float, weight: Any, bias: Any, about_mean: bool) -> Any:
    """A norm in float64, which Relax's operators have not: one refuses it, the other computes in float32. And one of whose rows
    parts are reduced."""
    acc = accumulator(dtype_of(x))
    x = c.wide(x)
    if about_mean:
        x = c.emit(op.subtract(x, c.emit(op.mean(x, axes, True), "mean")), "centred")
    square = c.emit(op.mean(c.emit(op.multiply(x, x), "square"), axes, True), "var")
    root = c.emit(op.rsqrt(c.emit(op.add(square, c.const(eps, acc)), "eps")), "rsqrt")
    c.builder.part()  # a map of it, which others may compute
    out = c.emit(op.multiply(x, root), "normed")
    for f, t, name in ((op.multiply, weight, "weighted"), (op.add, bias, "biased")):
        out = c.emit(f(out, c.cast(t, acc)), name) if t is not None else out
    return c.narrow(out)


def _in_parts(node: Any) -> bool:
    """Is a norm read by nothing but views of parts of its rows, of which some reduction is made (the scales of its groups)?
    Written out, what reads it computes it, from what the norm reads; as one operation it is written for them."""
    todo, parts, width = list(node.users), [], node.meta["val"].shape[-1]
    while todo:
        user = todo.pop()
        if user.op == "call_function" and not user.users:
            continue  # an assertion
        if str(user.target) in _SAME and user.meta["val"].shape[-1] == width:
            todo += user.users
        elif str(user.target) in _VIEWS and user.meta["val"].shape[-1] < width:
            parts.append(user)
        else:
            return False
    while parts:
        user = parts.pop()
        if str(user.target) in _REDUCED:
            return True
        if str(user.target) in (*_SAME, *_VIEWS, *_MAPS):
            parts += user.users
    return False


_SAME = ("aten._to_copy.default", "aten.to.dtype", "aten.clone.default")
_VIEWS = ("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.unflatten.int")
_MAPS = ("aten.abs.default", "aten.pow.Tensor_Scalar")
_REDUCED = ("aten.amax.default", "aten.amin.default", "aten.max.dim", "aten.mean.dim", "aten.sum.dim_IntList",
            "aten.linalg_vector_norm.default")


@converts("aten.layer_norm.default")
def layer_norm(c: Context, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5,
               cudnn_enable: bool = True) -> Any:
    if dtype_of(input) not in FLOATS:
        raise Decline(f"layer_norm of {dtype_of(input)}")
    acc = accumulator(dtype_of(input))
    shape = tuple(int(s) for s in normalized_shape)
    rank = len(shape_of(input))
    axes = list(range(rank - len(shape), rank))
    if acc == "float64" or _in_parts(c.node):
        return _written_out(c, input, axes, float(eps), weight, bias, about_mean=True)
    gamma = c.cast(weight, acc, "weight") if weight is not None else _filled(1.0, shape, acc)
    beta = c.cast(bias, acc, "bias") if bias is not None else _filled(0.0, shape, acc)
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
    axes = list(range(rank - len(shape), rank))
    if acc == "float64" or _in_parts(c.node):
        return _written_out(c, input, axes, float(eps), weight, None, about_mean=False)
    gamma = c.cast(weight, acc, "weight") if weight is not None else _filled(1.0, shape, acc)
    return c.in_wide(lambda w: op.nn.rms_norm(w, gamma, axes, float(eps)), input)


@converts("aten.group_norm.default")
def group_norm(c: Context, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5,
               cudnn_enabled: bool = True) -> Any:
    rank = len(shape_of(input))
    if dtype_of(input) not in FLOATS or rank < 2:
        raise Decline("group_norm of integers or of a vector")
    if rank == 2:  # (N, C): one position in space
        input = c.emit(op.expand_dims(input, [2]), "positions")
    acc = accumulator(dtype_of(input))
    channels = shape_of(input)[1]
    gamma = c.cast(weight, acc, "weight") if weight is not None else _filled(1.0, (channels,), acc)
    beta = c.cast(bias, acc, "bias") if bias is not None else _filled(0.0, (channels,), acc)
    axes = list(range(2, max(rank, 3)))
    out = c.in_wide(lambda w: op.nn.group_norm(w, gamma, beta, int(num_groups), 1, axes, float(eps)), input)
    return out if rank > 2 else c.emit(op.squeeze(out, [2]))


@converts("aten.batch_norm.default")
def batch_norm(c: Context, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
               momentum: float, eps: float, cudnn_enabled: bool = True) -> Any:
    """By statistics that are given: a map. Those that are taken of the batch change the given ones, which is no function."""
    if dtype_of(input) not in FLOATS or len(shape_of(input)) < 2 or training or running_mean is None:
        raise Decline("batch_norm by the statistics of the batch itself")
    acc = accumulator(dtype_of(input))
    channels = (shape_of(input)[1],)
    operands = [c.cast(t, acc, name) if t is not None else _filled(idle, channels, acc) for t, idle, name in (
        (weight, 1.0, "weight"), (bias, 0.0, "bias"), (running_mean, 0.0, "mean"), (running_var, 1.0, "var"))]
    return c.in_wide(lambda w: relax.TupleGetItem(c.emit(op.nn.batch_norm(
        w, *operands, axis=1, epsilon=float(eps), training=False), "both"), 0), input)


@converts("aten._native_batch_norm_legit_no_training.default")
def normalised(c: Context, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float,
               eps: float) -> Any:
    """The result alone: the saved statistics exist only for training."""
    return (batch_norm(c, input, weight, bias, running_mean, running_var, False, momentum, eps), None, None)


@converts("aten._native_batch_norm_legit.no_stats")
def instance_statistics(c: Context, input: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    """Every channel normalised by its own statistics over the batch and the trailing axes, as instance_norm does to
    [1, batch * channels, ...]; the saved statistics exist only for training."""
    rank = len(shape_of(input))
    if dtype_of(input) not in FLOATS or rank < 3 or not training:
        raise Decline("batch_norm without statistics")
    axes = [a for a in range(rank) if a != 1]
    x = c.wide(input)
    dtype = dtype_of(x)
    centred = c.emit(op.subtract(x, c.emit(op.mean(x, axes, True), "mean")), "centred")
    var = c.emit(op.mean(c.emit(op.multiply(centred, centred), "square"), axes, True), "var")
    out = c.emit(op.multiply(centred, c.emit(op.rsqrt(c.emit(op.add(var, c.const(eps, dtype)), "eps")), "rsqrt")), "normed")
    line = [shape_of(input)[1] if a == 1 else 1 for a in range(rank)]
    for f, t, name in ((op.multiply, weight, "weight"), (op.add, bias, "bias")):
        if t is not None:
            out = c.emit(f(out, c.emit(op.reshape(c.cast(t, dtype), line), name)), f"{name}ed")
    return (c.narrow(out), None, None)
