"""The algebra table: reduction operators as monoids, and maps that commute with them.

Everything here is a fact about one operator, not about a workload. :mod:`redfuser.acrf.check.verify` holds its own copy of
nothing: it recomputes.
"""

from __future__ import annotations

from dataclasses import dataclass

from redfuser.acrf.cascade import Reducer
from redfuser.acrf.expr import Const
from redfuser.dtypes import FLOATS, NARROW, TABLE

INF = float("inf")
LAST_PLACE = 2**63 - 1
"""The index of the neutral element of argmax/argmin/topk: it loses every tie, ties going to the lowest index."""

ORDERED = frozenset({"max", "min", "any", "all", "argmax", "argmin", "topk"})
"""Reducers that pick elements by order; a non-decreasing map of the elements commutes with them."""

PAYLOAD = frozenset({"argmax", "argmin", "topk"})
"""Ordered reducers whose state is (values, indices)."""


def neutral(reducer: Reducer, dtype: str) -> tuple[Const, ...]:
    """The neutral element: a real one (an infinity for floats, never a large finite number)."""
    kind = reducer.kind
    if kind in ("sum", "prod"):
        return (_const(0 if kind == "sum" else 1, dtype),)
    if kind in ("any", "all"):
        return (Const(kind == "all", "bool"),)
    low = kind in ("max", "argmax", "topk")
    if dtype in FLOATS:
        value: float = -INF if low else INF
    elif dtype == "bool":
        value = not low
    else:
        value = TABLE[dtype].least if low else TABLE[dtype].largest
    first = Const(bool(value), "bool") if dtype == "bool" else Const(value, dtype)
    return (first, Const(LAST_PLACE, "i64")) if kind in PAYLOAD else (first,)


def _const(v: int, dtype: str) -> Const:
    return Const(float(v), dtype) if dtype in FLOATS else Const(v, dtype)


@dataclass(frozen=True, slots=True)
class Monotone:
    """A unary map on the reals (with infinities): ``rising`` (+1) or ``falling`` (-1); ``strict`` where equal images
    mean equal arguments; ``domain`` is the least argument for which the map is defined and monotone."""

    direction: int
    strict: bool
    domain: float = -INF


MONOTONE: dict[str, Monotone] = {
    "neg": Monotone(-1, True), "exp": Monotone(1, True), "exp2": Monotone(1, True), "tanh": Monotone(1, True),
    "sigmoid": Monotone(1, True), "erf": Monotone(1, True), "erfc": Monotone(-1, True),
    "floor": Monotone(1, False), "ceil": Monotone(1, False), "round": Monotone(1, False), "not": Monotone(-1, True),
    "sqrt": Monotone(1, True, 0.0), "log": Monotone(1, True, 0.0), "log2": Monotone(1, True, 0.0),
    "rsqrt": Monotone(-1, True, 0.0),
}
"""Maps that commute with ordered reducers. ``strict`` is meant over the reals: rounding may merge neighbours."""


def accumulator_dtype(dtype: str) -> str:
    """Half and fp8 sums accumulate in fp32; everything else in its own dtype."""
    return "f32" if dtype in NARROW else dtype
