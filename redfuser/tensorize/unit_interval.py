"""Values proved to lie in [0, 1]: exponentials below their own maximum, and products of such."""

from __future__ import annotations

from redfuser.acrf.expr import Cast, Expr, Op, Ref
from redfuser.tensorize import rewrite
from redfuser.tensorize.facts import Facts


def in_unit_interval(work: Facts, e: Expr) -> bool:
    """exp2(k (x - m)) with x <= m, masked or not."""
    match e:
        case Op(name="select", args=(_, x, y)):
            return (rewrite.is_const(y, 0.0) or rewrite.is_const(y, 1.0) or in_unit_interval(work, y)) and (
                rewrite.is_const(x, 0.0) or rewrite.is_const(x, 1.0) or in_unit_interval(work, x))
        case Op(name="mul", args=(x, y)):
            return in_unit_interval(work, x) and in_unit_interval(work, y)
        case Ref(name=n):
            return n in work.unit
        case Cast(arg=x):
            return in_unit_interval(work, x)
        case Op(name="exp" | "exp2", args=(arg,)):
            terms = [(a, k) for k, a in _unguarded(arg)]
            if len(terms) != 2 or not terms[0][1] * terms[1][1] < 0:
                return False
            (x, k), (m, down) = sorted(terms, key=lambda t: -t[1])
            return _below(work, x, k, m, -down)
    return False


def _below(work: Facts, x: Expr, k: float, m: Expr, j: float) -> bool:
    """Is ``k * x <= j * m`` everywhere: m is the running maximum of x, or no less than it?"""
    match m:
        case Ref(name=n) if work.dominated(x, n):
            return abs(k - j) <= 1e-12 * abs(k)
        case Ref(name=n) if n in work.lets:
            return _below(work, x, k, work.lets[n], j)
        case Op(name="max", args=(a, b)):
            return any(_below(work, x, k, rest, j * scale) for scale, rest in map(rewrite.positive_scale, (a, b)))
        case Op(name="select", args=(c, _, a)) if rewrite.guard_of(c) == (a, True):
            return _below(work, x, k, a, j)
    return False


def _unguarded(arg: Expr) -> list[tuple[float, Expr]]:
    def bare(e: Expr) -> Expr:
        match e:
            case Op(name="select", args=(c, _, m)) if rewrite.guard_of(c) == (m, True):
                return m
        return e

    return [(k, bare(a)) for k, a in rewrite.linear(arg)]
