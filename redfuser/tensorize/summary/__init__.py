"""A row walked in those steps alone in which something counts, where that depends on data: the condition that all accumulators
share (:mod:`.where`), what of it follows for a whole tile (:mod:`.intervals`), and the kernels that list the steps
(:mod:`.kernels`) for one that walks them (:class:`redfuser.tensorize.schedule.listed.ListSteps`)."""

from __future__ import annotations

from redfuser.acrf.affine import axes_of
from redfuser.acrf.expr import Expr, Index
from redfuser.acrf.index import i64
from redfuser.strategies.alive import TRUE
from redfuser.tensorize.geometry import Geometry, argument_name, tensors
from redfuser.tensorize.ir.nodes import TileKernel
from redfuser.tensorize.schedule.listed import ListSteps
from redfuser.tensorize.summary.intervals import derive
from redfuser.tensorize.summary.kernels import Side, Summary
from redfuser.tensorize.summary.where import counts_where


def summary(at: Geometry, kernel: TileKernel) -> tuple[Summary, ListSteps] | str:
    """What lists the steps of a kernel that was lowered, and the pass that makes it walk them; or why nothing does."""
    roles, n = at.roles, at.roles.segment
    if at.kernel.kind != "single" or at.kernel.scans or at.resident or n is None or roles.lists:
        return "its row is not walked by one block, from one end to the other"
    if not at.has_gemm:
        return "nothing but reading a row would be spared, and it is read to list its steps"
    if at.config.persistent:
        return "blocks that compute several tiles ask for tiles of equal work"
    condition = counts_where(at)
    others = frozenset(roles.grid)
    derived = derive(condition, roles.rows, n, others) if condition != TRUE else None
    if derived is None:
        return "no condition on rows and columns apart says where nothing of a step counts"
    used = {a for leaf in derived.leaves for a in axes_of(leaf.term)}
    grid = tuple((v, extent) for v, extent in ((a, at.extents[a]) for a in reversed(roles.grid)) if v in used and extent > 1)
    rows, columns = (Side(a, at.extents[a], at.sizes[a]) for a in (roles.rows, n))
    arguments = (argument_name(at.program, t.name) for t, _ in tensors(at.program))
    taken = frozenset({*arguments, *(b.name for b in kernel.buffers), *(v for v, _ in kernel.grid),
                       *(v for v, _ in kernel.lets), *at.roles.grid, "T"})
    made = Summary(at, derived, rows, columns, grid, taken)
    block = f"{roles.rows}_block"
    where: tuple[Expr, ...] = (*(Index(v) for v, _ in grid), Index(block) if block in at.blocks else i64(0))
    asynchronous = at.config.warp_specialized and at.target.tma
    return made, ListSteps(at.counter, made.steps, made.count, where, at.config.stages if asynchronous else 1)


__all__ = ["Summary", "summary"]
