"""Sums of many steps: a row's running total in float64, and its float32 value for whoever reads it.

A float32 total that takes a hundred parts one after the other has lost up to a hundred roundings; torch adds pairwise and
loses seven. One float64 addition per row and step costs nothing beside the row's elements::

    row_sum_wide[i] = row_sum_wide[i] * f64(scale[i]) + f64(row_sum_segment[i]);    row_sum[i] = f32(row_sum_wide[i])

References and corrections are still computed from the float32 value, so that every part is moved by the same amount as it
was taken about.
"""

from __future__ import annotations

from redfuser.acrf.expr import Cast, Const, Expr, Load, Op, walk
from redfuser.tensorize.builder import Builder
from redfuser.tensorize.ir.nodes import Assign, Fill
from redfuser.tensorize.scope import Value

MANY = 8
"""Steps from which on a total is kept in float64."""
_THROUGH = frozenset({"add", "sub", "mul", "div", "neg", "select"})


def emit_total(work: Builder, v: Value, total: Expr, comment: str = "") -> None:
    """``v := total``, a sum that ``v`` itself takes part in."""
    if v.axes != work.at.row or v.dtype != "f32" or work.at.has_gemm or _steps(work) < MANY:
        work.store(v, total, comment)
        return
    wide = work.tile(f"{v.buffer}_wide", work.at.row, "f64")
    work.before.append(Fill(wide.buffer, Const(0.0, "f64")))
    here, points = work.here(wide), work.points(v.axes)
    work.emit(work.parallel(v.axes, (Assign(wide.buffer, points, _widened(total, v.buffer, here)),
                                     Assign(v.buffer, points, Cast(here, "f32"))), comment))


def _steps(work: Builder) -> int:
    """How many parts a total takes, at most."""
    n = work.at.roles.segment
    if work.at.roles.fold is not None:
        return work.at.extents[work.at.roles.fold]
    if work.at.resident or n is None:
        return 1
    splits = work.at.extents[work.at.kernel.split] if work.at.kernel.split else 1
    return work.at.walked(n) // (work.at.sizes[n] * splits)


def _widened(e: Expr, own: str, wide: Expr) -> Expr:
    """``e`` in float64, reading ``wide`` for the buffer ``own``; what does not depend on it is computed as it was."""
    if isinstance(e, Const):
        return Const(e.value, "f64")
    if isinstance(e, Load) and e.tensor == own:
        return wide
    inside = any(isinstance(x, Load) and x.tensor == own for x in walk(e))
    if not (inside and isinstance(e, Op) and e.name in _THROUGH):
        return Cast(e, "f64")
    if e.name == "select":
        c, x, y = e.args
        return Op("select", (c, _widened(x, own, wide), _widened(y, own, wide)), "f64")
    return Op(e.name, tuple(_widened(x, own, wide) for x in e.args), "f64")
