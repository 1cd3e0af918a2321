"""Divisions by a value of the row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from redfuser.acrf.expr import Cast, Const, Expr, Op, Ref, f32, op, walk
from redfuser.strategies.program import Block, Kernel
from redfuser.tensorize.algebra import rewrite_bottom_up
from redfuser.tensorize.rewrite.facts import Facts, Setting, is_contraction, is_copy, learn


@dataclass(frozen=True, slots=True)
class Reciprocals:
    """One division per row instead of one per element, where the quotient is rounded to half precision::

        y = f16(o / t)    -->    y = f16(o * (1.0 / t))        t one value per row

    Adds a rounding in single precision, below one in half. A quotient that is kept in single precision is as IEEE has it."""

    def __call__(self, kernel: Kernel, at: Setting) -> Kernel:
        if at.exact:
            return kernel
        facts, halved = learn(kernel, at), _read_as_half(kernel, at.written)

        def block(b: Block) -> Block:
            if is_copy(b) or is_contraction(b) or facts.counted(b) or facts.where(b) <= at.row:
                return b
            return replace(b, exprs=tuple(_reciprocals(e, facts, b.name in halved) for e in b.exprs))

        return replace(kernel, body=tuple(map(block, kernel.body)), tail=tuple(map(block, kernel.tail)))


def _reciprocals(e: Expr, facts: Facts, halved: bool) -> Expr:
    def rule(x: Expr) -> Expr:
        if isinstance(x, Op) and x.name == "div" and x.dtype == "f32" and not isinstance(x.args[1], Const) \
                and facts.per_row(x.args[1]) and not facts.per_row(x.args[0]):
            return op("mul", x.args[0], op("div", f32(1.0), x.args[1]))
        return x

    def rounded(x: Expr) -> Expr:
        half = halved or (isinstance(x, Cast) and x.dtype in ("f16", "bf16"))
        return rewrite_bottom_up(x, rule) if half else x

    return rewrite_bottom_up(e, rounded)


def _read_as_half(kernel: Kernel, kept: frozenset[str]) -> frozenset[str]:
    """The names that every reader rounds to half precision at once, scaled or not."""
    exprs = [e for b in (*kernel.init, *kernel.body, *kernel.tail) for e in b.exprs]
    half = Counter(n for e in exprs for n in _rounded(e))
    reads = Counter(x.name for e in exprs for x in walk(e) if isinstance(x, Ref))
    return frozenset(n for n, times in half.items() if times == reads[n] and n not in kept)


def _rounded(e: Expr) -> Iterator[str]:
    for x in walk(e):
        match x:
            case Cast(arg=Ref(name=n) | Op(name="mul", args=(Ref(name=n), Const())), dtype="f16" | "bf16"):
                yield n
