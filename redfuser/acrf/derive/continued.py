"""``x log x`` at 0, where a program says that it is 0: a choice that compares data with results, and need not.

    p = exp(x - m) / t:  select(p == 0, 0, p * log(p))  -->  p * log(exp(select(x == -inf, 0, x) - m) / t)

Over the reals p is 0 of an x of -inf alone (t, which is positive, is NaN where m is infinite), and there it multiplies what
need only be finite. In floats it is also 0 far below m: 0 times what is finite there too.
"""

from __future__ import annotations

from collections.abc import Iterator

from redfuser.acrf.derive.bounds import sign_along
from redfuser.acrf.derive.decomposition import Decomposition, constant_of
from redfuser.acrf.expr import FLOATS, Const, Expr, Op, map_children, walk
from redfuser.acrf.facts.algebra import INF
from redfuser.acrf.facts.normal import equal, to_poly


def continued(d: Decomposition, e: Op) -> Expr | None:
    """A choice between 0 and a product with a weight, by whether that weight is 0, as the product alone; None where ``e`` is
    none such."""
    cond, then, other = e.args
    while isinstance(cond, Op) and cond.name == "not":
        cond, then, other = cond.args[0], other, then
    if isinstance(cond, Op) and cond.name == "and":  # what is 0 is not NaN: nothing else is asked
        cond, rest = cond.args
        if not isinstance(cond, Op) or rest != Op("not", (Op("isnan", (cond.args[0],), "bool"),), "bool"):
            return None
    if not (isinstance(cond, Op) and cond.name == "eq" and constant_of(cond.args[1]) == 0 and constant_of(then) == 0
            and isinstance(other, Op) and other.name == "mul"):
        return None
    weight, (x, y) = cond.args[0], other.args
    x, y = (x, y) if equal(x, weight) else (y, x)
    exponent = _exponent(d, weight)
    data = list(_data(d, exponent)) if exponent is not None and equal(x, weight) else []
    if exponent is None or len(data) != 1 or not (set(to_poly(exponent)) >= set(to_poly(data[0]))):
        return None
    hidden = Op("eq", (data[0], Const(-INF, data[0].dtype)), "bool")
    shown = Op("select", (hidden, Const(0.0, data[0].dtype), data[0]), data[0].dtype)

    def replaced(f: Expr, old: Expr, new: Expr) -> Expr:
        return new if f == old else map_children(f, lambda k: replaced(k, old, new))

    if any(d.scope.kind(f) in ("X", "M") for f in _outside(y, exponent)):
        return None
    return Op("mul", (x, replaced(y, exponent, replaced(exponent, data[0], shown))), e.dtype)


def _exponent(d: Decomposition, weight: Expr) -> Expr | None:
    """Of the exponential, of what is never positive, that is all of a positive product but results."""
    exps = [f for f in walk(weight) if isinstance(f, Op) and f.name in ("exp", "exp2") and d.scope.kind(f) == "M"]
    (mono, c), *more = to_poly(weight).items() or [((), 0)]
    results = [b for b, _ in mono if d.scope.kind(b) != "M"]
    if more or c <= 0 or len(exps) != 1 or len(mono) != len(results) + 1 or sign_along(d, exps[0].args[0]) >= 0 or not all(
            d.scope.kind(b) in ("C", "D") and d.ranges.nonneg(b) and d.ranges.of(b).nonzero for b in results):
        return None
    return exps[0].args[0]


def _data(d: Decomposition, e: Expr) -> Iterator[Expr]:
    """The largest expressions of data alone in it."""
    if d.scope.kind(e) == "X" and e.dtype in FLOATS:
        yield e
    elif isinstance(e, Op):
        for k in e.args:
            yield from _data(d, k)


def _outside(e: Expr, inside: Expr) -> Iterator[Expr]:
    """The leaves of ``e`` that are not in ``inside``."""
    if e != inside:
        kids = e.args if isinstance(e, Op) else ()
        if not kids:
            yield e
        for k in kids:
            yield from _outside(k, inside)
