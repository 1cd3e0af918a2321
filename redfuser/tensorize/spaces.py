"""Tilings that are legal, from extents alone, the usual first: of products that a row is walked through, of lists, of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, log

from redfuser.outline import BESIDE, HELD, MANY, SHORT
from redfuser.strategies.select import ABREAST, FEW, IN_TURN, LINE, LONG, OWN, STEP
from redfuser.target import Target
from redfuser.tensorize.config import Schedule, TileConfig
from redfuser.tensorize.sizes import beside_product, round_up

FEWEST, USUAL, MOST = 8, 28, 64
"""Elements of a row on chip that a thread has."""
LEAST, CROWD = 64, 1 << 14
"""Threads of a block of short rows (a multiprocessor has 32 blocks at most, and with a warp each it is half full), and rows
from which they share blocks. Of a row that leaves a lane of a warp no more than two elements it is 1024 rows: softmax of 2048,
4096, 8192 and 12288 rows of 64 bfloat16 numbers 5.7, 7.6, 9.8, 12.7 us with a warp to each on an H200, beside one another 5.0,
5.6, 5.6, 6.6 (torch.compile 4.8, 7.8, 6.9, 7.6); rows of 96 to 200 take as long either way."""
ALONE = 768
"""Elements of a row on chip from which a block that has one comes first within what the model tells apart, of as many rows as
blocks that run at once: by twos there would be half as many warps. A softmax of 2048 rows of 1024 takes 5.27 us by twos and
4.95, 4096 rows of 768 that are scaled and rounded 5.9 and 5.2; a softmax of 8192 rows of 768 8.6 and 8.8
(docs/results/h100-2026-11-25-rows-and-decode)."""
WARPED = 512
"""Elements of a row on chip up to which a warp by itself is the better (``model/told.py``); of 768 and 1024 nothing is."""
SIDE, UNEVEN = 32, 96
"""Elements of a row that a thread has for itself, and of rows that are not shared evenly by a warp's width, at most."""
LARGEST = 1024
"""Threads of a block, at most."""
THREE = 192
"""Rows of three warp groups."""
_WAYS: tuple[Schedule, ...] = ("persistent", "overlap", "persistent-lanes", "overlap-lanes")
ASKED = 1024
"""Keys from which a few rows are worth roles: one group that computes, and copies that run ahead of it. Most of its 64 rows are
nobody's, which costs nothing where memory is what bounds. One H200, in graphs, 32 heads on 8 of 128, beside a read of the same
bytes: 64 x 4096 keys .239 ms for .286 (.236), 8 x 32768 in four .242 for .259 (.235), 1 x 32768 in 33 .0443 for .0452."""
CROWDED = 8
"""Blocks of a multiprocessor from which they are not: three blocks of sixteen rows share it, and there are enough for all.
One query each of 2048 heads, 1024, 2048 and 4096 keys of 128, what cuDNN takes of ours beside it in the same call: 1.007,
1.005 and 1.010 in one, 1.007, 1.007 and 1.010 in another; with roles .962, .987 and .994. Of 512 blocks roles win (above);
between the two nothing was measured."""
NARROW = 64 << 10
"""Bytes of shared memory in which 64 rows of 512 columns leave no room for keys."""


def column_tiles(widths: list[int]) -> list[int]:
    """Tiles of the column axes: 0, all of each, or less where they are more than a block holds."""
    if sum(widths) <= HELD:
        return [0]
    tiles = dict.fromkeys(round_up(ceil(max(widths) / k), 64) for k in range(2, 17))
    return [t for t in tiles if held(widths, t) <= HELD] or [64]


def held(widths: list[int], tile: int) -> int:
    """Columns of a block."""
    return sum(min(e, tile or e) for e in widths)


def walk_space(target: Target, rows: int, n: int, columns: int, several: bool = False, blocks: int = 1) -> list[TileConfig]:
    """Rows whose ``n`` elements are walked in segments, with accumulated products of ``columns``. several: of more weights than
    one, each of which has registers of its own. blocks: that few rows are in all."""
    out: list[TileConfig] = []
    if rows <= 16:
        threads = 128 if round_up(columns, 16) % 32 == 0 else 64  # each warp takes eight columns, or some of these
        out += [TileConfig(16, s, threads, stages, "shared", False) for s in (64, 128) for stages in (2, 3)]
        if target.tma and target.wgmma and n >= ASKED and columns <= 128 and blocks < CROWDED * target.sms:
            out += [TileConfig(64, s, 128, 2, "registers", True, schedule="overlap") for s in (128, 64)]
    for m in (64, 128):
        for s in (64, 128, 80, 32):
            for stages in (2, 1):
                if s > max(32, n):
                    continue
                out += [TileConfig(m, s, t * m, stages, "registers", False) for t in ((2, 4) if target.warp > 32 else (2,))]
                if target.tma and m >= 128 and rows > 16:  # a group that copies is not worth a tile that few rows waste
                    out.append(TileConfig(m, s, 2 * m, stages, "registers", True))
    if target.tma and target.wgmma and n >= 128:
        segment = 128 if columns <= 128 else 32 if several else 64
        out = [TileConfig(m, segment, 2 * m, 2, "registers", True, schedule=way) for m in (128, THREE)
                if rows >= m and columns <= (64 if m == THREE else 256) for way in _WAYS] + out
    if columns > 256:  # an accumulator this wide is shared by two warp groups, column by column
        out = [TileConfig(64, s, 256, stages, "shared", ws) for s in (64, 32) for stages in (2, 1)
               for ws in ((True, False) if target.tma else (False,))]
        if target.tma and target.wgmma and n > 64:
            out = [TileConfig(64, 64, 256, 2, "shared", True, schedule="relay"), *out]
    if columns > 256 and target.shared_bytes <= NARROW:  # rows and keys as they are wide, a few of each
        out += [TileConfig(m, s, t, 1, "shared", False) for m, s, t in ((32, 32, 256), (16, 32, 128), (16, 16, 64))]
    if target.kind == "hip":  # nothing is pipelined
        out = list(dict.fromkeys(replace(c, stages=0) for c in out))
    return out


WIDE = 256
"""Scores of a row up to which a warp holds 16 rows with ease, beside what looks for the best of them."""


def selection_space(n: int, depth: int, target: Target) -> list[TileConfig]:
    """A row of scores held whole in registers while its best are picked."""
    width = max(16, -(-n // 16) * 16)
    out = []
    for m, threads, weights in ((16, 128, "shared"), (32, 64, "registers"), (64, 128, "registers")):
        if weights == "shared" and width < 64:
            continue
        for stages in (3, 2):
            shared = 2 * stages * 64 * (m + width)
            if m * width / threads <= 128 and shared <= target.shared_bytes and threads >= target.warp:
                out.append(TileConfig(m, width, threads, stages, weights, False, chunk=64 if depth > 64 else 0))  # type: ignore[arg-type]
    return out if any(c.weights == "registers" for c in out) else [*out, *wide_space(n, target)]


def wide_space(n: int, target: Target) -> list[TileConfig]:
    """A row of scores that a warp's registers do not hold with ease: by four warps side by side, by two, or by one all the
    same. Of four TileLang 0.1.15 reduces the columns at 12 of 23 widths from 256 to 960 (else RF452), of two at all of 16, of
    eight at none of 20."""
    usual = TileConfig(16, n, 4 * target.warp, 2, "shared", False, chunk=64)
    ways = (usual, replace(usual, threads=2 * target.warp),
            replace(usual, rows=64, threads=8 * target.warp, weights="registers"),
            replace(usual, threads=target.warp, weights="registers"))
    return [replace(c, segment=beside_product(n, c)) for c in ways]


def short_space(rows: int, width: int) -> list[TileConfig]:
    """Many rows shorter than half a warp: as many side by side as give each of a block's threads a few elements. Padded to a
    warp's width most of its lanes would have none."""
    most = 1 << (rows - 1).bit_length()
    shapes = {(min(each * t // width, most), t): None for t in (LEAST, 2 * LEAST, 32) for each in (4, 8, 16)}
    return [TileConfig(r, width, t, 0, "registers", False) for r, t in shapes if r * width >= t or t == 32]


def beside_space(rows: int, width: int, written: bool) -> list[TileConfig]:
    """Many rows side by side: a block of one is gone before the next has started. Each thread has 16 elements, or 32 where
    nothing of a row is written, and so reads of several rows at once. One H200, 29 MB of float16 numbers, graphs, us, of 8, 16
    and 32 elements a thread: softmax of 72 32.0, 19.7, 20.1, of 128 15.3, 14.7, 15.4, layer norm of 72 32.6, 25.1, 25.1, of 128
    16.0, 15.3, 15.3, sums of squares of 72 16.2, 8.8, 5.9, of 128 9.7, 5.5, 4.9, of 144 16.2, 8.7, 5.9. Where the rows' axis
    is short (8 heads of 32) a block has fewer threads, not threads fewer elements: 64 80.9, 128 87.3 of 131072 x 8 scores of
    gathered rows."""
    most, each = 1 << (rows - 1).bit_length(), (16, 32, 8) if written else (32, 16, 8)
    shapes = {(min(e * t // width, most), t): None for t in (2 * LEAST, LEAST) for e in each
              if most * width >= FEWEST * t or t == LEAST}
    return [TileConfig(r, width, t, 0, "registers", False) for r, t in shapes]


def across_space(rows: int, n: int, padded: int, places: bool, singly: bool, turned: bool = False,
                 weighed: bool = False) -> list[TileConfig]:
    """Rows on chip whose elements lie apart while they lie side by side. A few elements are a thread's own: what threads share
    is reduced column by column, and a tile of more than there is is reduced as well. One H200, CUDA graphs, us, a tile of 32
    rows and 128 threads against a row for each: softmax of 21 classes of 8 x 256 x 256 pixels in float16 and its largest
    137, 7.2 (torch.compile 101), softmax of 8 x 21 x 128 x 128 5.0, 3.2, of 8 x 8 x 256 x 256 in float32 11.4, 6.1; but of
    8 x 64 x 128 x 128 17.7, 18.9. An uneven row is not padded either: 150 classes 63.8, two threads each 27.9. places: are
    places looked for, which takes three reductions? turned: are results written along the rows? Half as many rows are then a
    line, and no more than a thread may add in turn: softmax of 16 x 128 x 128 x 32 numbers, the third axis' written last, 19.8,
    of 32 rows 31.9, torch.compile 33.2. weighed: is what is reduced weighed by what all rows have? Its vectors would have
    TileLang deal out elements of a row side by side, and whole lines of rows to nobody: a delta rule step (1024 states of
    64 x 64) takes 34.3 so, 13.0 where the layout is told (``OWN`` rows, ``ABREAST`` threads each); of what has no weights as
    many rows are no faster (8.2 and 8.6, 7.8 and 8.5). Of longer ones a warp's width, and threads for ``MOST`` elements
    each: statistics of the steps that a mask shows, of 512 channels in float16, 256 steps 20.0 (``OWN`` rows 23.1, twice read
    26.7, torch.compile 26.7), 512 49.6 (61.7, 63.1), 1024 102.8 (141.7, 107.9). More threads than 256 where
    nothing less holds a row: moments of 1024 columns of 1024 4.9 by 16 rows, 18.4 by 32 and 512 threads (torch.compile 30).
    singly: is a float32 result a sum in float32? Longer rows are not added in turn then: 75 of 300 elements at a time were five
    last digits off where the rule allows two and a half."""
    own = [TileConfig(t, n, t, 0, "registers", False) for t in (128, 64) if rows >= t]
    if own and n <= (2 * SIDE if places else SIDE):
        return own
    turn = 2 * IN_TURN if singly else UNEVEN
    if weighed and rows >= OWN and n % ABREAST == 0 and n <= turn * ABREAST:
        return [TileConfig(OWN, n, ABREAST * OWN, 0, "registers", False)]
    if weighed and rows >= LINE:
        between = 1 << max(0, (ceil(n / min(turn, MOST)) - 1)).bit_length()
        if between * LINE <= LARGEST:
            return [TileConfig(LINE, n if n % between == 0 else padded, between * LINE, 0, "registers", False)]
    even = [[(32, 128), (32, 256)], [(16, 128), (16, 256)], [(32, 512)], [(8, 256)]]
    if turned or (rows % 32 and not rows % 16):
        even[:2] = even[1::-1]

    def held(width: int, shapes: Sequence[tuple[int, int]], most: int) -> list[TileConfig]:
        return [TileConfig(r, width, t, 0, "registers", False) for r, t in shapes
                if r < 2 * rows and r * width % t == 0 and 4 <= r * width / t <= most]  # twice the rows: a tile is half as high

    ways = (*(held(n, s, MOST) for s in even), held(n, ((64, 128), (64, 256)), turn), own if n <= turn else [],
            *(held(padded, s, MOST) for s in even))
    return next(filter(None, ways), [])


def _dividing(n: int, grain: int) -> int:
    """The largest multiple of ``grain`` that divides ``n`` and is no more than a block asks for at once; 0 if there is none."""
    return next((s for s in range(LONG // grain * grain, 0, -grain) if n % s == 0), 0)


def row_space(resident: bool, rows: int, n: int, neighbours: bool, all_rows: int, at_once: int = 0, warp: int = 32,
              written: bool = True, places: bool = False, singly: bool = False, turned: bool = False,
              weighed: bool = False) -> list[TileConfig]:
    """Rows held on chip, or walked, the usual first. all_rows: with those of the grid's other axes. at_once: blocks
    that the target runs at once, warp: its lanes. written: is a row written too? neighbours: a block takes
    whole lines of memory, 32 rows or more where it has room for them, and few elements of each at once. A row on chip that is
    no power of two long is shared evenly by a block's threads, four elements at a time, or alone; TileLang has no layout for
    others, or gives each thread whole rows."""
    if neighbours and not resident and FEW <= rows <= 16:
        together = 1 << (rows - 1).bit_length()
        return [TileConfig(together, s // together, 128, 0, "registers", False) for s in (LINE * STEP, LINE * STEP // 2)]
    if neighbours and rows > 16 and not resident:
        shapes = [(32, n, 32)] if rows <= 32 and n <= UNEVEN else []
        shapes += [(32, max(8, min(n, 64)), 128), (64, 32, 128), (32, 32, 128)]
        return [TileConfig(r, s, t, 0, "registers", False) for r, s, t in shapes]
    padded = 1 << max(5, (n - 1).bit_length())
    if neighbours and rows >= 16 and (held := across_space(rows, n, padded, places, singly, turned, weighed)):
        return held
    if n <= min(SHORT, warp // 2) and all_rows >= MANY:
        return short_space(rows, 1 << max(2, (n - 1).bit_length()))
    if padded <= BESIDE and all_rows >= (MANY if padded <= 2 * warp else CROWD):
        return beside_space(rows, padded, written)
    if not resident:
        wide = min(LONG, padded)
        usual = [(1, min(wide, LONG // 2), 128), (1, wide, 256), (1, min(wide, 1024), 128), (4, min(wide, 256), 128)]
        whole = [(1, s, t) for s, t in ((_dividing(n, 4 * t), t) for t in (128, 256)) if s >= LONG // 4 and n % (LONG // 2)]
        return [TileConfig(r, s, t, 0, "registers", False) for r, s, t in (*whole, *usual)]
    out = []
    for width in dict.fromkeys((n, padded)):
        even = [(r, t) for t in (64, 128, 256, 512) for r in (1, 2, 4) if width == padded or width % (4 * t) == 0]
        even = [(1, warp), *even] if even and width < padded and width % (4 * warp) == 0 else even
        alone = [(r, t) for t in (32, 64, 128, 256, 512) for r in (1, 2, 4) if width % (4 * t if r > 1 else t) == 0]
        for shapes in (even, alone):
            out = [TileConfig(r, width, t, 0, "registers", False) for r, t in shapes
                   if FEWEST <= r * width / t <= MOST and r <= max(1, rows)]
            if out:
                break
        if out:
            break
    first = all_rows <= at_once
    meet = n <= WARPED and all_rows > at_once
    out.sort(key=lambda c: (meet and not (c.rows > 1 and c.threads == warp * c.rows),
                            first and c.rows > 1 and c.segment >= ALONE, abs(log(c.rows * c.segment / c.threads / USUAL))))
    whole = n if n % (4 * 1024) == 0 and n > 32 * 1024 else padded
    return [*out, TileConfig(1, whole, min(1024, max(32, padded // 32)), 0, "registers", False)]
