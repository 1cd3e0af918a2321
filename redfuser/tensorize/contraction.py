"""Contractions as gemm: scores from two operands of loads, and accumulators from weights and values.

    s[rows, segment] = sum[c] A[rows, c] * B[segment, c]
    acc[rows, columns] += sum[segment] W[rows, segment] * V[segment, columns]
"""

from __future__ import annotations

import math

from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, op, print_expr, substitute, walk
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block
from redfuser.tensorize import algebra
from redfuser.tensorize.axes import strip_casts
from redfuser.tensorize.indexing import zero_filled
from redfuser.tensorize.ir.index import i64, imul
from redfuser.tensorize.ir.nodes import Assign, Fill, For, Gemm, Slice
from redfuser.tensorize.maps import as_tile
from redfuser.tensorize.masks import masked_operand
from redfuser.tensorize.pieces import Operand, products, split, whole
from redfuser.tensorize.precision import kept, unit_roundoff
from redfuser.tensorize.scope import HALF, Scope, Value
from redfuser.tensorize.sizes import round_up
from redfuser.tensorize.staging import at_point, stage_tile
from redfuser.tensorize.state import KernelState
from redfuser.tensorize.weights import weight_dtype, weight_pieces

EIGHT = ("e4m3", "e5m2")
"""Types of which a matrix unit keeps 13 bits of a sum, cut off once for every 32 terms: enough within a segment for a result in
bfloat16. For a finer one the operands go to it in bfloat16, which holds them exactly."""

AT_ONCE = 256
"""Products that a matrix unit adds up in one go, at most, where it keeps too few bits: the longest segment that is proposed."""


def lower_contraction(work: KernelState, b: Block) -> None:
    """``s[rows, segment] = sum[c] A[rows, c] * B[segment, c]``."""
    assert b.over is not None and work.roles.segment is not None
    parts = algebra.factors(b.exprs[0])
    work.contracted = b.over
    work.contract_size = round_up(work.extents[b.over], 16)
    right = tuple(p for p in parts if work.roles.segment in work.axes_of(p))
    left = tuple(p for p in parts if p not in right)
    if len(left) != 1 or len(right) != 1 or work.roles.rows in work.axes_of(right[0]):
        raise LoweringError("RF491", f"{work.kernel.name}: {print_expr(b.exprs[0])[:80]} is not a matrix product",
                            why="a contraction needs one operand per row and one per segment element")
    v = work.tile(b.name, work.across, "f32")
    work.values[b.name] = v
    chunk = work.config.chunk
    if chunk and chunk < work.contract_size:
        _gemm_chunks(work, b, left[0], right[0], v, chunk)
    else:
        whole = work.contract_size
        cut = _common_columns(work, right[0]) or whole
        work.contract_size = cut
        _gemm_step(work, b, left[0], right[0], v, True)
        if cut < whole:
            work.contract_size, work.chunk_origin = whole - cut, i64(cut)
            _gemm_step(work, b, left[0], right[0], v, False)
            work.chunk_origin = i64(0)
    work.contracted = ""


def _common_columns(work: KernelState, right: Expr) -> int:
    """Where a later contraction reads the first columns of the same rows of the same tensor: how many."""
    k, over = strip_casts(right), work.contracted
    if not isinstance(k, Load) or work.roles.lists:
        return 0
    for b in work.kernel.body:
        column = work.roles.column_of(b.axes) if b.role == "reduce" else None
        for p in algebra.factors(b.exprs[0]) if column else ():
            v = strip_casts(p)
            if isinstance(v, Load) and v.tensor == k.tensor and work.sizes[column or ""] < work.contract_size and \
                    tuple(substitute(i, indices={column or "": Index(over)}) for i in v.indices) == k.indices:
                return work.sizes[column or ""]
    return 0


def _gemm_step(work: KernelState, b: Block, left: Expr, right: Expr, v: Value, clear: bool) -> None:
    kinds = {strip_casts(left).dtype, strip_casts(right).dtype}
    over, (rows, segment) = work.contracted, work.across
    a, w = (_matrix_operand(work, e, axes, len(kinds) > 1) for e, axes in ((left, (rows, over)), (right, (segment, over))))
    for k, (x, y) in enumerate(products(a, w)):
        work.emit(Gemm(Slice(x.buffer), Slice(y.buffer), v.buffer, x.axes[0] == over, y.axes[0] != over, clear and k == 0,
                       work.policy(), work.source(b) if k == 0 else ""))


def _gemm_chunks(work: KernelState, b: Block, left: Expr, right: Expr, v: Value, chunk: int) -> None:
    """A contraction too deep to hold: its own axis in steps, accumulated in the scores."""
    outer, count = work.scope, -(-work.contract_size // chunk)
    inner = Scope(segment=outer.segment)
    part = next(n for n in ("part", "depth", "part_") if n not in {*work.roles.grid, *work.declared})
    work.scope, work.chunked, work.contract_size = inner, True, chunk
    work.chunk_origin = imul(Index(part), chunk)
    _gemm_step(work, b, left, right, v, False)
    work.scope, work.chunked, work.chunk_origin = outer, False, i64(0)
    work.emit(Fill(v.buffer, Const(0.0, "f32")))
    work.emit(For(part, i64(0), i64(count), tuple(inner.stmts), work.config.stages))


def _matrix_operand(work: KernelState, e: Expr, axes: tuple[str, ...], apart: bool) -> Operand:
    """A matrix operand in shared memory. apart: in pieces, since its own type is not the other operand's."""
    bare = strip_casts(e)
    if work.contracted in axes:
        bare = _masked_depth(work, bare)
    dtype = bare.dtype
    _check_operand(work, dtype, bare)
    if isinstance(bare, Load):
        v = stage_tile(work, bare.tensor, bare.indices, dtype, want=axes, shared=True)
        home = work.scope if work.chunked or work.roles.segment in work.axes_of(bare) else work.prologue
    else:
        home = work.scope if work.chunked or work.roles.segment in axes else work.prologue
        name = next((x.tensor for x in walk(bare) if isinstance(x, Load)), "operand")
        v = Value(axes, dtype, work.buffer(f"{name}_operand", "shared", dtype, work.shape(axes)))
        home.stmts.append(work.parallel(axes, (Assign(v.buffer, work.points(axes), at_point(work, bare)),)))
    in_pieces = (dtype == "f32" and not work.config.tf32) or (apart and dtype != "bf16")
    return split(work, v, home) if in_pieces else whole(v)


def _masked_depth(work: KernelState, e: Expr) -> Expr:
    """An operand whose tile is deeper than the contraction is 0 there: by itself where that leaves its tensors."""
    over = work.contracted
    extent = work.extents[over]
    step = work.config.chunk if work.chunked else 16
    if round_up(extent, step) == extent:
        return e
    if isinstance(e, Load) and zero_filled(e.indices, map(int, work.declared[e.tensor].shape), over, work.extents):
        return e
    return masked_operand(e, op("lt", Index(over), i64(extent)))


def _check_operand(work: KernelState, dtype: str, e: Expr) -> None:
    if dtype == "f32" and not (work.config.tf32 or work.config.pieces):
        raise LoweringError("RF490", f"{work.kernel.name}: a contraction of f32 operands ({print_expr(e)[:60]})",
                            why="the matrix units would round them to TF32",
                            help="use f16 or bf16 operands, or allow TF32")
    if dtype not in (*HALF, "f32", "e4m3", "e5m2"):
        raise LoweringError("RF490", f"{work.kernel.name}: no matrix unit takes {dtype} operands")


def accumulate_product(work: KernelState, b: Block, v: Value) -> None:
    """``acc[rows, columns] += sum[segment] W[rows, segment] * V[segment, columns]``."""
    parts = algebra.factors(b.exprs[0])
    rows, column = v.axes
    _, segment = work.across
    right = tuple(p for p in parts if column in work.axes_of(p))
    left = tuple(p for p in parts if p not in right)
    if len(right) != 1 or not left or rows in work.axes_of(right[0]):
        raise LoweringError("RF491", f"{work.kernel.name}: {print_expr(b.exprs[0])[:80]} is not a matrix product",
                            why="a vector-valued sum needs one operand per row and one per column")
    own = strip_casts(right[0]).dtype
    weights = algebra.product(left)
    plain = strip_casts(weights)
    wanted = kept(work.program.fused, work.was(b.name))
    fine = wanted < unit_roundoff("bf16")
    if isinstance(plain, Load):
        apart = plain.dtype != own or (fine and own in EIGHT)
        a = _matrix_operand(work, weights, work.across, apart)
        w = _matrix_operand(work, right[0], (segment, column), apart)
        settled = wanted >= unit_roundoff("f16") and a.dtype not in EIGHT
    else:
        dtype = weight_dtype(work, weights, own)
        dtype = "bf16" if fine and dtype in EIGHT else dtype
        src = as_tile(work, _unrounded(weights, dtype), work.across, f"{b.name}_weight")
        parts = weight_pieces(work, src, dtype, weights, b)
        a, w = Operand(parts, parts[0]), _matrix_operand(work, right[0], (segment, column), dtype != own)
        settled = own not in ("f32", *EIGHT)
    if work.resident and not settled and work.sizes[segment] > AT_ONCE:
        raise LoweringError("RF490", f"{work.kernel.name}: {b.name} sums {work.sizes[segment]} products of a row held on chip",
                            why="a matrix unit loses digits of so long a sum that it does not take in segments",
                            help="nothing to change: a walk of the row takes them in segments")
    if a.dtype in EIGHT:
        work.roundings.append(f"{b.name}: 8-bit products of a segment summed by the matrix units (relative error <= 2^-12; the "
                              f"result is kept to 2^{round(math.log2(wanted))})")
    # A row held on chip is all there is: nothing was accumulated before. Else what the matrix unit cannot add to the sum of the
    # segments before without losing digits is a sum of its own: ``part = products of the segment; acc += part``.
    part = v if settled or work.resident else work.tile(f"{v.buffer}_segment", v.axes, "f32")
    for k, (x, y) in enumerate(products(a, w)):
        work.emit(Gemm(Slice(x.buffer), Slice(y.buffer), part.buffer, x.axes[0] == segment, y.axes[0] == column,
                       (work.resident or not settled) and k == 0, work.policy(), work.source(b) if k == 0 else ""))
    if part is not v:
        work.store(v, op("add", work.here(v), work.here(part)))


def _unrounded(e: Expr, dtype: str) -> Expr:
    """The weights before the cast that the matrix operand makes anyway."""
    match e:
        case Cast(arg=Cast(arg=x, dtype=d), dtype="f32") if d == dtype and d in HALF:
            return x
    return e
