"""Masks as loop ranges: which part of the r-axis a tile of rows can see, and where it needs no test at all.

A condition on positions (``l <= i``, ``i - l < 256``, ``l < 100 or l <= i``) bounds the r-axis by an affine function of the
rows. Over a tile of rows that gives two ranges: the *hull*, outside which nothing is alive (those segments are never
visited), and the *core*, inside which everything is (those need no mask). Data (a boolean tensor) bounds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from redfuser.acrf.affine import Affine, Indices
from redfuser.acrf.expr import Cast, Const, Expr, Op
from redfuser.acrf.index import i64, iadd, ifloordiv, imax, imin
from redfuser.strategies.alive import TRUE, both, conjuncts, positional
from redfuser.tensorize.algebra import fold


def separate(c: Expr) -> tuple[Expr, Expr]:
    """``c`` as (positional part) and (the rest)."""
    position, data = TRUE, TRUE
    for part in conjuncts(c):
        if positional(part):
            position = both(position, part)
        else:
            data = both(data, part)
    return position, data


def masked_operand(e: Expr, inside: Expr) -> Expr:
    """``e``, and 0 elsewhere, in the type that a matrix unit reads."""
    if isinstance(e, Cast):
        return Cast(masked_operand(e.arg, inside), e.dtype)
    return fold(Op("select", (inside, e, Const(0.0, e.dtype)), e.dtype))


@dataclass(frozen=True, slots=True)
class Rows:
    """A tile of rows: axis, first row as an affine form, number of rows."""

    axis: str | None
    origin: Affine
    count: int


@dataclass(frozen=True, slots=True)
class Range:
    """``[low, high)`` hull and ``[core_low, core_high)`` core of the r-axis; None is unbounded. ``exact`` is False when
    the core is empty because nothing is known."""

    low: Expr | None = None
    high: Expr | None = None
    core_low: Expr | None = None
    core_high: Expr | None = None
    exact: bool = True


EVERYTHING = Range()
UNKNOWN = Range(exact=False)


@dataclass(frozen=True, slots=True)
class Analysis:
    """Ranges of the r-axis ``over`` for conditions, over one tile of rows."""

    over: str
    rows: Rows
    extents: Mapping[str, int]

    @property
    def positions(self) -> Indices:
        return Indices(self.extents)

    def range(self, c: Expr) -> Range:
        match c:
            case Const(value=True):
                return EVERYTHING
            case Op(name="and", args=(x, y)):
                return self._both(self.range(x), self.range(y))
            case Op(name="or", args=(x, y)):
                return self._either(self.range(x), self.range(y))
            case Op(name="le", args=(x, y)):
                return self._non_negative(y, x, 0)
            case Op(name="lt", args=(x, y)):
                return self._non_negative(y, x, 1)
            case Op(name="ge", args=(x, y)):
                return self._non_negative(x, y, 0)
            case Op(name="gt", args=(x, y)):
                return self._non_negative(x, y, 1)
            case Op(name="eq", args=(x, y)) if x.dtype.startswith("i"):
                return self._both(self._non_negative(x, y, 0), self._non_negative(y, x, 0))
        return UNKNOWN

    def _non_negative(self, x: Expr, y: Expr, slack: int) -> Range:
        """The range where ``x - y >= slack``."""
        p, q = self.positions.of_axes(x), self.positions.of_axes(y)
        if p is None or q is None:
            return UNKNOWN
        d = p - q - slack
        step = d.coefficient(self.over)
        rest = d.without(self.over)
        if step == 1:  # l >= -rest
            return Range(low=self._extreme(-1 * rest, least=True).expr(),
                         core_low=self._extreme(-1 * rest, least=False).expr())
        if step == -1:  # l <= rest
            high, core = self._extreme(rest, least=False), self._extreme(rest, least=True)
            return Range(high=(high + 1).expr(), core_high=(core + 1).expr())
        if step == 0 and self.positions.range(rest)[0] >= 0:
            return EVERYTHING
        return UNKNOWN

    def _extreme(self, p: Affine, least: bool) -> Affine:
        """The least (greatest) value of ``p`` over the tile's rows, as a form in the block's own variables."""
        k = p.coefficient(self.rows.axis) if self.rows.axis else 0
        if not k:
            return p
        offset = 0 if (k > 0) == least else k * (self.rows.count - 1)
        return p.without(self.rows.axis or "") + k * self.rows.origin + offset

    def _both(self, x: Range, y: Range) -> Range:
        return Range(self.larger(x.low, y.low), self.smaller(x.high, y.high),
                     self.larger(x.core_low, y.core_low), self.smaller(x.core_high, y.core_high), x.exact and y.exact)

    def _either(self, x: Range, y: Range) -> Range:
        low = None if x.low is None or y.low is None else self.smaller(x.low, y.low)
        high = None if x.high is None or y.high is None else self.larger(x.high, y.high)
        if not (x.exact and y.exact):
            known = x if x.exact else y
            return Range(low, high, known.core_low, known.core_high, known.exact)
        if x.core_low == y.core_low:
            top = None if x.core_high is None or y.core_high is None else self.larger(x.core_high, y.core_high)
            return Range(low, high, x.core_low, top)
        if x.core_high == y.core_high:
            bottom = None if x.core_low is None or y.core_low is None else self.smaller(x.core_low, y.core_low)
            return Range(low, high, bottom, x.core_high)
        return Range(low, high, x.core_low, x.core_high)

    def larger(self, p: Expr | None, q: Expr | None) -> Expr | None:
        """The larger bound; one of the two where that is provable, else their maximum."""
        if p is None or q is None:
            return q if p is None else p
        order = self.order(p, q)
        return imax(p, q) if order == 0 else p if order > 0 else q

    def smaller(self, p: Expr | None, q: Expr | None) -> Expr | None:
        if p is None or q is None:
            return q if p is None else p
        order = self.order(p, q)
        return imin(p, q) if order == 0 else q if order > 0 else p

    def order(self, p: Expr, q: Expr) -> int:
        """1 when p >= q for every block, -1 when p <= q, 0 when that depends on the block."""
        return -1 if self.at_most(p, q) else 1 if self.at_most(q, p) else 0

    def at_most(self, p: Expr, q: Expr) -> bool:
        """Is p <= q in every block? Provably, by intervals; minima and maxima are taken apart."""
        match p, q:
            case Op(name="max", args=(x, y)), _:
                return self.at_most(x, q) and self.at_most(y, q)
            case _, Op(name="min", args=(x, y)):
                return self.at_most(p, x) and self.at_most(p, y)
            case Op(name="min", args=(x, y)), _ if self.at_most(x, q) or self.at_most(y, q):
                return True
            case _, Op(name="max", args=(x, y)):
                return self.at_most(p, x) or self.at_most(p, y)
        ix = self.positions
        return ix.range(ix.linear(p) - ix.linear(q))[1] <= 0

    def segment_of(self, e: Expr, size: int, up: bool) -> Expr:
        """``e`` divided by the segment size, rounded down or up; affine bounds are divided term by term."""
        if isinstance(e, Op) and e.name in ("min", "max"):
            x, y = (self.segment_of(kid, size, up) for kid in e.args)
            return self.smaller(x, y) if e.name == "min" else self.larger(x, y)  # type: ignore[return-value]
        p = self.positions.of_axes(e)
        if p is None:
            return ifloordiv(iadd(e, i64(size - 1 if up else 0)), size)
        quotient, rest = divmod(p + (size - 1 if up else 0), size)
        low, high = self.positions.range(rest)
        if low >= 0 and high < size:
            return quotient.expr()
        return iadd(quotient.expr(), ifloordiv(rest.expr(), size))
