"""How far a product of results H moves, ``H(new) / H(old)``: as itself, as its logarithm, and to a power, without the rounding
that a logarithm or a high power of a ratio near 1 would make large."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import log

from redfuser.acrf.expr import Const, Expr, Op, op
from redfuser.acrf.facts.normal import product

Follows = tuple[tuple[Expr, Fraction], ...]
"""H as a product of results to powers."""


@dataclass(frozen=True, slots=True)
class Change:
    """H(new) / H(old) as quotients to positive powers, and as exponentials of differences."""

    quotients: tuple[tuple[Expr, Expr, Fraction], ...]
    exponentials: tuple[tuple[str, Expr], ...]

    def product(self) -> Expr | None:
        """The ratio itself."""
        factors = [(op("div", a, b), q) for a, b, q in self.quotients]
        factors += [(Op(name, (x,), x.dtype), Fraction(1)) for name, x in self.exponentials]
        return product(factors, factors[0][0].dtype) if factors else None

    def lost(self) -> Expr | None:
        """The logarithm of what rounding took from :meth:`product`, where that is near 1: ``(a - b) - (a / b - 1) * b`` is
        exact there, so that neither a logarithm nor a high power loses the digits of the distance from 1."""
        total: Expr | None = None
        for a, b, q in self.quotients:
            one, d = Const(1.0, a.dtype), a.dtype
            over = op("sub", op("div", a, b), one)
            rest = op("div", op("sub", op("sub", a, b), op("mul", over, b)), a)
            near = Op("le", (Op("abs", (over,), d), Const(0.5, d)), "bool")
            step = product([(Op("select", (near, rest, Const(0.0, d)), d), Fraction(1))], d, q)
            total = step if total is None else op("add", total, step)
        return total

    def logarithm(self, name: str, last: bool) -> Expr:
        """``log`` or ``log2`` of the ratio, near 1 as exact as elsewhere. The last change is exactly 1, or of a guard."""
        ratio, lost = self.product(), None if last else self.lost()
        assert ratio is not None
        whole = Op(name, (ratio,), ratio.dtype)
        if lost is None:
            return whole
        return op("add", whole, lost if name == "log" else op("mul", lost, Const(1 / log(2), ratio.dtype)))

    def raised(self, n: Expr) -> Expr:
        """The ratio to the power n, which would multiply its rounding by n."""
        ratio, lost = self.product(), self.lost()
        assert ratio is not None
        whole = op("pow", ratio, n)
        return whole if lost is None else op("mul", whole, Op("exp", (op("mul", n, lost),), ratio.dtype))
