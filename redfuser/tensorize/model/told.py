"""Layouts that TileLang is told: beside products, of rows that threads have for themselves, of rows that a warp has, of lines
of rows that lie side by side.

A fragment that no product fixes TileLang lays out by the widest access to memory that it finds. That is the wrong one where
that access is none of the row's own (weights that all rows have), and where a row then spans warps that have to meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from redfuser.acrf.expr import BYTES, Index, Load, Op, walk
from redfuser.strategies.select import ABREAST, IN_TURN, LINE, OWN
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import Copy, Gemm, Parallel, ReduceTile, TileKernel
from redfuser.tensorize.model.alike import accesses, alike, along, met, of_products, run, vector_of


@dataclass(frozen=True, slots=True)
class Dealt:
    """Threads that have a row between them, ``across``: each a stretch of it, neighbours having neighbouring rows (``run`` is
    0); or ``run`` elements side by side, the next thread the next ones, and again from the first on. ``beside``: elements side
    by side are those of so many rows instead, the next thread has the next rows', and behind the last row come the next
    elements of all. ``lies``: rows run along the second dimension."""

    across: int
    run: int = 0
    beside: int = 0
    lies: bool = False


BESIDE = 4
"""Bytes of neighbouring rows that a thread has side by side, of the narrowest tensor: with more it holds more rows' values,
and their lanes exchange more (16 rows of features 10.2 us, with 8 bytes 11.3, with 16 12.4)."""
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
        found = _by_warps(kernel, {n: shape for n, shape in flat.items() if shape in reduced}, warp) or (
            _by_lines(kernel, reduced, upright, warp))
    return found or _of_one_deal(kernel, flat)


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
    3.95, 3.54 (3.79). Not rows that are made of what all rows have (distances of points: 36.0 for 32.3), nor such as ask at
    each element what all rows have there, which a thread asks once for elements of several (73.7, 60.1)."""
    shape = next(iter(flat.values()), (1, 1))
    if shape[0] == 1 or set(flat.values()) != {shape} or kernel.threads != warp * shape[0] or shape[1] % warp or (
            _side_by_side(kernel) or not _brought(kernel, set(flat)) or _asked(kernel)):
        return {}
    wide = run(kernel, list(flat), accesses(kernel))
    if shape[1] <= warp * wide:
        return {}  # one warp has them in any case
    while wide > 1 and shape[1] % (warp * wide):
        wide //= 2
    return dict.fromkeys(flat, Dealt(warp, wide))


def _by_lines(kernel: TileKernel, reduced: set[tuple[int, ...]], upright: dict[str, bool], warp: int) -> dict[str, Dealt]:
    """Rows that lie side by side in memory, of which a tile comes as it lies: a thread has a word of them, the next the next, a
    warp one element of all of them or several of some. TileLang has the widest access instead, so that a thread has eight rows
    of halves, or that of one element where a loop over the tile calls a function: 64 bytes a warp of 32 rows of halves. Not
    where a tile comes or goes along its rows (a softmax written so: 18.1, 52.3). More words where a thread would add too many
    elements in turn to a float32 result (32 of ties: off by 1.86e-6 where 1.09e-6 is allowed)."""
    tiles = {b.name: b.shape for b in kernel.buffers if b.scope == "fragment" and len(b.shape) == 2}
    lying = {n for n in tiles if not upright.get(n, True)}
    params = {p.name: p for p in kernel.params}
    copied = [(params[p], t) for s in every(kernel.body) if isinstance(s, Copy)
              for p, t in ((s.src.buffer, s.dst.buffer), (s.dst.buffer, s.src.buffer)) if p in params and t in tiles]
    rows, n = next(iter(reduced), (1, 1))
    if not copied or {t for _, t in copied} - lying or len(reduced) != 1 or any(
            shape != ((n, rows) if t in lying else (rows, n)) for t, shape in tiles.items()):
        return {}
    most = min(rows, *(vector_of(p) for p, _ in copied))
    wide = min(most, max(1, BESIDE // min(BYTES[p.dtype] for p, _ in copied)))
    singly = any(p.out and p.dtype == "f32" for p in kernel.params)
    while singly and wide < most and n * (rows // wide) // kernel.threads > IN_TURN:
        wide *= 2
    lanes = rows // wide
    if rows % wide or lanes & (lanes - 1) or not lanes <= warp < kernel.threads or (
            kernel.threads % lanes or n * lanes % kernel.threads):
        return {}
    return {t: Dealt(kernel.threads // lanes, 0, wide, t in lying) for t in tiles}


def _of_one_deal(kernel: TileKernel, flat: Mapping[str, tuple[int, ...]]) -> dict[str, Dealt]:
    """Tiles whose rows' values a loop brings together, and which TileLang would lay out each by its own accesses, as many
    elements wide as these have bytes (a maximum of halves where a count of int64 says so): it finds no layout for what is
    between them."""
    if not all(isinstance(k, int) for shape in (*flat.values(), *(p.shape for p in kernel.params)) for k in shape):
        return {}
    home = {b.name: b.name for b in kernel.buffers if b.scope == "fragment"}

    def root(n: str) -> str:
        while home[n] != n:
            n = home[n]
        return n

    groups: dict[str, list[str]] = {}
    _, of_a_tile = alike(kernel)
    for n in flat:
        groups.setdefault(of_a_tile(n), []).append(n)
    for group in met(kernel, home) if len(groups) > 1 else ():
        for n in group[1:]:
            home[root(n)] = root(group[0])
    if len({root(g) for g in groups}) == len(groups):
        return {}
    touched = accesses(kernel)
    wide = {g: run(kernel, names, touched) for g, names in groups.items()}
    found: dict[str, Dealt] = {}
    for at in {root(g) for g in groups}:
        mine = [g for g in groups if root(g) == at]
        across, rest = divmod(kernel.threads, flat[groups[mine[0]][0]][0])
        if len({(wide[g], flat[groups[g][0]]) for g in mine}) > 1 and across and not rest:
            for n in (n for g in mine for n in groups[g]):
                side = max(wide[g] for g in mine)
                while side > 1 and flat[n][1] % (across * side):
                    side //= 2
                if flat[n][1] % (across * side) == 0:
                    found[n] = Dealt(across, side)
    return found


def by_lines(kernel: TileKernel) -> bool:
    """Do threads share rows that lie side by side (:func:`_by_lines`)?"""
    return any(d.beside for d in told(kernel).values())


def _read(kernel: TileKernel) -> list[tuple[tuple[str, ...], Load]]:
    """What loops over tiles read."""
    return [(s.vars, x) for s in every(kernel.body) if isinstance(s, Parallel) and len(s.vars) == 2
            for a in s.body for x in walk(a.expr) if isinstance(x, Load) and x.indices]


def _brought(kernel: TileKernel, tiles: set[str]) -> bool:
    """Are elements of rows in memory?"""
    params = {p.name for p in kernel.params}
    return any(isinstance(s, Copy) and s.src.buffer in params and s.dst.buffer in tiles for s in every(kernel.body)) or any(
        x.tensor in params and {i, j} <= along(x) for (i, j), x in _read(kernel))


def _asked(kernel: TileKernel) -> bool:
    """Does a condition read along a row what all rows have?"""
    params = {p.name for p in kernel.params}
    asked = (y for s in every(kernel.body) if isinstance(s, Parallel) and len(s.vars) == 2 for a in s.body for x in walk(a.expr)
             if isinstance(x, Op) and x.name == "select" for y in walk(x.args[0])
             if isinstance(y, Load) and y.tensor in params and s.vars[1] in along(y) and s.vars[0] not in along(y))
    return next(asked, None) is not None


def _side_by_side(kernel: TileKernel) -> bool:
    """Do rows lie side by side, in memory or in a tile that lies across? What a row has one of says nothing of that."""
    return any(i in (at := along(x.indices[-1])) and j not in at and any(j in along(k) for k in x.indices[:-1])
               for (i, j), x in _read(kernel))


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


