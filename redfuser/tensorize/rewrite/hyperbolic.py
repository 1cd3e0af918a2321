"""Hyperbolic tangents and sigmoids as exponentials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from redfuser.acrf.expr import Const, Expr, Op, f32, op
from redfuser.strategies.program import Kernel
from redfuser.tensorize.algebra import positive_scale, rewrite_bottom_up, simplify
from redfuser.tensorize.rewrite.base_two import LOG2E
from redfuser.tensorize.rewrite.facts import Setting, each_value, learn


@dataclass(frozen=True, slots=True)
class Hyperbolic:
    """Two results of the special-function unit instead of a library call::

        p = tanh(s * 0.03)    -->    p = 1.0 - 2.0 / (1.0 + exp2(s * 0.0866))        s a contraction
        g = sigmoid(x)        -->    g = 1.0 / (1.0 + exp2(x * -1.44))
        h = 1.0 + tanh(x)     -->    h = 2.0 / (1.0 + exp2(x * -2.89))

    Of a tangent only where its argument is the rounded result of a contraction, whose error it does not reach: exact to fp32 in
    absolute terms, saturates at +-1 without overflow. A sigmoid of every x: that is how torch has it. One and a tangent is two
    sigmoids of 2x, without the digits that the sum loses; half of it is one."""

    def __call__(self, kernel: Kernel, at: Setting) -> Kernel:
        facts = learn(kernel, at)
        return each_value(kernel, lambda e: simplify(_hyperbolic(e, facts.rounded)))


def _hyperbolic(e: Expr, rounded: Callable[[Expr], bool]) -> Expr:
    def rule(x: Expr) -> Expr:
        match x:
            case Op(name="add", dtype="f32", args=(Const(value=1), Op(name="tanh", args=(y,))) | (
                    Op(name="tanh", args=(y,)), Const(value=1))):
                return op("div", f32(2.0), _one_and_power(y, -2.0))
            case Op(name="mul", dtype="f32", args=(y, Op(name="div", args=(Const(value=2), d)))) if positive_scale(y)[0] == 0.5:
                return op("div", positive_scale(y)[1], d)
            case Op(name="tanh", args=(y,), dtype="f32") if rounded(y):
                return op("sub", f32(1.0), op("div", f32(2.0), _one_and_power(y, 2.0)))
            case Op(name="sigmoid", args=(y,), dtype="f32"):
                return op("div", f32(1.0), _one_and_power(y, -1.0))
        return x

    return rewrite_bottom_up(e, rule)


def _one_and_power(e: Expr, factor: float) -> Expr:
    k, rest = positive_scale(e)
    return op("add", f32(1.0), op("exp2", op("mul", rest, f32(factor * LOG2E * k))))
