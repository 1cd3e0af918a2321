"""Contractions as gemm: scores from two operands of loads, and accumulators from weights and values.

    s[rows, segment] = sum[c] A[rows, c] * B[segment, c]
    acc[rows, columns] += sum[segment] W[rows, segment] * V[segment, columns]
"""

from __future__ import annotations

import math

from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, op, print_expr, substitute, walk
from redfuser.acrf.index import i64, imul
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block
from redfuser.tensorize import algebra
from redfuser.tensorize.axes import strip_casts
from redfuser.tensorize.builder import HALF, Builder, Depth, Operand, Scope, Value
from redfuser.tensorize.indexing import zero_filled
from redfuser.tensorize.ir.nodes import Assign, Fill, For, Gemm
from redfuser.tensorize.ir.parts import Slice
from redfuser.tensorize.maps import as_tile
from redfuser.tensorize.masks import masked_operand
from redfuser.tensorize.pieces import COUNT, products, split, whole
from redfuser.tensorize.precision import SUMMED, kept, kept_whole, read_in, unit_roundoff
from redfuser.tensorize.sizes import padded, round_up
from redfuser.tensorize.staging import at_point, stage_tile
from redfuser.tensorize.weights import EIGHT, foreign, operand, weight_dtype, weight_pieces

AT_ONCE = 256
"""Products that a matrix unit adds up in one go, at most, where it keeps too few bits: the longest segment that is proposed."""


def lower_contraction(work: Builder, b: Block) -> None:
    """``s[rows, segment] = sum[c] A[rows, c] * B[segment, c]``."""
    assert b.over is not None and work.at.roles.segment is not None
    if more := [a for a in b.axes if a not in (*work.at.roles.grid, *work.at.across) and work.at.extents[a] > 1]:
        raise LoweringError("RF493", f"{work.at.kernel.name}: {b.name} spans {', '.join((*work.at.across, *more))} at once",
                            why="a tile has rows and one other axis")
    parts = algebra.factors(b.exprs[0])
    deep = padded(work.at.extents[b.over], work.at.config)
    inside = work.contracting(Depth(b.over, deep, i64(0)))
    right = tuple(p for p in parts if work.at.roles.segment in inside.axes_of(p))
    left = tuple(p for p in parts if p not in right)
    if len(left) != 1 or len(right) != 1 or work.at.roles.rows in inside.axes_of(right[0]):
        raise LoweringError("RF491", f"{work.at.kernel.name}: {print_expr(b.exprs[0])[:80]} is not a matrix product",
                            why="a contraction needs one operand per row and one per segment element")
    v = work.tile(b.name, work.at.across, "f32")
    work.values[b.name] = v
    chunk = work.at.config.chunk
    if chunk and chunk < deep:
        _gemm_chunks(work, b, left[0], right[0], v, chunk, -(-deep // chunk))
        return
    cut = _common_columns(work, right[0], b.over, deep) or deep
    _gemm_step(work.contracting(Depth(b.over, cut, i64(0))), b, left[0], right[0], v, True)
    if cut < deep:
        _gemm_step(work.contracting(Depth(b.over, deep - cut, i64(cut))), b, left[0], right[0], v, False)


def _common_columns(work: Builder, right: Expr, over: str, deep: int) -> int:
    """Where a later contraction reads the first columns of the same rows of the same tensor: how many."""
    k = strip_casts(right)
    if not isinstance(k, Load) or work.at.roles.lists:
        return 0
    for b in work.at.kernel.body:
        column = work.at.roles.column_of(b.axes) if b.role == "reduce" else None
        for p in algebra.factors(b.exprs[0]) if column else ():
            v = strip_casts(p)
            if isinstance(v, Load) and v.tensor == k.tensor and work.at.sizes[column or ""] < deep and \
                    tuple(substitute(i, indices={column or "": Index(over)}) for i in v.indices) == k.indices:
                return work.at.sizes[column or ""]
    return 0


def _matrices(work: Builder, b: Block, a: Operand, w: Operand) -> list[tuple[Value, Value]]:
    """The products of two operands. An axis of one element is none of a tile's: along it there is nothing to add up."""
    found = list(products(a, w))
    if any(len(t.axes) != 2 for pair in found for t in pair):
        raise LoweringError("RF491", f"{work.at.kernel.name}: {print_expr(b.exprs[0])[:80]} is not a matrix product",
                            why=f"it sums one element along {b.over or work.at.kernel.raxis}")
    return found


def _gemm_step(work: Builder, b: Block, left: Expr, right: Expr, v: Value, clear: bool) -> None:
    kinds = {strip_casts(left).dtype, strip_casts(right).dtype}
    wanted = read_in(work.at.program.fused.cascade, work.at.was(b.name))
    apart = len(kinds) > 1 or (wanted < unit_roundoff("bf16") and not kinds.isdisjoint(EIGHT))
    over, (rows, segment) = b.over or "", work.at.across
    a = _matrix_operand(work, left, (rows, over), apart, right)
    w = _matrix_operand(work, right, (segment, over), apart, left)
    if a.dtype in EIGHT:
        _say_cut(work, b, wanted)
    for k, (x, y) in enumerate(_matrices(work, b, a, w)):
        work.emit(Gemm(Slice(x.buffer), Slice(y.buffer), v.buffer, x.axes[0] == over, y.axes[0] != over, clear and k == 0,
                       work.at.policy, work.at.source(b) if k == 0 else ""))


def _gemm_chunks(work: Builder, b: Block, left: Expr, right: Expr, v: Value, chunk: int, count: int) -> None:
    """A contraction too deep to hold: its own axis in steps, accumulated in the scores, or where the matrix unit would lose
    digits that the program keeps, each by itself and added to them."""
    inner = Scope(segment=work.scope.segment)
    part = next(n for n in ("part", "depth", "part_") if n not in {*work.at.roles.grid, *work.at.declared})
    depth = Depth(b.over or "", chunk, imul(Index(part), chunk), chunked=True)
    within = work.into(inner).contracting(depth)
    fine = kept_whole(work.at.program.fused, work.at.was(b.name))
    own = work.tile(f"{v.buffer}_segment", v.axes, "f32") if fine else v
    _gemm_step(within, b, left, right, own, fine)
    if fine:
        work.into(inner).store(v, op("add", work.here(v), work.here(own)))
    work.emit(Fill(v.buffer, Const(0.0, "f32")))
    work.emit(For(part, i64(0), i64(count), tuple(inner.stmts), work.at.config.stages))


def _matrix_operand(work: Builder, e: Expr, axes: tuple[str, ...], apart: bool, other: Expr | None = None) -> Operand:
    """A matrix operand in shared memory. apart: in pieces, since its own type is not the other operand's. other: that one, if
    it comes from memory and may have rests."""
    bare = strip_casts(e)
    if work.depth is not None and work.depth.axis in axes:
        bare = _masked_depth(work, bare, work.depth)
    dtype = bare.dtype
    _check_operand(work, dtype, bare)
    apart = apart or foreign(work, dtype)
    if isinstance(bare, Load):
        v = stage_tile(work, bare.tensor, bare.indices, dtype, want=axes, shared=True)
        home = work.home(work.axes_of(bare))
    else:
        home = work.home(axes)
        name = next((x.tensor for x in walk(bare) if isinstance(x, Load)), "operand")
        v = Value(axes, dtype, work.buffer(f"{name}_operand", "shared", dtype, work.shape(axes)))
        home.stmts.append(work.parallel(axes, (Assign(v.buffer, work.points(axes), at_point(work, bare)),)))
    beside = other is not None and COUNT.get(strip_casts(other).dtype, 1) > 1
    return split(work, v, home, beside) if (dtype == "f32" and not work.at.config.tf32) or apart else whole(v)


def _masked_depth(work: Builder, e: Expr, depth: Depth) -> Expr:
    """An operand whose tile is deeper than the contraction is 0 there: by itself where that leaves its tensors."""
    over, extent = depth.axis, work.at.extents[depth.axis]
    if (round_up(extent, depth.size) if depth.chunked else padded(extent, work.at.config)) == extent:
        return e
    if isinstance(e, Load):  # as the parameter has it: heads of 72 side by side are a dimension of 72, which 80 columns leave
        seen = work.at.view_indices(e.tensor, e.indices)
        shape = work.at.declared[e.tensor].shape if seen is None else work.at.params[e.tensor].shape
        if zero_filled(e.indices if seen is None else seen, map(int, shape), over, work.at.extents):
            return e
    return masked_operand(e, op("lt", Index(over), i64(extent)))


def _check_operand(work: Builder, dtype: str, e: Expr) -> None:
    if dtype == "f32" and not (work.at.config.tf32 or work.at.config.pieces):
        raise LoweringError("RF490", f"{work.at.kernel.name}: a contraction of f32 operands ({print_expr(e)[:60]})",
                            why="the matrix units would round them to TF32",
                            help="use f16 or bf16 operands, or allow TF32")
    if dtype not in (*HALF, "f32", "e4m3", "e5m2"):
        raise LoweringError("RF490", f"{work.at.kernel.name}: no matrix unit takes {dtype} operands")


def accumulate_product(work: Builder, b: Block, v: Value) -> None:
    """``acc[rows, columns] += sum[segment] W[rows, segment] * V[segment, columns]``."""
    parts = algebra.factors(b.exprs[0])
    rows, column = v.axes
    _, segment = work.at.across
    right = tuple(p for p in parts if column in work.axes_of(p))
    left = tuple(p for p in parts if p not in right)
    if len(right) != 1 or rows in work.axes_of(right[0]):
        raise LoweringError("RF491", f"{work.at.kernel.name}: {print_expr(b.exprs[0])[:80]} is not a matrix product",
                            why="a vector-valued sum needs one operand per row and one per column")
    own = strip_casts(right[0]).dtype
    alike = not any(map(work.axes_of, left))  # a sum of columns: of weights that are 1, exactly, and scaled behind
    weights = Const(1.0, "f32") if alike else algebra.product(left)
    plain = strip_casts(weights)
    wanted = kept(work.at.program.fused, work.at.was(b.name), isinstance(plain, Load))
    fine = wanted < unit_roundoff("bf16")
    if isinstance(plain, Load):
        apart = plain.dtype != own or (fine and own in EIGHT)
        a = _matrix_operand(work, weights, work.at.across, apart, right[0])
        w = _matrix_operand(work, right[0], (segment, column), apart, weights)
        settled = wanted >= unit_roundoff("f16") and a.dtype not in EIGHT
    else:
        dtype = weight_dtype(work, weights, own) if not alike or own in ("f32", *EIGHT) else own
        dtype = "bf16" if dtype in EIGHT and (fine or foreign(work, dtype)) else dtype
        src = as_tile(work, _unrounded(weights, dtype), work.at.across, f"{b.name}_weight")
        parts = (operand(work, src, dtype, 0),) if alike else weight_pieces(work, src, dtype, weights, b)
        a, w = Operand(parts, parts[0]), _matrix_operand(work, right[0], (segment, column), dtype != own)
        settled = wanted >= SUMMED and own not in ("f32", *EIGHT)
    if work.at.resident and not settled and work.at.sizes[segment] > AT_ONCE:
        count = work.at.sizes[segment]
        raise LoweringError("RF490", f"{work.at.kernel.name}: {b.name} sums {count} products of a row held on chip",
                            why="a matrix unit loses digits of so long a sum that it does not take in segments",
                            help="nothing to change: a walk of the row takes them in segments")
    if a.dtype in EIGHT:
        _say_cut(work, b, wanted)
    # A row held on chip is all there is: nothing was accumulated before. Else what the matrix unit cannot add to the sum of the
    # segments before without losing digits is a sum of its own: ``part = products of the segment; acc += part``.
    part = v if (settled or work.at.resident) and not (alike and left) else work.tile(f"{v.buffer}_segment", v.axes, "f32")
    for k, (x, y) in enumerate(_matrices(work, b, a, w)):
        work.emit(Gemm(Slice(x.buffer), Slice(y.buffer), part.buffer, x.axes[0] == segment, y.axes[0] == column,
                       (work.at.resident or part is not v) and k == 0, work.at.policy, work.at.source(b) if k == 0 else ""))
    if part is not v:
        found = op("mul", work.here(part), algebra.product(left)) if alike and left else work.here(part)
        work.store(v, found if work.at.resident else op("add", work.here(v), found))


def _say_cut(work: Builder, b: Block, wanted: float) -> None:
    work.roundings.append(f"{b.name}: 8-bit products of a segment summed by the matrix units (relative error <= 2^-12; the "
                          f"result is kept to 2^{round(math.log2(wanted))})")


def _unrounded(e: Expr, dtype: str) -> Expr:
    """The weights before the cast that the matrix operand makes anyway."""
    match e:
        case Cast(arg=Cast(arg=x, dtype=d), dtype="f32") if d == dtype and d in HALF:
            return x
    return e
