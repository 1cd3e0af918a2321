"""A contraction whose operand is scaled by a number of the point: the scale is applied once, to the sum.

    sum_l f16(x[i, l] * r[i]) * w[n, l]    -->    r[i] * sum_l x[i, l] * w[n, l]

What neither the r-axis nor a result moves is data, and may stay in the sum; where it leaves it, the operands are what lies
in memory. As with results (casts.py), a rounding to f16 or bf16 is relative, so that it commutes with the scale: with one of
either sign, as it is to nearest.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations

from redfuser.acrf.cascade import Let, Reduce
from redfuser.acrf.derive.casts import RELATIVE, keeps_digits
from redfuser.acrf.derive.derivation import F1, Derivation, Value, factor_text, own_name
from redfuser.acrf.expr import FLOATS, Cast, Expr, Op, loads_of
from redfuser.acrf.facts.algebra import accumulator_dtype
from redfuser.acrf.facts.normal import product
from redfuser.dtypes import SMALLEST_NORMAL, UNIT, widens

Scales = list[tuple[Expr, Fraction]]


class _Stays(Exception):
    """A rounding does not commute with the scale."""


def derive_scaled(work: Derivation, r: Reduce) -> bool:
    """Accumulator and value of a contraction that a number of its point scales; False, and nothing done, for any other sum."""
    apart = _Apart(work)
    try:
        data = apart.rest(work.scope.replaced(r.expr, {p.name: p.expr for p in work.outline.producers if isinstance(p, Let)}))
    except _Stays:
        return False
    if data is None or not apart.scales or not _contracts(work, r, data):
        return False
    dtype = accumulator_dtype(r.dtype)
    data = data if data.dtype == dtype else Cast(data, dtype)
    (acc,) = work.accumulate((own_name(r.name),), r.axes, r.reducer, dtype, data, None)
    scaled = [(s if s.dtype == dtype else Cast(s, dtype), p) for s, p in apart.scales]
    value = product([(acc, F1), *_met(scaled)], dtype)
    if r.dtype != dtype:
        value = Cast(value, r.dtype)
        work.narrowed(r, dtype)
    work.set_value(r.name, Value(value, value), value)
    scales = [factor_text(s, p) for s, p in scaled]
    work.decomposition.append(f"{r.name} = {r.reducer}[{r.over}] [{data}] (*) [{' * '.join(scales)}]")
    work.choices += [f"{r.name}: {s} deferred: the same for the whole row, so it is applied once, in finalize" for s in scales]
    work.roundings += apart.roundings
    return True


def _met(scales: Scales) -> Scales:
    """Those that multiply and those that divide, a pair at a time: ``acc * (a / b)``. Each meets an operand in the program,
    where ``(x * a) @ (w / b)`` of numbers of 1e15 is in range, and ``acc * a`` is not."""
    up, down = ([s for s, p in scales if p * sign > 0] for sign in (1, -1))
    pairs: Scales = [(Op("div", (a, b), a.dtype), F1) for a, b in zip(up, down, strict=False)]
    return [*pairs, *((a, F1) for a in up[len(down):]), *((b, -F1) for b in down[len(up):])]


def _contracts(work: Derivation, r: Reduce, data: Expr) -> bool:
    """Do two tensors along the r-axis each lack an axis that the other has? Of anything else a scale is no more than one
    multiplication an element."""
    along = [work.scope.axes_of(x) for x in loads_of(data)]
    return any(a - b and b - a for a, b in combinations([x for x in along if r.over in x], 2))


@dataclass(slots=True)
class _Apart:
    """A product is taken apart: its scales, with their powers, and what the certificate says of roundings they left."""

    work: Derivation
    scales: Scales = field(default_factory=list)
    roundings: list[str] = field(default_factory=list)

    def rest(self, e: Expr, power: Fraction = F1) -> Expr | None:
        """``e`` without its scales; None where nothing is left. power: -1 for what divides. Raises _Stays."""
        if self.work.scope.kind(e) == "C" and e.dtype in FLOATS and loads_of(e):
            self.scales.append((e, power))
            return None
        before = len(self.scales)
        match e:
            case Op(name="mul", args=(x, y)):
                left, right = self.rest(x, power), self.rest(y, power)
                whole = right if left is None else left if right is None else replace(e, args=(left, right))
            case Op(name="div", args=(x, y)) if self.work.scope.kind(y) == "C" and loads_of(y):
                whole = self.rest(x, power)
                self.scales.append((y, -power))
            case Cast(arg=x) if e.dtype in FLOATS and x.dtype in FLOATS:
                whole = self.rest(x, power)
            case _:
                return e
        moved = self.scales[before:]
        return e if not moved else None if whole is None else self.rounded(e, whole, moved)

    def rounded(self, e: Expr, inner: Expr, moved: Scales) -> Expr:
        """What is left of a conversion, or of arithmetic in half precision, whose scales have left it."""
        if isinstance(e, Cast) and widens(e.arg.dtype, e.dtype):
            return inner if inner.dtype == e.dtype else Cast(inner, e.dtype)
        if isinstance(e, Cast) or e.dtype in ("f16", "bf16"):
            if e.dtype not in RELATIVE or not (self.work.ranges.fits(inner, e.dtype) and keeps_digits(inner, e.dtype)):
                raise _Stays
            u, out = UNIT[e.dtype], ", ".join(factor_text(s, p) for s, p in moved)
            self.roundings.append(
                f"{e}: {e.dtype} rounding moves across {out}; relative change at most 2u + u*u = {2 * u + u * u:.4g} "
                f"(u = {u:.4g}) for magnitudes above {SMALLEST_NORMAL[e.dtype]:.3g}")
        if isinstance(inner, Cast) and inner.arg.dtype == e.dtype and widens(e.dtype, inner.dtype):
            return inner.arg  # what was widened to be scaled
        return inner if inner.dtype == e.dtype else Cast(inner, e.dtype)
