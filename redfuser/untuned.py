"""What is taken without a measurement: the strategy and splits that the models choose, as a segment program."""

from __future__ import annotations

from typing import Any

from redfuser.acrf.state import Fused, NotFusable
from redfuser.errors import LoweringError
from redfuser.sizes import Symbol
from redfuser.strategies import alone, columns, cpu_segment, realise, select
from redfuser.strategies.symbols import usual
from redfuser.target import target

SPILLED = 128
"""Bytes of a thread's registers in memory, beyond which the next configuration is tried: an eighth of what a thread has."""


def untuned(fused: Fused, arch: str, symbols: tuple[Symbol, ...] = ()) -> tuple[Any, Any]:
    """(strategy, segment program) that the models choose for ``fused``."""
    chosen, program = _modelled(fused, arch, symbols)
    if chosen == "multi" and arch != "cpu" and not symbols:
        from redfuser.tensorize.splits import whole_steps

        program = whole_steps(program, target(arch))
    return chosen, program


def _modelled(fused: Fused, arch: str, symbols: tuple[Symbol, ...]) -> tuple[Any, Any]:
    chosen: Any
    chosen, parts = select(usual(fused, symbols), arch)
    extent = fused.cascade.extent(fused.cascade.raxis)
    if chosen == "resident" and not isinstance(extent, int):
        chosen = "single"  # what is held on chip has the size of a number
    if arch != "cpu" and not symbols and (rows := alone(fused)):
        from redfuser.tensorize.walks import quickest

        program = quickest(fused, rows, realise(fused, chosen, parts), target(arch))
        return program.strategy, program
    if chosen in ("single", "multi") and arch != "cpu" and not symbols:
        from redfuser.tensorize.splits import by_tiles, shared_out, too_deep

        if too_deep(fused):
            program = by_tiles(fused, chosen, parts, target(arch))
            return program.strategy, program
        if chosen == "multi" and columns(fused):
            from redfuser.tensorize.walks import faster

            program = faster([realise(fused, "multi", parts), realise(fused, "single")], target(arch))
            return program.strategy, program
        if chosen == "multi":
            return chosen, shared_out(fused, parts, target(arch))
    return chosen, asked_for(fused, arch, chosen, parts)


def holds(fused: Fused, arch: str) -> bool:
    """Does one block hold a row of ``fused``? What has to be reduced of the whole row is reduced there; a GPU's blocks would
    read a longer one again, as few of them as there are rows, a CPU reads it again as fast as by itself."""
    extent = fused.cascade.extent(fused.cascade.raxis)
    return isinstance(extent, int) and (arch == "cpu" or select(fused, arch)[0] == "resident")


def abreast(fused: Fused) -> bool:
    """Are rows of a CPU's function for ``fused`` lanes of it, for what it multiplies?"""
    from redfuser.strategies.cpu import LANES
    from redfuser.strategies.tir_rows import side_by_side

    try:
        program = untuned(fused, "cpu")[1]
        return any(side_by_side(program, k, LANES) is not None for k in program.kernels)
    except LoweringError:
        return False


def priced(fused: Fused, arch: str) -> float | NotFusable:
    """Modelled seconds of what the models choose for ``fused`` on a GPU; or why it gets no kernel."""
    from redfuser.tensorize.configs import configs
    from redfuser.tensorize.model import predicted
    from redfuser.tensorize.tiles import tensorize

    try:
        program, on = untuned(fused, arch)[1], target(arch)
        found = predicted(tensorize(program, configs(program, on)[0], on), on)
    except LoweringError as error:
        return NotFusable(error.code, "", error.what, error.why or error.what, error.help)
    return found if found is not None else NotFusable("RF410", "", "a block of it has room on the target", "", "")


def asked_for(fused: Fused, arch: str, strategy: Any, splits: int) -> Any:
    """The segment program of a strategy; only one in splits has these."""
    segment = cpu_segment(fused, strategy) if arch == "cpu" else None
    return realise(fused, strategy, splits if strategy == "multi" else 1, segment)
