"""The segment program: how a fused state runs over segments of the r-axis, still scalar and free of tiles.

One object feeds both realisations, so they cannot drift apart: :mod:`redfuser.strategies.tir` prints it as TVM
PrimFuncs (role-annotated blocks, buildable with LLVM), :mod:`redfuser.tensorize` turns it into a tile program.

A Program is one to three kernels. ``split`` kernels write their state as partials in the accumulators' own dtype
(fp32 for half inputs); the ``combine`` kernel after them folds partials with the state's own ``merge``; a state of a few
numbers a row is merged by a ``merge`` kernel instead, all partials of a row at once. A ``map``
kernel visits the row again where outputs still carry the r-axis. Of maps alone, which have no state, a program is one
``map`` kernel, and its segments are points of the grid. A kernel::

    for each point of the grid axes (and, where ``split`` is set and the kernel is not the combine, each split):
        init                    accumulators := neutral
        for each segment of the r-axis (of this split):
            body blocks, in order: producer* (store* producer* correct? reduce)*
        tail blocks: finalize, epilogue, post (a second visit of the row, or the row held on chip)

A combine kernel walks the splits instead of segments: its body is the producers ``NAME@b`` (loads of the partials),
the stores ``NAME@a = NAME`` and one merge per accumulator. A merge kernel is a row held on chip whose elements are
partials: its r-axis is that of the splits, its body one reduction per accumulator, of what the partials are about the final
references.

Text (``str``, which tests read back), a kernel of a softmax denominator::

    kernel softmax (single) grid [i] over l
      init
        m[i] = -inf
        t[i] = 0.0
      body
        store     m@old[i] = m
        reduce    m[i] = m max max[l] f32(x[i, l])
        ...
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from redfuser.acrf.cascade import Axis, Extent, Reducer, Tensor, default_dtype
from redfuser.acrf.expr import Expr, print_expr, refs_of
from redfuser.acrf.state import Fused

Role = Literal["producer", "store", "correct", "reduce", "merge", "finalize", "epilogue", "post", "init"]
Strategy = Literal["single", "resident", "multi", "map"]


@dataclass(frozen=True, slots=True)
class Block:
    """One statement with its role.

    producer  Let or Reduce (inner contraction) per element of the segment; also a factor that several contributions
              share (``t_term = exp(p - m)``), which then sits after the accumulators it reads. In a tail it is the
              same producer evaluated again for a second visit of the row. In a combine kernel: the load of a partial
    store     ``NAME@old = NAME`` before NAME changes (only where another accumulator's rebase reads it); ``NAME@a`` in
              a combine; in the tail of a split kernel, the partial ``NAME_part = NAME``
    correct   ``acc = rebase``; the accumulator's own old value is its bare name, since this happens in place
    reduce    ``acc = acc (reducer) reduce over the segment of expr``
    merge     ``acc = rebase[@a] (reducer) rebase[@b]`` in a combine kernel: ``exprs`` has the a-side of every name,
              then the b-side of every name
    finalize  Let over accumulators; epilogue: Let or Reduce on results without the r-axis (casts, bias); post: Let over
              the r-axis again, or Reduce along it

    ``axes``: of the value, in the order it is stored. ``over``: the axis a reduction runs along. A reduction whose
    reducer is ``topk`` has the list as its last axis; its ``exprs`` (one) is evaluated on ``axes[:-1]`` and ``over``.
    One that runs along the row (``running``: ``over`` is among ``axes``) is a ``post``, and carries from segment to segment.
    What an ``argmax`` or ``argmin`` finds is where along ``over`` it is, or what a second expression says of the element.
    """

    role: Role
    names: tuple[str, ...]
    axes: tuple[str, ...]
    exprs: tuple[Expr, ...]
    dtype: str
    reducer: Reducer | None = None
    over: str | None = None

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def running(self) -> bool:
        """Has every element of ``over`` a result, of those up to it?"""
        return self.over in self.axes

    @property
    def points(self) -> tuple[str, ...]:
        """The axes on which ``exprs`` are evaluated."""
        if self.reducer is None or self.over is None or self.running:
            return self.axes
        return (*(self.axes[:-1] if self.reducer.kind == "topk" else self.axes), self.over)

    def __str__(self) -> str:
        left = ", ".join(f"{n}[{', '.join(self.axes)}]" if self.axes else n for n in self.names)
        reduces = self.reducer is not None and self.role != "merge"
        plain = default_dtype(self.reducer, self.exprs[0]) if reduces else self.exprs[0].dtype  # type: ignore[arg-type]
        left += f": {self.dtype}" if self.dtype != plain else ""
        exprs = [print_expr(e) for e in self.exprs]
        if self.role == "merge":
            n = len(self.names)
            text = f"({', '.join(exprs[:n])}) {self.reducer} ({', '.join(exprs[n:])})"
        elif self.role == "reduce":
            what = exprs[0] if len(exprs) == 1 else f"({', '.join(exprs)})"
            text = f"({', '.join(self.names)}) {self.reducer} {self.reducer}[{self.over}] {what}"
        elif self.reducer is not None:
            text = f"{self.reducer}[{'..' * self.running}{self.over}] {exprs[0]}"
        else:
            text = ", ".join(exprs)
        return f"{self.role:<9} {left} = {text}"


@dataclass(frozen=True, slots=True)
class Kernel:
    """``grid``: axes every output point shares, mapped to blocks. ``raxis`` is walked in segments.

    ``reads`` and ``writes`` are global buffers; a block of the body or the tail that bears a written buffer's name
    stores into it, with its axes in the buffer's order. ``split`` names the axis of splits: each instance of a split (or
    map) kernel walks its own contiguous range of the r-axis, a combine kernel folds along it; None where the whole row
    is walked, or where it is the r-axis (``merge``)."""

    name: str
    kind: Literal["single", "resident", "split", "combine", "merge", "map"]
    grid: tuple[str, ...]
    raxis: str
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    init: tuple[Block, ...]
    body: tuple[Block, ...]
    tail: tuple[Block, ...]
    split: str | None = None

    @property
    def accumulators(self) -> tuple[str, ...]:
        return tuple(n for b in self.init for n in b.names)

    @property
    def spread(self) -> bool:
        """Does nothing run along a row? Then its segments are points of the grid as well, and none is walked to."""
        return self.kind == "map" and self.split is None and all(b.reducer is None for b in self.tail)

    @property
    def scans(self) -> bool:
        """Does something run along the row, element by element?"""
        return any(b.running for b in self.tail)

    def __str__(self) -> str:
        over = f" split by {self.split}" if self.split and self.kind != "combine" else ""
        walked = self.split if self.kind == "combine" else self.raxis
        lines = [f"kernel {self.name} ({self.kind}) grid [{', '.join(self.grid)}] over {walked}{over}"]
        lines += [f"  reads  {t}" for t in self.reads] + [f"  writes {t}" for t in self.writes]
        for title, blocks in (("init", self.init), ("body", self.body), ("tail", self.tail)):
            if blocks:
                lines += [f"  {title}", *(f"    {b}" for b in blocks)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Program:
    """A fused cascade, realised. ``splits`` is 1 for Single-Segment, for a resident row and for maps alone.

    ``segment``: elements of the r-axis per segment in the scalar realisation, the whole extent for a resident row, None
    while the extent is symbolic and none was asked for (a tensoriser picks its own). ``axes``: every axis, with the
    axis of splits when there is one. ``workspaces``: buffers written by one kernel and read by a later one."""

    fused: Fused
    strategy: Strategy
    splits: int
    kernels: tuple[Kernel, ...]
    axes: tuple[Axis, ...]
    workspaces: tuple[Tensor, ...] = ()
    segment: int | None = None

    def extent(self, axis: str) -> Extent:
        return next(a.extent for a in self.axes if a.name == axis)

    def __str__(self) -> str:
        how = f"{self.strategy}, {self.splits} splits" if self.strategy == "multi" else self.strategy
        how += f", segments of {self.segment}" if self.segment is not None else ""
        axes = ", ".join(f"{a.name}={a.extent}" for a in self.axes)
        head = [f"program {self.fused.cascade.name}: {how}, axes {axes}", *(f"workspace {t}" for t in self.workspaces)]
        return "\n".join([*head, *map(str, self.kernels)])


def made_again(walk: Sequence[Block], before: Sequence[Block], raxis: str | None, stored: Collection[str]) -> tuple[Block, ...]:
    """Of the blocks of earlier walks of a row that is not held those whose elements ``walk`` reads, in their order: what is
    on chip of them is the last segment's. ``stored`` results are read, or evaluated, where they are."""
    live = {r for b in walk for e in b.exprs for r in refs_of(e)}
    found: list[Block] = []
    for b in reversed(before):
        if set(b.names) & live and (b.reducer is None or b.running or b.over != raxis):
            live |= {r for e in b.exprs for r in refs_of(e)}
            found += [b] if b.name not in stored and b not in found else []
    return tuple(reversed(found))


def split_range(extent: int, splits: int, index: int, granule: int = 1) -> tuple[int, int]:
    """The r-range [start, stop) of one split: contiguous, ceil(extent / splits) elements rounded up to ``granule``.

    The last one may be ragged and later ones empty (start == stop == extent)."""
    chunk = -(-extent // splits)
    chunk = -(-chunk // granule) * granule
    return min(index * chunk, extent), min((index + 1) * chunk, extent)
