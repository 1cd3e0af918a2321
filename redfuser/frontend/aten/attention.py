"""Scaled dot-product attention as its mathematics: contraction, scale, mask, softmax, contraction."""

from __future__ import annotations

import math
from typing import Any

from torch import fx

from redfuser.frontend.aten.context import FLOATS, Context, Decline, accumulator, converts
from redfuser.frontend.aten.reductions import finite
from redfuser.frontend.builder import triangle
from redfuser.frontend.static import Statics
from redfuser.tvm_compat import dtype_of, op_name, relax, shape_of

op = relax.op


@converts("aten.scaled_dot_product_attention.default")
def attention(c: Context, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
              is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Any:
    """softmax(q k^T scale + mask) v, everything between the two roundings of the operator in float32.

    A row whose mask hides everything yields zeros in torch. Where the values of the mask are known, no row is like that or
    the row is spelled out; where they are data, the softmax is written with its maximum floored at the lowest finite
    number and its denominator at the smallest normal one, which changes no other row.
    """
    if dropout_p:
        raise Decline("attention with dropout")
    if dtype_of(query) not in FLOATS or {dtype_of(key), dtype_of(value)} != {dtype_of(query)}:
        raise Decline("attention of mixed dtypes")
    acc = accumulator(dtype_of(query))
    rank = max(len(shape_of(x)) for x in (query, key, value))
    query, key, value = (_of_rank(c, x, rank, name) for x, name in ((query, "query"), (key, "key"), (value, "value")))
    if enable_gqa:
        key, value = (_for_each(c, x, shape_of(query)[-3], name) for x, name in ((key, "key"), (value, "value")))
    scale = 1.0 / math.sqrt(shape_of(query)[-1]) if scale is None else float(scale)
    turned = c.emit(op.permute_dims(key, [*range(rank - 2), rank - 1, rank - 2]), "keys")
    scores = c.emit(op.matmul(query, turned, out_dtype=acc if acc != dtype_of(query) else None), "scores")
    scores = c.emit(op.multiply(scores, c.const(scale, acc)), "scaled")
    hidden = False  # whether a row may be masked as a whole
    if is_causal:
        seen = triangle(c, shape_of(scores), None, "causal")
        scores = c.emit(op.where(seen, scores, c.const(-math.inf, acc)), "masked")
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


@converts("aten._safe_softmax.default")
def safe_softmax(c: Context, self: Any, dim: int, dtype: Any = None) -> Any:
    rank = len(shape_of(self))
    if dtype is not None or dtype_of(self) not in FLOATS or dim % rank != rank - 1:
        raise Decline("safe softmax over an inner dimension")
    if not may_hide_rows(c.statics, c.raw["self"]):
        return c.in_wide(lambda w: op.nn.softmax(w, rank - 1), self)
    return c.narrow(_softmax_or_zero(c, c.wide(self)))


def softmax_guard(c: Context, weights: Any) -> Any:
    """The weights of a softmax with zero in the place of NaN, as exporters write it for fully masked rows. One element is NaN
    exactly where the whole row is: where a score is NaN or +inf, or all are -inf. So such scores are hidden and counted, and a
    row that has one is divided by +inf: zero as there, and finite on the way. ``None`` where there is no softmax any more."""
    softmax, casts = c.builder.value(weights), []
    while op_name(softmax) == "astype":
        casts.append(dtype_of(softmax))
        softmax = c.builder.value(softmax.args[0])
    if op_name(softmax) != "nn.softmax":
        return None
    out = _softmax_or_zero(c, softmax.args[0], int(softmax.attrs.axis), poisoned=True)
    for dtype in reversed(casts):
        out = c.cast(out, dtype, "rounded")
    return c.narrow(out)


_FINITE = ("aten.matmul.default", "aten.bmm.default", "aten.mm.default", "aten.tanh.default")
_POINTWISE = ("aten.add.Tensor", "aten.mul.Tensor", "aten.div.Tensor", "aten.mul.Scalar", "aten.div.Scalar")
_VIEWS = ("aten.view.default", "aten._to_copy.default", "aten.reshape.default", "aten._unsafe_view.default",
          "aten.clone.default", "aten.expand.default", "aten.to.dtype", "aten.unsqueeze.default")


def may_hide_rows(statics: Statics, node: Any) -> bool:
    """Whether some row of the scores may be -inf throughout; true unless the graph shows that it cannot be."""
    if not isinstance(node, fx.Node):
        return bool(node == -math.inf)
    value = statics.get(node)
    if value is not None:
        hidden = value == -math.inf
        return bool(hidden.all(-1).any()) if value.dim() else bool(hidden)
    target = str(node.target)
    if target in _FINITE:
        return False
    if target in _POINTWISE:
        return any(may_hide_rows(statics, a) for a in node.args[:2])
    if target in _VIEWS:
        return may_hide_rows(statics, node.args[0])
    if target in ("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf"):
        mask = statics.get(node.args[0])
        left, right = (may_hide_rows(statics, a) for a in node.args[1:3])
        if mask is None or mask.dim() == 0:
            return left or right
        return (left and bool(mask.all(-1).any())) or (right and bool((~mask).all(-1).any()))
    return True


def _softmax_or_zero(c: Context, scores: Any, over: int = -1, poisoned: bool = False) -> Any:
    """Softmax over an axis, zero for a row of -inf; with ``poisoned``, also for one with a NaN or +inf in it."""
    axis, dtype = [over % len(shape_of(scores))], dtype_of(scores)
    smallest = 2.2250738585072014e-308 if dtype == "float64" else 1.1754943508222875e-38
    bad = None
    if poisoned:
        below = c.emit(op.less(scores, c.const(math.inf, dtype)), "below")  # not so for NaN
        bad = c.emit(op.sum(c.emit(op.where(below, c.const(0.0, dtype), c.const(1.0, dtype)), "bad"), axis, True), "count")
        scores = c.emit(op.where(below, scores, c.const(-math.inf, dtype)), "defined")
    m = finite(c, c.emit(op.max(scores, axis, True), "max"), above=False)
    e = c.emit(op.exp(c.emit(op.subtract(scores, m), "shifted")), "exp")
    t = c.emit(op.maximum(c.emit(op.sum(e, axis, True), "sum"), c.const(smallest, dtype)), "denominator")
    if bad is not None:
        none = c.emit(op.equal(bad, c.const(0.0, dtype)), "none")
        t = c.emit(op.where(none, t, c.const(math.inf, dtype)), "guarded")
    return c.emit(op.divide(e, t), "weights")


def _of_rank(c: Context, x: Any, rank: int, name: str) -> Any:
    """``x`` with the leading axes of one element that its broadcasting to ``rank`` axes supposes."""
    missing = rank - len(shape_of(x))
    return c.emit(op.expand_dims(x, list(range(missing))), f"{name}_broadcast") if missing else x


def _for_each(c: Context, x: Any, heads: int, name: str) -> Any:
    """Keys or values of groups, those of each query head; the products broadcast one that all heads share."""
    axis = len(shape_of(x)) - 3
    shared = shape_of(x)[axis]
    return x if shared in (1, heads) else c.emit(op.repeat(x, heads // shared, axis), f"{name}_heads")
