"""Values proved to lie in [0, 1]: exponentials below their own maximum, and products of such."""

from __future__ import annotations

from redfuser.acrf.expr import Cast, Expr, Op, Ref
from redfuser.strategies.program import Kernel
from redfuser.tensorize import algebra
from redfuser.tensorize.rewrite.facts import Facts, is_value


def unit_values(kernel: Kernel, facts: Facts) -> frozenset[str]:
    """The names of values in [0, 1]; of those that are computed again after the walk, in it."""
    unit: set[str] = set()
    known: set[str] = set()
    for b in (*kernel.body, *kernel.tail):
        if is_value(b) and b.name not in known:
            known.add(b.name)
            if _in_unit_interval(facts, unit, b.exprs[0]):
                unit.add(b.name)
    return frozenset(unit)


def _in_unit_interval(facts: Facts, unit: set[str], e: Expr) -> bool:
    """exp2(k (x - m)) with x <= m, masked or not."""
    match e:
        case Op(name="select", args=(_, x, y)):
            return (algebra.is_const(y, 0.0) or algebra.is_const(y, 1.0) or _in_unit_interval(facts, unit, y)) and (
                algebra.is_const(x, 0.0) or algebra.is_const(x, 1.0) or _in_unit_interval(facts, unit, x))
        case Op(name="mul", args=(x, y)):
            return _in_unit_interval(facts, unit, x) and _in_unit_interval(facts, unit, y)
        case Ref(name=n):
            return n in unit
        case Cast(arg=x):
            return _in_unit_interval(facts, unit, x)
        case Op(name="exp" | "exp2", args=(arg,)):
            terms = [(a, k) for k, a in _unguarded(arg)]
            if len(terms) != 2 or not terms[0][1] * terms[1][1] < 0:
                return False
            (x, k), (m, down) = sorted(terms, key=lambda t: -t[1])
            return _below(facts, x, k, m, -down)
    return False


def _below(facts: Facts, x: Expr, k: float, m: Expr, j: float) -> bool:
    """Is ``k * x <= j * m`` everywhere: m is the running maximum of x, or no less than it?"""
    match m:
        case Ref(name=n) if facts.dominated(x, n):
            return abs(k - j) <= 1e-12 * abs(k)
        case Ref(name=n) if n in facts.lets:
            return _below(facts, x, k, facts.lets[n], j)
        case Op(name="max", args=(a, b)):
            return any(_below(facts, x, k, rest, j * scale) for scale, rest in map(algebra.positive_scale, (a, b)))
        case Op(name="select", args=(c, _, a)) if algebra.guard_of(c) == (a, True):
            return _below(facts, x, k, a, j)
    return False


def _unguarded(arg: Expr) -> list[tuple[float, Expr]]:
    def bare(e: Expr) -> Expr:
        match e:
            case Op(name="select", args=(c, _, m)) if algebra.guard_of(c) == (m, True):
                return m
        return e

    return [(k, bare(a)) for k, a in algebra.linear(arg)]
