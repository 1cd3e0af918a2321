"""The left operand of an accumulated product, which a program keeps in single precision and a matrix unit reads in half.

    copy p -> weights; gemm weights, v -> o_acc

where the result is stored no more precisely than that, or the program rounds its weights there itself. Otherwise as a
sum of pieces, one product per piece::

    weights = f16(p * c); gemm weights, v -> o_acc; p_rest = p - f32(f16(p * c)); copy p_rest -> weights_rest; gemm ...

Each piece but the last is rounded from a little less (c = 1 - u, of unit roundoff u), so that all have the weight's sign and
none is 0: an infinite value is the same infinity in every product, where ``inf * 0`` or ``inf - inf`` would be NaN. Half the
range of a rest is given up for it, one bit of the sum.
"""

from __future__ import annotations

import math

from redfuser.acrf.expr import Cast, Expr, Op, Ref, f32, op, print_expr, refs_of
from redfuser.strategies.program import Block
from redfuser.tensorize.algebra import is_const
from redfuser.tensorize.axes import strip_casts
from redfuser.tensorize.builder import Builder, Value
from redfuser.tensorize.ir.nodes import Assign, Copy
from redfuser.tensorize.ir.parts import Slice
from redfuser.tensorize.precision import kept, unit_roundoff

EIGHT = ("e4m3", "e5m2")
"""Types of which a matrix unit keeps 13 bits of a sum, cut off once for every 32 terms: enough within a segment for a result in
bfloat16. For a finer one the operands go to it in bfloat16, which holds them exactly."""

CLOSE = 4.0
"""What pieces to the nearest may leave, in units of the precision in which the result is kept: below the program's own error.
The bits that the sign costs (above) were not seen beside it, simulated on the CPU over 65 and 1024 keys and scores of .1 to 20:
.85 to 1.02 of eager's error with and without them, in two pieces of float16 as in three of bfloat16; half of eager's, where it
was a third, for nearly equal weights in float16."""

RAISED = 2.0**7
"""Weights are raised by this before float16 takes them apart, so that the last piece is no subnormal. They lie in [0, 1]
(:mod:`redfuser.tensorize.rewrite.unit_interval`), so that none overflows."""


def weight_pieces(work: Builder, src: Value, dtype: str, e: Expr, b: Block) -> tuple[Value, ...]:
    """``src`` as operands of type ``dtype`` whose sum it is, as precisely as the result of ``b`` is kept."""
    held = _dtype(work, e)
    if dtype == "f32" or held == dtype or (held in EIGHT and foreign(work, held)):  # rounded there by the program itself
        return (operand(work, src, dtype, 0),)
    own, wanted = unit_roundoff(dtype), kept(work.at.program.fused, work.at.was(b.name))
    count = 1 if own <= wanted else math.ceil(math.log(CLOSE * wanted) / math.log(own))
    pieces = f"{count} {dtype} pieces" if count > 1 else dtype
    left = own * (2 * own) ** (count - 1)
    work.roundings.append(f"{b.name}: weights {print_expr(e)} rounded to {pieces} for the matrix units (relative error <= "
                          f"2^{round(math.log2(left))}; the result is kept to 2^{round(math.log2(wanted))})")
    if count > 1 and dtype == "f16" and _only_scaled(work, b):
        src = _map(work, src, op("mul", work.here(src), f32(RAISED)), f"{src.buffer}_raised")
        acc = work.value(b.name)
        lowered = Assign(acc.buffer, work.points(acc.axes), op("mul", work.here(acc), f32(1 / RAISED)))
        work.after[b.name] = work.parallel(acc.axes, (lowered,))
    out = []
    for k in range(count - 1):
        x = work.here(src)
        piece = Cast(op("mul", x, f32(1 - own)), dtype)
        out.append(operand(work, src, dtype, k, piece))
        src = _map(work, src, op("sub", x, Cast(piece, "f32")), f"{src.buffer}_rest")
    return (*out, operand(work, src, dtype, count - 1))


def foreign(work: Builder, dtype: str) -> bool:
    """A type of 8 bits that the target's matrix units do not multiply: bfloat16 holds its numbers."""
    return dtype in EIGHT and dtype not in work.at.target.rates


def weight_dtype(work: Builder, e: Expr, values: str) -> str:
    """The type of weights ``e`` for values of type ``values``. That type where the weights have it, or are taken apart in it:
    bfloat16 has float32's range, float16 those that are proved to lie in [0, 1]. Else bfloat16, the values too."""
    if values == "f32":
        return "f32" if work.at.config.tf32 else "bf16"
    own = _dtype(work, e) == values or (values == "f16" and _at_most_one(work, e))
    return values if own else "bf16"


def _dtype(work: Builder, e: Expr) -> str:
    """The type that holds a value exactly: of the operand under widening casts, by name or not."""
    bare = strip_casts(e)
    masked = [x for x in bare.args[1:] if not is_const(x, 0.0)] if isinstance(bare, Op) and bare.name == "select" else []
    if len(masked) == 1:
        return _dtype(work, masked[0])
    let = work.at.facts.lets.get(bare.name) if isinstance(bare, Ref) and bare.dtype == "f32" else None
    return bare.dtype if let is None else _dtype(work, let)


def _at_most_one(work: Builder, e: Expr) -> bool:
    match e:
        case Ref(name=n):
            return n in work.at.unit
        case Op(name="select", args=(_, x, y)):
            return all(is_const(k, 0.0) or _at_most_one(work, k) for k in (x, y))
    return False


def _map(work: Builder, src: Value, e: Expr, stem: str) -> Value:
    v = work.tile(stem, src.axes, "f32")
    work.store(v, e)
    return v


def _only_scaled(work: Builder, b: Block) -> bool:
    """Does the accumulator change by products alone, so that a constant factor can be taken off at the end?"""
    for other in work.at.kernel.body:
        if b.name in other.names and other.role == "correct":
            (e,) = other.exprs
            match e:
                case Op(name="mul", args=(Ref(name=n), x)) if n == b.name and b.name not in refs_of(x):
                    continue
            return False
    reads = (e for o in work.at.kernel.body if b.name not in o.names for e in o.exprs)
    return not any(b.name in {n.partition("@")[0] for n in refs_of(e)} for e in reads)


def operand(work: Builder, src: Value, dtype: str, k: int, piece: Expr | None = None) -> Value:
    """``src``, or ``piece`` of it, as a tile of a matrix operand."""
    shared = work.at.config.weights == "shared"
    if src.dtype == dtype and not (shared and work.at.config.tf32):
        return src
    key = (src.buffer, (), dtype)
    if key in work.scope.staged:
        return work.scope.staged[key]
    stem = "weights" + "_rest" * (k > 0) + "_shared" * shared
    buffer = work.buffer(stem, "shared" if shared else "fragment", dtype, work.shape(src.axes))
    value = Value(src.axes, dtype, buffer)
    if piece is None:
        work.emit(Copy(Slice(src.buffer), Slice(buffer)))
    else:
        work.store(value, piece)
    work.scope.staged[key] = value
    return value
