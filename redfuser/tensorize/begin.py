"""The start of a kernel's lowering: its axes' roles, the sizes of its tiles, its blocks rewritten, its parameters."""

from __future__ import annotations

from redfuser.strategies.program import Kernel, Program
from redfuser.target import Target
from redfuser.tensorize.alive import alive
from redfuser.tensorize.arguments import static_extent
from redfuser.tensorize.axes import choose
from redfuser.tensorize.config import TileConfig
from redfuser.tensorize.params import declare_params
from redfuser.tensorize.precision import chooses_among_few, divides_by_hidden, stores_exponentials
from redfuser.tensorize.rearrange import rearrange
from redfuser.tensorize.rewrite import Setting, Watcher, rewritten
from redfuser.tensorize.rewrite.facts import learn
from redfuser.tensorize.rewrite.unit_interval import unit_values
from redfuser.tensorize.sizes import is_gemm, one_segment, tile_sizes, walked
from redfuser.tensorize.state import KernelState


def begin(program: Program, kernel: Kernel, config: TileConfig, target: Target,
          watch: Watcher | None = None) -> KernelState:
    """What the steps of one kernel's lowering share. Raises LoweringError RF485 to RF488 for a kernel without tiles."""
    work = KernelState(program, kernel, config, target)
    extents = {a.name: static_extent(a.extent, a.name) for a in program.axes}
    arranged = rearrange(kernel, extents)
    work.kernel, extents, work.stores, work.original_name = arranged.kernel, arranged.extents, arranged.stores, arranged.origin
    work.roles = choose(work.kernel, extents)
    work.extents = work.roles.extents
    work.resident = kernel.kind == "resident" or (kernel.kind == "single" and one_segment(work))
    work.has_gemm = any(is_gemm(work, b) for b in work.kernel.body)
    work.sizes = tile_sizes(work)
    n = work.roles.segment
    ragged = n is not None and walked(work, n) != work.extents[n]
    cascade = program.fused.cascade
    as_written = chooses_among_few(cascade) or divides_by_hidden(cascade)
    work.exact = as_written or stores_exponentials(cascade)
    at = Setting(work.roles, frozenset(work.stores), ragged, work.resident, as_written)
    work.kernel = rewritten(work.kernel, at, watch)
    work.facts = learn(work.kernel, at)
    work.alive, work.unit = alive(work.kernel, work.facts), unit_values(work.kernel, work.facts)
    work.declared = {t.name: t for t in (*work.kernel.reads, *work.kernel.writes)}
    declare_params(work)
    _name_points(work)
    return work


def _name_points(work: KernelState) -> None:
    """The loop variables of tiles, and the blocks of rows and columns."""
    taken = {*work.roles.grid, work.roles.rows, *(work.declared), "T"}
    work.point = {}
    used: set[str] = set()
    contracted = sorted({b.over for b in work.kernel.body if b.role == "producer" and b.over} - set(work.roles.tiled))
    for axes, names in (((work.roles.rows,), ("i", "r", "i_")), ((work.roles.segment,), ("j", "l", "j_")),
                        (work.roles.columns, ("d", "e", "d_", "e_")), (contracted, ("c", "c_", "cc"))):
        for axis in filter(None, axes):
            found = (n for n in names if n not in used and (n not in taken or n == work.roles.rows))
            work.point[axis] = next(found, f"{axis}_")
            used |= {work.point[axis]} if axis not in contracted else set()  # one contraction at a time
    work.counter = next(n for n in ("k", "step", "k_") if n not in taken)
    work.blocks = {f"{a}_block": count for a in (work.roles.rows, *work.roles.columns)
                   if (count := -(-work.extents[a] // work.sizes[a])) > 1}
    work.block_extents = {**work.extents, **work.blocks}
