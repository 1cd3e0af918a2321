"""A segment program as tiles: every kernel begun, taken through the passes over its mathematics, lowered, and taken through
those over tiles. With symbolic sizes at some of them, and merged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, reduce

from redfuser.errors import LoweringError
from redfuser.sizes import Symbol
from redfuser.strategies.program import Kernel, Program
from redfuser.strategies.symbols import at, one_of
from redfuser.target import Target
from redfuser.tensorize.by_thread import by_block, by_thread, joined, revisited
from redfuser.tensorize.config import TileConfig
from redfuser.tensorize.geometry import Geometry, argument_name, begin, tensors
from redfuser.tensorize.ir.nodes import Roles, TensorArg, TileKernel, TileProgram
from redfuser.tensorize.ir.symbols import bound, merge
from redfuser.tensorize.ir.verify import verify
from redfuser.tensorize.lower import lower_kernel
from redfuser.tensorize.model import require_room
from redfuser.tensorize.needed import Tiles, asking, shorter
from redfuser.tensorize.schedule import Pass, passes, scheduled
from redfuser.tensorize.summary import summary

REMEMBERED = 256
"""Tile programs that are kept: what chooses among ways, among splits and among configurations asks for the same ones."""

Watcher = Callable[[str, Kernel | TileKernel], None]
"""Told of each pass that changed something: its name, and the kernel after it."""


def tensorize(program: Program, config: TileConfig, target: Target, watch: Watcher | None = None,
              to_run: bool = True) -> TileProgram:
    """The tile program of ``program`` under ``config`` on ``target``; every kernel of it in order. watch: told of each pass
    that changed a kernel. to_run: a block of it must have room on the target.

    Raises LoweringError RF484 to RF494 for what has no tile form, with the statement it is about, and RF903 for a program
    that is ill-formed."""
    return (_remembered if watch is None else _made)(program, config, target, watch, to_run)


def _made(program: Program, config: TileConfig, target: Target, watch: Watcher | None, to_run: bool) -> TileProgram:
    kernels, roundings, scratch = [], [], []  # type: list[TileKernel], list[str], list[TensorArg]
    together = by_thread(program, config)
    for kernel in program.kernels:
        own = config.for_kernel(kernel)
        at = begin(program, by_block(kernel) if together else kernel, own, target, watch)
        tiles, added = lower_kernel(at)
        through = passes(own.schedule, target)
        if own.walk == "listed" and kernel is program.kernels[0]:
            before, through, scratch = _listed(at, tiles, through)
            kernels += [scheduled(k, passes("auto", target), watch) for k in before]
        if own.walk == "needed" and kernel is program.kernels[0]:
            first, asked = _needed(at, tiles)
            kernels += [scheduled(first, through, watch), scheduled(asked.kernel(), passes("auto", target), watch)]
            tiles, through, scratch = replace(tiles, name=f"{tiles.name}_again"), (*through, asked.only()), asked.scratch
        kernels.append(scheduled(tiles, through, watch))
        roundings += added
    if together:
        between = {argument_name(program, t.name) for t in program.workspaces}
        name, (split, merge, *again) = program.fused.cascade.name, kernels
        kernels = [reduce(lambda k, a: revisited(k, a, between, name), again, joined(split, merge, name))]
    for made in kernels if to_run else ():
        require_room(made, target)
    if config.schedule != "auto" and not _with_roles(kernels):
        raise LoweringError("RF499", f"{kernels[0].name}: the schedule {config.schedule} asks for warp groups with roles",
                            why="its products and copies are not those of whole warp groups, or another kernel of it needs "
                            "barriers that TileLang places, which are off for all of them")
    args = tuple(TensorArg(argument_name(program, t.name), t.dtype, tuple(map(int, t.shape)), role)  # type: ignore[arg-type]
                 for t, role in tensors(program) if not (together and role == "workspace"))
    args += tuple(scratch)
    outputs = tuple((n, argument_name(program, n)) for n in program.fused.cascade.outputs)
    whole = TileProgram(program.fused.cascade.name, args, tuple(kernels), outputs, tuple(dict.fromkeys(roundings)),
                        tuple(sorted(config.to_json().items(), key=lambda kv: kv[0])))
    return _well_formed(whole)


_remembered = lru_cache(maxsize=REMEMBERED)(_made)


def _listed(at: Geometry, tiles: TileKernel, through: tuple[Pass, ...]) -> tuple[
        list[TileKernel], tuple[Pass, ...], list[TensorArg]]:
    """The kernels that list the steps of one, its passes with the one that makes it walk them, and what they write. Raises
    LoweringError RF484 where nothing can."""
    found = summary(at, tiles)
    why = found if isinstance(found, str) else "its walk is not one loop, or writes results" if found[1](tiles) is tiles else ""
    if isinstance(found, str) or why:
        raise LoweringError("RF484", f"{tiles.name}: no steps to list", why=why, help="every step is made")
    made, walk = found
    scratch = [TensorArg(p.name, p.dtype, p.shape, "workspace") for p in made.scratch]
    return [made.bounding(), made.listing()], (walk, *through), scratch


def _needed(at: Geometry, tiles: TileKernel) -> tuple[TileKernel, Tiles]:
    """The kernel that walks the steps that positions leave, of one that walks all of them, and what asks where those were not
    enough. Raises LoweringError RF484 where nothing can."""
    found = asking(at.program)
    shortened = shorter(begin(found[0], found[0].kernels[0], at.config, at.target)) if isinstance(found, tuple) else found
    if isinstance(found, str) or isinstance(shortened, str):
        raise LoweringError("RF484", f"{tiles.name}: no steps to leave to the rows that need them",
                            why=found if isinstance(found, str) else str(shortened), help="every step is made")
    first, _ = lower_kernel(shortened)
    (program, name) = found
    taken = {n for t, _ in tensors(program) for n in (t.name, argument_name(program, t.name))}
    taken |= {*(b.name for b in tiles.buffers), *(v for v, _ in tiles.grid), *(v for v, _ in tiles.lets), *at.roles.grid, "T"}
    return first, Tiles(shortened, name, shortened.params[name], shortened.stores[name][1], frozenset(taken))


def _with_roles(kernels: list[TileKernel]) -> bool:
    """Has one roles, and the others nothing in shared memory?"""
    others = [k for k in kernels if not any(isinstance(s, Roles) for s in k.body)]
    return len(others) < len(kernels) and not any(b.scope == "shared" for k in others for b in k.buffers)


def _well_formed(whole: TileProgram) -> TileProgram:
    if wrong := verify(whole):
        raise LoweringError("RF903", f"the tile program of {whole.name} is ill-formed", why=wrong[0],
                            help="this is a defect of RedFuser: please report the cascade that `explain` prints")
    return whole


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
    return _well_formed(whole)
