"""A kernel of a segment program, evaluated on labelled arrays: segment by segment, in float64 and without roundings.

For two kernels that should compute the same; what a program means is held elsewhere (:mod:`redfuser.chain.scalar`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from redfuser.acrf.check.domains import NUMPY, Array
from redfuser.acrf.check.labelled import Labelled
from redfuser.acrf.check.machine import Machine
from redfuser.acrf.expr import FLOATS, Expr, Index, Ref
from redfuser.acrf.facts.algebra import PAYLOAD
from redfuser.acrf.state import Accumulator
from redfuser.chain.truth import Wide
from redfuser.strategies.program import Block, Kernel, Program, split_range

Stores = Mapping[str, tuple[str, tuple[Expr, ...]]]
"""By block name, the buffer that it writes and where."""


def evaluate(kernel: Kernel, buffers: Mapping[str, Array], extents: Mapping[str, int], stores: Stores | None = None,
             whole: bool = False) -> dict[str, Array]:
    """What ``kernel`` writes, by buffer. extents: of every axis. stores: where blocks write; by default each into the buffer of
    its name. whole: the row is one segment."""
    if stores is None:
        axes = {n: b.axes for b in (*kernel.body, *kernel.tail) for n in b.names}
        stores = {t.name: (t.name, tuple(map(Index, axes[t.name]))) for t in kernel.writes}
    walk = _Walk(kernel, buffers, extents, stores, whole or kernel.kind in ("resident", "merge"))
    with np.errstate(all="ignore"):
        walk.run()
    return walk.written


def run(program: Program, inputs: Mapping[str, Array],
        instead: Mapping[str, Callable[[Mapping[str, Array]], dict[str, Array]]]) -> dict[str, Array]:
    """The results of ``program``. instead: by name of a kernel, what else computes what it writes."""
    buffers: dict[str, Array] = dict(inputs)
    extents = {a.name: int(a.extent) for a in program.axes}
    for k in program.kernels:
        buffers |= instead[k.name](buffers) if k.name in instead else evaluate(k, buffers, extents)
    return {o: buffers[o] for o in program.fused.cascade.outputs}


class _Walk:
    def __init__(self, kernel: Kernel, buffers: Mapping[str, Array], extents: Mapping[str, int], stores: Stores,
                 whole: bool) -> None:
        self.kernel, self.stores, self.whole = kernel, stores, whole
        blocks = (*kernel.init, *kernel.body, *kernel.tail)
        given = {t.name: t.dtype for t in kernel.reads}
        self.machine = Machine(
            Wide(steps=False), {n: buffers[n].astype(np.float64 if d in FLOATS else NUMPY[d]) for n, d in given.items()}, given,
            {a: np.arange(n) for a, n in extents.items()}, {n: b.axes for b in blocks for n in b.names})
        self.written: dict[str, Array] = {t.name: np.full([int(n) for n in t.shape], np.nan if t.dtype in FLOATS else 85,
                                        np.float64 if t.dtype in FLOATS else NUMPY[t.dtype]) for t in kernel.writes}

    def run(self) -> None:
        k, n = self.kernel, len(self.machine.ranges[self.kernel.raxis])
        splits = len(self.machine.ranges[k.split]) if k.split else 1
        if k.kind == "combine":
            self.start()
            for s in range(splits):
                self.at(k.split or "", s, s + 1)
                for b in k.body:
                    self.block(b, drop=k.split or "")
            for b in k.tail:
                self.block(b)
            return
        for s in range(splits):
            low, high = split_range(n, splits, s) if k.split else (0, n)
            if k.split:
                self.at(k.split, s, s + 1)
            self.start()
            middle = high if self.whole else low + (high - low) // 2 + 1
            for start, stop in ((low, min(middle, high)), (min(middle, high), high)):
                if start < stop:
                    self.at(k.raxis, start, stop)
                    for b in k.body:
                        self.block(b)
            self.at(k.raxis, low, high)
            stored = {n for b in k.body for n in b.names}  # what the walk stored is computed again for others to read
            for b in k.tail:
                self.block(b, again=not stored.isdisjoint(b.names))

    def start(self) -> None:
        for b in self.kernel.init:
            self.machine.values.update({n: self.machine.expr(e) for n, e in zip(b.names, b.exprs, strict=True)})

    def at(self, axis: str, start: int, stop: int) -> None:
        self.machine = replace(self.machine, ranges={**self.machine.ranges, axis: np.arange(start, stop)}, known={})

    def block(self, b: Block, drop: str = "", again: bool = False) -> None:
        m = self.machine = self.machine.with_values({})  # a name may have another value now
        if b.role == "merge":
            half = len(b.names)
            sides = [m.expr(e) for e in b.exprs]
            values = m.combine(_accumulator(b), tuple(sides[:half]), tuple(sides[half:]))
        elif b.reducer is not None:
            payload = b.reducer.kind in PAYLOAD
            dtype = b.exprs[0].dtype if payload else b.dtype
            values = m.reduce(b.reducer, b.exprs[0], b.over or "", dtype, b.axes[-1:], *b.exprs[1:])
            values = values if len(b.names) == len(values) else values[-1:]
            if b.role == "reduce":
                values = m.combine(_accumulator(b), tuple(m.values[n] for n in b.names), values)
        else:
            values = tuple(map(m.expr, b.exprs))
        for n, v in zip(b.names, values, strict=True):
            m.values[n] = v.at(drop, 0) if drop else v
            if n in self.stores and not again:
                self.keep(n, b.axes, m.values[n])

    def keep(self, name: str, axes: tuple[str, ...], value: Labelled) -> None:
        """A result, of one segment or one split where it has these axes."""
        buffer, indices = self.stores[name]
        shape = [len(self.machine.ranges[a]) for a in axes]
        at = tuple(np.broadcast_to(self.machine.expr(i).aligned(axes), shape) for i in indices)
        self.written[buffer][at] = np.broadcast_to(value.aligned(axes), shape)


def _accumulator(b: Block) -> Accumulator:
    assert b.reducer is not None
    dtype = b.exprs[0].dtype if b.reducer.kind in PAYLOAD else b.dtype
    return Accumulator(b.names, b.axes, b.reducer, dtype, (), b.exprs[0], tuple(Ref(n, b.dtype) for n in b.names))
