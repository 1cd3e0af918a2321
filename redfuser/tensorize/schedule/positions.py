"""Positions as numbers: an integer that is read as a float at each element of a tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from redfuser.acrf.affine import Affine, Indices
from redfuser.acrf.expr import Cast, Expr, Index, Load, Op, map_children, op, walk
from redfuser.acrf.index import ifloordiv, imod, imul
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.flight import Let
from redfuser.tensorize.ir.nodes import For, Gemm, If, Parallel, Role, Roles, TileKernel, TileStmt
from redfuser.tensorize.ir.parts import LANES, RUN
from redfuser.tensorize.ir.spans import Bounds, bounds

WHOLE = 1 << 24
"""Integers of which single precision has every one."""


@dataclass(frozen=True, slots=True)
class AddPositions:
    """A position that is converted at each element of a product's tile is a sum of two: what a thread knows of its row and of
    its place in it, once a row, and a constant of each register::

        scores[i, j] = scores[i, j] + s[h] * f32(k * 128 - i + j)
        -->
        scores[i, j] = scores[i, j] + s[h] * (f32(k * 128 - i + j % 8 // 2 * 2) + f32(j // 8 * 8 + j % 2))

    Requires that all three are below 2^24, so that each is exact, and their sum. Changes no value."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        if not isinstance(kernel.body[-1], Roles):
            return kernel
        products = {s.c for s in every(kernel.body) if isinstance(s, Gemm)}
        known: dict[str, Bounds] = {v: (0, n - 1) for v, n in kernel.grid}
        for v, e in kernel.lets:
            known[v] = bounds(e, known, {})

        def role(r: Role) -> Role:
            return replace(r, body=_in(r.body, products, known))

        return replace(kernel, body=(*kernel.body[:-1], Roles(tuple(map(role, kernel.body[-1].roles)))))


def _in(body: tuple[TileStmt, ...], products: set[str], known: Mapping[str, Bounds]) -> tuple[TileStmt, ...]:
    out: list[TileStmt] = []
    known = dict(known)
    for s in body:
        match s:
            case Let(var, e):
                known[var] = bounds(e, known, {})
            case For(var, start, stop, inner):
                inside = {**known, var: (bounds(start, known, {})[0], bounds(stop, known, {})[1] - 1)}
                s = replace(s, body=_in(inner, products, inside))
            case If(body=inner):
                s = replace(s, body=_in(inner, products, known))
            case Parallel((row, column), (rows, columns), assigns) if columns % (LANES * RUN) == 0 and \
                    {a.target for a in assigns} <= products:
                here = {**known, row: (0, rows - 1), column: (0, columns - 1)}
                s = replace(s, body=tuple(replace(a, expr=_added(a.expr, column, here)) for a in assigns))
        out.append(s)
    return tuple(out)


def _added(e: Expr, column: str, known: Mapping[str, Bounds]) -> Expr:
    match e:
        case Load():
            return e
        case Cast(arg=x, dtype="f32") if x.dtype == "i64" and (parts := _parts(x, column, known)):
            return op("add", Cast(parts[0], "f32"), Cast(parts[1], "f32"))
    return map_children(e, lambda x: _added(x, column, known))


def _parts(x: Expr, column: str, known: Mapping[str, Bounds]) -> tuple[Expr, Expr] | None:
    """``x`` as what four neighbouring threads and the rows tell apart, and what the registers do."""
    whole = _linear(x)
    c = whole.coefficient(column)
    rest = whole.without(column)
    if not c or not rest.terms or any(column in _names(a) for a, _ in rest.terms):
        return None
    j, run = Index(column), LANES * RUN
    thread = imul(imul(ifloordiv(imod(j, run), RUN), RUN), c)
    register = Op("add", (imul(imul(ifloordiv(j, run), run), c), imul(imod(j, RUN), c)), "i64")
    left: Expr = Op("add", (rest.expr(), thread), "i64")
    if any(abs(bound) >= WHOLE for e in (x, left, register) for bound in bounds(e, known, {})):
        return None
    return left, register


def _linear(e: Expr) -> Affine:
    return Indices(dict.fromkeys(_names(e), WHOLE)).linear(e)


def _names(e: Expr) -> set[str]:
    return {x.axis for x in walk(e) if isinstance(x, Index)}
