"""Neighbouring loops over rows as one, and statements that do nothing left out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.acrf.expr import Load
from redfuser.tensorize.ir.nodes import Assign, For, If, Parallel, TileKernel, TileStmt


@dataclass(frozen=True, slots=True)
class JoinRows:
    """One loop over rows where two follow each other; no ``x[i] = x[i]``, no empty loop::

        parallel i < 64: a[i] = b[i] + 1.0; parallel i < 64: c[i] = a[i]
        -->
        parallel i < 64: a[i] = b[i] + 1.0; c[i] = a[i]

    Adds no rounding."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        return replace(kernel, body=tuple(_clean(kernel.body)))


def _clean(stmts: tuple[TileStmt, ...]) -> list[TileStmt]:
    out: list[TileStmt] = []
    for s in stmts:
        if isinstance(s, (For, If)):
            s = replace(s, body=tuple(_clean(s.body)))
            if not s.body:
                continue
        if isinstance(s, Parallel):
            s = replace(s, body=tuple(a for a in s.body if not _identity(a)))
            if not s.body:
                continue
            last = out[-1] if out else None
            if isinstance(last, Parallel) and (last.vars, last.extents) == (s.vars, s.extents) and len(s.vars) == 1:
                comment = "\n".join(c for c in (last.comment, s.comment) if c)
                out[-1] = replace(last, body=last.body + s.body, comment=comment)
                continue
        out.append(s)
    return out


def _identity(a: Assign) -> bool:
    return isinstance(a.expr, Load) and a.expr.tensor == a.target and a.expr.indices == a.indices
