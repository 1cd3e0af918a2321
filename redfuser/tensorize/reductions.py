"""Accumulators and row values: keep, correct, reduce along the segment, merge; once more after the walk or over a list."""

from __future__ import annotations

import math
from dataclasses import replace

from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Index, Load, Op, f32, op, walk
from redfuser.acrf.facts.algebra import neutral
from redfuser.acrf.index import i64, imax, imin
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block
from redfuser.tensorize.algebra import simplify
from redfuser.tensorize.builder import HALF, Builder, Value
from redfuser.tensorize.contraction import accumulate_product
from redfuser.tensorize.ir.nodes import Assign, Copy, Fill, ReduceTile
from redfuser.tensorize.ir.parts import Slice
from redfuser.tensorize.maps import as_tile, map_tile
from redfuser.tensorize.nan import halves, keeps_nan
from redfuser.tensorize.selection import keep_better, select_best
from redfuser.tensorize.staging import at_point

MANY = 8
"""Steps from which on a total is kept in float64."""
BYTES_OF = ("bool", "i8", "u8")
"""What is added up in 32 bits in a tile: sums are int64 in torch."""
_THROUGH = frozenset({"add", "sub", "mul", "div", "neg", "select"})


def emit_total(work: Builder, v: Value, total: Expr, comment: str = "") -> None:
    """``v := total``, a sum that ``v`` itself takes part in: one of many steps in float64 beside it.

    A float32 total that takes a hundred parts one after the other has lost up to a hundred roundings; torch adds pairwise and
    loses seven. One float64 addition per row and step costs nothing beside the row's elements::

        row_sum_wide[i] = row_sum_wide[i] * f64(scale[i]) + f64(row_sum_segment[i]);    row_sum[i] = f32(row_sum_wide[i])

    References and corrections are still computed from the float32 value, so that every part is moved by the same amount as it
    was taken about."""
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


def keep_old(work: Builder, b: Block) -> None:
    """A copy of an accumulator from before the step."""
    base = work.value(b.name.partition("@")[0])
    v = work.tile(b.name, base.axes, base.dtype)
    work.values[b.name] = v
    work.emit(Copy(Slice(base.buffer), Slice(v.buffer)))


def lower_correct(work: Builder, b: Block) -> None:
    """Rebase an accumulator; a row value is corrected where the segment's part is added."""
    v = work.value(b.name)
    if v.axes == work.at.row:  # joins the addition of the segment's part
        work.corrections[b.name] = at_point(work, b.exprs[0])
        return
    work.store(v, at_point(work, b.exprs[0]), work.at.source(b))


def lower_merge(work: Builder, b: Block) -> None:
    """Combine partial states element by element."""
    assert b.reducer is not None
    if b.reducer.kind == "topk":
        raise LoweringError("RF489", f"{work.at.kernel.name}: {', '.join(b.names)} is a list")
    if len(b.names) > 1:
        keep_better(work, b, at_point(work, b.exprs[2]), at_point(work, b.exprs[3]))
        return
    v = work.value(b.name)
    a, c = b.exprs
    total = op({"sum": "add", "max": "max", "min": "min", "prod": "mul", "any": "or", "all": "and"}[b.reducer.kind],
               a, c)
    if b.reducer.kind == "sum":
        emit_total(work, v, at_point(work, total), work.at.source(b))
    else:
        work.store(v, at_point(work, total), work.at.source(b))


def lower_reduce(work: Builder, b: Block) -> None:
    """Reduce along the segment into an accumulator."""
    assert b.reducer is not None
    kind = b.reducer.kind
    if kind in ("topk", "argmax", "argmin"):
        select_best(work, b)
        return
    if kind not in ("sum", "max", "min"):
        raise LoweringError("RF489", f"{work.at.kernel.name}: no tile form of the reducer {kind}")
    v = work.value(b.name)
    if v.axes != work.at.row and not work.at.roles.lists:
        accumulate_product(work, b, v)
        return
    if kind == "sum" and work.at.roles.segment not in work.axes_of(b.exprs[0]):
        _add_count(work, b, v, work.corrections.pop(b.name, None))
        return
    corrected = work.corrections.pop(b.name, None)
    nan = kind != "sum" and v.dtype in FLOATS and keeps_nan(work.at.program.fused, work.at.was(b.name))
    src = _terms(work, b, nan)
    _fold_tile(work, kind, src, v, fresh=work.at.resident, comment=work.at.source(b), corrected=corrected, nan=nan)


def _add_count(work: Builder, b: Block, v: Value, corrected: Expr | None) -> None:
    """A sum of a value that the segment does not change: times the elements of this segment."""
    n = work.at.roles.segment
    assert n is not None and work.scope.segment is not None
    extent, size = work.at.extents[n], work.at.sizes[n]
    count: Expr = Const(float(size), "f32")
    if work.at.walked(n) != extent:
        left = Op("sub", (i64(extent), work.scope.segment), "i64")
        count = Cast(imax(i64(0), imin(i64(size), left)), "f32")
    total = op("add", corrected or work.here(v), op("mul", count, at_point(work, b.exprs[0])))
    emit_total(work, v, simplify(total), work.at.source(b))


def _fold_tile(work: Builder, kind: str, src: Value, v: Value, fresh: bool, comment: str,
               corrected: Expr | None = None, nan: bool = False) -> None:
    """``v`` := reduce of ``src``, folded with the old v unless ``fresh``. nan: keep NaN where max and min drop it, as those of
    halves need not."""
    here = work.here(v)
    if kind == "sum" and src.dtype != v.dtype:  # counted
        part = work.tile(f"{v.buffer}_segment", work.at.row, src.dtype)
        work.emit(ReduceTile(kind, src.buffer, part.buffer, True, comment))
        many = Cast(work.here(part), v.dtype)
        work.store(v, many if fresh else op("add", corrected or here, many))
    elif nan and src.dtype in HALF:
        part = work.tile(f"{v.buffer}_half", work.at.row, src.dtype)
        work.emit(ReduceTile(kind, src.buffer, part.buffer, True, comment, nan=True))
        found: Expr = Cast(work.here(part), v.dtype) if v.dtype != src.dtype else work.here(part)
        work.store(v, found if fresh else op(kind, corrected or here, found))
    elif fresh:
        work.emit(ReduceTile(kind, src.buffer, v.buffer, True, comment))
        if nan:
            work.store(v, _or_nan(work, src, here))
    elif kind in ("max", "min") and not nan:
        if corrected is not None:
            work.store(v, corrected)
        work.emit(ReduceTile(kind, src.buffer, v.buffer, False, comment))
    else:
        part = work.tile(f"{v.buffer}_segment", work.at.row, v.dtype)
        work.emit(ReduceTile(kind, src.buffer, part.buffer, True, comment))
        other = work.here(part)
        if nan:
            other = _or_nan(work, src, other)
        total = op({"sum": "add"}.get(kind, kind), corrected or here, other)
        if kind == "sum":
            emit_total(work, v, total)
        else:
            work.store(v, total)


def _terms(work: Builder, b: Block, nan: bool) -> Value:
    """What is reduced, as a tile; in half precision where a maximum that keeps NaN is one of halves, of which CUDA has one; in
    32 bits where bytes are added up, of which no tile has so many."""
    axes, stem = work.at.across, f"{b.name}_term"
    if b.reducer is not None and b.reducer.kind == "sum" and (small := _counted(b.exprs[0])) is not None:
        return as_tile(work, small, axes, stem)
    named = {x.name: x.exprs[0] for x in work.at.kernel.body if x.role == "producer" and x.reducer is None}
    if nan and work.at.target.kind == "cuda" and (e := halves(b.exprs[0], named)) is not None:
        map_tile(work, v := work.tile(stem, axes, e.dtype), e)
        return v
    return as_tile(work, b.exprs[0], axes, stem)


def _counted(e: Expr) -> Expr | None:
    """A byte as int32 that is written as int64; None for what is none."""
    match e:
        case Cast(arg=x, dtype="i64") if x.dtype in BYTES_OF:
            return Cast(x, "i32")
        case Const(value=v, dtype="i64") if 0 <= v < 256:
            return Const(int(v), "i32")
        case Op(name="select", args=(c, x, y)) if e.dtype == "i64":
            one, other = _counted(x), _counted(y)
            return Op("select", (c, one, other), "i32") if one is not None and other is not None else None
    return None


def _or_nan(work: Builder, src: Value, e: Expr) -> Expr:
    """``e``, or NaN in rows of ``src`` that hold one."""
    flags, seen = work.tile(f"{src.buffer}_nan", src.axes, "f32"), work.tile(f"{src.buffer}_seen", work.at.row, "f32")
    x = work.here(src)
    flag = Op("select", (op("isnan", x if x.dtype == "f32" else Cast(x, "f32")), f32(1.0), f32(0.0)), "f32")
    work.store(flags, flag)
    work.emit(ReduceTile("max", flags.buffer, seen.buffer, True, "a maximum of tiles drops NaN"))
    return Op("select", (op("gt", work.here(seen), f32(0.0)), Const(math.nan, e.dtype), e), e.dtype)


def lower_late_reduce(work: Builder, b: Block) -> None:
    """A reduction after the accumulators: along the row once more, or over columns."""
    assert b.reducer is not None
    if work.at.roles.lists and b.over in work.at.roles.columns and b.reducer.kind in ("sum", "max", "min"):
        _reduce_list(work, b)
        return
    if b.over != work.at.roles.segment or b.reducer.kind not in ("sum", "max", "min"):
        raise LoweringError("RF489", f"{work.at.kernel.name}: no tile form of {b.reducer} over {b.over} after the row")
    e = b.exprs[0]
    v = work.tile(b.name, work.at.row, "f32" if e.dtype in FLOATS else b.dtype)
    work.values[b.name] = v
    n = work.at.roles.segment
    assert n is not None
    if work.at.walked(n) != work.at.extents[n]:
        e = Op("select", (op("lt", Index(n), i64(work.at.extents[n])), e, neutral(b.reducer, e.dtype)[0]), e.dtype)
    if not work.at.resident:
        work.before.append(Fill(v.buffer, neutral(b.reducer, v.dtype)[0]))
    nan = b.reducer.kind != "sum" and v.dtype in FLOATS
    _fold_tile(work, b.reducer.kind, _terms(work, replace(b, exprs=(e,)), nan), v, work.at.resident, work.at.source(b), nan=nan)


def _reduce_list(work: Builder, b: Block) -> None:
    """Along the places of a top-k list, padded to a power of two."""
    assert b.reducer is not None and b.over is not None
    e, k = b.exprs[0], work.at.extents[b.over]
    if k != work.at.sizes[b.over]:
        e = Op("select", (op("lt", Index(b.over), i64(k)), e, neutral(b.reducer, e.dtype)[0]), e.dtype)
    v = work.tile(b.name, work.at.row, "f32" if e.dtype in FLOATS else b.dtype)
    work.values[b.name] = v
    _fold_tile(work, b.reducer.kind, as_tile(work, e, (*work.at.row, b.over), f"{b.name}_term"), v, True, work.at.source(b),
               nan=b.reducer.kind != "sum" and v.dtype in FLOATS)
