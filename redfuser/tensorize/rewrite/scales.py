"""Constant factors leave what they scale."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from redfuser.acrf.expr import Cast, Expr, Op, Ref, f32, op, print_expr, substitute
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block, Kernel
from redfuser.tensorize.algebra import factors, positive_scale, power_of_two, product, simplify
from redfuser.tensorize.axes import constants
from redfuser.tensorize.rewrite.facts import Meanings, Setting, is_contraction, is_copy, is_value, learn


@dataclass(frozen=True, slots=True)
class FactorScales:
    """A constant factor leaves a contraction, whose operands are loads then; a positive one leaves a value of the segment and
    a maximum, and every reader has it::

        p = s * 0.125; m = m max max[l] p; w = exp(p - m)    -->    p = s; m = m max max[l] p; w = exp(p * 0.125 - m * 0.125)

    Not a value that is a result, nor a maximum that is corrected, nor a value whose product with the factor is rounded and read
    by exponentials and by others: ``sum exp(p - m) * (p - m - log t)`` is right in the program because all three have one
    rounding. A relative rounding moves from before the maximum to after it."""

    def __call__(self, kernel: Kernel, at: Setting) -> Kernel:
        facts, stands = learn(kernel, at), Meanings(kernel)
        shared = _shared(kernel, at.written)
        corrected = {n for b in kernel.body if b.role in ("correct", "merge") for n in b.names}

        def scaled(b: Block, k: float, *names: str) -> None:
            for n in names if k != 1.0 else ():
                stands.stand(n, op("mul", Ref(n, b.dtype), f32(k)))

        def block(b: Block) -> Block:
            if is_copy(b):
                base = b.name.partition("@")[0]
                if base in stands.known:
                    stands.stand(b.name, substitute(stands.known[base], {base: Ref(b.name, b.dtype)}))
                return b
            exprs = tuple(simplify(stands(e)) for e in b.exprs)
            if is_contraction(b):
                k, rest = constants(factors(exprs[0]))
                if not (rest and math.isfinite(k)):  # an infinite factor makes infinities and NaN term by term
                    raise LoweringError("RF491", f"{kernel.name}: {print_expr(b.exprs[0])[:80]} is not a matrix product")
                scaled(b, k, b.name)
                return replace(b, exprs=(product(rest),))
            if b.role == "reduce" and b.reducer is not None and b.reducer.kind in ("max", "min") and b.name not in corrected:
                k, e = positive_scale(exprs[0])
                scaled(b, k, b.name, f"{b.name}@old")
                return replace(b, exprs=(e,))
            if is_value(b) and b.role == "producer" and b.name not in at.written and facts.along(exprs[0]) and not at.exact:
                k, e = positive_scale(exprs[0])
                if b.name not in shared or power_of_two(k):
                    scaled(b, k, b.name)
                    return replace(b, exprs=(e,))
            return replace(b, exprs=exprs)

        return replace(kernel, body=tuple(map(block, kernel.body)), tail=tuple(map(block, kernel.tail)))


def _shared(kernel: Kernel, written: frozenset[str]) -> frozenset[str]:
    """Values that are read inside of exponentials and outside of them, maxima and minima apart."""
    inside: set[str] = set()
    outside: set[str] = set()

    def read(e: Expr, within: bool, beyond: bool) -> None:
        """within, beyond: is what ``e`` gives read by an exponential, by something else?"""
        match e:
            case Ref(name=n):
                inside.update({n} if within else ())
                outside.update({n} if beyond else ())
            case Op(name="exp", args=(x,)):
                read(x, True, False)
            case Op(args=args):
                for x in args:
                    read(x, within, beyond)
            case Cast(arg=x):
                read(x, within, beyond)

    for b in reversed((*kernel.body, *kernel.tail)):
        if b.reducer is not None and b.reducer.kind in ("max", "min"):
            continue
        value = is_value(b) and b.role == "producer"
        for e in b.exprs:
            read(e, value and b.name in inside, not value or b.name in outside | written)
    return frozenset(inside & outside)
