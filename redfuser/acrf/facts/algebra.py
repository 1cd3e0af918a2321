"""The algebra table: reduction operators as monoids, correction operators, and maps that commute with them.

Everything here is a fact about one operator, not about a workload. :mod:`redfuser.acrf.check.verify` holds its own copy of
nothing: it recomputes.
"""

from __future__ import annotations

from dataclasses import dataclass

from redfuser.acrf.cascade import Reducer
from redfuser.acrf.expr import FLOATS, Const

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
        bits = int(dtype[1:])
        least, most = (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        value = least if low else most
    first = Const(bool(value), "bool") if dtype == "bool" else Const(value, dtype)
    return (first, Const(LAST_PLACE, "i64")) if kind in PAYLOAD else (first,)


def _const(v: int, dtype: str) -> Const:
    return Const(float(v), dtype) if dtype in FLOATS else Const(v, dtype)


@dataclass(frozen=True, slots=True)
class Correction:
    """A correction operator: ``(x (*) h) (+) (y (*) h) = (x (+) y) (*) h`` and how to undo it."""

    symbol: str
    inverse: str
    needs: str


CORRECTIONS: dict[str, tuple[Correction, ...]] = {
    "sum": (Correction("*", "/", ""),),
    "prod": (Correction("*", "/", "h to the power of the number of elements"), Correction("**", "", "h fixed sign")),
    "max": (Correction("+", "-", ""), Correction("*", "/", "h >= 0, else the other extremum")),
    "min": (Correction("+", "-", ""), Correction("*", "/", "h >= 0, else the other extremum")),
}
"""Which operators distribute over which reducers. ``any``/``all`` are max/min of truth values."""


@dataclass(frozen=True, slots=True)
class Monotone:
    """A unary map on the reals (with infinities): ``rising`` (+1) or ``falling`` (-1); ``strict`` where equal images
    mean equal arguments; ``domain`` is the least argument for which the map is defined and monotone."""

    direction: int
    strict: bool
    domain: float = -INF


MONOTONE: dict[str, Monotone] = {
    "neg": Monotone(-1, True), "exp": Monotone(1, True), "exp2": Monotone(1, True), "tanh": Monotone(1, True),
    "sigmoid": Monotone(1, True), "erf": Monotone(1, True), "floor": Monotone(1, False), "ceil": Monotone(1, False),
    "round": Monotone(1, False), "not": Monotone(-1, True), "sqrt": Monotone(1, True, 0.0),
    "log": Monotone(1, True, 0.0), "log2": Monotone(1, True, 0.0), "rsqrt": Monotone(-1, True, 0.0),
}
"""Maps that commute with ordered reducers. ``strict`` is meant over the reals: rounding may merge neighbours."""

UNIT_ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8, "e4m3": 2.0**-4, "e5m2": 2.0**-3}
LARGEST = {"f64": 1.7976931348623157e308, "f32": 3.4028234663852886e38, "f16": 65504.0, "bf16": 3.3895313892515355e38,
           "e4m3": 448.0, "e5m2": 57344.0}
SMALLEST_NORMAL = {"f64": 2.0**-1022, "f32": 2.0**-126, "f16": 2.0**-14, "bf16": 2.0**-126, "e4m3": 2.0**-6,
                   "e5m2": 2.0**-14}
WIDTH = {"e4m3": 8, "e5m2": 8, "f16": 16, "bf16": 16, "f32": 32, "f64": 64}


def widens(source: str, target: str) -> bool:
    """Every value of ``source`` is one of ``target``: such a cast rounds nothing."""
    if source == target or source == "bool":
        return True
    if source in FLOATS and target in FLOATS:
        return WIDTH[target] > WIDTH[source] and not (source == "bf16" and target == "f16")
    if source in FLOATS or target not in FLOATS:
        return False
    return source in ("i8", "u8") and target != "e4m3" and target != "e5m2"


def accumulator_dtype(dtype: str) -> str:
    """Half and fp8 sums accumulate in fp32; everything else in its own dtype."""
    return "f32" if dtype in ("f16", "bf16", "e4m3", "e5m2") else dtype
