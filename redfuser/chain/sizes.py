"""Programs of many sizes held against their cascades: one program, at numbers of its symbols where sizes go wrong.

A program with symbols is merged from what it is at numbers that are no multiple of any tile, beyond the range. Here it is asked
at numbers of the range: the least, one tile and an element more, whole tiles, two and a half, and the greatest where that is
small."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from redfuser.acrf.check.unrounded import unrounded
from redfuser.chain import scalar, tiles, twin
from redfuser.chain.samples import batches, drawn
from redfuser.chain.smaller import smaller
from redfuser.fitted import samples
from redfuser.sizes import Binding, Symbol
from redfuser.strategies import cpu, realise
from redfuser.strategies.program import Program
from redfuser.strategies.realise import SEGMENT
from redfuser.strategies.symbols import at
from redfuser.target import Target
from redfuser.tensorize.config import TileConfig
from redfuser.tensorize.ir.nodes import TileProgram
from redfuser.tensorize.ir.symbols import bound
from redfuser.tensorize.tiles import tensorize_sizes

FEW = 3
"""Tiles up to which the end of a range is asked."""


def of_tiles(program: Program, symbols: tuple[Symbol, ...], config: TileConfig, target: Target) -> Iterator[str]:
    """What is wrong with the tile program that ``config`` gives of every size."""
    made: dict[Program, TileProgram] = {}
    for deep in (True, False):
        large = at(program, samples(symbols)[0])
        static = twin.of_tiles(large, config, deep)
        small = _small(program, static, config)
        if small not in made:
            made[small] = tensorize_sizes(small, symbols, config, twin.machine(static, large, config, target), to_run=False)
        places = {s.name: _places(s, *_tile(program, static, config, s.name), deep) for s in symbols}
        yield from violations(small, made[small], bindings(places), deep)


def of_scalar(program: Program, symbols: tuple[Symbol, ...], on_cpu: bool) -> Iterator[str]:
    """What is wrong with the scalar program of every size: without roundings, and where it runs as it is scheduled."""
    segment = program.segment or SEGMENT
    for deep in (True, *((False,) if on_cpu else ())):
        static = twin.of_scalar(at(program, samples(symbols)[0]), deep)
        config = TileConfig(rows=1, segment=segment)
        small = _small(program, static, config)
        if deep:
            small = replace(small, fused=unrounded(small.fused))
        places = {s.name: _places(s, *_tile(program, static, config, s.name), deep) for s in symbols}
        run = scalar.of_sizes(small, symbols, deep, cpu.LANES if on_cpu and not deep else 1)
        for binding in bindings(places):
            known = drawn(at(small, binding).fused, deep=True if deep else None)
            found = scalar.digits(run(binding), known) if deep else scalar.rules(run(binding), known)
            yield from (f"{_told(binding)}: {text}" for text in found)


def violations(small: Program, whole: TileProgram, asked: list[Binding], deep: bool | None) -> Iterator[str]:
    """What is wrong with ``whole``, the tile form of ``small``, at some binding."""
    for binding in asked:
        program = at(small, binding)
        for some in batches(program.fused, deep):
            yield from (f"{_told(binding)}: {text}" for text in tiles.violations(program, bound(whole, binding), some))


def _told(binding: Binding) -> str:
    return ", ".join(f"{s} = {n}" for s, n in binding.items())


def bindings(places: Mapping[str, Sequence[int]]) -> list[Binding]:
    """Each symbol at each of its places, beside others at others of theirs."""
    turns = max(map(len, places.values()))
    found = [{name: x[(turn * (k + 1) + k) % len(x)] for k, (name, x) in enumerate(places.items())} for turn in range(turns)]
    ends = [{name: x[0] for name, x in places.items()}]
    return [dict(b) for b in dict.fromkeys(tuple(b.items()) for b in (*ends, *found))]


def _places(s: Symbol, tile: int, length: int, deep: bool) -> list[int]:
    """Numbers of a symbol whose tiles are so large, and of which the twin has ``length``; those that are judged digit by digit
    are more, since there a wrong size has nowhere to hide."""
    wanted = [s.low, length, *((tile + 1, 2 * tile, *((s.high,) if s.high <= FEW * tile else ())) if deep else ())]
    return list(dict.fromkeys(min(s.high, max(s.low, n)) for n in wanted))


def _small(program: Program, static: Program, config: TileConfig) -> Program:
    """A program with symbols as small as its twin elsewhere."""
    extents = {a.name: int(a.extent) for a in static.axes}
    wanted = {a.name: extents[a.name] for a in program.fused.cascade.axes if isinstance(a.extent, int)}
    fused = smaller(program.fused, wanted, _tiles(program, static, config))
    return realise(fused, static.strategy, static.splits, program.segment)


def _tiles(program: Program, static: Program, config: TileConfig) -> dict[str, int]:
    """How long tiles are, by axis."""
    return {twin.axes_of(static, 1)[0] or "": config.rows, program.fused.cascade.raxis: config.segment}


def _tile(program: Program, static: Program, config: TileConfig, symbol: str) -> tuple[int, int]:
    """How large tiles along a symbol's axes are, and how long the longest of these is in the twin; points of the grid need not
    be more than two, since what is merged was never taken apart."""
    cascade = program.fused.cascade
    tiles = _tiles(program, static, config)
    extents = {a.name: int(a.extent) for a in static.axes}
    own = [a.name for a in cascade.axes if a.extent == symbol]
    return max(tiles.get(a, 1) for a in own), max(extents[a] if a in tiles else 2 for a in own)
