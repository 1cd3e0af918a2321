"""Rows that a reduction and a product lay out in two ways, met in shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.acrf.expr import Expr, Index, Load, map_children, walk
from redfuser.tensorize.ir.effects import every, with_bodies
from redfuser.tensorize.ir.nodes import Copy, Parallel, ReduceTile, TileKernel, TileStmt
from redfuser.tensorize.ir.parts import Buffer, Slice
from redfuser.tensorize.model.alike import of_products


@dataclass(frozen=True, slots=True)
class ShareRows:
    """Where a kernel reduces rows of what no product made, a map over a product's elements takes its rows' values from shared
    memory::

        reduce sum squares -> t clear
        ...                                              copy scale -> scale_shared
        o[i, d] = o[i, d] * scale[i]              -->    o[i, d] = o[i, d] * scale_shared[i]

    Waves of AMD's matrix units, and single warps of CUDA's, hold rows otherwise than the threads that loads are dealt out to:
    TileLang has no layout for a row's value that is both, or one where a block's threads meet for every element. Adds no
    rounding."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        made = of_products(kernel)
        if not made or all(s.src in made for s in every(kernel.body) if isinstance(s, ReduceTile)):
            return kernel
        rows = {b.name: b for b in kernel.buffers if b.scope == "fragment" and len(b.shape) == 1}
        shared: dict[str, Buffer] = {}
        taken = {p.name for p in kernel.params} | {b.name for b in kernel.buffers}

        def within(body: tuple[TileStmt, ...]) -> tuple[TileStmt, ...]:
            done: list[TileStmt] = []
            for s in body:
                if not isinstance(s, Parallel) or len(s.vars) != 2 or not made & _at_points(s):
                    done.append(with_bodies(s, within))
                    continue
                met = {x.tensor for a in s.body for x in walk(a.expr) if isinstance(x, Load) and x.tensor in rows}
                for n in sorted(met):
                    name = next(f"{n}_shared{k or ''}" for k in range(99) if n in shared or f"{n}_shared{k or ''}" not in taken)
                    shared.setdefault(n, replace(rows[n], name=name, scope="shared"))
                    done.append(Copy(Slice(n), Slice(shared[n].name)))
                done.append(replace(s, body=tuple(replace(a, expr=_moved(a.expr, shared)) for a in s.body)))
            return tuple(done)

        body = within(kernel.body)
        return replace(kernel, body=body, buffers=(*kernel.buffers, *shared.values())) if shared else kernel


def _at_points(s: Parallel) -> set[str]:
    at = tuple(map(Index, s.vars))
    return {a.target for a in s.body if a.indices == at} | {
        x.tensor for a in s.body for x in walk(a.expr) if isinstance(x, Load) and x.indices == at}


def _moved(e: Expr, shared: dict[str, Buffer]) -> Expr:
    if isinstance(e, Load) and e.tensor in shared:
        return replace(e, tensor=shared[e.tensor].name)
    return map_children(e, lambda x: _moved(x, shared))
