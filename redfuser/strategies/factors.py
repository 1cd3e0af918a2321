"""Shared factors: parts of contributions and rebases that a program should evaluate once, not once per loop point.

``sum[l] exp(p - m)`` and ``sum[l] exp(p - m) * v[l, e]`` share a factor that does not depend on ``e``. As written it
would be evaluated once for each reduction and, in the second, once for each ``e``. The rewrite names it::

    t = sum[l] exp(p - m)                        t_term[i, l] = exp(p - m)
    o[e] = sum[l] exp(p - m) * v[l, e]     -->   t = sum[l] t_term
                                                 o[e] = sum[l] t_term * v[l, e]

and likewise ``t_scale = exp(m@old - m)`` out of the corrections of ``t`` and ``o[e]``. By dataflow only: a factor is a
maximal floating-point subexpression that does arithmetic and either depends on fewer axes than the loop it stands in or
occurs in more than one place; it has to be costly, except where it takes an axis out of a loop over the r-axis (a
contraction's operand).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from redfuser.acrf.expr import FLOATS, Cast, Expr, Index, Op, Ref, children, map_children, walk
from redfuser.acrf.functions import DEAR
from redfuser.strategies.names import fresh


@dataclass(frozen=True, slots=True)
class Use:
    """An expression and the axes of the loop it is evaluated in. ``owner`` names the statement, ``kind`` what the
    expression is to it: its ``term`` per element, or the ``scale`` of its correction."""

    owner: str
    kind: str
    expr: Expr
    points: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Factor:
    name: str
    axes: tuple[str, ...]
    expr: Expr
    first: str
    """Owner of the first use: the factor is evaluated just before that statement's correction and reduction."""


def axes_of(e: Expr, axes: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Every axis on which the value of ``e`` depends; ``axes`` gives those of each named value it may read."""
    found: set[str] = set()
    for x in walk(e):
        if isinstance(x, Index):
            found.add(x.axis)
        elif isinstance(x, Ref) and not x.indices:
            found.update(axes[x.name])
    return frozenset(found)


def share(uses: tuple[Use, ...], raxis: str, axes: Mapping[str, tuple[str, ...]],
          order: tuple[str, ...]) -> tuple[tuple[Factor, ...], tuple[Expr, ...]]:
    """The factors worth naming, each after those it reads, and the expressions with them as references, in order.

    axes: of every named value. order: all axes, giving a factor's axes their order."""
    counts: dict[Expr, int] = {}

    def count(e: Expr) -> None:
        """One count per parent that is evaluated: a repeated parent will be a factor itself."""
        counts[e] = counts.get(e, 0) + 1
        if counts[e] == 1:
            for kid in children(e):
                count(kid)

    for use in uses:
        count(use.expr)

    chosen: dict[Expr, Factor] = {}
    taken = set(axes) | {u.owner for u in uses}

    def name_for(use: Use) -> str:
        return fresh(f"{use.owner.partition('@')[0]}_{use.kind}", taken)

    def worth(e: Expr, mine: frozenset[str], points: frozenset[str]) -> bool:
        if not _arithmetic(e):
            return False
        if mine < points and raxis in mine:
            return True
        return _costly(e) and (mine < points or counts.get(e, 0) > 1)

    def rewrite(e: Expr, use: Use, points: frozenset[str]) -> Expr:
        if e in chosen:
            return Ref(chosen[e].name, e.dtype)
        mine = axes_of(e, axes)
        if worth(e, mine, points):
            body = map_children(e, lambda kid: rewrite(kid, use, mine))
            chosen[e] = Factor(name_for(use), tuple(a for a in order if a in mine), body, use.owner)
            return Ref(chosen[e].name, e.dtype)
        return map_children(e, lambda kid: rewrite(kid, use, points))

    rewritten = tuple(rewrite(u.expr, u, frozenset(u.points)) for u in uses)
    return tuple(chosen.values()), rewritten


def _arithmetic(e: Expr) -> bool:
    """Does floating-point work of its own: an operation, or a cast of one (``f32(x[l])`` alone is part of a load)."""
    if isinstance(e, Cast):
        return e.dtype in FLOATS and any(isinstance(x, Op) and x.dtype in FLOATS for x in walk(e.arg))
    return isinstance(e, Op) and e.dtype in FLOATS


def _costly(e: Expr) -> bool:
    """Worth a buffer when it is only used twice on the same axes: a loop over simple arithmetic is not."""
    return any(isinstance(x, Op) and x.name in DEAR for x in walk(e))
