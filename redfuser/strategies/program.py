"""The segment program: how a fused state runs over segments of the r-axis, still scalar and free of tiles.

One object feeds both realisations, so they cannot drift apart: :mod:`redfuser.strategies.tir` prints it as TVM
PrimFuncs (role-annotated blocks, buildable with LLVM), :mod:`redfuser.tensorize` turns it into a tile program.

A Program is one or two kernels. ``split`` kernels write their state as fp32 partials; the ``combine`` kernel after
them folds partials with the state's own ``merge``. A kernel::

    for each point of the grid axes (and each split):
        init                    accumulators := neutral
        for each segment of the r-axis (of this split):
            body blocks, in order: producer* (store? reduce|correct+reduce)*
        finalize blocks, epilogue blocks, post blocks (second visit of the row, or the row held on chip)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redfuser.acrf.expr import Axis, Expr, Let, Reduce, Reducer, Tensor
from redfuser.acrf.state import Fused

Role = Literal["producer", "store", "correct", "reduce", "merge", "finalize", "epilogue", "post", "init"]


@dataclass(frozen=True, slots=True)
class Block:
    """One statement with its role.

    producer  Let or Reduce (inner contraction) per element of the segment
    store     ``NAME@old = NAME`` before NAME changes (only where a later rebase reads it)
    correct   ``acc = rebase``
    reduce    ``acc = acc (reducer) reduce over the segment of expr``
    merge     ``acc = rebase[@a] (reducer) rebase[@b]`` in a combine kernel
    finalize  Let over accumulators; epilogue: Let on results (casts, bias); post: Let/Reduce over the r-axis again
    """

    role: Role
    names: tuple[str, ...]
    axes: tuple[str, ...]
    exprs: tuple[Expr, ...]
    dtype: str
    reducer: Reducer | None = None
    over: str | None = None


@dataclass(frozen=True, slots=True)
class Kernel:
    """``grid``: axes every output point shares, mapped to blocks. ``raxis`` is walked in segments. ``writes`` maps a
    result name to the buffer it is stored in (partials in a split kernel)."""

    name: str
    kind: Literal["single", "resident", "split", "combine"]
    grid: tuple[str, ...]
    raxis: str
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    init: tuple[Block, ...]
    body: tuple[Block, ...]
    tail: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A fused cascade, realised. ``splits`` is 1 for Single-Segment and for a resident row."""

    fused: Fused
    strategy: Literal["single", "resident", "multi"]
    splits: int
    kernels: tuple[Kernel, ...]
    axes: tuple[Axis, ...]
    workspaces: tuple[Tensor, ...] = ()


__all__ = ["Block", "Kernel", "Let", "Program", "Reduce", "Role"]
