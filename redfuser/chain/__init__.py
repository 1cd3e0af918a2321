"""The chain of checks below the state: nothing is built that was not held against what the program means.

The certificate's checker ends at the state. Here its realisations are held, each by something that did not make it, against
the cascade itself: the scalar program through LLVM (:func:`scalar_program`), the tile program in the interpreter
(:func:`tile_program`), both on a small twin of the kernel (:mod:`redfuser.chain.twin`), on the inputs of
:mod:`redfuser.chain.draws`, judged by :mod:`redfuser.chain.judge`. Verdicts are remembered (:mod:`redfuser.verdicts`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from redfuser.acrf.check.unrounded import unrounded
from redfuser.cache import Cache
from redfuser.chain import scalar, sizes, steps, tiles, twin
from redfuser.chain.samples import batches, cases, drawn
from redfuser.errors import LoweringError
from redfuser.sizes import Symbol
from redfuser.strategies import cpu
from redfuser.strategies.program import Program
from redfuser.target import Target
from redfuser.tensorize import TileConfig, tensorize
from redfuser.tensorize.ir.nodes import TileProgram
from redfuser.verdicts import Verdict, remember

JUDGES = ("redfuser.acrf.check", "redfuser.acrf.expr", "redfuser.acrf.once", "redfuser.acrf.index", "redfuser.acrf.fold",
          "redfuser.acrf.affine", "redfuser.acrf.cascade", "redfuser.acrf.state", "redfuser.acrf.steps",
          "redfuser.acrf.functions", "redfuser.acrf.repeated",
          "redfuser.acrf.unfolded", "redfuser.acrf.facts.algebra", "redfuser.strategies",
          "redfuser.tensorize", "redfuser.chain", "redfuser.artifact", "redfuser.bounded", "redfuser.cache",
          "redfuser.dtypes", "redfuser.elf", "redfuser.errors", "redfuser.outline", "redfuser.rule", "redfuser.settings",
          "redfuser.sizes", "redfuser.fitted",
          "redfuser.strict", "redfuser.target", "redfuser.tvm_compat", "redfuser.two_tvms", "redfuser.unseen",
          "redfuser.verdicts")
"""The packages and modules whose sources a verdict depends on: all that the chain and what it runs import (a test compares
them). The deriver is none of them."""
ENOUGH = 3
"""Violations after which a check stops."""


def scalar_program(program: Program, on_cpu: bool, store: Cache | None = None, symbols: tuple[Symbol, ...] = ()) -> Verdict:
    """Is the scalar program what the cascade says? on_cpu: it is what runs, so it is also checked as scheduled, in its own
    types. symbols: of its extents, if it has some. Raises LoweringError where LLVM does not get such a program (8-bit
    floats)."""
    def ask() -> tuple[str, ...]:
        return _first(sizes.of_scalar(program, symbols, on_cpu) if symbols else _scalar(program, on_cpu))

    about: tuple[object, ...] = (program.fused, program.strategy, program.splits, program.segment or 0, on_cpu)
    about += (symbols,) if symbols else ()
    return remember("scalar program", about, JUDGES, ask, store if store is not None else Cache())


def tile_program(program: Program, config: TileConfig, target: Target, store: Cache | None = None,
                 symbols: tuple[Symbol, ...] = ()) -> Verdict:
    """Is the tile program that ``config`` gives what the cascade says? Raises LoweringError where a twin has no tile form."""
    def ask() -> tuple[str, ...]:
        return _first(sizes.of_tiles(program, symbols, config, target) if symbols else _tiles(program, config, target))

    about: tuple[object, ...] = (program.fused, program.strategy, program.splits, config, target)
    about += (symbols,) if symbols else ()
    return remember("tile program", about, JUDGES, ask, store if store is not None else Cache())


def tile_passes(program: Program, config: TileConfig, target: Target) -> tuple[str, ...]:
    """What is wrong with single passes over the tiles that ``config`` gives (``REDFUSER_VERIFY=strict``)."""
    small = twin.of_tiles(program, config, deep=False)
    return _first(steps.violations(small, config, twin.machine(small, program, config, target), cases(small.fused)))


def _scalar(program: Program, on_cpu: bool) -> Iterator[str]:
    small = exact_twin(program)
    yield from scalar.inexact(small, drawn(small.fused, deep=True))
    if on_cpu:
        small = twin.of_scalar(program, deep=False)
        yield from scalar.violations(small, drawn(small.fused), cpu.LANES)


def exact_twin(program: Program) -> Program:
    """The twin that is compared in float64, where no rounding moved."""
    small = twin.of_scalar(program, deep=True)
    return replace(small, fused=unrounded(small.fused))


def _tiles(program: Program, config: TileConfig, target: Target) -> Iterator[str]:
    made: dict[Program, TileProgram] = {}  # a small kernel is both of its twins
    for deep in (True, False):
        small = twin.of_tiles(program, config, deep)
        if small not in made:
            made[small] = tensorize(small, config, twin.machine(small, program, config, target), to_run=False)
        for some in batches(small.fused, deep):
            yield from tiles.violations(small, made[small], some)


def _first(violations: Iterator[str]) -> tuple[str, ...]:
    """The first few. A program that cannot even be run is a violation, whatever it raises; a refusal is the caller's."""
    found: list[str] = []
    try:
        found += (v for v, _ in zip(violations, range(ENOUGH), strict=False))
    except LoweringError:
        raise
    except Exception as error:
        found.append(f"it does not run: {type(error).__name__}: {error}")
    return tuple(found)


__all__ = ["JUDGES", "LoweringError", "exact_twin", "scalar_program", "tile_passes", "tile_program"]
