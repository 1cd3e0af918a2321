"""Groups that start their products one after another."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.tensorize.ir.effects import every, with_bodies
from redfuser.tensorize.ir.flight import Await, Turn
from redfuser.tensorize.ir.nodes import For, Gemm, Role, Roles, TileKernel, TileStmt
from redfuser.tensorize.schedule.in_flight import only_products


@dataclass(frozen=True, slots=True)
class TakeTurns:
    """While one group's products run, another computes what lies between them::

        gemm a, b -> s async                   take turn
        gemm w, v -> o async       -->         gemm a, b -> s async;  gemm w, v -> o async
        drain 1 for s                          pass turn
                                               drain 1 for s

    Requires roles with several groups that compute, and something to compute between products. Changes no value."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        if not isinstance(kernel.body[-1], Roles):
            return kernel
        loops = [s for s in every(kernel.body) if isinstance(s, For) and not any(isinstance(k, For) for k in s.body)]
        if all(only_products(kernel, s) for s in loops if any(isinstance(k, Gemm) for k in s.body)):
            return kernel
        roles = tuple(Role(r.name, r.groups, r.registers, _in_turn(r.body)) if r.groups > 1 else r
                      for r in kernel.body[-1].roles)
        return replace(kernel, body=(*kernel.body[:-1], Roles(roles)))


def _in_turn(body: tuple[TileStmt, ...]) -> tuple[TileStmt, ...]:
    out: list[TileStmt] = []
    at = 0
    while at < len(body):
        if not isinstance(body[at], Gemm):
            out.append(with_bodies(body[at], _in_turn))
            at += 1
            continue
        end = at
        while end < len(body) and isinstance(body[end], (Gemm, Await)):
            end += 1
        while isinstance(body[end - 1], Await):
            end -= 1
        out += [Turn(True), *body[at:end], Turn(False)]
        at = end
    return tuple(out)
