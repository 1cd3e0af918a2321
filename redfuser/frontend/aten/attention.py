"""Scaled dot-product attention as its mathematics: contraction, scale, mask, softmax, contraction."""

from __future__ import annotations

import math
from typing import Any

from redfuser.frontend.aten.context import FLOATS, Context, Decline, accumulator, converts
from redfuser.frontend.aten.reductions import finite
from redfuser.tvm_compat import dtype_of, relax, shape_of

op = relax.op


@converts("aten.scaled_dot_product_attention.default")
def attention(c: Context, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
              is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Any:
    """softmax(q k^T scale + mask) v, everything between the two roundings of the operator in float32.

    A row whose mask hides everything yields zeros in torch. Where the mask's values are known no row is like that or
    the row is spelled out; where they are data, the softmax is written with its maximum floored at the lowest finite
    number and its denominator at the smallest normal one, which changes no other row.
    """
    if dropout_p:
        raise Decline("attention with dropout")
    if dtype_of(query) not in FLOATS or {dtype_of(key), dtype_of(value)} != {dtype_of(query)}:
        raise Decline("attention of mixed dtypes")
    acc = accumulator(dtype_of(query))
    key, value = _shared_heads(c, query, key, value, enable_gqa)
    rank = len(shape_of(query))
    if len(shape_of(key)) != rank or len(shape_of(value)) != rank:
        raise Decline("attention with broadcast batch dimensions")
    scale = 1.0 / math.sqrt(shape_of(query)[-1]) if scale is None else float(scale)
    turned = c.emit(op.permute_dims(key, [*range(rank - 2), rank - 1, rank - 2]), "keys")
    scores = c.emit(op.matmul(query, turned, out_dtype=acc if acc != dtype_of(query) else None), "scores")
    scores = c.emit(op.multiply(scores, c.const(scale, acc)), "scaled")
    hidden = False  # whether a row may be masked as a whole
    if is_causal:
        rows, columns = shape_of(scores)[-2:]
        i = c.emit(op.expand_dims(c.emit(op.arange(0, rows, 1, "int64"), "rows"), [1]), "row")
        j = c.emit(op.expand_dims(c.emit(op.arange(0, columns, 1, "int64"), "columns"), [0]), "column")
        scores = c.emit(op.where(c.emit(op.less_equal(j, i), "causal"), scores, c.const(-math.inf, acc)), "masked")
    if attn_mask is not None:
        known = c.static("attn_mask")
        if dtype_of(attn_mask) == "bool":
            hidden = known is None or not bool(known.any(-1).all())
            scores = c.emit(op.where(attn_mask, scores, c.const(-math.inf, acc)), "masked")
        else:
            hidden = known is None or bool((known == -math.inf).all(-1).any())
            scores = c.emit(op.add(scores, c.cast(attn_mask, acc, "mask")), "masked")
    weights = _softmax_or_zero(c, scores) if hidden else c.emit(op.nn.softmax(scores, rank - 1), "weights")
    return c.narrow(c.emit(op.matmul(weights, c.cast(value, acc, "values")), "acc" if acc != c.dtype else ""))


def _softmax_or_zero(c: Context, scores: Any) -> Any:
    """Softmax over the last axis, zero for a row of -inf."""
    axis = [len(shape_of(scores)) - 1]
    m = finite(c, c.emit(op.max(scores, axis, True), "max"), above=False)
    e = c.emit(op.exp(c.emit(op.subtract(scores, m), "shifted")), "exp")
    t = c.emit(op.sum(e, axis, True), "sum")
    smallest = 2.2250738585072014e-308 if dtype_of(scores) == "float64" else 1.1754943508222875e-38
    t = c.emit(op.maximum(t, c.const(smallest, dtype_of(scores))), "denominator")
    return c.emit(op.divide(e, t), "weights")


def _shared_heads(c: Context, query: Any, key: Any, value: Any, grouped: bool) -> tuple[Any, Any]:
    heads, shared = shape_of(query)[-3:-2], shape_of(key)[-3:-2]
    if heads == shared:
        return key, value
    if not grouped:
        raise Decline("attention that broadcasts heads")
    axis = len(shape_of(key)) - 3
    key = c.emit(op.repeat(key, heads[0] // shape_of(key)[axis], axis), "key_heads")
    value = c.emit(op.repeat(value, heads[0] // shape_of(value)[axis], axis), "value_heads")
    return key, value
