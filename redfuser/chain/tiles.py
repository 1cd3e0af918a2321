"""A tile program held against its cascade in the interpreter, in float64 and in its own types, before anything is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from redfuser.acrf.check.domains import NUMPY, Array
from redfuser.chain.samples import Case, steps_moved, steps_taken
from redfuser.strategies.program import Program
from redfuser.tensorize.geometry import argument_name
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.nodes import TileProgram


def violations(program: Program, tiles: TileProgram, cases: list[Case]) -> Iterator[str]:
    """What is wrong with ``tiles``, the tile form of ``program``, on some case. In float64 it is asked
    with the roundings to few values where the program has them, and with none: what is wrong before a rounding shows there."""
    few, moved = steps_taken(program.fused), steps_moved(program.fused)

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return _typed(interpret.run(tiles, arguments(program, tiles, inputs)))

    def run_all(some: list[Case], wide: bool, steps: bool = True) -> Iterator[tuple[Case, dict[str, Array]]]:
        given = [arguments(program, tiles, c.inputs) for c in some]
        return zip(some, interpret.run_all(tiles, given, wide, steps) if given else (), strict=True)

    for steps in (*((True,) if not moved else ()), *((False,) if few else ())):
        for case, got in run_all([c for c in cases if c.wide], True, steps):
            if text := case.digits(got, steps):
                yield f"tile program in float64{'' if steps else ' without roundings'}, {case.name}: {text}"
    for case, got in run_all([c for c in cases if not c.exactly], False):
        if text := case.rule(_typed(got), run):
            yield f"tile program, {case.name}: {text}"


def arguments(program: Program, tiles: TileProgram, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs by the names of the tile program's arguments."""
    names = {argument_name(program, t.name): t.name for t in program.fused.cascade.inputs}
    return {a.name: inputs[names[a.name]] for a in tiles.args if a.role == "in"}


def _typed(results: Mapping[str, Array]) -> dict[str, Array]:
    """Integers as the program has them."""
    return {n: x.astype(NUMPY["i64"]) if x.dtype == np.int32 else x for n, x in results.items()}
