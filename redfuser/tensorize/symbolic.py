"""Tile programs of many sizes: lowered at some of them, and merged."""

from __future__ import annotations

from redfuser.errors import LoweringError
from redfuser.sizes import Symbol
from redfuser.strategies.program import Program
from redfuser.strategies.symbols import at, one_of
from redfuser.target import Target
from redfuser.tensorize.config import TileConfig
from redfuser.tensorize.ir.nodes import TileProgram
from redfuser.tensorize.ir.symbols import bound, merge
from redfuser.tensorize.ir.verify import verify
from redfuser.tensorize.model import require_room
from redfuser.tensorize.tiles import tensorize


def tensorize_sizes(program: Program, symbols: tuple[Symbol, ...], config: TileConfig, target: Target,
                    to_run: bool = True) -> TileProgram:
    """The tile program of every size of ``symbols`` (none: as :func:`tensorize`). Whether a block has room is asked of one
    size, since tiles are those of every size.

    Raises LoweringError as that does, RF484 for a walk of listed steps, and RF492 where two sizes have programs that differ in
    more than numbers."""
    if not symbols:
        return tensorize(program, config, target, to_run=to_run)
    if config.persistent:
        raise LoweringError("RF499", f"{program.fused.cascade.name}: {config.schedule} asks for the number of tiles",
                            why="no more blocks are started than there are tiles, and a symbol says how many there are")
    if config.walk != "all":
        raise LoweringError("RF484", f"{program.fused.cascade.name}: no steps to list",
                            why="how many there may be is a number in the kernels that list and read them",
                            help="every step is made")
    whole = one_of(program.fused.cascade.name, symbols, lambda b: tensorize(at(program, b), config, target, to_run=False),
                   lambda programs, found: merge(programs, found, symbols))
    for kernel in bound(whole, {s.name: s.high for s in symbols}).kernels if to_run else ():
        require_room(kernel, target)
    if wrong := verify(whole):
        raise LoweringError("RF903", f"the tile program of {whole.name} is ill-formed", why=wrong[0],
                            help="this is a defect of RedFuser: please report the cascade that `explain` prints")
    return whole
