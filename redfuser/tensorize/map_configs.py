"""Tiles of a kernel that reduces nothing: every thread has whole vectors of neighbours, and there are blocks for all of the
device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import gcd, prod

from redfuser.acrf.expr import BYTES, FLOATS, Expr, Index, Load, Op, children, indices_of, walk
from redfuser.acrf.functions import TABLE
from redfuser.strategies.program import Kernel
from redfuser.strategies.select import OWN
from redfuser.target import Target
from redfuser.tensorize.axes import Roles
from redfuser.tensorize.config import TileConfig

VECTOR = 16
"""Bytes that a thread reads or writes at once, at most."""
LINE = 64
"""Bytes of neighbours below which a row of a tile is not worth having for itself."""
SQUARE = 32
"""Rows and elements of a tile of which some tensor has neighbouring rows next to each other; twice as many of halves. One H200,
us, 4096 x 4096, of 32 for 128 threads, of 64 for 128, for 256 (torch.compile): float32 37.7, 40.1, 37.0 (41.4), bfloat16 30.7,
28.7, 27.0 (25.2), with another operand 36.1, 34.8, 40.2 (34.7), to 8 bits 23.3, 19.9, 20.3 (29.8)."""
BLOCKS = 4
"""Blocks per multiprocessor that smaller tiles are made for."""
FEW = 8
"""Rows, or elements of one, up to which such a tile has all of them: the colours of a picture whose pixels lie side by
side. Each thread has eight elements: 32 x 512 x 512 pixels of three float32 colours as three pictures and back 53.7 and
53.7 us on an H200 (torch.compile 61.0 and 52.6); of 128 pixels for 128 threads 5050, which was not looked into."""
ODD = range(7, 33)
"""Elements of a row that no vector divides, of which a tile has as many rows as it has threads. One H200, us, padded to a power
of two, and so, torch.compile: float32 maps of 262144 rows of 9 4.8, 3.7, 3.7, of 131072 of 15 4.0, 3.5, 3.3, of 65536 of
27 4.0, 3.6, 3.3; float16 of 262144 of 7 4.3, 3.7, 4.1; running sums of 524288 of 8, and a 0 before them, 26.2, 16.6, 19.1. But
of 524288 of 5 4.8, 6.1, 5.3, and of 1605632 of 3 7.8, 16.3, 7.8. 128 rows for as many threads take 159 (of 9) and 1376 (the
sums), which was not looked into."""
IDLE = 1.25
"""Times as many lanes and rows as have work, at most, where a tile is of whole rows."""
ASKED = 32
"""Bytes that a thread asks for at once, about. On an H200, 8192x4096 and 8192x14336 in bfloat16: half of it to twice as much
are within 2 %."""
MANY = 64
"""Bytes that an element is made of, beyond which a thread has one: a filter of 25 taps written out over 16 x 256 x 256 float32
numbers takes 35.8 us on an H200 so, of two 37.3, of four 44.0, of sixteen 53.7."""
LONG = frozenset({"tanh", "erf", "pow", "sin", "cos", "exp", "log", "log2", "erfc", "lgamma", "atan2"})
"""Functions that are many instructions: four vectors a thread give it something to do meanwhile (one H200, a tanh GELU of
8192x4096: .0387 ms, two .0415, one .0448)."""


APART = 4
"""Elements of a thread in a kernel with functions that branch, whose text is written out for each of them. One H200, us: 4096
rows of 2000 with three logarithms of gamma functions, 16 elements a thread 191, 8 122, 4 101 (torch.compile 109); a map with an
arc tangent and a remainder of 1M numbers 10.6, 7.6, 6.8, of two 6.4 (5.3); rows of 20000 with an erfc in 8 parts 20.7, 15.9,
13.8 (11.8)."""


def map_configs(kernel: Kernel, roles: Roles, target: Target) -> list[TileConfig]:
    """Configurations of a kernel of maps alone; where the model of resources sees no difference, the first is the best."""
    n, rows = roles.extents[roles.segment or ""], roles.extents[roles.rows]
    loads = {x for b in kernel.tail for e in b.exprs for x in walk(e) if isinstance(x, Load) and x.indices}
    narrow = min((BYTES[t.dtype] for t in (*kernel.reads, *kernel.writes)), default=2)
    vector = max(1, VECTOR // max(2, narrow))
    if any(x.indices[-1] == Index(roles.rows) and roles.segment in indices_of(x) for x in loads):
        if min(rows, n) <= FEW:
            few = 1 << (min(rows, n) - 1).bit_length()
            sides = [(few, 8 * t // few, t) for t in (128, 64)]
            return [TileConfig(*(s if rows <= n else (s[1], s[0], s[2])), 0, "registers", False) for s in sides]
        side = SQUARE if narrow > 2 or min(n, rows) <= SQUARE else 2 * SQUARE
        return [TileConfig(side, side, t, 0, "registers", False) for t in (128, 256)]
    full = {x for x in loads if roles.segment in indices_of(x)}
    asked = max(1, _bytes(full))
    elements = prod(roles.extents[a] for a in roles.grid) * rows * n
    found: list[TileConfig] = []
    shared = any(len(x.indices) == 1 for x in full) and rows > 1
    long = shared or any(isinstance(x, Op) and x.name in LONG for b in kernel.tail for e in b.exprs for x in walk(e))
    most = 4 * vector if long else max(vector, min(4 * vector, ASKED // asked // vector * vector))
    if branches(kernel):
        most = vector
    if asked > MANY and _bytes(full & frozenset().union(*(_read(e) for b in kernel.tail for e in b.exprs))) > MANY:
        most = vector = 1
    for each in dict.fromkeys((most, vector)):
        for threads in (256, 128, 64, 32):
            if elements // (each * threads) >= BLOCKS * target.sms or (each == vector and threads <= 128):
                found.append(_tile(rows, n, narrow, each, threads, target.warp))
    padded = [c for c in found if n % c.segment]
    if any(c.threads % target.warp == 0 for c in found if c not in padded):  # which share rows as evenly with no idle lanes
        found = [c for c in found if c in padded or c.threads % target.warp == 0]
    return list(dict.fromkeys(found))


def _read(e: Expr) -> frozenset[Load]:
    """What lies in memory and an element is made of: of a choice, the side that reads more. (Twenty-six tables joined to one
    row are 104 bytes of float32 numbers, and each element is one of them.)"""
    if isinstance(e, Load):
        return frozenset({e})
    if isinstance(e, Op) and e.name == "select":
        condition, *sides = map(_read, e.args)
        return condition | max(sides, key=_bytes)
    return frozenset().union(*map(_read, children(e)))


def _bytes(loads: Iterable[Load]) -> int:
    return sum(BYTES[x.dtype] for x in loads)


def branches(kernel: Kernel) -> bool:
    """Are there functions in it that take different ways for different numbers?"""
    ops = {x for b in (*kernel.body, *kernel.tail) for e in b.exprs for x in walk(e) if isinstance(x, Op)}
    return any(TABLE[x.name].branches if x.name in TABLE else x.name == "mod" and x.dtype in FLOATS for x in ops)


def spread_out(c: TileConfig, walked: bool) -> TileConfig:
    """The configuration with no more elements of a thread than one that branches is to have (:data:`APART`)."""
    most = 256 if walked else 512
    threads = c.threads
    while threads < most and c.rows * c.segment > APART * threads:
        threads *= 2
    return replace(c, threads=threads, segment=min(c.segment, APART * threads // c.rows) if walked else c.segment)


def _tile(rows: int, n: int, narrow: int, each: int, threads: int, warp: int) -> TileConfig:
    """Tiles of ``each`` elements a thread: of the longest stretch of a row that the row is a multiple of, where that is worth
    it; else of whole rows, or whole parts of one, that threads share evenly (:func:`_even`); else of its power of two, beyond
    whose end TileLang asks of every element whether it is there. And of as many rows as that leaves."""
    tile = each * threads
    across = gcd(n, tile)
    if across * narrow < LINE and across < n:
        vector = gcd(n, VECTOR // max(2, narrow), each)
        if vector == 1 and n in ODD and rows >= OWN:
            return TileConfig(OWN, n, OWN, 0, "registers", False)
        if rows > 1 < vector and (even := _even(rows, n, vector, each, threads, warp)) is not None:
            return even
        across = min(tile, 1 << (n - 1).bit_length())
    down = min(tile // across, 1 << (rows - 1).bit_length())
    return TileConfig(down, across, max(32, min(threads, down * across)), 0, "registers", False)


def _even(rows: int, n: int, vector: int, each: int, threads: int, warp: int) -> TileConfig | None:
    """Rows of ``n`` elements, no power of two, of which each thread has ``each`` or fewer, in accesses to ``vector`` of them,
    within which no row ends: rows of 144 halves are 18 accesses, and 16 of them are shared by 288 threads. None where no
    number of threads up to twice ``threads`` does that with few idle lanes and rows beyond the end. Best are whole warps, then
    two accesses a thread or one. (A pool of 3 x 3 with steps of 2 over 8 x 64 x 112 x 112 halves: 12.6 us by 448 threads, 13.9
    by 224, 20.7 by 63, which the model of resources puts first; torch.compile 15.3.)

    One H200, graphs, us, a map with four numbers of each channel, 29 MB of float16 numbers in rows of 144: 16 rows for 288
    threads 18.3, for 96 22.3; 64 x 48 for 128 19.8, 64 x 16 22.8, 8 rows padded to 256 166 (torch.compile 15.2)."""
    row, found = n // vector, []
    for t in range(warp, min(2 * threads, 512) + 1):
        for k in range(1, each // vector + 1):
            down, part = (t * k // row, n) if t * k % row == 0 else (1, t * k * vector) if row % (t * k) == 0 else (0, 0)
            idle = -(-t // warp) * warp / t * (-(-rows // down) * down / rows if down else 2.0)
            if idle <= IDLE:
                cost = round(idle * (1.1 if k > 2 else 1.0), 2)
                found.append(((t % warp > 0, cost, -t * k, t), TileConfig(down, part, t, 0, "registers", False)))
    return min(found, key=lambda f: f[0])[1] if found else None
