"""Layouts that TileLang is told: beside products, of rows that threads have for themselves, of rows that a warp has.

A fragment that no product fixes TileLang lays out by the widest access to memory that it finds. That is the wrong one where
that access is none of the row's own (weights that all rows have), and where a row then spans warps that have to meet.
"""

from __future__ import annotations

from dataclasses import dataclass

from redfuser.acrf.expr import Index, Load, walk
from redfuser.strategies.select import ABREAST, LINE, OWN
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import Gemm, Parallel, ReduceTile, TileKernel
from redfuser.tensorize.model.alike import accesses, along, of_products, run


@dataclass(frozen=True, slots=True)
class Dealt:
    """Threads that have a row between them, ``across``: each a stretch of it, neighbours having neighbouring rows (``run`` is
    0); or ``run`` elements side by side, the next thread the next ones, and again from the first on."""

    across: int
    run: int = 0


WARP = 32
"""Threads of a warp of CUDA's."""


def told(kernel: TileKernel, warp: int = WARP) -> dict[str, Dealt]:
    """Fragments of rows that nothing multiplies. warp: of the target, 0 where it is told nothing of warps."""
    if any(isinstance(s, Gemm) for s in every(kernel.body)):
        return {}
    rows = {b.shape for b in kernel.buffers if b.scope == "fragment" and len(b.shape) == 1}
    reduced = {kernel.homes[s.src].shape for s in every(kernel.body) if isinstance(s, ReduceTile)}
    upright = _upright(kernel)
    flat = {b.name: b.shape for b in kernel.buffers if b.scope == "fragment" and len(b.shape) == 2
            and b.shape[:1] in rows and upright.get(b.name, True)}
    found = {n: Dealt(across) for n, shape in flat.items() if (across := _stretches(kernel, shape, shape in reduced))}
    if not found and warp:
        found = _by_warps(kernel, {n: shape for n, shape in flat.items() if shape in reduced}, warp)
    return found


def _stretches(kernel: TileKernel, shape: tuple[int, ...], reduced: bool) -> int:
    """Threads that have a row between them: 1 where there are as many rows as threads; of as many as a warp or two has, which
    are reduced, :data:`ABREAST`, or as many as there are where a loop reads along the row what all rows have. 0: TileLang's."""
    across, rest = divmod(kernel.threads, shape[0])
    if shape[0] == kernel.threads:
        return 1
    side = (across == ABREAST and shape[0] == OWN) or (across > 1 and shape[0] >= LINE and _weighed(kernel))
    return across if side and not rest and shape[1] % across == 0 and reduced else 0


def _by_warps(kernel: TileKernel, flat: dict[str, tuple[int, ...]], warp: int) -> dict[str, Dealt]:
    """Rows in memory of which each warp has one, to reduce it by itself: a thread has as many elements side by side as one
    access brings, and its neighbour the next, from the first thread on again. TileLang gives all threads some of a row before
    it gives one more, so that several warps have a row and meet. One H200, graphs, us, float32: two weighted sums of 65536 rows
    of 256 30.2, so 23.1 (torch.compile 26.7), softmax of 16384 of 200 6.7, 5.5 (5.6); a norm of 8192 of 512 bfloat16 numbers
    3.95, 3.54 (3.79)."""
    shape = next(iter(flat.values()), (1, 1))
    if shape[0] == 1 or set(flat.values()) != {shape} or kernel.threads != warp * shape[0] or shape[1] % warp or (
            _side_by_side(kernel)):
        return {}
    wide = run(kernel, list(flat), accesses(kernel))
    if shape[1] <= warp * wide:
        return {}  # one warp has them in any case
    while wide > 1 and shape[1] % (warp * wide):
        wide //= 2
    return dict.fromkeys(flat, Dealt(warp, wide))


def _read(kernel: TileKernel) -> list[tuple[tuple[str, ...], Load]]:
    """What loops over tiles read."""
    return [(s.vars, x) for s in every(kernel.body) if isinstance(s, Parallel) and len(s.vars) == 2
            for a in s.body for x in walk(a.expr) if isinstance(x, Load) and x.indices]


def _side_by_side(kernel: TileKernel) -> bool:
    """Do rows lie side by side, in memory or in a tile that lies across?"""
    return any(i in (at := along(x.indices[-1])) and j not in at for (i, j), x in _read(kernel) if len(x.indices) > 1)


def _weighed(kernel: TileKernel) -> bool:
    """Do rows lie side by side, and is along them read what all of these have?"""
    params = {p.name for p in kernel.params}
    return _side_by_side(kernel) and any(
        j in (at := along(x)) and i not in at for (i, j), x in _read(kernel) if x.tensor in params)


def _upright(kernel: TileKernel) -> dict[str, bool]:
    """Do the rows of a fragment run along its first dimension, as those of what is reduced do? Of those that no loop has to do
    with these, nothing is known."""
    found = {s.src: True for s in every(kernel.body) if isinstance(s, ReduceTile)}
    loops: list[dict[str, bool]] = []
    for s in every(kernel.body):
        if isinstance(s, Parallel) and len(s.vars) == 2:
            here = tuple(map(Index, s.vars))
            used = [(a.target, a.indices) for a in s.body]
            used += [(x.tensor, x.indices) for a in s.body for x in walk(a.expr) if isinstance(x, Load)]
            loops.append({n: at == here for n, at in used if at in (here, here[::-1])})
    while True:
        known = len(found)
        for loop in loops:
            if (first := next((n for n in loop if n in found), None)) is not None:
                for n, way in loop.items():
                    found.setdefault(n, found[first] == (way == loop[first]))
        if len(found) == known:
            return found


def led(kernel: TileKernel) -> set[str]:
    """Fragments whose layout TileLang is told: that of a product's sum. They are reduced along their rows beside products of as
    many rows, 16 a warp, and nothing but their rows' values ties them to what a product reads or adds to (squares of a row,
    summed for its norm, beside the normalised row): TileLang finds no layout for both. None where warps of its own copy, which
    are in front of those that compute: a layout that it is told begins at the first thread of all."""
    return set() if kernel.warp_specialized else beside(kernel)


def beside(kernel: TileKernel) -> set[str]:
    shapes = {b.name: b.shape for b in kernel.buffers if b.scope == "fragment"}
    products = [s for s in every(kernel.body) if isinstance(s, Gemm)]
    rows = {shapes[s.c][0] for s in products if len(shapes.get(s.c, ())) == 2}
    if not products or any(s.policy != "rows" for s in products) or rows != {kernel.threads // 2}:
        return set()
    flat = {n: shape for n, shape in shapes.items() if len(shape) == 2}
    return {s.src for s in every(kernel.body) if isinstance(s, ReduceTile) and s.src in flat and
            {flat[s.src][0]} == rows and flat[s.src][1] % 8 == 0} - of_products(kernel)


