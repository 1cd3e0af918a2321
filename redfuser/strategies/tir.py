"""Segment programs as TVM PrimFuncs: scalar TIR, one block per statement, annotated with its role and axes.

    for b, h, i in the grid:
        block "init_m"     role init      axes [b, h, i]
        for seg in segments:
            block "producer_s" ...        v_l = seg * 64 + l is the position in the row, w_l = l that in the segment
            block "reduce_m" ...
        block "finalize_o" ...

The ragged last segment is a second copy of the body with its own constant extents. :mod:`redfuser.strategies.tir_blocks` has
the statements, :mod:`redfuser.strategies.tir_held` where values lie, :mod:`redfuser.strategies.tir_place` the loops around a
block, :mod:`redfuser.strategies.tir_reduce` and :mod:`redfuser.strategies.tir_pairs` those that reduce.
"""

from __future__ import annotations

from math import prod
from typing import Any

from redfuser.acrf.cascade import Tensor
from redfuser.acrf.expr import Expr, Ref, walk
from redfuser.errors import LoweringError
from redfuser.strategies.alive import alive_where, common
from redfuser.strategies.program import Block, Kernel, Program, made_again, split_range
from redfuser.strategies.tir_blocks import Blocks, carry_of
from redfuser.strategies.tir_expr import TVM_DTYPE, wide
from redfuser.strategies.tir_held import identifier
from redfuser.strategies.tir_kept import kept
from redfuser.strategies.tir_place import Span, indent
from redfuser.strategies.tir_rows import possible, side_by_side

ALIGN = 16
"""Bytes to which every tensor is aligned, as :class:`redfuser.artifact.ArgSpec` promises."""
WORTH = 1 << 15
"""Values that a kernel computes before further threads are asked for."""
EVEN = 8
"""Points of an axis that threads share evenly enough."""
SYMBOLIC = 1 << 10
"""What a symbolic extent counts as."""


def to_primfuncs(program: Program, lanes: int = 1) -> Any:
    """An IRModule with one PrimFunc per kernel, named like it; parameters are its reads, then its writes.

    Raises LoweringError: RF430 for an operation and RF431 for a dtype that LLVM kernels do not get, RF432 for scratch that
    does not fit, RF433 for symbolic extents, RF434 for values
    that are not held, RF435 for empty axes."""
    from redfuser.tvm_compat import tvm

    functions = {k.name: parse(script(k.name, (*k.reads, *k.writes), [_KernelText(program, k, lanes)]))
                 for k in program.kernels}
    return tvm.IRModule(functions)


def entry_script(program: Program, name: str, lanes: int = 1, threads: bool = False, like: Program | None = None) -> str:
    """The TVMScript of one PrimFunc that runs every kernel of the program in turn: inputs, outputs, workspaces. threads: that
    share points of the grid, by the extents of ``like``, the same program with symbols in it."""
    own = like or program
    sides = [side_by_side(own, k, lanes) if lanes > 1 and _numbers(own) else None for k in own.kernels]
    shared = [shared_axis(own, k, a, lanes) if threads else None for k, a in zip(own.kernels, sides, strict=True)]
    kernels = [kept(k) if lanes > 1 else k for k in program.kernels]
    return script(name, parameters(program), [_KernelText(program, k, lanes, *how)
                                              for k, *how in zip(kernels, sides, shared, strict=True)])


def _numbers(program: Program) -> bool:
    """Is it of one size?"""
    return all(isinstance(a.extent, int) for a in program.axes)


def shared_axis(program: Program, kernel: Kernel, across: str | None = None, width: int = 1) -> str | None:
    """The axis of a kernel's grid whose points (or tiles of ``width`` of them, along ``across``) are shared out to threads: the
    first that is long enough for that, or the longest; None where there is too little to do. What is computed at a point is the
    same on any thread."""
    def points(axis: str) -> int:
        n = program.extent(axis)
        return n if isinstance(n, int) else SYMBOLIC

    def extent(axis: str) -> int:
        return -(-points(axis) // width) if axis == across else points(axis)

    outer = (*kernel.grid, *((kernel.split,) if kernel.split and kernel.kind != "combine" else ()))
    blocks = (*kernel.body, *kernel.tail)
    if not outer or sum(prod(map(points, {*outer, *b.points})) for b in blocks) < WORTH:
        return None
    return next((a for a in outer if extent(a) >= EVEN), max(outer, key=extent))


def parameters(program: Program) -> tuple[Tensor, ...]:
    """Inputs, outputs and workspaces in the order of :func:`entry_script`'s parameters."""
    written = {t.name: t for k in program.kernels for t in k.writes}
    cascade = program.fused.cascade
    return (*cascade.inputs, *(written[o] for o in cascade.outputs), *program.workspaces)


def script(name: str, tensors: tuple[Tensor, ...], kernels: list[_KernelText]) -> str:
    """TVMScript text of one function that runs ``kernels`` in turn."""
    params = ", ".join(f"{identifier(t.name)}: T.Buffer(({', '.join(map(str, t.shape))}{',' * (len(t.shape) == 1)}), "
                       f'"{_buffer_dtype(t)}", align={ALIGN})' for t in _static(tensors))
    lines = ["@T.prim_func(s_tir=True)", f"def {identifier(name)}({params}):",
             f'    T.func_attr({{"global_symbol": "{identifier(name)}", "tir.noalias": True}})', '    with T.sblock("root"):']
    bodies = []
    for i, k in enumerate(kernels):
        bodies += k.body(f"_{i}" if len(kernels) > 1 else "")
    scratch = [line for k in kernels if k.shared is None for line in k.scratch_lines()]
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


class _KernelText(Blocks):
    """The lines of one kernel. ``across``: the axis whose points lie side by side; ``shared``: the one that threads share out,
    each with scratch of its own."""

    def __init__(self, program: Program, kernel: Kernel, lanes: int, across: str | None = None,
                 shared: str | None = None) -> None:
        super().__init__(program, kernel, lanes, across)
        self.shared = shared

    def body(self, suffix: str) -> list[str]:
        k, self.suffix = self.kernel, suffix
        for b in (*k.init, *k.body, *k.tail):
            for i, n in enumerate(b.names):
                self.declare(n, b.axes, self._dtype(b, i))
            if b.running:
                self.declare(carry_of(b), tuple(a for a in b.axes if a != b.over), b.dtype)
        outer = list(k.grid) + ([k.split] if k.split and k.kind != "combine" else [])
        first, lines = [line for b in k.init for line in self.pointwise(b, None)], []
        if k.kind == "combine":
            fold = [line for b in k.body for line in self.statement(b, None)]
            lines += [f"for i_{k.split} in range({self.extents[k.split or '']}):", *indent(fold)]
        else:
            lines += self.segments(k.body)
        lines += self.tail()
        lines = [*first, *(line for copy in self.once.values() for line in copy), *lines]
        count = self.extents | ({self.across: -(-self.extents[self.across] // self.width)} if self.across else {})
        for axis in reversed([a for a in outer if a != self.shared]):
            lines = [f"for i_{axis} in range({count[axis]}):", *indent(lines)]
        if self.shared is not None:
            point = [f'with T.sblock("{identifier(k.name)}_point{suffix}"):', *indent(self.scratch_lines()), *indent(lines)]
            lines = [f"for i_{self.shared} in T.parallel({count[self.shared]}):", *indent(point)]
        return lines

    def segments(self, blocks: tuple[Block, ...]) -> list[str]:
        """The walk along the r-axis (of this split): whole segments, then the ragged one."""
        if not blocks:
            return []
        extent, n = self.extents[self.raxis], self.segment
        whole, rest = divmod(extent, n)

        def run(span: Span) -> list[str]:
            lines = [line for b in blocks for line in self.statement(b, span)]
            seen = self.seen(span) if blocks is self.kernel.body else ""
            return [f"if {seen}:", *indent(lines)] if seen else lines

        split = self.kernel.split
        lines = []
        if split is None:
            if whole:
                lines += [f"for seg in range({whole}):", *indent(run(Span(f"seg * {n}", n)))]
            return lines + (run(Span(str(whole * n), rest)) if rest else [])
        chunk, _ = split_range(extent, self.extents[split], 1, n) if self.extents[split] > 1 else (extent, 0)
        per = max(1, -(-chunk // n))
        if whole:
            count = f"T.max(T.min({whole} - i_{split} * {per}, {per}), 0)"
            lines += [f"for seg in range({count}):", *indent(run(Span(f"(i_{split} * {per} + seg) * {n}", n)))]
        if rest:
            lines += [f"if i_{split} == {whole // per}:", *indent(run(Span(str(whole * n), rest)))]
        return lines

    def seen(self, span: Span) -> str:
        """Whether anything of a segment counts for any of the points at hand: a mask's other segments are not walked. Nothing
        is left out where more than sums is made of a segment: results, or a row that is held for another visit."""
        made = {n for b in self.kernel.body if b.role == "producer" for n in b.names}
        if self.kernel.kind == "resident" or made & self.written:
            return ""
        lets = {b.name: b.exprs[0] for b in self.kernel.body if b.role == "producer" and b.reducer is None}
        alive = tuple(alive_where(lets, b.reducer, b.exprs[0]) for b in self.kernel.body if b.role == "reduce")
        box = {a: (f"i_{a}", 1) for a in self.outer} | {self.raxis: (span.start, span.length)}
        box |= {self.across: (self.first, self.width)} if self.across else {}
        return possible(common(alive), box, self.extents) if self.lanes > 1 else ""

    def tail(self) -> list[str]:
        """Blocks without the r-axis as they come; the others in walks of the row, as few as their order allows."""
        lines: list[str] = []
        visit: list[Block] = []
        walked: list[Block] = []
        held = self.kernel.kind in ("resident", "merge")

        def flush() -> None:
            nonlocal lines
            if visit:
                for b in visit:
                    if b.role == "post" and b.over == self.raxis:
                        lines += self.start(b)
                lines += self.segments((*(() if held else made_again(visit, walked, self.raxis, self.written)), *visit))
                walked.extend(visit)
                visit.clear()

        for b in self.kernel.tail:
            if self.raxis not in b.axes and b.over != self.raxis:
                flush()
                lines += self.statement(b, None)
                continue
            if b.role == "producer" and b.name in self.written:
                continue
            reads = {x.name for e in b.exprs for x in _refs(e)}
            if any(w.over == self.raxis and not w.running and reads & set(w.names) for w in visit):
                flush()
            visit.append(b)
        flush()
        return lines


def _refs(e: Expr) -> list[Ref]:
    return [x for x in walk(e) if isinstance(x, Ref)]
