"""Where the values of one grid point of a kernel lie, and how their elements are written: results in their tensors, the
others in scratch buffers over their remaining axes, declared as they are met."""

from __future__ import annotations

import re

from redfuser.acrf.expr import Expr, Index, Load, Op, Ref, children, substitute
from redfuser.acrf.facts import algebra
from redfuser.dtypes import INTS
from redfuser.errors import LoweringError
from redfuser.strategies import tir_math
from redfuser.strategies.program import Block, Kernel, Program
from redfuser.strategies.tir_expr import NARROW, Texts, stored, wide

_LOCALS = re.compile(r"T|[xy]\d+|[ivw]_.*|lane.*|seg|chunk|piece|part|strip|other|take|(carry|new|old)_.*|.*_")
SCRATCH_BYTES = 1 << 20
"""Scratch of one grid point, which lives on the stack."""


def identifier(name: str) -> str:
    """A global buffer's or a block's name as an identifier that no local of the text has."""
    name = re.sub(r"\W", "_", name)
    return f"{name}_t" if _LOCALS.fullmatch(name) else name


class Held:
    """The values of one kernel; ``across``: the axis of the grid whose points lie side by side, the last axis of whatever
    differs between them."""

    def __init__(self, program: Program, kernel: Kernel, lanes: int, across: str | None = None) -> None:
        self.program, self.kernel, self.lanes, self.across = program, kernel, lanes, across
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
        self.width = min(lanes, self.extents[across]) if across else 1
        self.outer = (*kernel.grid, *((kernel.split,) if kernel.split else ()))
        self.tensors = {t.name: t for t in (*kernel.reads, *kernel.writes)}
        self.written = {t.name for t in kernel.writes}
        self.scratch: dict[str, tuple[tuple[str, ...], str]] = {}
        self.dtypes: dict[str, str] = {}
        self.striped: set[str] = set()
        self.rows: dict[Load, str] = {}
        self.once: dict[str, list[str]] = {}
        self.inline = {b.name: b for b in (*kernel.body, *kernel.tail) if b.role == "producer" and b.reducer is None}
        self.suffix = ""
        length = (program.segment if kernel.kind != "merge" else None) or self.extents[self.raxis]
        self.segment = min(length, self.extents[self.raxis])

    def scratch_lines(self) -> list[str]:
        lines, total = [], 0
        for name, (axes, dtype) in self.scratch.items():
            own = {self.raxis: self.segment, self.across: self.width}
            shape = [own.get(a, self.extents[a]) for a in axes] or [1]
            size = int(re.sub(r"\D", "", dtype) or 8) // 8
            for n in shape:
                size *= n
            total += size
            lines.append(f'{self.local(name)} = T.sblock_alloc_buffer(({", ".join(map(str, shape))},), "{dtype}")')
        if self.lanes > 1:
            kinds = sorted({d for _, d in self.scratch.values() if d.startswith("float")})
            lines += [f'lane_{d}{self.suffix} = T.sblock_alloc_buffer(({self.lanes},), "{d}")' for d in kinds]
            lines += [f'lane_strips_{d}{self.suffix} = T.sblock_alloc_buffer(({self.lanes},), "{d}")'
                      for d in sorted(self.striped)]
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
        return f"{identifier(name)}{self.suffix}_"

    def declare(self, name: str, axes: tuple[str, ...], dtype: str) -> None:
        if name not in self.written:
            last = (self.across,) if self.across in axes else ()
            self.scratch[name] = ((*(a for a in axes if a not in self.outer), *last), wide(dtype))  # type: ignore[arg-type]
        self.dtypes[name] = dtype

    def element(self, name: str, axes: dict[str, str] | None = None) -> str:
        """Text of the element of a named value at the current point; ``axes`` overrides the position on some axes."""
        at = axes or {}
        if name in self.written:
            block = next(b for b in (*self.kernel.body, *self.kernel.tail) if name in b.names)
            return f"{identifier(name)}[{', '.join(at.get(a, f'v_{a}') for a in block.axes) or '()'}]"
        inner = self.scratch[name][0]
        return f"{self.local(name)}[{', '.join(at.get(a, self.position(a)) for a in inner) or '0'}]"

    def position(self, axis: str) -> str:
        return f"w_{axis}" if axis in (self.raxis, self.across) else f"v_{axis}"

    def texts(self, settled: bool = False) -> Texts:
        def access(ref: Ref) -> tuple[str, str]:
            if ref.indices:
                return self.gather(ref, texts)
            held = self.dtypes[ref.name] if ref.name in self.written else "f32"
            return self.element(ref.name), held

        shapes = {t.name: tuple(int(n) for n in t.shape) for t in self.tensors.values()}
        held = any(t.dtype == "bf16" for t in self.tensors.values()) or (self.lanes > 1 and self.nested())
        register = self.register if held else None
        called = {n: identifier(n) for n in self.tensors}
        texts = Texts(lambda axis: f"v_{axis}", access, self.extents, shapes, called, register, self.lanes > 1, settled)
        return texts

    def nested(self) -> bool:
        """Is a function that is written out as arithmetic taken of another's value? TVM's simplifier writes their lets out in
        one another: seconds of LLVM for two, minutes for three."""
        found: dict[int, int] = {}

        def depth(e: Expr) -> int:
            if id(e) not in found:
                of = self.inline[e.name].exprs if isinstance(e, Ref) and e.indices and e.name in self.inline else children(e)
                found[id(e)] = tir_math.WRITTEN.get(e.name if isinstance(e, Op) else "", 0) + max(map(depth, of), default=0)
            return found[id(e)]

        return any(depth(e) > 1 for b in (*self.kernel.body, *self.kernel.tail) for e in b.exprs)

    def register(self, count: int, dtype: str) -> str:
        name = f"{dtype} register {count}"
        self.scratch[name] = ((self.across,) if self.across else (), dtype)
        return self.element(name)

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
        text = self.element(ref.name, {a: texts.position(e) for a, e in at.items() if a != self.across})
        return text, self.dtypes[ref.name] if ref.name in self.written else "f32"

    def _dtype(self, b: Block, i: int) -> str:
        if b.role in ("merge", "correct", "reduce") and b.names[i] in self.dtypes:
            return self.dtypes[b.names[i]]
        if b.reducer is not None and b.reducer.kind in algebra.PAYLOAD and i == 1:
            return "i64"
        return b.exprs[i].dtype if i < len(b.exprs) and b.reducer is None else b.dtype

    def store(self, name: str, text: str) -> str:
        dtype = self.dtypes[name]
        if name in self.written:
            return f"{self.element(name)} = {stored(text, dtype)}"
        if dtype in INTS:
            return f'{self.element(name)} = T.Cast("{wide(dtype)}", {text})'
        return f"{self.element(name)} = {text}"

    def held(self, name: str) -> str:
        """The current value of an accumulator or result."""
        text = self.element(name)
        return f'T.Cast("float32", {text})' if name in self.written and self.dtypes[name] in NARROW else text
