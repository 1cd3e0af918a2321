"""Exponentials to base two, which is what the hardware has."""

from __future__ import annotations

import math
from dataclasses import dataclass

from redfuser.acrf.expr import Expr, Op, f32, op
from redfuser.strategies.program import Kernel
from redfuser.tensorize.algebra import FACTORS, fold, linear, rewrite_bottom_up, simplify
from redfuser.tensorize.rewrite.facts import Setting, each_value

LOG2E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class BaseTwo:
    """Scales and the change of base are one factor behind the difference::

        w = exp(p * 0.125 - m * 0.125)    -->    w = exp2((p - m) * 0.18)      (0.18 = 0.125 * log2 e)

    One rounding of the factor, relative, in the place of two."""

    def __call__(self, kernel: Kernel, at: Setting) -> Kernel:
        return each_value(kernel, lambda e: simplify(exponentials(e)))


def exponentials(e: Expr) -> Expr:
    """``exp(k*x - k*y) --> exp2((x - y) * (k log2 e))``; any other argument is scaled by log2 e as it stands.

    The difference always comes first. Scaling both sides folds the factor into one multiply-add per element, and makes
    ``exp(x - max x)`` of the maximum itself ``1 + |x| 2^-24``: another number in every segment, rounded anew wherever a
    weight is stored in half precision, and 2^(2^76) where nothing bounds x. The subtraction is hidden behind the
    exponential, whose unit is eight times slower.
    """

    def rule(x: Expr) -> Expr:
        if not (isinstance(x, Op) and x.name == "exp" and x.dtype == "f32"):
            return fold(x)
        (arg,) = x.args
        terms = linear(arg)
        if len(terms) == 1 and FACTORS[0] <= abs(terms[0][0]) <= FACTORS[1]:
            ((k, a),) = terms
            return op("exp2", op("mul", a, f32(k * LOG2E)))
        if len(terms) == 2:
            (k, a), (j, b) = sorted(terms, key=lambda t: -t[0])
            if k == -j and k <= FACTORS[1]:
                return op("exp2", op("mul", op("sub", a, b), f32(k * LOG2E)))
        return op("exp2", op("mul", arg, f32(LOG2E)))

    return rewrite_bottom_up(e, rule)
