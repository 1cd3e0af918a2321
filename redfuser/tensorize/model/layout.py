"""How a block's threads share the elements of a fragment, as TileLang deals them out.

A matrix product fixes the layout of what it accumulates: its warps form a grid over rows and columns, and in a warp four
threads hold a row between them, so that a warp holds 8 rows at once, a wave of 64 holds 16.
What no product fixes is dealt out in runs of one vector access. Fragments that a
``parallel`` uses at the same point share one layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from redfuser.acrf.expr import BYTES, Index, Load, Op, walk
from redfuser.strategies.select import ABREAST, OWN
from redfuser.target import Target
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import Copy, Gemm, Parallel, ReduceTile, Roles, ScanTile, TileKernel
from redfuser.tensorize.ir.parts import Param, Slice


@dataclass(frozen=True, slots=True)
class Layout:
    """Threads that hold a row between them (``across``), the rows of one thread, and whether a product fixed it.
    ``far``: a row spans warps, so that reducing it goes through shared memory. ``apart``: threads of a warp have rows of their
    own."""

    across: int
    rows: int
    far: bool
    fixed: bool = False
    apart: bool = False


def matrix_warps(g: Gemm, m: int, n: int, threads: int, target: Target) -> tuple[int, int]:
    """The grid of warps over an accumulator of m x n, rows by columns."""
    return next(_grids(g, m, n, threads, target), (1, max(1, threads // target.warp)))


def uneven(kernel: TileKernel, target: Target) -> str:
    """A product that the warps cannot share: each takes 16 rows and 8 columns, or some of these; or a tile beside one for which
    there is no layout (:func:`led`). Empty where there is neither."""
    if target.kind == "cuda" and kernel.warp_specialized and (beside := _beside(kernel)):
        return f"a layout for {', '.join(sorted(beside))} beside a product"
    shapes = {b.name: b.shape for b in kernel.buffers if b.scope == "fragment"}
    for s in every(kernel.body):
        if isinstance(s, Gemm) and not s.flies and len(shape := shapes.get(s.c, ())) == 2 and next(
                _grids(s, shape[0], shape[1], kernel.threads, target), None) is None:
            return f"a way to share {shape[0]} x {shape[1]} of a product among {kernel.threads // target.warp} warps"
    return ""


def _grids(g: Gemm, m: int, n: int, threads: int, target: Target) -> Iterator[tuple[int, int]]:
    warps = threads // target.warp
    group = 4 if warp_group(g, m, threads, target) else 1
    for rows in _by_policy(g, warps, m, n):
        columns = warps // rows
        if warps % rows == 0 and rows % group == 0 and m % (16 * rows) == 0 and n % (target.warp // 4 * columns) == 0:
            yield rows, columns


def _by_policy(g: Gemm, warps: int, m: int, n: int) -> list[int]:
    """Warps over the rows, those tried first in front."""
    ways = [r for r in range(1, warps + 1) if warps % r == 0]
    if g.policy == "square":
        return sorted(ways, key=lambda r: abs((m / (16 * r)) / (n / (8 * warps / r)) - m / n))
    return ways if g.policy == "cols" else ways[::-1]


def crews(kernel: TileKernel) -> dict[int, int]:
    """Threads that a statement of a role has, by its identity: those of the role's groups. Any other has the block's."""
    return {id(s): 128 * r.groups for k in kernel.body if isinstance(k, Roles) for r in k.roles for s in every(r.body)}


def warp_group(g: Gemm, m: int, threads: int, target: Target) -> bool:
    """A product of four warps at once."""
    return target.wgmma and m >= 64 and threads % 128 == 0


def layouts(kernel: TileKernel, target: Target) -> dict[str, Layout]:
    """The layout of every fragment of two dimensions."""
    shapes, root = _alike(kernel)
    fixed: dict[str, Layout] = {}
    crew = crews(kernel)
    for s in every(kernel.body):
        if isinstance(s, Gemm) and s.c in shapes:
            m, n = shapes[s.c]
            rows, columns = matrix_warps(s, m, n, crew.get(id(s), kernel.threads), target)
            fixed.setdefault(root(s.c), Layout(4 * columns, max(1, m // (target.warp // 4 * rows)), columns > 1, True))
    for s in every(kernel.body):  # a product lays a left operand of registers out as its sum
        if isinstance(s, Gemm) and {a := s.a.buffer, s.c} <= set(shapes):
            (rows, _), (m, n) = shapes[a], shapes[s.c]
            down = target.warp // 4 * matrix_warps(s, m, n, kernel.threads, target)[0]
            fixed.setdefault(root(a), Layout(4, max(1, rows // down), False, True))
    for n in led(kernel) if target.kind == "cuda" else ():
        fixed.setdefault(root(n), Layout(4, 2, False, True))
    for s in every(kernel.body):
        if isinstance(s, ReduceTile) and s.lanes and root(s.src) in fixed:
            fixed.setdefault(root(s.dst), fixed[root(s.src)])
    found: dict[str, Layout] = {}
    own, touched = alone(kernel), None
    for n, shape in shapes.items():
        if (at := root(n)) in fixed:
            found[n] = fixed[at]
        elif n in own:
            found[n] = Layout(own[n], 1, own[n] > 1, apart=True)
        else:
            touched = touched if touched is not None else _accesses(kernel)
            found[n] = _dealt(kernel, shape, [k for k in shapes if root(k) == at], touched, target.warp)
    turned = {n: at for n, at in found.items() if not at.apart}
    return found | {n: _turned(kernel, n, shapes, at, found, target.warp) for n, at in turned.items()}


def _alike(kernel: TileKernel) -> tuple[dict[str, tuple[int, ...]], Callable[[str], str]]:
    """Fragments of two dimensions, and which of those that share a layout stands for them."""
    shapes: dict[str, tuple[int, ...]] = {
        b.name: b.shape for b in kernel.buffers if b.scope == "fragment" and len(b.shape) == 2}
    home = {n: n for n in shapes}

    def root(n: str) -> str:
        while home[n] != n:
            n = home[n]
        return n

    for group in _together(kernel, shapes):
        for n in group[1:]:
            home[root(n)] = root(group[0])
    return shapes, root


def of_products(kernel: TileKernel) -> set[str]:
    """Fragments of two dimensions that lie as a product's operand or sum does."""
    shapes, root = _alike(kernel)
    fixed = {root(n) for s in every(kernel.body) if isinstance(s, Gemm) for n in (s.c, s.a.buffer) if n in shapes}
    return {n for n in shapes if root(n) in fixed}


def led(kernel: TileKernel) -> set[str]:
    """Fragments whose layout TileLang is told: that of a product's sum. They are reduced along their rows beside products of as
    many rows, 16 a warp, and nothing but their rows' values ties them to what a product reads or adds to (squares of a row,
    summed for its norm, beside the normalised row): TileLang finds no layout for both. None where warps of its own copy, which
    are in front of those that compute: a layout that it is told begins at the first thread of all."""
    return set() if kernel.warp_specialized else _beside(kernel)


def _beside(kernel: TileKernel) -> set[str]:
    shapes = {b.name: b.shape for b in kernel.buffers if b.scope == "fragment"}
    products = [s for s in every(kernel.body) if isinstance(s, Gemm)]
    rows = {shapes[s.c][0] for s in products if len(shapes.get(s.c, ())) == 2}
    if not products or any(s.policy != "rows" for s in products) or rows != {kernel.threads // 2}:
        return set()
    flat = {n: shape for n, shape in shapes.items() if len(shape) == 2}
    return {s.src for s in every(kernel.body) if isinstance(s, ReduceTile) and s.src in flat and
            {flat[s.src][0]} == rows and flat[s.src][1] % 8 == 0} - of_products(kernel)


def _turned(kernel: TileKernel, name: str, shapes: dict[str, tuple[int, ...]], own: Layout, found: dict[str, Layout],
            warp: int) -> Layout:
    """The layout of a fragment whose group takes its elements from a fragment that lies the other way round."""
    for s in every(kernel.body):
        if isinstance(s, Parallel) and len(s.vars) == 2 and not own.fixed and name in {a.target for a in s.body}:
            back = tuple(Index(v) for v in s.vars[::-1])
            for x in (x for a in s.body for x in walk(a.expr) if isinstance(x, Load) and x.indices == back):
                if x.tensor in shapes:  # its columns are this one's rows: a thread has those that it has of a row there
                    side = min(kernel.threads, found[x.tensor].across)
                    across = min(kernel.threads // side, shapes[x.tensor][0])
                    return Layout(across, max(1, shapes[name][0] // side), across > 1 and kernel.threads > warp)
    return own


def alone(kernel: TileKernel) -> dict[str, int]:
    """Fragments of whose rows neighbouring threads have neighbours, which TileLang is told, and how many threads have one
    between them, in stretches: 1 where there are as many rows as threads, :data:`ABREAST` where a quarter as many are reduced.
    Their rows are then those of the values of a row. None that lies the other way round: its columns are the rows."""
    if any(isinstance(s, Gemm) for s in every(kernel.body)):
        return {}
    rows = {b.shape for b in kernel.buffers if b.scope == "fragment" and len(b.shape) == 1}
    reduced = {kernel.homes[s.src].shape for s in every(kernel.body) if isinstance(s, ReduceTile)}
    upright = _upright(kernel)
    found: dict[str, int] = {}
    for b in kernel.buffers:
        if b.scope != "fragment" or len(b.shape) != 2 or b.shape[:1] not in rows or not upright.get(b.name, True):
            continue
        if b.shape[0] == kernel.threads:
            found[b.name] = 1
        elif b.shape[0] == OWN and kernel.threads == ABREAST * OWN and b.shape[1] % ABREAST == 0 and b.shape in reduced:
            found[b.name] = ABREAST
    return found


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


def _dealt(kernel: TileKernel, shape: tuple[int, ...], group: list[str], touched: list[_Access], warp: int) -> Layout:
    """Runs of the widest vector that an access to global memory allows, while every thread gets one. touched: every access."""
    dtypes, mine = kernel.dtypes, set(group)
    most = 16 // max(BYTES[dtypes[n]] for n in group)  # where rows are not aligned, what the fragments allow
    vector = max((wide or most for names, widths in touched if names & mine for wide in widths), default=4)
    total = prod(shape)
    while vector > 1 and total % (kernel.threads * vector):
        vector //= 2
    across = min(kernel.threads, max(1, shape[1] // vector))
    return Layout(across, max(1, shape[0] * across // kernel.threads), across > warp)


_Access = tuple[set[str], list[int]]


def _accesses(kernel: TileKernel) -> list[_Access]:
    """The fragments that a statement brings from global memory or computes, and the elements of each access to memory for them;
    0: as many as the fragments allow."""
    params, found = {p.name: p for p in kernel.params}, []
    for s in every(kernel.body):
        if isinstance(s, Copy):
            names = {s.src.buffer, s.dst.buffer}
            found.append((names, [wide if (wide := 16 // BYTES[params[n].dtype]) == _vector(params[n]) else 0
                                  for n in names & set(params)]))
        elif isinstance(s, Parallel) and len(s.vars) == 2:
            widths = []
            for a in s.body:
                guarded = any(isinstance(x, Op) and x.name == "select" and s.vars[1] in _names(x.args[0]) and
                              any(isinstance(y, Load) and y.tensor in params for y in walk(x)) for x in walk(a.expr))
                widths += [1 if guarded else _vector(params[x.tensor]) for x in walk(a.expr)
                           if isinstance(x, Load) and x.tensor in params and any(s.vars[1] in _names(i) for i in x.indices)]
            found.append(({a.target for a in s.body}, widths))
    return found


def _vector(p: Param) -> int:
    """The most elements in 16 bytes at once that every row of a tensor can be read by."""
    vector = 16 // BYTES[p.dtype]
    while vector > 1 and len(p.shape) > 1 and p.shape[-1] % vector:
        vector //= 2
    return vector


def _names(e: object) -> set[str]:
    return {x.axis for x in walk(e) if isinstance(x, Index)}  # type: ignore[arg-type]


def _together(kernel: TileKernel, shapes: dict[str, tuple[int, ...]]) -> list[list[str]]:
    """Fragments used at one point of a loop, or copied whole."""
    found = []
    for s in every(kernel.body):
        if isinstance(s, Copy) and {s.src.buffer, s.dst.buffer} <= set(shapes) and whole(s.src) and whole(s.dst):
            found.append([s.src.buffer, s.dst.buffer])
        elif isinstance(s, Parallel):
            at = tuple(Index(v) for v in s.vars)
            group = [a.target for a in s.body if a.indices == at]
            group += [x.tensor for a in s.body for x in walk(a.expr) if isinstance(x, Load) and x.indices == at]
            found.append([n for n in dict.fromkeys(group) if n in shapes])
    return [g for g in found if g]


def whole(s: Slice) -> bool:
    return not s.dims


def warps_meet(kernel: TileKernel, target: Target) -> bool:
    """Are there several warps to a row of a scan, which tell each other what they come to?"""
    rows = {b.name: b.shape[0] for b in kernel.buffers if b.scope == "shared"}
    return any(isinstance(s, ScanTile) and kernel.threads > rows[s.src] * target.warp for s in every(kernel.body))


def far_reductions(kernel: TileKernel, target: Target) -> dict[int, int]:
    """By the identity of a reduction: bytes of shared memory that its rows meet in, where they span warps. TileLang keeps that
    room where threads that exchange are more than 32 apart, as in a wave's product: for a wave's threads, and once more for
    its waves unless they carry on where the threads end, each with one instruction's columns and no other rows between them."""
    spread, dtypes, crew = layouts(kernel, target), kernel.dtypes, crews(kernel)
    shapes = {b.name: b.shape for b in kernel.buffers}

    def times(at: Layout, columns: int) -> int:
        inside = target.warp > 32 and (at.fixed or (at.across > 32 and not at.far))
        return inside + (at.far and not (inside and (columns, kernel.threads) == (4 * at.across, target.warp // 4 * at.across)))

    return {id(s): many * crew.get(id(s), kernel.threads) * BYTES[dtypes[s.dst]]
            for s in every(kernel.body) if isinstance(s, ReduceTile)
            and (at := spread.get(s.src)) is not None and (many := times(at, shapes[s.src][1]))}
