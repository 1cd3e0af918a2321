"""A walk of the steps that a list names."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.acrf.expr import Cast, Expr, Index, Load
from redfuser.acrf.index import i64
from redfuser.tensorize.ir.effects import Names, at_value, every, writes
from redfuser.tensorize.ir.nodes import For, TileKernel
from redfuser.tensorize.ir.parts import Param


@dataclass(frozen=True, slots=True)
class ListSteps:
    """A block makes those steps of its walk that a kernel before it has listed, in their order::

        for k in 0 .. 4 pipelined 2:                 for n in 0 .. i64(count[b, i_block]) pipelined 2:
          copy x1[b, k * 128 +: 128, ..] -> k_shared   copy x1[b, i64(steps[b, i_block, n]) * 128 +: 128, ..] -> k_shared
          gemm q, k_shared^T -> s clear        -->     gemm q, k_shared^T -> s clear
          ...                                          ...

    ``at``: where of both a block finds its own. ``deep``: stages of its pipeline, at most. Requires a single loop, which writes
    no result, so that what it leaves behind is what it accumulates. Whoever lists the steps leaves out none that adds anything
    but neutral elements to that, and lists one at least. Changes no value; what a step that is left out would have read is not
    read."""

    var: str
    steps: Param
    count: Param
    at: tuple[Expr, ...]
    deep: int

    def __call__(self, kernel: TileKernel) -> TileKernel:
        loops = [s for s in every(kernel.body) if isinstance(s, For)]
        if len(loops) != 1 or loops[0] not in kernel.body or loops[0].var != self.var or \
                writes(loops[0]) & {p.name for p in kernel.params}:
            return kernel
        n = Names(kernel).fresh("n")
        step = Cast(Load(self.steps.name, (*self.at, Index(n)), self.steps.dtype), "i64")
        (loop,) = loops
        walked = For(n, i64(0), Cast(Load(self.count.name, self.at, self.count.dtype), "i64"),
                     tuple(at_value(s, self.var, step) for s in loop.body), min(loop.stages, self.deep), loop.comment)
        params = [replace(p, out=False) for p in (self.steps, self.count)]
        inputs = [p for p in kernel.params if not p.out]
        return replace(kernel, params=(*inputs, *params, *(p for p in kernel.params if p.out)),
                       body=tuple(walked if s is loop else s for s in kernel.body))
