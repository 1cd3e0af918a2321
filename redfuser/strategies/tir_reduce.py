"""Reductions as loops: in turn, in lanes of one row, or of rows that lie side by side.

``lanes > 1`` is the CPU schedule: a floating-point reduction whose loads are contiguous along the reduced axis runs in that
many partial results, which LLVM keeps in vector registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from redfuser.acrf.expr import FLOATS, Load, Ref, indices_of, loads_of, refs_of
from redfuser.strategies.program import Block
from redfuser.strategies.tir_expr import NARROW, wide
from redfuser.strategies.tir_held import identifier
from redfuser.strategies.tir_place import Placed, Span, combined, indent, neutral
from redfuser.strategies.tir_rows import TILE, again, replaced

STAGED = 1 << 16
"""Numbers that are laid side by side to be read again."""
STRIP = 16
"""Terms that one lane adds up before they go into the lane's total, and such sums in a total before it goes into what is held:
n elements are summed with an error of the order of 2 STRIP + n / (lanes STRIP^2) roundings, not n / lanes."""
RUN = 4 * STRIP
"""Terms of a product that a register adds up before they go into what is held, where each lane has sums of its own. Of a sum
without columns it is STRIP: 64 equal terms in turn are off by 12 roundoffs, torch's sum by one (of a product by as many)."""


class Reduced(Placed):
    """Reductions of numbers into what is held."""

    def along(self, b: Block, axis: str) -> bool:
        """Whether the expression's loads are contiguous along ``axis`` rather than along another axis."""
        votes = [indices_of(x.indices[-1]) for x in loads_of(b.exprs[0]) if x.indices and axis in indices_of(x)]
        return not votes or sum(axis in v for v in votes) * 2 > len(votes)

    def accumulate(self, b: Block, span: Span | None) -> list[str]:
        """The loop along ``over`` at one point of the result, in lanes where the schedule has them."""
        assert b.over is not None and b.reducer is not None
        n, lanes = self.length(b.over, span), self.lanes
        floats = b.dtype in FLOATS and b.reducer.kind in ("sum", "prod", "max", "min") and b.dtype not in NARROW
        if lanes == 1 or not floats or n < lanes or not self.along(b, b.over):
            return self.in_turn(b, span, ())
        piece = n if b.reducer.kind in ("max", "min") else lanes * STRIP * STRIP
        if n <= piece:
            return self.piece(b, span, "", n)
        rest = self.piece(b, span, f"{n - n % piece} + ", n % piece) if n % piece else []
        return [f"for piece in range({n // piece}):", *indent(self.piece(b, span, f"piece * {piece} + ", piece)), *rest]

    def in_turn(self, b: Block, span: Span | None, around: tuple[str, ...]) -> list[str]:
        """The loop along ``over``, outside of those of ``around``. Of a sum of many, STRIP terms are added up before they go
        into what is held: :data:`STRIP` has why."""
        assert b.over is not None and b.reducer is not None
        n, axes, name = self.length(b.over, span), (*b.axes, b.over), f"{b.role}_{b.name}"
        if self.lanes == 1 or b.reducer.kind != "sum" or b.dtype not in ("f32", "f64") or self.extents[b.over] <= STRIP:
            body = self.block(b, name, axes, span, self.combine(b), b.over)
            return [f"for i_{b.over} in range({n}):", *indent(self.loops(around, None, body))]
        part = replace(b, names=(f"strip of {b.name}",))
        self.declare(part.name, b.axes, b.dtype)

        def strip(start: str, count: int) -> list[str]:
            zero = self.store(part.name, self.texts().const(neutral(part)[0]))
            first = self.block(b, f"{name}_init", b.axes, span, [zero])
            step = self.block(b, name, axes, span, self.combine(part), b.over, {str(b.over): f"{start} + i_{b.over}"})
            total = combined("sum", self.held(b.name), self.held(part.name), wide(b.dtype))
            last = self.block(b, f"{name}_strip", b.axes, span, [self.store(b.name, total)])
            return [*self.loops(around, None, first), f"for i_{b.over} in range({count}):",
                    *indent(self.loops(around, None, step)), *self.loops(around, None, last)]

        whole, rest = divmod(n, STRIP)
        lines = [f"for strip in range({whole}):", *indent(strip(f"strip * {STRIP}", STRIP))] if whole else []
        return lines + (strip(str(whole * STRIP), rest) if rest else [])

    def piece(self, b: Block, span: Span | None, begin: str, n: int) -> list[str]:
        """``n`` elements of a row, in lanes, from ``begin`` on (text), into what is held."""
        assert b.over is not None and b.reducer is not None
        axes, name, lanes, dtype = (*b.axes, b.over), f"{b.role}_{b.name}", self.lanes, wide(b.dtype)
        lane = f"lane_{dtype}{self.suffix}"
        texts = self.texts()
        value = texts.value(b.exprs[0])
        update = [*texts.lets, f"{lane}[v_lane] = {combined(b.reducer.kind, f'{lane}[v_lane]', value, dtype)}"]
        axis = f"    v_lane = T.axis.spatial({lanes}, lane)"
        side = self.loop(update, lanes) if texts.register is None else f"range({lanes})"  # all lanes have one register

        def each(what: str, line: str) -> list[str]:
            """One statement of every lane."""
            return [f"for lane in T.vectorized({lanes}):", f'    with T.sblock("{identifier(name)}_{what}"):', f"    {axis}",
                    f'        T.sblock_attr({{"redfuser.role": "{b.role}", "redfuser.axes": []}})', f"        {line}"]

        def strip(first: str, chunks: int, rest: int = 0) -> list[str]:
            at = f"({first} + chunk)" if first else "chunk"
            step = self.block(b, f"{name}_lanes", axes, span, update, b.over, {str(b.over): f"{begin}{at} * {lanes} + lane"})
            loop = [f"for chunk in range({chunks}):", f"    for lane in {side}:",
                    *indent(indent([step[0], axis, *step[1:]]))] if chunks else []
            last = self.block(b, f"{name}_rest", axes, span, update, b.over, {str(b.over): f"{begin}{n - rest} + lane"})
            loop += [f"for lane in range({rest}):", *indent([last[0], axis, *last[1:]])] if rest else []
            return [*each("lanes_init", f"{lane}[v_lane] = {start}"), *loop]

        def final(lane: str) -> list[str]:
            at = span if self.raxis in b.axes else None
            return self.block(b, f"{name}_lanes_sum", b.axes, at, self.folded(b, lane, dtype))

        start = self.texts().const(neutral(b)[0])
        whole, left = divmod(n // lanes, STRIP)
        if b.reducer.kind not in ("sum", "prod") or whole + (left > 0) == 1:
            return [*strip("", n // lanes, n % lanes), *final(lane)]
        strips = f"lane_strips_{dtype}{self.suffix}"
        self.striped.add(dtype)
        total = combined(b.reducer.kind, f"{strips}[v_lane]", f"{lane}[v_lane]", dtype)
        add = each("strip_sum", f"{strips}[v_lane] = {total}")
        lines = [*each("strips_init", f"{strips}[v_lane] = {start}"),
                 f"for part in range({whole}):", *indent([*strip(f"part * {STRIP}", STRIP), *add])]
        lines += [*strip(f"{whole * STRIP}", left, n % lanes), *add] if left or n % lanes else []
        return [*lines, *final(strips)]

    def folded(self, b: Block, lane: str, dtype: str) -> list[str]:
        """The lanes joined as a tree, halves of a register with each other, and with the accumulator."""
        assert b.reducer is not None
        kind = b.reducer.kind
        level = [f"{lane}[{i}]" for i in range(self.lanes)]
        lets: list[str] = []
        while len(level) > 1:
            half = len(level) // 2
            level = [combined(kind, x, y, dtype) for x, y in zip(level[:half], level[half:], strict=True)]
            if kind in ("max", "min"):  # a named tree: the text of a nested max would double at every level
                names = [f"y{len(lets) + i}" for i in range(len(level))]
                lets += [f"{y}: T.let[T.{dtype}] = {text}" for y, text in zip(names, level, strict=True)]
                level = names
        return [*lets, self.store(b.name, combined(kind, self.held(b.name), level[0], dtype))]

    def combine(self, b: Block) -> list[str]:
        assert b.reducer is not None
        texts = self.texts()
        value = texts.value(b.exprs[0])
        if b.reducer.kind in ("max", "min") and b.dtype in FLOATS:
            value = texts.bind(value, wide(b.dtype))
        return [*texts.lets, self.store(b.name, combined(b.reducer.kind, self.held(b.name), value, wide(b.dtype)))]

    # -- rows side by side -------------------------------------------------------------------------------------------------

    def tiles(self, b: Block, span: Span | None, fresh: bool) -> list[str]:
        """A contraction (fresh) or a reduction into what is held, of all lanes: the sums of some neighbours are in registers,
        and what they read of the lanes lies side by side."""
        assert b.over is not None and b.reducer is not None
        inner = [a for a in b.axes if a not in self.outer]
        along = inner[-1] if inner else None
        lines, b = self.staged(b, span) if along else ([], b)
        over, n = (self.length(a, span) if a else 1 for a in (b.over, along))
        rest, parts = n % TILE, []
        if n >= TILE:
            whole = self.runs(b, span, fresh, over, along, f"i_tile * {TILE}", TILE)
            parts = [f"for i_tile in range({n // TILE}):", *indent(whole)]
        parts += self.runs(b, span, fresh, over, along, str(n - rest), rest) if rest else []
        return lines + self.loops(tuple(a for a in inner if a != along), span, parts)

    def runs(self, b: Block, span: Span | None, fresh: bool, over: int, along: str | None, start: str, count: int) -> list[str]:
        """The sums of ``count`` neighbours along an axis, :data:`RUN` terms at a time; STRIP of one sum of each row."""
        assert b.reducer is not None
        run = STRIP if not fresh and (along is None or self.rows_apart(b, along)) else RUN
        if b.reducer.kind != "sum" or over <= run:
            return self.tile(b, span, fresh, over, along, start, count)
        whole, rest = divmod(over, run)
        lines = self.tile(b, span, fresh, run, along, start, count) if fresh else []
        first = int(fresh)
        if whole > first:
            lines += [f"for run in range({whole - first}):",
                      *indent(self.tile(b, span, False, run, along, start, count, f"run * {run} + {first * run} + "))]
        return lines + (self.tile(b, span, False, rest, along, start, count, f"{whole * run} + ") if rest else [])

    def rows_apart(self, b: Block, along: str) -> bool:
        """Are the points of ``along`` rows of their own (of a batch), and no columns that a product reads beside one row?"""
        read = [*(indices_of(x) for x in loads_of(b.exprs[0])), *(self.scratch.get(n, ((),))[0] for n in refs_of(b.exprs[0]))]
        return all(along in axes for axes in read if b.over in axes)

    def tile(self, b: Block, span: Span | None, fresh: bool, over: int, along: str | None, start: str, count: int,
             begin: str = "") -> list[str]:
        """The sums of ``count`` neighbours along an axis, of the terms from ``begin`` on (text)."""
        assert b.over is not None and b.reducer is not None
        dtype, name, kind = wide(b.dtype), f"{b.role}_{b.name}", b.reducer.kind
        names = [f"{dtype} sum {r}" for r in range(count)]
        self.scratch |= {n: ((self.across or "",), dtype) for n in names}
        sums = [self.local(n) for n in names]
        of = {b.over: f"{begin}i_{b.over}"} if begin else {}
        at = [{along: f"{start} + {r}", **of} if along else of for r in range(count)]
        here = f"[w_{self.across}]"

        def each(what: str, axes: tuple[str, ...], line: Callable[[str], list[str]], over: str | None = None) -> list[str]:
            return [x for r in range(count) for x in self.sides(b, self.block(
                b, f"{name}_{what}{r}", axes, span, line(f"{sums[r]}{here}"), over, at[r]))]

        def added(held: str) -> list[str]:
            texts = self.texts()
            value = texts.value(b.exprs[0])
            if kind in ("max", "min") and b.dtype in FLOATS:
                value = texts.bind(value, dtype)
            return [*texts.lets, f"{held} = {combined(kind, held, value, dtype)}"]

        def kept(held: str) -> list[str]:
            return [self.store(b.name, held if fresh else combined(kind, self.held(b.name), held, dtype))]

        return [*each("init", b.axes, lambda held: [f"{held} = {self.texts().const(neutral(b)[0])}"]),
                f"for i_{b.over} in range({over}):", *indent(each("tile", (*b.axes, b.over), added, b.over)),
                *each("sum", b.axes, kept)]

    def staged(self, b: Block, span: Span | None) -> tuple[list[str], Block]:
        """The same where what is read of the lanes at every element lies side by side: once for the row, where nothing of the
        row is in it, else once for the segment (the lines that do)."""
        lines: list[str] = []
        table: dict[Load, Ref] = {}
        for x in again(b, self.across or ""):
            inner = tuple(a for a in self.extents if a in indices_of(x) and a not in self.outer)
            size = prod(self.segment if a == self.raxis else self.extents[a] for a in inner)
            if size * self.width > STAGED or not self.texts().in_bounds(x):
                continue
            name = self.rows.setdefault(x, f"{wide(x.dtype)} rows {len(self.rows)}")
            table[x] = Ref(name, x.dtype)
            axes = (*self.kernel.grid, *inner)
            self.declare(name, axes, x.dtype)
            copy = self.pointwise(Block("producer", (name,), axes, (x,), x.dtype), span if self.raxis in inner else None)
            if self.raxis in inner:
                lines += copy
            else:
                self.once[name] = copy
        return lines, replace(b, exprs=tuple(replaced(e, table) for e in b.exprs))
