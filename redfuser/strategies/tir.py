"""Segment programs as TVM PrimFuncs: scalar TIR, one block per statement, annotated with its role and axes.

    for b, h, i in the grid:
        block "init_m"     role init      axes [b, h, i]
        for seg in segments:
            block "producer_s" ...        v_l = seg * 64 + l is the position in the row, w_l = l that in the segment
            block "reduce_m" ...
        block "finalize_o" ...

Values that live within one grid point are scratch buffers over their remaining axes; the ragged last segment is a second
copy of the body with its own constant extents. ``lanes > 1`` is the CPU schedule: a floating-point reduction whose loads
are contiguous along the reduced axis runs in that many partial results, which LLVM keeps in vector registers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from redfuser.acrf.cascade import Tensor
from redfuser.acrf.expr import FLOATS, Const, Expr, Index, Ref, indices_of, loads_of, substitute, walk
from redfuser.acrf.facts import algebra
from redfuser.dtypes import INTS
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block, Kernel, Program, split_range
from redfuser.strategies.tir_expr import NARROW, TVM_DTYPE, Texts, stored, wide

_LOCALS = re.compile(r"T|[xy]\d+|[ivw]_.*|lane.*|seg|chunk|other|take|(carry|new|old)_.*|.*_")
STRIP = 64
"""Terms that one lane adds up before it goes into the total: a row of n elements is summed with an error of the order of
STRIP + n / (lanes * STRIP) roundings, not n / lanes."""
ALIGN = 16
"""Bytes to which every tensor is aligned, as :class:`redfuser.artifact.ArgSpec` promises."""
SCRATCH_BYTES = 1 << 20
"""Scratch of one grid point, which lives on the stack."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the r-axis: where it starts (text) and how many elements it has."""

    start: str
    length: int


def to_primfuncs(program: Program, lanes: int = 1) -> Any:
    """An IRModule with one PrimFunc per kernel, named like it; parameters are its reads, then its writes.

    Raises LoweringError: RF430 for an operation and RF431 for a dtype that LLVM kernels do not get, RF432 for scratch that
    does not fit, RF433 for symbolic extents, RF434 for values
    that are not held, RF435 for empty axes."""
    from redfuser.tvm_compat import tvm

    functions = {k.name: parse(script(k.name, (*k.reads, *k.writes), [_KernelText(program, k, lanes)]))
                 for k in program.kernels}
    return tvm.IRModule(functions)


def entry(program: Program, name: str, lanes: int = 1) -> Any:
    """One PrimFunc that runs every kernel of the program in turn: inputs, outputs, workspaces."""
    return parse(entry_script(program, name, lanes))


def entry_script(program: Program, name: str, lanes: int = 1) -> str:
    """The TVMScript of :func:`entry`."""
    return script(name, parameters(program), [_KernelText(program, k, lanes) for k in program.kernels])


def parameters(program: Program) -> tuple[Tensor, ...]:
    """Inputs, outputs and workspaces in the order of :func:`entry`'s parameters."""
    written = {t.name: t for k in program.kernels for t in k.writes}
    cascade = program.fused.cascade
    return (*cascade.inputs, *(written[o] for o in cascade.outputs), *program.workspaces)


def script(name: str, tensors: tuple[Tensor, ...], kernels: list[_KernelText]) -> str:
    """TVMScript text of one function that runs ``kernels`` in turn."""
    params = ", ".join(f"{_name(t.name)}: T.Buffer(({', '.join(map(str, t.shape))}{',' * (len(t.shape) == 1)}), "
                       f'"{_buffer_dtype(t)}", align={ALIGN})' for t in _static(tensors))
    lines = ["@T.prim_func(s_tir=True)", f"def {_name(name)}({params}):",
             f'    T.func_attr({{"global_symbol": "{_name(name)}", "tir.noalias": True}})', '    with T.sblock("root"):']
    bodies = []
    for i, k in enumerate(kernels):
        bodies += k.body(f"_{i}" if len(kernels) > 1 else "")
    scratch = [line for k in kernels for line in k.scratch_lines()]
    lines += [f"        {line}" for line in (*scratch, *bodies)]
    return "\n".join(lines) + "\n"


def parse(text: str) -> Any:
    """The PrimFunc that TVMScript text denotes."""
    from redfuser.tvm_compat import parse_prim_func

    return parse_prim_func(text)


def _static(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    for t in tensors:
        if not all(isinstance(n, int) for n in t.shape):
            raise LoweringError("RF433", f"{t} has a symbolic extent", help="compile for static shapes")
    return tensors


def _buffer_dtype(t: Tensor) -> str:
    wide(t.dtype)
    return TVM_DTYPE[t.dtype]


def _name(name: str) -> str:
    """A global buffer's or a block's name as an identifier that no local of the text has."""
    name = re.sub(r"\W", "_", name)
    return f"{name}_t" if _LOCALS.fullmatch(name) else name


class _KernelText:
    """The lines of one kernel. Scratch is declared as its statements are printed."""

    def __init__(self, program: Program, kernel: Kernel, lanes: int) -> None:
        self.program, self.kernel, self.lanes = program, kernel, lanes
        self.extents: dict[str, int] = {}
        for a in program.axes:
            if not isinstance(a.extent, int):
                raise LoweringError("RF433", f"axis {a.name} has the symbolic extent {a.extent}",
                                    help="compile for static shapes")
            if a.extent == 0:
                raise LoweringError("RF435", f"axis {a.name} has no elements", why="there is nothing to compute",
                                    help="torch computes it in the outer graph")
            self.extents[a.name] = a.extent
        self.raxis = kernel.raxis
        self.outer = (*kernel.grid, *((kernel.split,) if kernel.split else ()))
        self.tensors = {t.name: t for t in (*kernel.reads, *kernel.writes)}
        self.written = {t.name for t in kernel.writes}
        self.scratch: dict[str, tuple[tuple[str, ...], str]] = {}
        self.dtypes: dict[str, str] = {}
        self.inline = {b.name: b for b in (*kernel.body, *kernel.tail) if b.role == "producer" and b.reducer is None}
        self.suffix = ""
        length = program.segment or self.extents[self.raxis]
        self.segment = min(length, self.extents[self.raxis])

    # -- scratch -------------------------------------------------------------------------------------------------------

    def scratch_lines(self) -> list[str]:
        lines, total = [], 0
        for name, (axes, dtype) in self.scratch.items():
            shape = [self.segment if a == self.raxis else self.extents[a] for a in axes] or [1]
            size = int(re.sub(r"\D", "", dtype) or 8) // 8
            for n in shape:
                size *= n
            total += size
            lines.append(f'{self.local(name)} = T.sblock_alloc_buffer(({", ".join(map(str, shape))},), "{dtype}")')
        if self.lanes > 1:
            kinds = sorted({d for _, d in self.scratch.values() if d.startswith("float")})
            lines += [f'lane_{d}{self.suffix} = T.sblock_alloc_buffer(({self.lanes},), "{d}")' for d in kinds]
        if any(b.reducer is not None and b.reducer.kind == "topk" for b in (*self.kernel.body, *self.kernel.tail)):
            lines += [f'carry_value{self.suffix} = T.sblock_alloc_buffer((1,), "{self._carry()}")',
                      f'carry_index{self.suffix} = T.sblock_alloc_buffer((1,), "int64")']
        if total > SCRATCH_BYTES:
            raise LoweringError("RF432", f"{self.kernel.name} needs {total} bytes of scratch per grid point",
                                why=f"a CPU kernel keeps at most {SCRATCH_BYTES} bytes on the stack",
                                help="the strategy single holds one segment instead of the row")
        return lines

    def _carry(self) -> str:
        block = next(b for b in (*self.kernel.body, *self.kernel.tail) if b.reducer and b.reducer.kind == "topk")
        return wide(block.dtype)

    def local(self, name: str) -> str:
        return f"{_name(name)}{self.suffix}_"

    def declare(self, name: str, axes: tuple[str, ...], dtype: str) -> None:
        if name not in self.written:
            self.scratch[name] = (tuple(a for a in axes if a not in self.outer), wide(dtype))
        self.dtypes[name] = dtype

    def element(self, name: str, axes: dict[str, str] | None = None) -> str:
        """Text of the element of a named value at the current point; ``axes`` overrides the position on some axes."""
        at = axes or {}
        if name in self.written:
            block = next(b for b in (*self.kernel.body, *self.kernel.tail) if name in b.names)
            return f"{_name(name)}[{', '.join(at.get(a, f'v_{a}') for a in block.axes) or '()'}]"
        inner = self.scratch[name][0]
        return f"{self.local(name)}[{', '.join(at.get(a, self.position(a)) for a in inner) or '0'}]"

    def position(self, axis: str) -> str:
        return f"w_{axis}" if axis == self.raxis else f"v_{axis}"

    def texts(self) -> Texts:
        def access(ref: Ref) -> tuple[str, str]:
            if ref.indices:
                return self.gather(ref, texts)
            held = self.dtypes[ref.name] if ref.name in self.written else "f32"
            return self.element(ref.name), held

        shapes = {t.name: tuple(int(n) for n in t.shape) for t in self.tensors.values()}
        register = self.register if any(t.dtype == "bf16" for t in self.tensors.values()) else None
        texts = Texts(lambda axis: f"v_{axis}", access, self.extents, shapes, {n: _name(n) for n in self.tensors}, register)
        return texts

    def register(self, count: int, dtype: str) -> str:
        name = f"{dtype} register {count}"
        self.scratch[name] = ((), dtype)
        return f"{self.local(name)}[0]"

    def gather(self, ref: Ref, texts: Texts) -> tuple[str, str]:
        """A reference at other positions: of a pointwise producer, its expression there; of a value without the r-axis,
        its element."""
        block = self.inline.get(ref.name)
        if block is not None:
            moved = substitute(block.exprs[0], indices=dict(zip(block.axes, ref.indices, strict=True)))
            return texts.value(moved), "f32"
        axes = next(b.axes for b in (*self.kernel.init, *self.kernel.body, *self.kernel.tail) if ref.name in b.names)
        resident = self.kernel.kind == "resident"
        if self.raxis in axes and not resident:
            raise LoweringError("RF434", f"{ref} reads {ref.name} at another place of the row",
                                why="the row is not held", help="the strategy resident holds it")
        at = dict(zip(axes, ref.indices, strict=True))
        if any(at[a] != Index(a) for a in axes if a in self.outer):
            raise LoweringError("RF434", f"{ref} reads {ref.name} of another grid point")
        text = self.element(ref.name, {a: texts.position(e) for a, e in at.items()})
        return text, self.dtypes[ref.name] if ref.name in self.written else "f32"

    # -- structure -----------------------------------------------------------------------------------------------------

    def body(self, suffix: str) -> list[str]:
        k, self.suffix = self.kernel, suffix
        for b in (*k.init, *k.body, *k.tail):
            for i, n in enumerate(b.names):
                self.declare(n, b.axes, self._dtype(b, i))
        outer = list(k.grid) + ([k.split] if k.split and k.kind != "combine" else [])
        lines = [line for b in k.init for line in self.pointwise(b, None)]
        if k.kind == "combine":
            fold = [line for b in k.body for line in self.statement(b, None)]
            lines += [f"for i_{k.split} in range({self.extents[k.split or '']}):", *_indent(fold)]
        else:
            lines += self.segments(k.body)
        lines += self.tail()
        for axis in reversed(outer):
            lines = [f"for i_{axis} in range({self.extents[axis]}):", *_indent(lines)]
        return lines

    def _dtype(self, b: Block, i: int) -> str:
        if b.role in ("merge", "correct", "reduce") and b.names[i] in self.dtypes:
            return self.dtypes[b.names[i]]
        if b.reducer is not None and b.reducer.kind in algebra.PAYLOAD and i == 1:
            return "i64"
        return b.exprs[i].dtype if i < len(b.exprs) and b.reducer is None else b.dtype

    def segments(self, blocks: tuple[Block, ...]) -> list[str]:
        """The walk along the r-axis (of this split): whole segments, then the ragged one."""
        if not blocks:
            return []
        extent, n = self.extents[self.raxis], self.segment
        whole, rest = divmod(extent, n)

        def run(span: Span) -> list[str]:
            return [line for b in blocks for line in self.statement(b, span)]

        split = self.kernel.split
        lines = []
        if split is None:
            if whole:
                lines += [f"for seg in range({whole}):", *_indent(run(Span(f"seg * {n}", n)))]
            return lines + (run(Span(str(whole * n), rest)) if rest else [])
        chunk, _ = split_range(extent, self.extents[split], 1, n) if self.extents[split] > 1 else (extent, 0)
        per = max(1, -(-chunk // n))
        if whole:
            count = f"T.max(T.min({whole} - i_{split} * {per}, {per}), 0)"
            lines += [f"for seg in range({count}):", *_indent(run(Span(f"(i_{split} * {per} + seg) * {n}", n)))]
        if rest:
            lines += [f"if i_{split} == {whole // per}:", *_indent(run(Span(str(whole * n), rest)))]
        return lines

    def tail(self) -> list[str]:
        """Blocks without the r-axis as they come; the others in walks of the row, as few as their order allows."""
        lines: list[str] = []
        visit: list[Block] = []
        again = {b.name: b for b in self.kernel.tail if b.role == "producer" and self.raxis in b.axes}

        def flush() -> None:
            nonlocal lines
            if visit:
                for b in visit:
                    if b.role == "post" and b.over == self.raxis:
                        lines += self.start(b)
                lines += self.segments(tuple(visit))
                visit.clear()

        for b in self.kernel.tail:
            if self.raxis not in b.axes and b.over != self.raxis:
                flush()
                lines += self.statement(b, None)
                continue
            if b.role == "producer" and b.name in self.written:
                continue
            reads = {x.name for e in b.exprs for x in _refs(e)}
            if any(w.over == self.raxis and reads & set(w.names) for w in visit):
                held = self.kernel.kind == "resident"
                flush()
                if not held:
                    visit.extend(p for n, p in again.items() if n not in self.written)
            visit.append(b)
        flush()
        return lines

    # -- statements ----------------------------------------------------------------------------------------------------

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
            body = [f"for i_{axis} in range({n}):", *_indent(body)]
        return body

    def block(self, b: Block, name: str, axes: tuple[str, ...], span: Span | None, body: list[str],
              over: str | None = None, place: dict[str, str] | None = None) -> list[str]:
        """A TIR block over ``axes`` (and the outer ones); ``over`` is its reduction axis, ``place`` overrides positions."""
        lines = [f'with T.sblock("{_name(name)}{self.suffix}"):']
        k = self.kernel
        inside = k.split and (k.kind != "combine" or b.role in ("producer", "merge"))
        outer = (*k.grid, *((k.split,) if k.split and inside else ()))
        for axis in (*outer, *(a for a in axes if a not in outer)):
            at = (place or {}).get(axis, f"i_{axis}")
            kind = "reduce" if axis == over else "spatial"
            if axis == self.raxis and span is not None:
                lines.append(f"    w_{axis} = T.axis.spatial({span.length}, {at})")
                at = f"{span.start} + {at}" if span.start != "0" else at
            lines.append(f"    v_{axis} = T.axis.{kind}({self.extents[axis]}, {at})")
        quoted = ", ".join(f'"{a}"' for a in b.axes)
        lines.append(f'    T.sblock_attr({{"redfuser.role": "{b.role}", "redfuser.axes": [{quoted}]}})')
        return lines + _indent(body)

    def store(self, name: str, text: str) -> str:
        dtype = self.dtypes[name]
        if name in self.written:
            return f"{self.element(name)} = {stored(text, dtype)}"
        if dtype in INTS:
            return f'{self.element(name)} = T.Cast("{wide(dtype)}", {text})'
        return f"{self.element(name)} = {text}"

    def pointwise(self, b: Block, span: Span | None) -> list[str]:
        texts = self.texts()
        values = [texts.value(e) for e in b.exprs]
        if len(values) > 1:
            values = [texts.bind(v, wide(self.dtypes[n])) for n, v in zip(b.names, values, strict=True)]
        body = [*texts.lets, *(self.store(n, v) for n, v in zip(b.names, values, strict=True))]
        return self.loops(b.axes, span, self.block(b, f"{b.role}_{b.name}", b.axes, span, body))

    def start(self, b: Block) -> list[str]:
        """Set the result of a reduction to its neutral element."""
        first = Block("init", b.names, b.axes, neutral(b), b.dtype)
        return self.pointwise(first, None) if self.raxis not in b.axes else []

    def contraction(self, b: Block, span: Span | None) -> list[str]:
        """An inner reduction that finishes at once: neutral element, then the loop, at every point of its axes."""
        assert b.over is not None
        if b.reducer is not None and b.reducer.kind in algebra.PAYLOAD:
            raise LoweringError("RF430", f"the CPU target has no {b.reducer} along an inner axis")
        first = self.block(b, f"{b.role}_{b.name}_init", b.axes, span,
                           [self.store(b.name, self.texts().const(neutral(b)[0]))])
        return self.loops(b.axes, span, [*first, *self.accumulate(b, span)])

    def reduction(self, b: Block, span: Span | None) -> list[str]:
        """Reduce a segment into an accumulator (or a row into a ``post`` result)."""
        assert b.reducer is not None and b.over is not None
        inner = tuple(a for a in b.axes if a not in self.outer)
        if b.reducer.kind in algebra.PAYLOAD:
            return self.payload(b, span)
        if inner and not self.along(b, b.over):
            body = self.block(b, f"reduce_{b.name}", (*b.axes, b.over), span, self.combine(b), b.over)
            n = span.length if span is not None and b.over == self.raxis else self.extents[b.over]
            return [f"for i_{b.over} in range({n}):", *_indent(self.loops(b.axes, None, body))]
        return self.loops(b.axes, None, self.accumulate(b, span))

    def along(self, b: Block, axis: str) -> bool:
        """Whether the expression's loads are contiguous along ``axis`` rather than along another axis."""
        votes = [indices_of(x.indices[-1]) for x in loads_of(b.exprs[0]) if x.indices and axis in indices_of(x)]
        return not votes or sum(axis in v for v in votes) * 2 > len(votes)

    def accumulate(self, b: Block, span: Span | None) -> list[str]:
        """The loop along ``over`` at one point of the result, in lanes where the schedule has them."""
        assert b.over is not None and b.reducer is not None
        n = span.length if span is not None and b.over == self.raxis else self.extents[b.over]
        axes, name, lanes = (*b.axes, b.over), f"{b.role}_{b.name}", self.lanes
        dtype = wide(b.dtype)
        floats = b.dtype in FLOATS and b.reducer.kind in ("sum", "prod", "max", "min") and b.dtype not in NARROW
        if lanes == 1 or not floats or n < lanes or not self.along(b, b.over):
            return [f"for i_{b.over} in range({n}):", *_indent(self.block(b, name, axes, span, self.combine(b), b.over))]
        lane = f"lane_{dtype}{self.suffix}"
        texts = self.texts()
        value = texts.value(b.exprs[0])
        update = [*texts.lets, f"{lane}[v_lane] = {_combined(b.reducer.kind, f'{lane}[v_lane]', value)}"]
        axis = f"    v_lane = T.axis.spatial({lanes}, lane)"
        fill = [f"for lane in range({lanes}):", f'    with T.sblock("{_name(name)}_lanes_init"):', f"    {axis}",
                f'        T.sblock_attr({{"redfuser.role": "{b.role}", "redfuser.axes": []}})',
                f"        {lane}[v_lane] = {self.texts().const(neutral(b)[0])}"]
        final = self.block(b, f"{name}_lanes_sum", b.axes, span if self.raxis in b.axes else None, self.folded(b, lane, dtype))

        def strip(first: str, chunks: int) -> list[str]:
            at = f"({first} + chunk)" if first else "chunk"
            step = self.block(b, f"{name}_lanes", axes, span, update, b.over, {str(b.over): f"{at} * {lanes} + lane"})
            loop = [f"for chunk in range({chunks}):", f"    for lane in range({lanes}):",
                    *_indent(_indent([step[0], axis, *step[1:]]))]
            return [*fill, *loop, *final]

        whole, left = divmod(n // lanes, STRIP)
        if b.reducer.kind not in ("sum", "prod") or whole + (left > 0) == 1:
            lines = strip("", n // lanes)
        else:
            lines = [f"for part in range({whole}):", *_indent(strip(f"part * {STRIP}", STRIP))]
            lines += strip(f"{whole * STRIP}", left) if left else []
        if n % lanes:
            place = {b.over: f"{n - n % lanes} + i_{b.over}"}
            rest = self.block(b, f"{name}_rest", axes, span, self.combine(b), b.over, place)
            lines += [f"for i_{b.over} in range({n % lanes}):", *_indent(rest)]
        return lines

    def folded(self, b: Block, lane: str, dtype: str) -> list[str]:
        """The lanes joined as a tree, and with the accumulator."""
        assert b.reducer is not None
        kind = b.reducer.kind
        level = [f"{lane}[{i}]" for i in range(self.lanes)]
        lets: list[str] = []
        while len(level) > 1:
            level = [_combined(kind, x, y) for x, y in zip(level[::2], level[1::2], strict=True)]
            if kind in ("max", "min"):  # a named tree: the text of a nested max would double at every level
                names = [f"y{len(lets) + i}" for i in range(len(level))]
                lets += [f"{y}: T.let[T.{dtype}] = {text}" for y, text in zip(names, level, strict=True)]
                level = names
        return [*lets, self.store(b.name, _combined(kind, self.held(b.name), level[0]))]

    def held(self, name: str) -> str:
        """The current value of an accumulator or result."""
        text = self.element(name)
        return f'T.Cast("float32", {text})' if name in self.written and self.dtypes[name] in NARROW else text

    def combine(self, b: Block) -> list[str]:
        assert b.reducer is not None
        texts = self.texts()
        value = texts.value(b.exprs[0])
        if b.reducer.kind in ("max", "min") and b.dtype in FLOATS:
            value = texts.bind(value, wide(b.dtype))
        return [*texts.lets, self.store(b.name, _combined(b.reducer.kind, self.held(b.name), value))]

    # -- payload reductions and merges ---------------------------------------------------------------------------------

    def payload(self, b: Block, span: Span | None) -> list[str]:
        """argmax, argmin, topk: the element's value with its position on the row."""
        assert b.reducer is not None and b.over is not None
        texts = self.texts()
        value = texts.value(b.exprs[0])
        n = span.length if span is not None and b.over == self.raxis else self.extents[b.over]
        index = f'T.Cast("int64", v_{b.over})'
        value = texts.bind(value, wide(b.dtype))
        if b.reducer.kind != "topk":
            body = [*texts.lets, *self.choose(b, value, index)]
            loop = self.block(b, f"reduce_{b.name}", (*b.axes, b.over), span, body, b.over)
            return self.loops(b.axes, None, [f"for i_{b.over} in range({n}):", *_indent(loop)])
        first = [*texts.lets, f"carry_value{self.suffix}[0] = {value}", f"carry_index{self.suffix}[0] = {index}"]
        points = b.axes[:-1]
        take = self.block(b, f"reduce_{b.name}_take", (*points, b.over), span, first, b.over)
        loop = [f"for i_{b.over} in range({n}):", *_indent(take), *_indent(self.insert(b))]
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
        return [f"for i_{last} in range({self.extents[last]}):", *_indent(block)]

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
            loop = [f"for i_other in range({self.extents[last]}):", *_indent(take), *_indent(self.insert(b))]
            return lines + self.loops(points, None, loop)
        texts = self.texts()
        a, c = (texts.bind(texts.value(e), wide(b.dtype)) for e in (left[0], right[0]))
        body = [*texts.lets, self.store(b.name, _combined(b.reducer.kind, a, c))]
        return self.loops(b.axes, None, self.block(b, f"merge_{b.name}", b.axes, None, body))


def neutral(b: Block) -> tuple[Const, ...]:
    """The neutral elements of a block's reducer in its dtype; a place below 0 is none."""
    assert b.reducer is not None
    value, *place = algebra.neutral(b.reducer, b.dtype)
    return (value, Const(-1, "i64")) if place else (value,)


def _combined(kind: str, a: str, b: str) -> str:
    """acc (reducer) value. max and min give NaN when either is."""
    match kind:
        case "sum":
            return f"({a} + {b})"
        case "prod":
            return f"({a} * {b})"
        case "max" | "min":
            return f"T.Select(T.Or({a} {'>' if kind == 'max' else '<'} {b}, T.isnan({a})), {a}, {b})"
        case "any" | "all":
            return f"T.{'Or' if kind == 'any' else 'And'}({a}, {b})"
    raise LoweringError("RF430", f"the CPU target has no reducer {kind}")


def _better(kind: str, v: str, i: str, old: str, old_i: str, dtype: str) -> str:
    """Whether the pair (v, i) goes before (old, old_i). NaN is best; an index below 0 marks an empty place."""
    sign = "<" if kind == "argmin" else ">"
    if dtype in FLOATS:
        nan, old_nan = f"T.isnan({v})", f"T.isnan({old})"
        wins = f"T.Or({v} {sign} {old}, T.And({nan}, T.Not({old_nan})))"
        ties = f"T.Or({v} == {old}, T.And({nan}, {old_nan}))"
    else:
        wins, ties = f"{v} {sign} {old}", f"{v} == {old}"
    return f"T.And({i} >= T.int64(0), T.Or({old_i} < T.int64(0), T.Or({wins}, T.And({ties}, {i} < {old_i}))))"


def _refs(e: Expr) -> list[Ref]:
    return [x for x in walk(e) if isinstance(x, Ref)]


def _indent(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


__all__ = ["entry", "entry_script", "neutral", "parameters", "parse", "script", "to_primfuncs"]
