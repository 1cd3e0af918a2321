"""Guards of a softmax, in the spellings that people have for them.

A weight of a softmax lies between 0 and 1 or is NaN, and one is NaN exactly where its whole row is. So "is it infinite" is
never true of one, ``isfinite`` says no more than ``== itself``, and zero in the place of NaN is a softmax whose fully hidden
rows are zero: ``where(isnan(w), 0, w)``, ``w.masked_fill(w != w, 0)``, ``nan_to_num(w)``, ``where(isfinite(w), w, 0)``.
"""

from __future__ import annotations

import math
from typing import Any

from torch import fx

from redfuser.frontend.static import Statics, uniform

_SOFTMAX = ("aten._softmax.default", "aten.softmax.int")
_CASTS = ("aten._to_copy.default", "aten.to.dtype")
_NOT = ("aten.logical_not.default", "aten.bitwise_not.default")
_BOTH = ("aten.logical_and.default", "aten.bitwise_and.Tensor", "aten.__and__.Tensor", "aten.mul.Tensor")
_EITHER = ("aten.logical_or.default", "aten.bitwise_or.Tensor", "aten.__or__.Tensor")


def softmax_of(node: Any) -> fx.Node | None:
    """The softmax whose weights these are, in whatever dtype."""
    while _is(node, *_CASTS) and node.meta["val"].is_floating_point():
        node = node.args[0]
    return node if _is(node, *_SOFTMAX) else None


def chosen(statics: Statics, condition: Any, yes: Any, no: Any) -> tuple[Any, bool] | None:
    """Of ``where(condition, yes, no)``: the side that is taken as it is, and whether as the weights of a softmax with zero
    in the place of NaN. ``None`` where it is another choice."""
    if _infinite(condition):
        return no, False
    for cond, weights, other in ((_void(condition), no, yes), (_known(condition), yes, no)):
        if cond is not None and softmax_of(weights) is cond and _zero(statics, other):
            return weights, True
    return None


def _void(c: Any) -> fx.Node | None:
    """The softmax whose weights this says to be NaN."""
    if _is(c, "aten.isnan.default"):
        return softmax_of(c.args[0])
    if _is(c, "aten.ne.Tensor") and c.args[0] is c.args[1]:
        return softmax_of(c.args[0])
    if _is(c, *_EITHER):
        return next((_void(a) for a, b in _turned(c) if _infinite(b)), None)
    return _known(c.args[0]) if _is(c, *_NOT) else None


def _known(c: Any) -> fx.Node | None:
    """The softmax whose weights this says not to be NaN."""
    if _is(c, "aten.isfinite.default") or (_is(c, "aten.eq.Tensor") and c.args[0] is c.args[1]):
        return softmax_of(c.args[0])
    if _is(c, *_BOTH):
        return next((_known(a) for a, b in _turned(c) if _bounded(b)), None)
    return _void(c.args[0]) if _is(c, *_NOT) else None


def _infinite(c: Any) -> bool:
    """Whether a softmax's weights are infinite: never so."""
    if _is(c, "aten.isinf.default"):
        return softmax_of(c.args[0]) is not None
    if _is(c, *_NOT):
        return _bounded(c.args[0])
    return _is(c, "aten.eq.Scalar") and _with_infinity(c)


def _bounded(c: Any) -> bool:
    """Whether a softmax's weights are not infinite: always so, of NaN too."""
    return (_is(c, "aten.ne.Scalar") and _with_infinity(c)) or (_is(c, *_NOT) and _infinite(c.args[0]))


def _with_infinity(c: fx.Node) -> bool:
    x, value = c.args[:2]
    return isinstance(value, (int, float)) and abs(value) == math.inf and (
        softmax_of(x.args[0] if _is(x, "aten.abs.default") else x) is not None)


def _turned(c: fx.Node) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    a, b = c.args[:2]
    return (a, b), (b, a)


def _zero(statics: Statics, x: Any) -> bool:
    value = statics.get(x) if isinstance(x, fx.Node) else None
    return bool((x if value is None else uniform(value)) == 0)


def _is(node: Any, *targets: str) -> bool:
    return isinstance(node, fx.Node) and str(node.target) in targets
