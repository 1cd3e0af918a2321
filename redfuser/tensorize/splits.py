"""How many blocks share a row: as few as the model of resources finds fastest."""

from __future__ import annotations

from redfuser.acrf.state import Fused
from redfuser.errors import LoweringError
from redfuser.strategies import realise
from redfuser.strategies.program import Program
from redfuser.target import Target
from redfuser.tensorize.configs import configs
from redfuser.tensorize.model import predicted
from redfuser.tensorize.tiles import tensorize


def shared_out(fused: Fused, most: int, target: Target) -> Program:
    """``fused`` in ``most`` splits, in half or in a quarter of them: ``most`` gives a multiprocessor the blocks that kernels
    without roles need to keep it busy, those with roles need one, and every split is a partial result more to merge."""
    tried: list[tuple[float, int, Program]] = []
    for splits in sorted({most, most // 2, most // 4}):
        if splits > 1:
            program = realise(fused, "multi", splits)
            try:
                best = configs(program, target)[0]
                seconds = predicted(tensorize(program, best, target), target)
            except LoweringError:
                continue
            if seconds is not None and (splits == most or best.schedule != "auto"):
                tried.append((seconds, splits, program))
    return min(tried, key=lambda x: x[:2])[2] if tried else realise(fused, "multi", most)


__all__ = ["shared_out"]
