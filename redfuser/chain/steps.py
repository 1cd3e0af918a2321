"""Each pass over tiles held against the tiles before it, in the interpreter and to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from redfuser.chain.samples import Case
from redfuser.chain.tiles import arguments
from redfuser.strategies.program import Program
from redfuser.target import Target
from redfuser.tensorize import TileConfig, tensorize
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.verify import verify_kernel
from redfuser.tensorize.schedule.history import History


def violations(program: Program, config: TileConfig, target: Target, cases: list[Case]) -> Iterator[str]:
    """What a pass changed on some case, or left ill-formed."""
    history = History()
    tiles = tensorize(program, config, target, history)
    inputs = [arguments(program, tiles, c.inputs) for c in cases]
    for kernel in tiles.kernels:
        before: list[dict[str, np.ndarray]] = []
        for after, changed in (step for step in history.steps if step[1].name == kernel.name):
            if found := verify_kernel(changed):
                yield f"{kernel.name}, {after}: {found[0]}"
                break
            whole = replace(tiles, kernels=tuple(changed if k is kernel else k for k in tiles.kernels))
            got = interpret.run_all(whole, inputs)
            for case, one, other in zip(cases, got, before, strict=False):
                yield from (f"{kernel.name}, {after}, {case.name}: {n} is not what it was" for n in one
                            if not _same(one[n], other[n]))
            before = got


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.all((a == b) | ((a != a) & (b != b))))
