"""Run a tile program with NumPy: every tile operation as an array operation.

The meaning is that of the tile IR, with real storage types (fp16, bf16 and fp8 round through ml_dtypes), zero fill past
an edge and dropped stores, so tails, masks, loop ranges and roundings are checked without a GPU. It is a reference: it
knows nothing of threads, layouts or pipelining. What takes time is the walk, so a leading dimension of every array holds
what walks together: several sets of inputs, and small blocks that take the same steps.

``wide`` stores and computes fp32 and narrower in float64 (and 8-bit floats too, unless ``steps``), so that what remains of
a difference from the program is no rounding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from redfuser.errors import InputError
from redfuser.sizes import Unfit, solved
from redfuser.tensorize.ir.block import Block, Parted, garbage
from redfuser.tensorize.ir.crew import Crew
from redfuser.tensorize.ir.effects import alike
from redfuser.tensorize.ir.nodes import Roles, Stop, TileKernel, TileProgram
from redfuser.tensorize.ir.pointwise import NUMPY_DTYPES, storage
from redfuser.tensorize.ir.spans import spans
from redfuser.tensorize.ir.symbols import bound

TOGETHER = 1 << 18
"""Elements of a buffer up to which blocks walk together."""


def run(program: TileProgram, inputs: Mapping[str, np.ndarray], wide: bool = False,
        steps: bool = True, seed: int = 0) -> dict[str, np.ndarray]:
    """Run on ``inputs`` (by argument name, of the declared shapes, which say what its symbols are); returns the outputs
    by the cascade's own names.

    wide: in float64, as far as floats go; steps: keep the roundings to 8-bit floats then. seed: of the order in which roles of
    a kernel take their steps.
    Raises InputError RF498 when an input is missing or has another shape than declared.
    """
    return run_all(program, [inputs], wide, steps, seed)[0]


def run_all(program: TileProgram, sets: Sequence[Mapping[str, np.ndarray]], wide: bool = False,
            steps: bool = True, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """:func:`run` on several sets of inputs."""
    if program.symbols:
        program = at_shapes(program, sets[0])
    try:
        memory = _run(program, sets, storage(wide, steps), seed)
    except Parted:
        return [r for given in sets for r in run_all(program, [given], wide, steps, seed)]
    return [{name: memory[arg][k] for name, arg in program.outputs} for k in range(len(sets))]


def at_shapes(program: TileProgram, inputs: Mapping[str, np.ndarray]) -> TileProgram:
    """The program where its symbols are what the shapes of ``inputs`` say."""
    given = [(a.name, a.shape, np.shape(inputs.get(a.name))) for a in program.args if a.role == "in"]
    try:
        return bound(program, solved(given, program.symbols))
    except Unfit as error:
        raise InputError("RF498", str(error)) from error


def _run(program: TileProgram, sets: Sequence[Mapping[str, np.ndarray]],
         dtypes: Mapping[str, np.dtype], seed: int) -> dict[str, np.ndarray]:
    memory: dict[str, np.ndarray] = {}
    kept = {name: span for kernel in program.kernels for name, span in spans(kernel).items()}
    for arg in program.args:
        if arg.role == "in":
            for inputs in sets:
                if arg.name not in inputs or tuple(inputs[arg.name].shape) != arg.shape:
                    got = inputs[arg.name].shape if arg.name in inputs else "nothing"
                    raise InputError("RF498", f"argument {arg.name} must have shape {arg.shape}, got {got}")
            given = np.stack([np.asarray(inputs[arg.name]).astype(NUMPY_DTYPES[arg.dtype]) for inputs in sets])
            memory[arg.name] = given.astype(dtypes[arg.dtype])
        else:
            unwritten = kept[arg.name][1] + 1 if arg.name in kept else garbage(dtypes[arg.dtype])
            memory[arg.name] = np.full((len(sets), *arg.shape), unwritten, dtypes[arg.dtype])
    with np.errstate(all="ignore"):
        for kernel in program.kernels:
            _run_kernel(kernel, memory, dtypes, len(sets), seed)
    return memory


def _run_kernel(kernel: TileKernel, memory: dict[str, np.ndarray], dtypes: Mapping[str, np.dtype], count: int,
                seed: int) -> None:
    views = {p.name: memory[p.name].reshape(count, *p.shape) for p in kernel.params}
    largest = max((math.prod(b.shape) for b in kernel.buffers), default=1)
    together = max(1, TOGETHER // (count * largest))
    free = alike(kernel) if together > 1 else frozenset()
    before = {p.name: views[p.name].copy() for p in kernel.params if p.out} if free else {}
    try:
        _run_blocks(kernel, views, dtypes, count, free, together, seed)
    except Parted:
        if not free:
            raise
        for name, array in before.items():
            views[name][...] = array
        _run_blocks(kernel, views, dtypes, count, frozenset(), 1, seed)


def _run_blocks(kernel: TileKernel, views: Mapping[str, np.ndarray], dtypes: Mapping[str, np.dtype], count: int,
                free: frozenset[str], together: int, seed: int) -> None:
    """All blocks; those that differ in the variables ``free`` alone, so many together. Those of a cluster run side by side."""
    beside = kernel.grid[0][0] if kernel.cluster > 1 else ""
    free -= {beside} if kernel.cluster > 1 else set()
    same = [(v, n) for v, n in kernel.grid if v in free]
    places = list(itertools.product(*(range(n) for _, n in same)))
    others = [(v, kernel.cluster if v == beside else 1, n) for v, n in kernel.grid if v not in free]
    for point in itertools.product(*(range(0, n, step) for _, step, n in others)):
        for first in range(0, len(places), together):
            blocks = [Block(dict(views), count, places[first:first + together], [v for v, _ in same], dtypes)
                      for _ in range(kernel.cluster)]
            for rank, block in enumerate(blocks):
                block.vars.update({v: at + rank * (v == beside) for (v, _, _), at in zip(others, point, strict=True)})
                block.open(kernel)
            for stmt in kernel.body:
                if isinstance(stmt, Stop):
                    blocks = [b for b in blocks if not b.number(stmt.cond)]
                elif isinstance(stmt, Roles) and blocks:
                    Crew(blocks, kernel, stmt, seed).run()
                else:
                    for block in blocks:
                        block.exec(stmt)
