"""A loop in parts: the steps in which a condition may hold, and those in which it never does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from redfuser.acrf.affine import Indices
from redfuser.acrf.expr import Const, Expr, Index, Load, Op, walk
from redfuser.acrf.index import i64, iadd, ifloordiv, imax, imin, imul, isub
from redfuser.tensorize.ir.effects import in_first_role, with_bodies
from redfuser.tensorize.ir.nodes import For, Gemm, If, TileKernel, TileStmt

_FAR = 1 << 40
"""An extent that no range says anything of."""


@dataclass(frozen=True, slots=True)
class Peel:
    """A loop of products whose steps ask up to some step, or from some step on, whether something is to be done::

        for k in 1 .. i_block + 1:               for k in 1 .. max(1, i_block):
          ...                                      ...
          if k * 128 + 128 > i_block * 128 + 1:    ...
            scores = select(...)         -->     for k in max(1, i_block) .. i_block + 1:
          ...                                      ...
                                                   if k * 128 + 128 > i_block * 128 + 1:
                                                     scores = select(...)
                                                   ...

    What holds up to a step alone (``if k * 128 < i_block * 128 - 1000``) makes a third loop, before them; there is none where
    that step never comes. Requires comparisons of something that grows with the step, from a step on that is another in another
    block: where it is one step for all, the last, nothing was gained; nor where each step asks. Changes no value."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        return in_first_role(kernel, _in)


def _in(body: tuple[TileStmt, ...]) -> tuple[TileStmt, ...]:
    out: list[TileStmt] = []
    for s in body:
        out += _peeled(s) if isinstance(s, For) and any(isinstance(k, Gemm) for k in s.body) else [with_bodies(s, _in)]
    return tuple(out)


def _peeled(loop: For) -> list[TileStmt]:
    conds = [s for s in loop.body if isinstance(s, If)]
    after = {s: x for s in conds if (x := first_step(s.cond, loop.var)) is not None}
    until = {s: x for s in conds if (x := last_step(s.cond, loop.var)) is not None}
    if not after or len(after) + len(until) < len(conds) or any(no_more(x, y) for x in after.values() for y in until.values()):
        return [loop]
    begin = loop.start
    for x in until.values():
        begin = begin if no_more(x, loop.start) else imax(begin, x)
    middle: Expr = loop.stop
    for x in after.values():
        middle = imin(imax(x, loop.start), middle)
    if isinstance(middle, Const):
        return [loop]
    begin = begin if begin == loop.start else imin(begin, loop.stop)
    middle = middle if begin == loop.start else imax(middle, begin)

    def steps(start: Expr, stop: Expr, without: Iterable[TileStmt]) -> For:
        return replace(loop, start=start, stop=stop, body=tuple(s for s in loop.body if not any(s is x for x in without)))

    first = [] if begin == loop.start else [replace(loop, stop=begin)]
    return [*first, steps(begin, middle, conds), steps(middle, loop.stop, until)]


def first_step(cond: Expr, var: str) -> Expr | None:
    """The first value of a variable at which a comparison holds that holds from there on; None where it is not of that kind."""
    line = _difference(cond, var)
    return None if line is None or line[0] >= 0 else iadd(ifloordiv(line[1], -line[0]), i64(1))


def last_step(cond: Expr, var: str) -> Expr | None:
    """The first value of a variable at which a comparison no longer holds that holds up to there; None where it is not of that
    kind."""
    line = _difference(cond, var)
    if line is None or line[0] <= 0:
        return None
    return _any(line[1]).simplify(ifloordiv(iadd(imul(line[1], -1), i64(line[0] - 1)), line[0]))


def _difference(cond: Expr, var: str) -> tuple[int, Expr] | None:
    """``(a, b)`` of a comparison that says ``a * var + b < 0``."""
    match cond:
        case Op(name="gt", args=(x, y)) | Op(name="lt", args=(y, x)):
            return _line(isub(y, x), var)
    return None


def no_more(x: Expr, y: Expr) -> bool:
    """Is ``x <= y``, whatever its variables are? Where the other is a maximum, no more than one of the two is enough."""
    match y:
        case Op(name="max", args=(p, q)):
            return no_more(x, p) or no_more(x, q)
        case Op(name="add", args=(p, Const(value=c))):
            return no_more(iadd(x, i64(-int(c))), p)
    p = _any(x, y).linear(x) - _any(x, y).linear(y)
    return not p.terms and p.constant <= 0


def _any(*exprs: Expr) -> Indices:
    """What holds of indices whatever their variables are."""
    return Indices({i.axis: _FAR for e in exprs for i in walk(e) if isinstance(i, Index)})


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
