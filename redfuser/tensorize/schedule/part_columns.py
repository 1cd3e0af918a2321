"""Tiles too wide for the copy engine and for one instruction, in parts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.acrf.expr import Expr, Index, Load, map_children
from redfuser.acrf.index import i64, iadd, placed
from redfuser.tensorize.ir.effects import Names, every, reads, writes
from redfuser.tensorize.ir.nodes import Assign, Copy, Fill, For, Gemm, Parallel, TileKernel, TileStmt
from redfuser.tensorize.ir.parts import Buffer, Slice
from redfuser.tensorize.schedule.roles import BOX


@dataclass(frozen=True, slots=True)
class PartColumns:
    """Tiles of more than 256 columns become tiles of 256, and what is done to them is done to each::

        copy x[.., 0 +: 512] -> x_shared           copy x[.., 0 +: 256] -> x_shared_0
                                                   copy x[.., 256 +: 256] -> x_shared_1
        gemm q_shared, x_shared^T -> s clear  -->  gemm q_shared_0, x_shared_0^T -> s clear
                                                   gemm q_shared_1, x_shared_1^T -> s
        gemm w_shared, x_shared -> o               gemm w_shared, x_shared_0 -> o_0;  gemm w_shared, x_shared_1 -> o_1

    A product along the parts adds them in the order in which it added their columns. Requires that all such tiles are parted
    alike: copied whole, multiplied, mapped at their own points. Changes no value."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        wide = {b.name: b for b in kernel.buffers if len(b.shape) == 2 and b.shape[1] > BOX}
        if not wide or any(b.shape[1] % BOX for b in wide.values()):
            return kernel
        names = Names(kernel)
        parts = {n: [replace(b, name=names.fresh(f"{n}_{p}"), shape=(b.shape[0], BOX)) for p in range(b.shape[1] // BOX)]
                 for n, b in wide.items()}
        try:
            body = _body(kernel.body, parts)
        except _Kept:
            return kernel
        return replace(kernel, buffers=tuple(x for b in kernel.buffers for x in parts.get(b.name, [b])), body=body)


class _Kept(Exception):
    """A statement that has no parts."""


Parts = dict[str, list[Buffer]]


def _body(body: tuple[TileStmt, ...], parts: Parts) -> tuple[TileStmt, ...]:
    return tuple(x for s in body for x in _parted(s, parts))


def _parted(s: TileStmt, parts: Parts) -> list[TileStmt]:
    if isinstance(s, For):
        return [replace(s, body=_body(s.body, parts))]
    touched = {n for k in every((s,)) for n in reads(k) | writes(k)} & set(parts)
    if not touched:
        return [s]
    counts = {len(parts[n]) for n in touched}
    if len(counts) != 1:
        raise _Kept
    (count,) = counts
    return [_part(s, parts, p) for p in range(count)]


def _part(s: TileStmt, parts: Parts, p: int) -> TileStmt:
    at, first = i64(p * BOX), p == 0

    def whole(x: Slice) -> Slice:
        if x.dims:
            raise _Kept
        return Slice(parts[x.buffer][p].name)

    def of_tensor(x: Slice) -> Slice:
        last = max((i for i, d in enumerate(x.dims) if d.size), default=-1)
        if last < 0 or x.dims[last].size != BOX * len(parts[next(iter(parts))]):
            raise _Kept
        part = replace(x.dims[last], start=iadd(x.dims[last].start, at), size=BOX)
        return replace(x, dims=(*x.dims[:last], part, *x.dims[last + 1:]))

    match s:
        case Fill(buffer=b):
            return replace(s, buffer=parts[b][p].name, comment=s.comment if first else "")
        case Copy(src, dst):
            return replace(s, src=whole(src) if src.buffer in parts else of_tensor(src),
                           dst=whole(dst) if dst.buffer in parts else of_tensor(dst), comment=s.comment if first else "")
        case Gemm(a, b, c) if c not in parts and {a.buffer, b.buffer} <= set(parts) and s.transpose_b > s.transpose_a:
            return replace(s, a=whole(a), b=whole(b), clear=s.clear and first, comment=s.comment if first else "")
        case Gemm(a, b, c) if c in parts and b.buffer in parts and a.buffer not in parts and not s.transpose_b:
            return replace(s, b=whole(b), c=parts[c][p].name, comment=s.comment if first else "")
        case Parallel(vars=(_, d), extents=(rows, columns), body=body) if columns == BOX * max(map(len, parts.values())):
            own = tuple(map(Index, s.vars))

            def value(e: Expr) -> Expr:
                if isinstance(e, Load) and e.tensor in parts:
                    if e.indices != own:
                        raise _Kept
                    return Load(parts[e.tensor][p].name, e.indices, e.dtype)
                return placed(e, d, iadd(Index(d), at)) if isinstance(e, (Load, Index)) else map_children(e, value)

            if any(x.target not in parts or x.indices != own for x in body):
                raise _Kept
            return replace(s, extents=(rows, BOX), body=tuple(
                Assign(parts[x.target][p].name, x.indices, value(x.expr)) for x in body), comment=s.comment if first else "")
    raise _Kept
