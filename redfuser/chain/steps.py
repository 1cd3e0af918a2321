"""Each pass held: over tiles against the tiles before it, in the interpreter and to the bit (one that only regroups sums, or
leaves out what counts for nothing: against the cascade, as a whole program is); over a kernel's mathematics against the
cascade, in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from redfuser.acrf.check.domains import Array
from redfuser.chain import kernels
from redfuser.chain import tiles as whole_tiles
from redfuser.chain.samples import Case, steps_moved, steps_taken
from redfuser.chain.tiles import arguments
from redfuser.strategies.check import check_kernel
from redfuser.strategies.program import Kernel, Program
from redfuser.target import Target
from redfuser.tensorize import TileConfig, tensorize
from redfuser.tensorize.axes import UNIT
from redfuser.tensorize.geometry import Geometry, begin
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.nodes import TileKernel
from redfuser.tensorize.ir.verify import verify_kernel
from redfuser.tensorize.rewrite import AXES, Arranged, as_realised
from redfuser.tensorize.schedule import LEAVES_OUT, REGROUPS
from redfuser.tensorize.schedule.history import History


def violations(program: Program, config: TileConfig, target: Target, cases: list[Case]) -> Iterator[str]:
    """What a pass changed on some case, or left ill-formed."""
    few = steps_taken(program.fused) or steps_moved(program.fused)
    yield from scalar_violations(program, config, target, [c for c in cases if c.wide and not few])
    yield from _tiles(program, config, target, cases)


def scalar_violations(program: Program, config: TileConfig, target: Target, cases: list[Case]) -> Iterator[str]:
    """Of the passes before there are tiles. Not with roundings to few values, where a last digit decides."""
    for kernel in program.kernels:
        work, stages = mathematics(program, kernel, config, target)
        for after, changed in stages:
            extents = {**changed.extents, UNIT: 1}
            found = check_kernel(changed.kernel, extents, tuple(changed.stores))
            for case in cases if not found else ():
                def instead(buffers: Mapping[str, Array], at: Arranged = changed) -> dict[str, Array]:
                    return kernels.evaluate(at.kernel, buffers, extents, at.stores, work.resident)  # noqa: B023

                if text := case.digits(kernels.run(program, case.inputs, {kernel.name: instead}), steps=False):
                    found = [f", {case.name}: {text}"]
            if found:
                yield f"{kernel.name}, {after}{found[0]}"
                break


def mathematics(program: Program, kernel: Kernel, config: TileConfig,
                target: Target) -> tuple[Geometry, list[tuple[str, Arranged]]]:
    """The lowering's start of a kernel, and the kernel after each pass over its axes and over its mathematics, by the pass."""
    at = as_realised(kernel, {a.name: int(a.extent) for a in program.axes})
    stages = [("realised", at)]
    for p in AXES:
        before, at = at, p(at)
        if str(at.kernel) != str(before.kernel):
            stages.append((type(p).__name__, at))
    later: list[tuple[str, Kernel]] = []
    work = begin(program, kernel, config.for_kernel(kernel), target, lambda *step: later.append(step))
    after = [name for name, _ in later].index("along its axes")
    return work, [*stages, *((name, replace(at, kernel=k, extents=work.extents)) for name, k in later[after:])]


def _tiles(program: Program, config: TileConfig, target: Target, cases: list[Case]) -> Iterator[str]:
    history = History()
    tiles = tensorize(program, config, target, history)
    inputs = [arguments(program, tiles, c.inputs) for c in cases]
    for kernel in tiles.kernels:
        before: list[dict[str, np.ndarray]] = []
        for after, changed in history.steps:
            if not isinstance(changed, TileKernel) or changed.name != kernel.name:
                continue
            if found := verify_kernel(changed):
                yield f"{kernel.name}, {after}: {found[0]}"
                break
            whole = replace(tiles, kernels=tuple(changed if k is kernel else k for k in tiles.kernels))
            got = interpret.run_all(whole, inputs)
            if after in REGROUPS | LEAVES_OUT:
                yield from (f"{kernel.name}, {after}, {text}" for text in whole_tiles.violations(program, whole, cases))
                before = []
            for case, one, other in zip(cases, got, before, strict=False):
                yield from (f"{kernel.name}, {after}, {case.name}: {n} is not what it was" for n in one
                            if not _same(one[n], other[n]))
            before = got


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.all((a == b) | ((a != a) & (b != b))))
