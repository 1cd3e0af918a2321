"""What the rewrites know of expressions: identities that hold for every value, and an expression as a scale times the rest,
a sum of multiples, a product, a guard."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from redfuser.acrf.expr import Cast, Const, Expr, Load, Op, Ref, f32, map_children, op, walk
from redfuser.acrf.fold import identity, is_const, normal, power_of_two


def is_positive(e: Expr) -> bool:
    """A finite constant above 0."""
    return isinstance(e, Const) and is_const(e) and 0 < float(e.value) < math.inf


def rewrite_bottom_up(e: Expr, rule: Callable[[Expr], Expr]) -> Expr:
    return rule(map_children(e, lambda kid: rewrite_bottom_up(kid, rule)))


def replace_exprs(e: Expr, table: Mapping[Expr, Expr]) -> Expr:
    """Replace whole subexpressions, outermost first."""
    if e in table:
        return table[e]
    return map_children(e, lambda kid: replace_exprs(kid, table))


def fold(e: Expr) -> Expr:
    """Arithmetic identities that hold for every value, NaN and infinities included; nested masks become one."""
    if (same := identity(e)) is not e:
        return same
    match e:
        case Op(name="mul", args=(Op(name="mul", args=(x, Const(value=a))), Const(value=b)), dtype="f32") if (
                power_of_two(a) and normal(a * b, "f32")):
            return op("mul", x, f32(a * b))
        case Op(name="select", args=(c, x, y)) if is_const(x) and not is_const(y) and not _guard(c):
            return fold(Op("select", (negate(c), y, x), e.dtype))
        case Op(name="select", args=(c, Op(name="select", args=(d, x, y)), z)) if y == z and is_const(y):
            return Op("select", (op("and", c, d), x, y), e.dtype)
        case Op(name="eq" | "ne", args=(Op(name="mul", args=(x, Const(value=k))), y)) if (
                is_const(y) and math.isinf(float(y.value)) and 0 < k < math.inf):  # type: ignore[union-attr]
            return op(e.name, x, y)
        case Op(name="neg", args=(Const(value=v, dtype=d),)) if d != "bool":
            return Const(-v, d)
    return e


def _guard(c: Expr) -> bool:
    """A test on a reduced value (``m == -inf``) rather than on positions or data."""
    return any(isinstance(x, Ref) for x in walk(c)) and not any(isinstance(x, Load) for x in walk(c))


def negate(c: Expr) -> Expr:
    """The complement of a condition; comparisons of integers turn around, others are wrapped (NaN)."""
    turned = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}
    match c:
        case Op(name="not", args=(x,)):
            return x
        case Op(name=n, args=(x, y)) if n in turned and (x.dtype.startswith("i") or n in ("eq", "ne")):
            return op(turned[n], x, y)
        case Op(name="and", args=(x, y)):
            return op("or", negate(x), negate(y))
        case Op(name="or", args=(x, y)):
            return op("and", negate(x), negate(y))
    return op("not", c)


def simplify(e: Expr) -> Expr:
    return rewrite_bottom_up(e, fold)


# -- positive scales ---------------------------------------------------------------------------------------------------


FACTORS = (2.0**-64, 2.0**64)
"""Scales that may change places with other scales: products of two stay within the exponents of single precision."""


def positive_scale(e: Expr) -> tuple[float, Expr]:
    """``e == k * rest`` with a constant k > 0 that commutes with max, min and -inf masks; single precision only, since
    the product of a half-precision program is rounded. NaN, infinite, zero and negative constants stay where they are,
    and so does one whose product with another would leave the range of single precision."""
    if e.dtype != "f32":
        return 1.0, e
    match e:
        case Op(name="mul", args=(x, Const(value=k))) | Op(name="mul", args=(Const(value=k), x)):
            return _extracted(e, x, lambda inner: inner * k)
        case Op(name="div", args=(x, Const(value=k))) if k:
            return _extracted(e, x, lambda inner: inner / k)
        case Op(name="select", args=(c, x, y)) if is_const(y) and math.isinf(float(y.value)):  # type: ignore[union-attr]
            inner, rest = positive_scale(x)
            return inner, Op("select", (c, rest, y), e.dtype)
        case Op(name="select", args=(c, y, x)) if is_const(y, 0.0):
            inner, rest = positive_scale(x)
            return inner, Op("select", (c, y, rest), e.dtype)
        case Op(name="select", args=(c, x, y)) if is_const(y, 0.0):
            inner, rest = positive_scale(x)
            return inner, Op("select", (c, rest, y), e.dtype)
    return 1.0, e


def _extracted(e: Expr, x: Expr, scale: Callable[[float], float]) -> tuple[float, Expr]:
    if not FACTORS[0] <= scale(1.0) <= FACTORS[1]:
        return 1.0, e
    inner, rest = positive_scale(x)
    return (scale(inner), rest) if FACTORS[0] <= scale(inner) <= FACTORS[1] else (scale(1.0), x)


def scaled(e: Expr, k: float) -> Expr:
    return e if k == 1.0 else op("mul", e, f32(k))


# -- sums --------------------------------------------------------------------------------------------------------------


def linear(e: Expr) -> list[tuple[float, Expr]]:
    """``e`` as a sum of ``coefficient * atom``; a constant is a coefficient of the atom 1."""
    match e:
        case Const(value=v, dtype="f32"):
            return [(float(v), f32(1.0))]
        case Op(name="add", args=(x, y)):
            return _merge(linear(x), linear(y))
        case Op(name="sub", args=(x, y)):
            return _merge(linear(x), [(-k, a) for k, a in linear(y)])
        case Op(name="neg", args=(x,)):
            return [(-k, a) for k, a in linear(x)]
        case Op(name="mul", args=(x, Const(value=c))) | Op(name="mul", args=(Const(value=c), x)) if math.isfinite(c):
            return [(k * c, a) for k, a in linear(x)]
        case Op(name="div", args=(x, Const(value=c))) if c and math.isfinite(c):
            return [(k / c, a) for k, a in linear(x)]
    k, rest = positive_scale(e)
    return [(k, rest)]


def _merge(a: list[tuple[float, Expr]], b: list[tuple[float, Expr]]) -> list[tuple[float, Expr]]:
    table = {atom: k for k, atom in a}
    for k, atom in b:
        table[atom] = table.get(atom, 0.0) + k
    return [(k, atom) for atom, k in table.items()]


# -- guards ------------------------------------------------------------------------------------------------------------


def guard_of(c: Expr) -> tuple[Expr, bool] | None:
    """``(m, True)`` for a test that m is -inf, ``(m, False)`` for its complement, else None."""
    match c:
        case Op(name="eq", args=(m, k)) if is_const(k, -math.inf):
            return m, True
        case Op(name="ne" | "gt", args=(m, k)) if is_const(k, -math.inf):
            return m, False
        case Op(name="not", args=(x,)):
            found = guard_of(x)
            return (found[0], not found[1]) if found else None
    return None


# -- products ----------------------------------------------------------------------------------------------------------


def factors(e: Expr) -> tuple[Expr, ...]:
    """``e`` as a product; a mask with 0 encloses its first factor, a division by a constant is a factor."""
    match e:
        case Op(name="mul", args=(x, y)):
            return factors(x) + factors(y)
        case Op(name="div", args=(x, Const(value=c))) if math.isfinite(c) and c:
            return (*factors(x), f32(1.0 / c)) if power_of_two(c) and normal(1.0 / c, "f32") else (e,)
        case Op(name="select", args=(c, x, y)) if is_const(y, 0.0):
            first, *rest = factors(x)
            return (Op("select", (c, first, y), e.dtype), *rest)
        case Op(name="select", args=(c, y, x)) if is_const(y, 0.0):
            first, *rest = factors(x)
            return (Op("select", (c, y, first), e.dtype), *rest)
        case Cast(arg=Op(name="mul", args=(x, y)), dtype=d) if d == "f32" and x.dtype == "f32":
            return factors(e.arg)
    return (e,)


def product(parts: tuple[Expr, ...]) -> Expr:
    total = parts[0]
    for p in parts[1:]:
        total = op("mul", total, p)
    return total
