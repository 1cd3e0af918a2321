"""The statements of a segment program as TIR blocks, one each, annotated with their roles and axes.

``lanes > 1`` is the CPU schedule: a floating-point reduction whose loads are contiguous along the reduced axis runs in that
many partial results, which LLVM keeps in vector registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from redfuser.acrf.expr import FLOATS, Const, Expr, Load, Op, Ref, indices_of, loads_of, refs_of
from redfuser.acrf.facts import algebra
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block
from redfuser.strategies.tir_expr import NARROW, is_nan, wide
from redfuser.strategies.tir_held import Held, identifier
from redfuser.strategies.tir_rows import TILE, again, replaced

STAGED = 1 << 16
"""Numbers that are laid side by side to be read again."""
STRIP = 16
"""Terms that one lane adds up before they go into the lane's total, and such sums in a total before it goes into what is held:
n elements are summed with an error of the order of 2 STRIP + n / (lanes STRIP^2) roundings, not n / lanes."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the r-axis: where it starts (text) and how many elements it has."""

    start: str
    length: int


class Blocks(Held):
    """Lines of one kernel's statements."""

    def statement(self, b: Block, span: Span | None) -> list[str]:
        if b.role == "merge":
            return self.merge(b)
        if b.reducer is None:
            return self.pointwise(b, span)
        if b.role in ("producer", "epilogue"):
            return self.contraction(b, span)
        return self.reduction(b, span)

    def loops(self, axes: tuple[str, ...], span: Span | None, body: list[str]) -> list[str]:
        for axis in reversed([a for a in axes if a not in self.outer]):
            n = span.length if span is not None and axis == self.raxis else self.extents[axis]
            body = [f"for i_{axis} in range({n}):", *indent(body)]
        return body

    def block(self, b: Block, name: str, axes: tuple[str, ...], span: Span | None, body: list[str],
              over: str | None = None, place: dict[str, str] | None = None) -> list[str]:
        """A TIR block over ``axes`` (and the outer ones); ``over`` is its reduction axis, ``place`` overrides positions."""
        lines = [f'with T.sblock("{identifier(name)}{self.suffix}"):']
        k = self.kernel
        inside = k.split and (k.kind != "combine" or b.role in ("producer", "merge"))
        outer = (*k.grid, *((k.split,) if k.split and inside else ()))
        for axis in (*outer, *(a for a in axes if a not in outer)):
            at = (place or {}).get(axis, f"i_{axis}")
            kind = "reduce" if axis == over else "spatial"
            if axis == self.across:
                at = "lane" if axis in b.axes else "0"
                lines.append(f"    w_{axis} = T.axis.spatial({self.width}, {at})")
                at = f"{self.first} + {at}"
            if axis == self.raxis and span is not None:
                lines.append(f"    w_{axis} = T.axis.spatial({span.length}, {at})")
                at = f"{span.start} + {at}" if span.start != "0" else at
            lines.append(f"    v_{axis} = T.axis.{kind}({self.extents[axis]}, {at})")
        quoted = ", ".join(f'"{a}"' for a in b.axes)
        lines.append(f'    T.sblock_attr({{"redfuser.role": "{b.role}", "redfuser.axes": [{quoted}]}})')
        return lines + indent(body)

    @property
    def first(self) -> str:
        """The first of the points that are lanes."""
        axis, n = self.across or "", self.extents[self.across or ""]
        return f"T.min(i_{axis} * {self.width}, {n - self.width})" if n % self.width else f"i_{axis} * {self.width}"

    def sides(self, b: Block, block: list[str]) -> list[str]:
        """A block for all lanes of its points."""
        return [f"for lane in T.vectorized({self.width}):", *indent(block)] if self.across in b.axes else block

    def pointwise(self, b: Block, span: Span | None) -> list[str]:
        match b.exprs:
            case (Op(name="select", args=(test, yes, no)),) if b.role == "post" and self.of_a_row(test):
                return [f"if {self.texts().value(test)}:", *indent(self.pointwise(replace(b, exprs=(yes,)), span)),
                        "else:", *indent(self.pointwise(replace(b, exprs=(no,)), span))]
        texts = self.texts(settled=b.role in ("finalize", "epilogue"))
        values = [texts.value(e) for e in b.exprs]
        if len(values) > 1:
            values = [texts.bind(v, wide(self.dtypes[n])) for n, v in zip(b.names, values, strict=True)]
        body = [*texts.lets, *(self.store(n, v) for n, v in zip(b.names, values, strict=True))]
        return self.loops(b.axes, span, self.sides(b, self.block(b, f"{b.role}_{b.name}", b.axes, span, body)))

    def of_a_row(self, test: Expr) -> bool:
        """Is something decided once for all of a row?"""
        names = refs_of(test)
        return bool(names) and not indices_of(test) and all(self.scratch.get(n, (("",),))[0] == () for n in names)

    def start(self, b: Block) -> list[str]:
        """Set the result of a reduction to its neutral element, or what one carries that runs along the row."""
        if b.running:
            points = tuple(a for a in b.axes if a != b.over)
            return self.pointwise(Block("init", (carry_of(b),), points, neutral(b), b.dtype), None)
        first = Block("init", b.names, b.axes, neutral(b), b.dtype)
        return self.pointwise(first, None) if self.raxis not in b.axes else []

    def contraction(self, b: Block, span: Span | None) -> list[str]:
        """An inner reduction that finishes at once: neutral element, then the loop, at every point of its axes."""
        assert b.over is not None
        if b.reducer is not None and b.reducer.kind in algebra.PAYLOAD:
            raise LoweringError("RF430", f"the CPU target has no {b.reducer} along an inner axis")
        if self.across in b.axes:
            return self.tiles(b, span, fresh=True)
        first = self.block(b, f"{b.role}_{b.name}_init", b.axes, span,
                           [self.store(b.name, self.texts().const(neutral(b)[0]))])
        return self.loops(b.axes, span, [*first, *self.accumulate(b, span)])

    def reduction(self, b: Block, span: Span | None) -> list[str]:
        """Reduce a segment into an accumulator (or a row into a ``post`` result)."""
        assert b.reducer is not None and b.over is not None
        if b.running:
            return self.running(b, span)
        inner = tuple(a for a in b.axes if a not in self.outer)
        if b.reducer.kind in algebra.PAYLOAD:
            return self.payload(b, span)
        if self.across in b.axes:
            return self.tiles(b, span, fresh=False)
        if inner and not self.along(b, b.over):
            return self.in_turn(b, span, b.axes)
        return self.loops(b.axes, None, self.accumulate(b, span))

    def running(self, b: Block, span: Span | None) -> list[str]:
        """Elements in their order: each joins what is carried, and is what is carried then."""
        assert b.reducer is not None
        texts, carry, dtype = self.texts(), carry_of(b), wide(b.dtype)
        value = texts.bind(texts.value(b.exprs[0]), dtype)
        body = [*texts.lets, self.store(carry, _combined(b.reducer.kind, self.held(carry), value, dtype)),
                self.store(b.name, self.held(carry))]
        axes = (*(a for a in b.axes if a != b.over), b.over or "")
        return self.loops(axes, span, self.block(b, f"{b.role}_{b.name}", b.axes, span, body))

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
            total = _combined("sum", self.held(b.name), self.held(part.name), wide(b.dtype))
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
        update = [*texts.lets, f"{lane}[v_lane] = {_combined(b.reducer.kind, f'{lane}[v_lane]', value, dtype)}"]
        axis = f"    v_lane = T.axis.spatial({lanes}, lane)"
        side = f"T.vectorized({lanes})" if texts.register is None else f"range({lanes})"  # all lanes have one register

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
        total = _combined(b.reducer.kind, f"{strips}[v_lane]", f"{lane}[v_lane]", dtype)
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
            level = [_combined(kind, x, y, dtype) for x, y in zip(level[:half], level[half:], strict=True)]
            if kind in ("max", "min"):  # a named tree: the text of a nested max would double at every level
                names = [f"y{len(lets) + i}" for i in range(len(level))]
                lets += [f"{y}: T.let[T.{dtype}] = {text}" for y, text in zip(names, level, strict=True)]
                level = names
        return [*lets, self.store(b.name, _combined(kind, self.held(b.name), level[0], dtype))]

    def combine(self, b: Block) -> list[str]:
        assert b.reducer is not None
        texts = self.texts()
        value = texts.value(b.exprs[0])
        if b.reducer.kind in ("max", "min") and b.dtype in FLOATS:
            value = texts.bind(value, wide(b.dtype))
        return [*texts.lets, self.store(b.name, _combined(b.reducer.kind, self.held(b.name), value, wide(b.dtype)))]

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
            whole = self.tile(b, span, fresh, over, along, f"i_tile * {TILE}", TILE)
            parts = [f"for i_tile in range({n // TILE}):", *indent(whole)]
        parts += self.tile(b, span, fresh, over, along, str(n - rest), rest) if rest else []
        return lines + self.loops(tuple(a for a in inner if a != along), span, parts)

    def length(self, axis: str, span: Span | None) -> int:
        return span.length if span is not None and axis == self.raxis else self.extents[axis]

    def tile(self, b: Block, span: Span | None, fresh: bool, over: int, along: str | None, start: str, count: int) -> list[str]:
        """The sums of ``count`` neighbours along an axis."""
        assert b.over is not None and b.reducer is not None
        dtype, name, kind = wide(b.dtype), f"{b.role}_{b.name}", b.reducer.kind
        names = [f"{dtype} sum {r}" for r in range(count)]
        self.scratch |= {n: ((self.across or "",), dtype) for n in names}
        sums = [self.local(n) for n in names]
        at = [{along: f"{start} + {r}"} if along else {} for r in range(count)]
        here = f"[w_{self.across}]"

        def each(what: str, axes: tuple[str, ...], line: Callable[[str], list[str]], over: str | None = None) -> list[str]:
            return [x for r in range(count) for x in self.sides(b, self.block(
                b, f"{name}_{what}{r}", axes, span, line(f"{sums[r]}{here}"), over, at[r]))]

        def added(held: str) -> list[str]:
            texts = self.texts()
            value = texts.value(b.exprs[0])
            if kind in ("max", "min") and b.dtype in FLOATS:
                value = texts.bind(value, dtype)
            return [*texts.lets, f"{held} = {_combined(kind, held, value, dtype)}"]

        def kept(held: str) -> list[str]:
            return [self.store(b.name, held if fresh else _combined(kind, self.held(b.name), held, dtype))]

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

    # -- payload reductions and merges ---------------------------------------------------------------------------------

    def payload(self, b: Block, span: Span | None) -> list[str]:
        """argmax, argmin, topk: the element's value with its position on the row."""
        assert b.reducer is not None and b.over is not None
        texts = self.texts()
        value = texts.value(b.exprs[0])
        n = span.length if span is not None and b.over == self.raxis else self.extents[b.over]
        index = f'T.Cast("int64", {texts.value(b.exprs[1]) if len(b.exprs) > 1 else f"v_{b.over}"})'
        value = texts.bind(value, wide(b.dtype))
        if b.reducer.kind != "topk":
            body = [*texts.lets, *self.choose(b, value, index)]
            loop = self.block(b, f"reduce_{b.name}", (*b.axes, b.over), span, body, b.over)
            return self.loops(b.axes, None, [f"for i_{b.over} in range({n}):", *indent(loop)])
        first = [*texts.lets, f"carry_value{self.suffix}[0] = {value}", f"carry_index{self.suffix}[0] = {index}"]
        points = b.axes[:-1]
        take = self.block(b, f"reduce_{b.name}_take", (*points, b.over), span, first, b.over)
        loop = [f"for i_{b.over} in range({n}):", *indent(take), *indent(self.insert(b))]
        return self.loops(points, None, loop)

    def choose(self, b: Block, value: str, index: str) -> list[str]:
        """Keep the better of the accumulator's pair and (value, index); ties go to the lower index."""
        assert b.reducer is not None
        v, i = b.names
        lets = [f"new_v: T.let[T.{wide(self.dtypes[v])}] = {value}", f"new_i: T.let[T.int64] = {index}",
                f"old_v: T.let[T.{wide(self.dtypes[v])}] = {self.held(v)}",
                f'old_i: T.let[T.int64] = T.Cast("int64", {self.held(i)})',
                f"take: T.let[T.bool] = {_better(b.reducer.kind, 'new_v', 'new_i', 'old_v', 'old_i', self.dtypes[v])}"]
        return [*lets, self.store(v, "T.Select(take, new_v, old_v)"), self.store(i, "T.Select(take, new_i, old_i)")]

    def insert(self, b: Block) -> list[str]:
        """Insert the carried pair into the sorted list along ``axes[-1]``, carrying on what it displaces."""
        last = b.axes[-1]
        cv, ci = f"carry_value{self.suffix}[0]", f"carry_index{self.suffix}[0]"
        body = [*self.choose(b, cv, ci), f"{cv} = T.Select(take, old_v, new_v)", f"{ci} = T.Select(take, old_i, new_i)"]
        block = self.block(b, f"{b.role}_{b.name}_insert", b.axes, None, body)
        return [f"for i_{last} in range({self.extents[last]}):", *indent(block)]

    def merge(self, b: Block) -> list[str]:
        """``acc = rebase[@a] (reducer) rebase[@b]``."""
        assert b.reducer is not None
        n = len(b.names)
        left, right = b.exprs[:n], b.exprs[n:]
        if b.reducer.kind in algebra.PAYLOAD:
            lines = []
            if left != tuple(Ref(x, e.dtype) for x, e in zip(b.names, left, strict=True)):
                lines += self.pointwise(replace(b, exprs=left, reducer=None), None)
            if b.reducer.kind != "topk":
                texts = self.texts()
                value, index = (texts.value(e) for e in right)
                body = [*texts.lets, *self.choose(b, value, f'T.Cast("int64", {index})')]
                return lines + self.loops(b.axes, None, self.block(b, f"merge_{b.name}", b.axes, None, body))
            last, points = b.axes[-1], b.axes[:-1]
            texts = self.texts()
            value, index = (texts.value(e) for e in right)
            first = [*texts.lets, f"carry_value{self.suffix}[0] = {value}",
                     f'carry_index{self.suffix}[0] = T.Cast("int64", {index})']
            take = self.block(b, f"merge_{b.name}_take", b.axes, None, first, place={last: "i_other"})
            loop = [f"for i_other in range({self.extents[last]}):", *indent(take), *indent(self.insert(b))]
            return lines + self.loops(points, None, loop)
        texts = self.texts()
        a, c = (texts.bind(texts.value(e), wide(b.dtype)) for e in (left[0], right[0]))
        body = [*texts.lets, self.store(b.name, _combined(b.reducer.kind, a, c, wide(b.dtype)))]
        return self.loops(b.axes, None, self.block(b, f"merge_{b.name}", b.axes, None, body))


def carry_of(b: Block) -> str:
    """What a running reduction carries from element to element."""
    return f"{b.name} so far"


def neutral(b: Block) -> tuple[Const, ...]:
    """The neutral elements of a block's reducer in its dtype; a place below 0 is none."""
    assert b.reducer is not None
    value, *place = algebra.neutral(b.reducer, b.dtype)
    return (value, Const(-1, "i64")) if place else (value,)


def _combined(kind: str, a: str, b: str, dtype: str) -> str:
    """acc (reducer) value, held as ``dtype``. max and min give NaN when either is."""
    match kind:
        case "sum":
            return f"({a} + {b})"
        case "prod":
            return f"({a} * {b})"
        case "max" | "min":
            if not dtype.startswith("float"):
                return f"T.{kind}({a}, {b})"
            return f"T.Select(T.Or({a} {'>' if kind == 'max' else '<'} {b}, {is_nan(a, dtype)}), {a}, {b})"
        case "any" | "all":
            return f"T.{'Or' if kind == 'any' else 'And'}({a}, {b})"
    raise LoweringError("RF430", f"the CPU target has no reducer {kind}")


def _better(kind: str, v: str, i: str, old: str, old_i: str, dtype: str) -> str:
    """Whether the pair (v, i) goes before (old, old_i). NaN is best; an index below 0 marks an empty place."""
    sign = "<" if kind == "argmin" else ">"
    if dtype in FLOATS:
        nan, old_nan = is_nan(v, wide(dtype)), is_nan(old, wide(dtype))
        wins = f"T.Or({v} {sign} {old}, T.And({nan}, T.Not({old_nan})))"
        ties = f"T.Or({v} == {old}, T.And({nan}, {old_nan}))"
    else:
        wins, ties = f"{v} {sign} {old}", f"{v} == {old}"
    return f"T.And({i} >= T.int64(0), T.Or({old_i} < T.int64(0), T.Or({wins}, T.And({ties}, {i} < {old_i}))))"


def indent(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
