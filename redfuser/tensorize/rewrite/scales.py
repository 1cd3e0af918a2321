"""Constant factors leave what they scale."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.expr import Cast, Const, Expr, Op, Ref, f32, op, print_expr, substitute
from redfuser.acrf.state import Fused
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
    rounding. Nor one that reaches a result through maxima where the factor is more than one product (a quotient, two factors):
    ``max(x / 0.3)`` and ``log t + max(x / 0.3)`` are held to the program's own ``x / 0.3`` elsewhere, of which
    ``max(x) * 3.33`` is none: a difference that is 0 there is a unit of 1e10 here. Other roundings move from before the maximum
    to after it, relative."""

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
                if b.name not in at.told or _roundings(exprs[0]) < 2:
                    scaled(b, k, b.name, f"{b.name}@old")
                    return replace(b, exprs=(e,))
            if is_value(b) and b.role == "producer" and b.name not in at.written and facts.along(exprs[0]) and not at.exact:
                k, e = positive_scale(exprs[0])
                if (b.name not in shared or power_of_two(k)) and (b.name not in at.told or _roundings(exprs[0]) < 2):
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


def told(fused: Fused) -> frozenset[str]:
    """Values and extrema of a cascade that reach a result other than through exponentials and sums: of the whole of it, since
    its kernels must have one rounding of them."""
    found = set(fused.cascade.outputs)

    def read(e: Expr) -> None:
        match e:
            case Ref(name=n):
                found.add(n)
            case Op(name="exp"):
                pass
            case Op(args=args):
                for x in args:
                    read(x)
            case Cast(arg=x):
                read(x)

    for s in (*reversed(fused.cascade.stmts), *reversed(fused.producers)):
        if found & set(s.names if isinstance(s, Reduce) else (s.name,)) and (
                not isinstance(s, Reduce) or s.reducer.kind in ("max", "min")):
            read(s.expr)
    return frozenset(found)


def _roundings(e: Expr) -> int:
    """By how many roundings a positive scale's product with the rest may be another number than what the program has: none of
    it is by a power of two, and that of one product is the program's own."""
    match e:
        case Op(name="mul", args=(x, Const(value=k)) | (Const(value=k), x)):
            return _roundings(x) + (not power_of_two(k))
        case Op(name="div", args=(x, Const(value=k))) if k:
            return _roundings(x) + (0 if power_of_two(k) else 2)
        case Op(name="select", args=(_, x, Const()) | (_, Const(), x)):
            return _roundings(x)
    return 0
