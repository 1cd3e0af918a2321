"""What a choice of tiles asks of a kernel: what its operands are, and what is between its products."""

from __future__ import annotations

from redfuser.acrf.expr import BYTES, Cast, Index, Load, Op, Ref, indices_of, walk
from redfuser.acrf.functions import DEAR
from redfuser.strategies.program import Kernel, Program
from redfuser.target import Target
from redfuser.tensorize.algebra import factors
from redfuser.tensorize.axes import Roles, strip_casts
from redfuser.tensorize.ir.tangents import near
from redfuser.tensorize.model import operations
from redfuser.tensorize.precision import kept, unit_roundoff

_COSTLY = DEAR - {"exp2", "log2"} | {"lt", "le", "gt", "ge"}


def between(kernel: Kernel, roles: Roles, target: Target) -> tuple[float, float]:
    """Operations for an element of the r-axis between two products, of the CUDA cores and of the special function units: what
    is computed of it, its part in the statistics of the row, and its cast."""
    hardware = target.kind == "cuda" and near(False, {t.dtype for t in kernel.writes})
    found = [operations(e, False, hardware) for b in kernel.body if b.role == "producer" and b.reducer is None
             and roles.segment in b.axes for e in b.exprs]
    reduces = sum(b.reducer is not None and b.role == "reduce" and not roles.column_of(b.axes) for b in kernel.body)
    return sum(c for c, _ in found) + reduces + 0.5, sum(f for _, f in found)


def element(kernel: Kernel, roles: Roles) -> str:
    """The widest dtype of what a block brings as tiles. A vector along rows or segment (a document's number, a slope of each
    head) is none."""
    inner = {b.over for b in kernel.body if b.role == "producer" and b.over}
    sides = {roles.rows, roles.segment, *roles.columns, *inner}
    loads = [x for b in kernel.body for e in b.exprs for x in walk(e) if isinstance(x, Load)]
    tiles = [x.dtype for x in loads if len(indices_of(x) & sides) > 1]
    return max(tiles or [x.dtype for x in loads], key=BYTES.__getitem__, default="f16")


def operand_bytes(kernel: Kernel, roles: Roles) -> tuple[int, int]:
    """Bytes of an element that varies along the rows, and of one that varies along the columns."""
    loads = [x for b in kernel.body for e in b.exprs for x in walk(e) if isinstance(x, Load)]
    own = [BYTES[x.dtype] for x in loads if indices_of(x) & set(roles.columns)]
    return max((BYTES[x.dtype] for x in loads if not indices_of(x) & set(roles.columns)), default=2), max(own, default=2)


def takes_singles(kernel: Kernel, roles: Roles) -> bool:
    """Does a contraction read float32 operands, which matrix units take as they are or as sums of pieces?"""
    products = (b for b in kernel.body if b.reducer is not None and b.reducer.kind == "sum" and (
        b.role == "producer" or (b.role == "reduce" and roles.column_of(b.axes) and not roles.lists)))
    bare = [strip_casts(p) for b in products for p in factors(b.exprs[0])]
    return any(isinstance(x, Load) and x.dtype == "f32" for x in bare)


def narrows(kernel: Kernel) -> bool:
    return any(isinstance(x, Op) and x.name in ("le", "lt", "ge", "gt") and
               any(isinstance(y, Index) and y.axis == kernel.raxis for y in walk(x))
               for b in kernel.body for e in b.exprs for x in walk(e))


def light(kernel: Kernel, roles: Roles) -> bool:
    """One exponential is all that a block computes of an element between its products, or one and comparisons of positions,
    which most steps leave out; and nothing is loaded for it: three warp groups have the registers for that, 160 a thread, but
    not for a mask and a rounding. With a soft cap between they are a tenth slower than two (one H200, 2x16x2048x64)."""
    between = [x for b in kernel.body if b.role == "producer" and b.reducer is None and roles.segment in b.axes
               for e in b.exprs for x in walk(e)]
    rounded = any(isinstance(x, Cast) and x.dtype != "f32" for x in between)
    costly = [x for x in between if isinstance(x, Op) and x.name in _COSTLY and (
        rounded or x.dtype != "bool" or any(isinstance(k, (Load, Ref)) for k in walk(x)))]
    return len(costly) <= 1 and not any(isinstance(x, Load) for x in between)


def reads_once(kernel: Kernel) -> bool:
    """Both contractions read one tensor along the segment."""
    read = [{x.tensor for e in b.exprs for x in walk(e) if isinstance(x, Load)} for b in kernel.body
            if b.reducer is not None and b.reducer.kind == "sum" and (b.role == "producer" or len(b.axes) > len(kernel.grid))]
    return len(read) > 1 and bool(set.intersection(*read))


def summed_singly(program: Program) -> bool:
    """Is a result float32, and a sum that it is made of kept in that?"""
    written = {t.name: t.dtype for k in program.kernels for t in k.writes}
    return any(written[o] == "f32" for o in program.fused.cascade.outputs) and any(
        a.reducer.kind == "sum" and kept(program.fused, n) < unit_roundoff("f16")
        for a in program.fused.state.accumulators for n in a.names)
