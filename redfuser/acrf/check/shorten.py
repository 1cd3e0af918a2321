"""A fusion that rests on the r-axis's known extent, restated for a shorter row.

LayerNorm over 768 elements divides by the literal ``768.0``: its state is right because that literal is the number of
elements, so a row of four says nothing about it. With the literal four in program *and* fused form it says as much as
the whole row: both are the same program at another extent. Part of :mod:`redfuser.acrf.check.verify`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from redfuser.acrf.expr import FLOATS, Const, Expr, Load, Ref, map_children, walk
from redfuser.acrf.state import Fused

SHORT = (1, 2, 4, 8)
"""Lengths of shortened rows: powers of two, so that a literal ``1 / extent`` has an exact counterpart."""

_POWERS = ((1, 0), (0, 1), (2, 0), (1, 1), (3, 0), (2, 1))
"""Of the length and of one less, the commonest first."""
SMALL = 16
"""Factors of a length that a literal may have."""


def restated(fused: Fused, n: int) -> Fused | None:
    """The fusion with the literals ``extent``, ``extent - 1``, products of their powers (a state multiplies means) and ``1 /
    extent`` replaced by those of a row of ``n`` (one of SHORT), in the cascade and in every part of the fused form. None where
    the cascade has no such literal or no known extent. Literals in index expressions are addresses and stay."""
    extent = fused.cascade.extent(fused.cascade.raxis)
    if not isinstance(extent, int) or extent <= max(SHORT):
        return None
    table = {float(extent**a * (extent - 1)**b): float(n**a * (n - 1)**b) for a, b in reversed(_POWERS)}
    if extent & (extent - 1) == 0:  # else the reciprocal is no float: a rounded one is no exact length
        table[1.0 / extent] = 1.0 / n
    if not any(_is_length(x, table) for s in fused.cascade.stmts for x in walk(s.expr)):
        return None
    return fused.with_exprs(lambda e: with_lengths(e, table))


def may_rest_on_length(fused: Fused) -> bool:
    """Is some literal of the program or its fused form a length, a power of one, or a small multiple of those? Where none is, a
    row of another length is a row of the same program."""
    extent = fused.cascade.extent(fused.cascade.raxis)
    if not isinstance(extent, int) or extent <= max(SHORT):
        return True
    scales = [float(a) ** p for a in (extent, extent - 1) for p in (0.5, 1, 2, 3)] + [float(extent) * (extent - 1)]
    literals = {abs(float(x.value)) for e in fused.exprs() for x in walk(e) if isinstance(x, Const) and x.dtype in FLOATS}
    return any(_is_ratio(v / s) or _is_ratio(v * s) for v in literals if 0 < v < float("inf") for s in scales)


def _is_ratio(x: float) -> bool:
    """Is it near a quotient of small numbers?"""
    return 1 / SMALL <= x <= SMALL and abs(x - Fraction(x).limit_denominator(SMALL)) <= 1e-6 * x


def _is_length(e: Expr, table: Mapping[float, float]) -> bool:
    return isinstance(e, Const) and e.dtype in FLOATS and e.value in table


def with_lengths(e: Expr, table: Mapping[float, float]) -> Expr:
    """The expression with other literals, by ``table``; those in indices stay."""
    if isinstance(e, Const):
        return replace(e, value=table[e.value]) if _is_length(e, table) else e
    return e if isinstance(e, (Load, Ref)) else map_children(e, lambda kid: with_lengths(kid, table))
