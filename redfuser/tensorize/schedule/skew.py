"""The next step's first products behind this step's last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from redfuser.acrf.expr import Const, Expr, Index, Op
from redfuser.acrf.index import i64, iadd
from redfuser.tensorize.ir.effects import at_value, in_first_role, reads, writes
from redfuser.tensorize.ir.flight import Arrive, Await, Drain, Meet
from redfuser.tensorize.ir.nodes import For, Gemm, TileKernel, TileStmt
from redfuser.tensorize.schedule.counts import counts


@dataclass(frozen=True, slots=True)
class Skew:
    """Products that read what a step computed run while the next step computes::

        for k in 0 .. n:                      gemm a, b[0] -> s;  w = f(s);  o = o * c
          gemm a, b[k] -> s async             for k in 1 .. n:
          drain 0 for s                         gemm a, b[k] -> s async
          w = f(s)                              gemm w, v[k - 1] -> o async
          o = o * c                      -->    drain 1 for s
          gemm w, v[k] -> o async               ... f(s) ...
          drain 0 for o                         drain 0 for o
                                                w = ...;  o = o * c
                                              gemm w, v[n - 1] -> o async;  drain 0 for o

    What writes ``w`` or touches ``o`` goes behind the second wait, with what may not pass it and what gives back a tile that
    this reads; nothing else changes places. Requires that the last products end the step, and a step in every block. Every
    value is computed from the same values in the same order: no rounding changes."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        return in_first_role(kernel, lambda body: self._in(kernel, body))

    def _in(self, kernel: TileKernel, body: tuple[TileStmt, ...]) -> tuple[TileStmt, ...]:
        out: list[TileStmt] = []
        for s in body:
            if isinstance(s, For) and not any(isinstance(k, Gemm) for k in s.body):
                out.append(replace(s, body=self._in(kernel, s.body)))
            else:
                out += (_skewed(kernel, s) if isinstance(s, For) and never_empty(kernel, s) else None) or [s]
        return tuple(out)


def _skewed(kernel: TileKernel, loop: For) -> list[TileStmt] | None:
    fragments = {b.name for b in kernel.buffers if b.scope == "fragment"}
    products = [s for s in loop.body if isinstance(s, Gemm)]
    last = [s for s in products if s.a.buffer in fragments and any(s.a.buffer in writes(k) for k in loop.body)]
    front = [s for s in products if s not in last]
    if not last or not front or any(s.clear for s in last):
        return None
    split = loop.body.index(front[-1]) + 1
    start = min(i for i, s in enumerate(loop.body) if s in last)
    while start and isinstance(loop.body[start - 1], Await):
        start -= 1
    if start < split:
        return None
    head, rest, end = _parted(loop.body, split, start)
    for s in [s for s in end if not isinstance(s, (Gemm, Await, Drain, Arrive))]:  # between the last products
        if all(_apart(s, k) for k in end[:end.index(s)]):
            end.remove(s)
            rest.append(s)
    results = {s.c for s in last}
    weights = {s.a.buffer for s in last}
    if any(not isinstance(s, (Gemm, Await, Drain, Arrive)) for s in (*head, *end)):
        return None
    shared = {b.name for b in kernel.buffers if b.scope == "shared"}
    early: list[TileStmt] = []
    late: list[TileStmt] = []
    for s in rest:
        gives = isinstance(s, (Meet, Arrive)) and any(reads(k) & shared for k in late)
        if gives or writes(s) & (weights | results) or reads(s) & results or any(not _apart(k, s) for k in late):
            late.append(s)
        else:
            early.append(s)
    if any(not _apart(s, g) for s in (*early, *front) for g in last):
        return None
    names = tuple(dict.fromkeys(s.c for s in front))

    def step(k: Expr, body: Sequence[TileStmt]) -> list[TileStmt]:
        return [at_value(s, loop.var, k) for s in body]

    ready = [s for s in head if isinstance(s, (Gemm, Await))]
    freed = [s for s in head if isinstance(s, Arrive)]
    go = [s for s in end if isinstance(s, (Gemm, Await))]
    done = [s for s in end if isinstance(s, Arrive)]
    ended = Drain(0, tuple(dict.fromkeys(s.c for s in last)))
    back = iadd(Index(loop.var), i64(-1))
    body = [*ready, *step(back, go), Drain(len(last), names), *freed, *early, ended, *step(back, done), *late]
    begin = step(loop.start, [*ready, Drain(0, names), *freed, *early, *late])
    first = iadd(loop.start, i64(1))
    return [*begin, replace(loop, start=first, body=tuple(body)),
            *step(before(loop.stop), [*go, ended, *done])]


def before(stop: Expr) -> Expr:
    """The last step."""
    match stop:
        case Op(name="add", args=(x, Const(value=1))):
            return x
    return iadd(stop, i64(-1))


def _parted(body: tuple[TileStmt, ...], split: int, start: int) -> tuple[list[TileStmt], list[TileStmt], list[TileStmt]]:
    """The first products with what waits for them, what lies between, and the last products."""
    while split < start and isinstance(body[split], (Drain, Arrive)):
        split += 1
    return list(body[:split]), list(body[split:start]), list(body[start:])


def _apart(a: TileStmt, b: TileStmt) -> bool:
    """May two statements change places?"""
    return not (writes(a) & (reads(b) | writes(b)) or reads(a) & writes(b))


def never_empty(kernel: TileKernel, loop: For) -> bool:
    """Does a loop make a step in every block? Asked at every point of the grid that its bounds depend on."""
    return 0 not in counts(kernel, loop)
