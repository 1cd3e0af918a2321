"""One model of resources: what a tile kernel takes on a target, and how long, read off its own buffers and statements.

    needs(kernel, target)      shared memory (exact), threads, registers (estimated) of a block
    fits(kernel, target)       whether a block has room; lacks() says what is missing, require_room() raises RF410
    time_of(kernel, target)    the terms of a roofline, in seconds; predicted() of a whole program
    sketched(sketch, config, target)    the same of a tiling of products that nobody has lowered yet
    uneven(kernel, target)     a product that a block's warps cannot share, which no compiler takes

``layout`` says how threads share a fragment, ``steps`` in which order a pipelined loop touches buffers, ``shared`` how
TileLang lays them out and what that comes to; ``pressure`` counts what ``registers`` turns into an estimate; ``work``
counts what a block does (``sketch`` from extents alone), and ``roofline`` divides by what the target can.
"""

from redfuser.tensorize.model.layout import uneven
from redfuser.tensorize.model.operations import operations
from redfuser.tensorize.model.registers import registers
from redfuser.tensorize.model.roofline import Time, predicted, time_of
from redfuser.tensorize.model.room import Needs, fits, lacks, needs, require_room, resident
from redfuser.tensorize.model.shared import shared_bytes
from redfuser.tensorize.model.sketch import Sketch, sketched

__all__ = ["Needs", "Sketch", "Time", "fits", "lacks", "needs", "operations", "predicted", "registers", "require_room",
           "resident", "shared_bytes", "sketched", "time_of", "uneven"]
