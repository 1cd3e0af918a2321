"""The next tile's first products behind this tile's last."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.acrf.expr import Expr, Index, Op, walk
from redfuser.acrf.index import i64, iadd
from redfuser.tensorize.ir.effects import at_value, every, in_first_role, reads, writes
from redfuser.tensorize.ir.flight import Arrive, Await, Drain
from redfuser.tensorize.ir.nodes import Fill, For, Gemm, If, Parallel, ReduceTile, TileKernel, TileStmt


@dataclass(frozen=True, slots=True)
class Carry:
    """In a block that computes several tiles, what ends a tile runs while the next one's first products do::

        for turn in 0 .. n:                         await q_full[0], k_full[0];  gemm q, k -> s clear async
          await q_full[turn], k_full[turn]          for turn in 0 .. n:
          gemm q, k -> s clear async                  drain 0 for s
          drain 0 for s                               ...
          ...                                         await v_full[..]
          await v_full[..]                  -->       if turn + 1 < n: await q_full[turn + 1], k_full[turn + 1]
          gemm w, v -> o async                        gemm w, v -> o async
          drain 0 for o                               gemm q[turn + 1], k[turn + 1] -> s clear async
          t = 1 / t                                   t = 1 / t
          o = o * t; send it                          drain 1 for o
                                                      o = o * t; send it
                                                    drain 0 for s

    What needs nothing of the last product goes before its wait. The last turn starts products too, whose result nobody reads:
    a branch would part them from those before. Requires first products of operands that each tile brings, and nothing from the
    end of one tile to their wait in the next that touches what they read and write. Changes no value."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        return in_first_role(kernel, lambda body: _carried(kernel, body) or body)


def _carried(kernel: TileKernel, role: tuple[TileStmt, ...]) -> tuple[TileStmt, ...] | None:
    turns = [s for s in role if isinstance(s, For)]
    if len(turns) != 1:
        return None
    outer = turns[0]
    runs = _runs(outer.body)
    steps = [i for i, s in enumerate(outer.body) if isinstance(s, For)]
    if len(runs) != 2 or len(steps) != 1 or not runs[0][1] <= steps[0] < runs[1][0]:
        return None
    (begin, ready), (last, end) = runs
    top, front, middle = outer.body[:begin], outer.body[begin:ready], outer.body[ready + 1:last]
    waits, go = outer.body[ready], outer.body[last:end]
    ended, tail = outer.body[end], outer.body[end + 1:]
    products = [s for s in front if isinstance(s, Gemm)]
    names = tuple(dict.fromkeys(s.c for s in products))
    if waits != Drain(0, names) or not isinstance(ended, Drain) or ended.left or not all(s.clear for s in products):
        return None
    used = {x.axis for s in front for e in _where(s) for x in walk(e) if isinstance(x, Index)}
    operands, results = {n for s in products for n in reads(s)}, {s.c for s in go if isinstance(s, Gemm)}
    between = [s for s in (*go, *tail, *top) if not isinstance(s, (Await, Arrive))]
    if used - {outer.var} or any(
            writes(s) & (operands | set(names)) or reads(s) & set(names) for k in between for s in every((k,))):
        return None
    fragments = {b.name for b in kernel.buffers if b.scope == "fragment"}
    early, rest = _meanwhile(tail, results, fragments)
    then = [at_value(s, outer.var, iadd(Index(outer.var), i64(1))) for s in front]
    more = If(Op("lt", (iadd(Index(outer.var), i64(1)), outer.stop), "bool"), tuple(s for s in then if isinstance(s, Await)))
    body = (*top, waits, *middle, *(s for s in go if isinstance(s, Await)), more, *(s for s in go if isinstance(s, Gemm)),
            *(s for s in then if isinstance(s, Gemm)), *early, replace(ended, left=len(products)), *rest)
    at = role.index(outer)
    return (*role[:at], *(at_value(s, outer.var, outer.start) for s in front), replace(outer, body=body), waits,
            *role[at + 1:])


def _runs(body: tuple[TileStmt, ...]) -> list[tuple[int, int]]:
    """Where products are started, with the waits for their operands before and among them: from, to."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(body):
        if not isinstance(body[at], (Gemm, Await)):
            at += 1
            continue
        end = at
        while isinstance(body[end], (Gemm, Await)):
            end += 1
        if any(isinstance(s, Gemm) for s in body[at:end]):
            found.append((at, end))
        at = end
    return found


def _meanwhile(tail: tuple[TileStmt, ...], results: set[str], fragments: set[str]) -> tuple[list[TileStmt], list[TileStmt]]:
    """What of the end of a tile touches registers alone, and needs neither the last products nor what stays behind them."""
    early: list[TileStmt] = []
    late: list[TileStmt] = []
    for s in tail:
        touched = reads(s) | writes(s)
        behind = any(writes(s) & (reads(k) | writes(k)) or reads(s) & writes(k) for k in late)
        if isinstance(s, (Parallel, ReduceTile, Fill)) and touched <= fragments and not touched & results and not behind:
            early.append(s)
        else:
            late.append(s)
    return early, late


def _where(s: TileStmt) -> list[Expr]:
    """The expressions that say which parts a product takes or a wait is for."""
    match s:
        case Gemm(a, b):
            return [d.start for x in (a, b) for d in x.dims]
        case Await(at, phase):
            return [at.slot, phase]
    return []
