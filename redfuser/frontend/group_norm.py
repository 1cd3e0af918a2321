"""A normalisation of groups of a value whose channels lie last: part of :mod:`redfuser.frontend.channels`."""

from __future__ import annotations

from math import prod
from typing import Any

from redfuser.frontend.builder import Again
from redfuser.tvm_compat import dtype_of, relax

op = relax.op


def group_norm(builder: Again, x: Any, shape: tuple[int, ...], attrs: Any, gamma: Any, beta: Any) -> Any:
    """By channels first, whose elements lie a row apart, then by groups. x: as wide as its sums; shape: in the program's
    order."""
    emit, dtype = builder.emit, dtype_of(x)
    n, c, *space = shape
    groups, size = int(attrs.num_groups), prod(space)
    x = emit(op.reshape(x, (n, size, c)), "rows")
    own = emit(op.mean(x, [1], True), "mean")
    apart = emit(op.subtract(x, own), "apart")
    spread = emit(op.mean(emit(op.multiply(apart, apart), "square"), [1], True), "spread")
    own, spread = (emit(op.reshape(v, (n, groups, c // groups)), "by_group") for v in (own, spread))
    mean = emit(op.mean(own, [2], True), "group_mean")
    apart = emit(op.subtract(own, mean), "group_apart")
    whole = emit(op.add(spread, emit(op.multiply(apart, apart), "group_square")), "whole")
    var = emit(op.add(emit(op.mean(whole, [2], True), "group_var"), relax.const(float(attrs.epsilon), dtype)), "eps")
    rows = [emit(op.reshape(emit(op.broadcast_to(v, (n, groups, c // groups)), "each"), (n, 1, c)), "by_channel")
            for v in (mean, emit(op.rsqrt(var), "rsqrt"))]
    builder.part()
    out = emit(op.multiply(emit(op.subtract(x, rows[0]), "centred"), rows[1]), "normed")
    if bool(attrs.scale) and not _all(gamma, 1.0):
        out = emit(op.multiply(out, gamma), "weighted")
    if bool(attrs.center) and not _all(beta, 0.0):
        out = emit(op.add(out, beta), "biased")
    return op.reshape(out, (n, *space, c))


def _all(a: Any, idle: float) -> bool:
    return isinstance(a, relax.Constant) and dtype_of(a) != "bfloat16" and bool((a.data.numpy() == idle).all())
