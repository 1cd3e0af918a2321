"""A loop in parts: the steps in which a condition may hold, and those in which it never does."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.acrf.expr import Const, Expr, Index, Load, Op, walk
from redfuser.acrf.index import i64, iadd, ifloordiv, imax, imin, imul
from redfuser.tensorize.ir.effects import with_bodies
from redfuser.tensorize.ir.nodes import For, Gemm, If, Roles, TileKernel, TileStmt


@dataclass(frozen=True, slots=True)
class Peel:
    """A loop of products whose steps ask from some step on alone whether something is to be done::

        for k in 1 .. i_block + 1:               for k in 1 .. max(1, i_block):
          ...                                      ...
          if k * 128 + 128 > i_block * 128 + 1:    ...
            scores = select(...)         -->     for k in max(1, i_block) .. i_block + 1:
          ...                                      ...
                                                   if k * 128 + 128 > i_block * 128 + 1:
                                                     scores = select(...)
                                                   ...

    Requires a comparison of something that grows with the step, from a step on that is another in another block: where it is
    one step for all, the last, nothing was gained. Changes no value."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        if not isinstance(kernel.body[-1], Roles):
            return kernel
        first, *others = kernel.body[-1].roles
        return replace(kernel, body=(*kernel.body[:-1], Roles((replace(first, body=_in(first.body)), *others))))


def _in(body: tuple[TileStmt, ...]) -> tuple[TileStmt, ...]:
    out: list[TileStmt] = []
    for s in body:
        out += _peeled(s) if isinstance(s, For) and any(isinstance(k, Gemm) for k in s.body) else [with_bodies(s, _in)]
    return tuple(out)


def _peeled(loop: For) -> list[TileStmt]:
    conds = [s for s in loop.body if isinstance(s, If)]
    if len(conds) != 1 or (first := first_step(conds[0].cond, loop.var)) is None:
        return [loop]
    middle = imin(imax(first, loop.start), loop.stop)
    if isinstance(middle, Const):
        return [loop]
    return [replace(loop, stop=middle, body=tuple(s for s in loop.body if s is not conds[0])), replace(loop, start=middle)]


def first_step(cond: Expr, var: str) -> Expr | None:
    """The first value of a variable at which a comparison holds that holds from there on; None where it is not of that kind."""
    match cond:
        case Op(name="gt", args=(x, y)) | Op(name="lt", args=(y, x)):
            line = _line(iadd(y, imul(x, -1)), var)
            return None if line is None or line[0] >= 0 else iadd(ifloordiv(line[1], -line[0]), i64(1))
    return None


def _line(e: Expr, var: str) -> tuple[int, Expr] | None:
    """An index as ``(a, b)`` of ``a * var + b``, where it is one."""
    match e:
        case Index(axis=a) if a == var:
            return 1, i64(0)
        case Op(name="add" | "sub" as n, args=(x, y)):
            left, right = _line(x, var), _line(y, var)
            if left is None or right is None:
                return None
            sign = 1 if n == "add" else -1
            return left[0] + sign * right[0], iadd(left[1], imul(right[1], sign))
        case Op(name="mul", args=(x, Const(value=k))):
            line = _line(x, var)
            return None if line is None else (line[0] * int(k), imul(line[1], int(k)))
        case Op(name="neg", args=(x,)):
            line = _line(x, var)
            return None if line is None else (-line[0], imul(line[1], -1))
    return None if any(isinstance(x, Load) or (isinstance(x, Index) and x.axis == var) for x in walk(e)) else (0, e)
