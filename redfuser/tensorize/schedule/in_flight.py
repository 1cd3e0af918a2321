"""Products that follow each other without a gap."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.acrf.expr import Expr, Index
from redfuser.acrf.index import i64, iadd
from redfuser.tensorize.ir.effects import at_value
from redfuser.tensorize.ir.flight import Arrive, Await, Drain
from redfuser.tensorize.ir.nodes import For, Gemm, Roles, TileKernel, TileStmt
from redfuser.tensorize.schedule.counts import counts
from redfuser.tensorize.schedule.skew import before


@dataclass(frozen=True, slots=True)
class KeepInFlight:
    """A step's product is started before that of the step before is done, whose tiles are given back a step later::

        for k in 0 .. n:                      gemm a[0], b[0] -> o async
          gemm a[k], b[k] -> o async          for k in 1 .. n - 1:
          drain 0 for o              -->        gemm a[k], b[k] -> o async
          arrive empty[k]                       drain 1
                                                arrive empty[k - 1]
                                              gemm a[n - 1], b[n - 1] -> o async
                                              drain 0 for o;  arrive empty[n - 2];  arrive empty[n - 1]

    The last product stands where it is waited for: behind a loop that left one under way, ptxas 13.0 read accumulators before
    the wait (of the gate of 2048 x 14336 a tenth, other ones each time), or, told not to write turns out, waited for each.
    Requires a loop of nothing else, products of shared memory that all add to what is there (which the matrix units do one
    after another), and two steps or more in every block. The sums are of the same terms in the same order: no rounding
    changes."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        if not isinstance(kernel.body[-1], Roles):
            return kernel
        first, *others = kernel.body[-1].roles
        roles = Roles((replace(first, body=_in(kernel, first.body)), *others))
        return replace(kernel, body=(*kernel.body[:-1], roles))


def _in(kernel: TileKernel, body: tuple[TileStmt, ...]) -> tuple[TileStmt, ...]:
    out: list[TileStmt] = []
    for s in body:
        if isinstance(s, For) and not any(isinstance(k, Gemm) for k in s.body):
            out.append(replace(s, body=_in(kernel, s.body)))
        elif isinstance(s, For) and only_products(kernel, s) and min(counts(kernel, s)) > 1:
            out += _kept(s)
        else:
            out.append(s)
    return tuple(out)


def only_products(kernel: TileKernel, loop: For) -> bool:
    """Does a loop do nothing but add products of shared memory?"""
    shared = {b.name for b in kernel.buffers if b.scope == "shared"}
    return all(isinstance(s, (Gemm, Await, Drain, Arrive)) for s in loop.body) and all(
        s.flies and not s.clear and {s.a.buffer, s.b.buffer} <= shared for s in loop.body if isinstance(s, Gemm))


def _kept(loop: For) -> list[TileStmt]:
    go: list[TileStmt] = [s for s in loop.body if isinstance(s, (Gemm, Await))]
    freed: list[TileStmt] = [s for s in loop.body if isinstance(s, Arrive)]
    products = [s for s in go if isinstance(s, Gemm)]

    def step(body: list[TileStmt], k: Expr) -> list[TileStmt]:
        return [at_value(s, loop.var, k) for s in body]

    back = step(freed, iadd(Index(loop.var), i64(-1)))
    last = before(loop.stop)
    between = replace(loop, start=iadd(loop.start, i64(1)), stop=last, body=(*go, Drain(len(products)), *back))
    return [*step(go, loop.start), between, *step(go, last), Drain(0, tuple(dict.fromkeys(s.c for s in products))),
            *step(freed, iadd(last, i64(-1))), *step(freed, last)]
