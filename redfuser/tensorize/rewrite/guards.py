"""Tests for an empty row, once per row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from redfuser.acrf.expr import Const, Expr, Op, Ref, f32, op
from redfuser.dtypes import LARGEST
from redfuser.strategies.program import Kernel
from redfuser.tensorize.algebra import (
    guard_of,
    is_const,
    linear,
    positive_scale,
    replace_exprs,
    rewrite_bottom_up,
    scaled,
    simplify,
)
from redfuser.tensorize.rewrite.facts import Setting, each_value, learn


@dataclass(frozen=True, slots=True)
class ShiftGuards:
    """The test for an empty row moves from the elements to what is taken from them, where that is their own maximum::

        w = select(m == -inf, 0.0, exp(p - m))    -->    w = exp(p - select(m == -inf, 0.0, m))
        w = exp(p - max(m, -3.4e38))              -->    w = exp(p - select(m == -inf, 0.0, m))

    The second is SDPA's own guard, without a number that overflows once it is scaled. Exact: where m is -inf so is p, and
    exp(-inf - 0) is 0. The guard may also enclose a product of which the exponential is a factor."""

    def __call__(self, kernel: Kernel, at: Setting) -> Kernel:
        facts = learn(kernel, at)

        def rule(e: Expr) -> Expr:
            return simplify(_lowest_as_guard(_hoist_guards(e, facts.dominated), facts.resolve, facts.dominated))

        return each_value(kernel, rule)


def _finite(m: Expr) -> Expr:
    """m, or 0 where m is -inf: a reference that may be subtracted from anything below m."""
    return Op("select", (op("eq", m, f32(-math.inf)), f32(0.0), m), m.dtype)


def _hoist_guards(e: Expr, dominated: Callable[[Expr, str], bool]) -> Expr:
    """``select(m == -inf, 0, exp(x - m)) --> exp(x - _finite(m))`` when x <= m always: the test is then per row.

    Exact: where m is -inf so is x, and exp(-inf - 0) is 0. ``dominated(x, name)`` says that x is below the running
    maximum ``name``. The guard may also enclose a product of which the exponential is a factor.
    """

    def rule(x: Expr) -> Expr:
        if not (isinstance(x, Op) and x.name == "select"):
            return x
        found = guard_of(x.args[0])
        if found is None:
            return x
        m, is_empty = found
        m = positive_scale(m)[1]
        empty, full = (x.args[1], x.args[2]) if is_empty else (x.args[2], x.args[1])
        if not is_const(empty, 0.0) or not isinstance(m, Ref):
            return x
        done = _shift_exponent(full, m, dominated)
        return x if done is None else done

    return rewrite_bottom_up(e, rule)


def _shift_exponent(e: Expr, m: Ref, dominated: Callable[[Expr, str], bool]) -> Expr | None:
    match e:
        case Op(name="exp", args=(arg,)):
            terms = dict((a, k) for k, a in linear(arg))
            k = terms.pop(m, 0.0)
            if k >= 0 or len(terms) != 1:
                return None
            ((atom, ka),) = terms.items()
            if ka != -k or not dominated(atom, m.name):
                return None
            return op("exp", replace_exprs(arg, {m: _finite(m)}))
        case Op(name="mul", args=(x, y)):
            left = _shift_exponent(x, m, dominated)
            if left is not None:
                return op("mul", left, y)
            right = _shift_exponent(y, m, dominated)
            return None if right is None else op("mul", x, right)
    return None


def _lowest_as_guard(e: Expr, resolve: Callable[[Expr], Expr], dominated: Callable[[Expr, str], bool]) -> Expr:
    """``exp(x - max(m, -3.4e38)) --> exp(x - _finite(m))`` when x <= m always: SDPA's own guard, without a number that
    overflows once it is scaled. Exact: the two references differ where m is -inf, and so is x there."""

    def rule(x: Expr) -> Expr:
        if not (isinstance(x, Op) and x.name == "exp" and x.dtype == "f32"):
            return x
        terms = linear(x.args[0])
        if len(terms) != 2:
            return x
        (k, a), (j, b) = sorted(terms, key=lambda t: -t[0])
        match resolve(b):
            case Op(name="max", args=(y, Const(value=v))) if v == -LARGEST["f32"]:
                scale, m = positive_scale(y)
                if j == -1.0 and isinstance(m, Ref) and k == scale and dominated(a, m.name):
                    return op("exp", op("sub", scaled(a, k), scaled(_finite(m), k)))
        return x

    return rewrite_bottom_up(e, rule)


