"""A block of one row waits as seldom as it can: for memory once, and for no quotient by a number that is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from redfuser.acrf.expr import Const, Expr, Index, Load, Op, children, map_children, walk
from redfuser.tensorize.ir.effects import Names, reads, with_exprs, writes
from redfuser.tensorize.ir.nodes import Assign, Copy, Parallel, ReduceTile, TileKernel
from redfuser.tensorize.ir.parts import Buffer

KINDS = ("f16", "bf16", "f32")


@dataclass(frozen=True, slots=True)
class AskEarly:
    """Of a row held on chip, elements of a tensor that are read behind a reduction wait in registers from before it, and the
    greater of two numbers is one of them::

        copy x[i] -> x_tile                                     copy x[i] -> x_tile
        reduce sum x_tile -> t clear                     -->    parallel i < 1, j < 1024: w_early[i, j] = w[j]
        parallel i < 1, j < 1024:                               reduce sum x_tile -> t clear
          y[i, j] = x_tile[i, j] / max(8.0, 1.0) * w[j]         parallel i < 1, j < 1024:
                                                                  y[i, j] = x_tile[i, j] / 8.0 * w_early[i, j]

    A compiler moves no load over a barrier, and does not see through the instruction that keeps NaN. Requires a block of one
    row, without loops, and a tensor that the kernel does not write, read at a place that no data and no choice decides. Adds no
    rounding."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        first = next((n for n, s in enumerate(kernel.body) if isinstance(s, ReduceTile)), None)
        if first is None or not all(isinstance(s, (Copy, Parallel, ReduceTile)) for s in kernel.body):
            return kernel
        given = {p.name for p in kernel.params if p.dtype in KINDS} - {n for s in kernel.body for n in writes(s)}
        names = Names(kernel)
        early: dict[tuple[Parallel, Load], Assign] = {}
        if any(len(b.shape) > 1 and b.shape[0] > 1 for b in kernel.buffers):
            return kernel
        body = [with_exprs(s, _settled) for s in kernel.body]
        for n, s in enumerate(body[first:], first):
            if isinstance(s, Parallel) and len(s.vars) == 2 and s.extents[0] == 1:
                put: dict[Expr, Expr] = {}
                for x in dict.fromkeys(x for a in s.body for x in _always(a.expr)):
                    if x.tensor in given and Index(s.vars[1]) in {k for i in x.indices for k in walk(i)}:
                        at = (Index(s.vars[0]), Index(s.vars[1]))
                        loop = replace(s, body=(), comment="")
                        own = early.setdefault((loop, x), Assign(names.fresh(f"{x.tensor}_early"), at, x))
                        put[x] = Load(own.target, at, x.dtype)
                body[n] = with_exprs(s, partial(_put, put))
        last = max((n for n, s in enumerate(body[:first]) if reads(s) & given), default=-1) + 1
        made = tuple(Buffer(a.target, "fragment", x.dtype, loop.extents) for (loop, x), a in early.items())
        asked = [replace(loop, body=(a,)) for (loop, _), a in early.items()]
        return replace(kernel, buffers=(*kernel.buffers, *made), body=(*body[:last], *asked, *body[last:]))


def _always(e: Expr) -> Iterator[Load]:
    """What is read whatever the data are, at places that no data decide."""
    if isinstance(e, Load):
        if not any(isinstance(x, Load) for i in e.indices for x in walk(i)):
            yield e
    elif isinstance(e, Op) and e.name == "select":
        yield from _always(e.args[0])
    else:
        for k in children(e):
            yield from _always(k)


def _settled(e: Expr) -> Expr:
    e = map_children(e, _settled)
    match e:
        case Op(name="max" | "min" as n, args=(Const(value=x), Const(value=y))) if x == x and y == y:
            return e.args[0 if (x >= y) == (n == "max") else 1]
    return e


def _put(put: dict[Expr, Expr], e: Expr) -> Expr:
    return put[e] if e in put else map_children(e, partial(_put, put))
