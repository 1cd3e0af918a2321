"""Text to tile programs: the inverse of ``str``. The grammar is in :mod:`redfuser.tensorize.ir.nodes`; comments and the
configuration, which are part of no node's equality, are not in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from redfuser.acrf.expr import Const, Expr, Load
from redfuser.acrf.text import Line, commas, lines_of, parse_expr
from redfuser.sizes import Symbol
from redfuser.tensorize.ir.flight import Arrive, Await, Drain, Fetch, Let, Meet, Send, Sent, Turn
from redfuser.tensorize.ir.nodes import (
    EXACT,
    Assign,
    Copy,
    Fill,
    For,
    Gemm,
    If,
    Parallel,
    ReduceTile,
    Role,
    Roles,
    ScanTile,
    Stop,
    TensorArg,
    TileKernel,
    TileProgram,
    TileStmt,
)
from redfuser.tensorize.ir.parts import At, Barrier, Buffer, Dim, Param, Slice
from redfuser.tensorize.ir.symbols import size_of

_WORD = r"([\w@]+)"
_TENSOR = re.compile(rf"{_WORD}: (\w+)\[(.*)\]")
_SPAN = re.compile(r" in (-?\d+) \.\. (-?\d+)$")
_SYMBOL = re.compile(rf"symbol {_WORD} in (\d+) \.\. (\d+)$")
_KERNEL = re.compile(rf"kernel {_WORD}\((.*)\) grid \((.*)\) threads (\d+)( specialized)?(?: raster (\d+))?"
                     r"( exact(?: small)?)?(?: cluster (\d+))?$")
_EXACT = {text: kind for kind, text in EXACT.items()}
_BUFFER = re.compile(rf"{_WORD}: (shared|fragment|local) (\w+)(\[[\d, ]*\])$")
_GEMM = re.compile(r"gemm (.*) -> ([\w@]+)( clear)?( async)? (rows|cols|square)$")
_BARRIER = re.compile(rf"{_WORD}: barrier\[(\d+)\] of (\d+)$")
_ROLE = re.compile(rf"role {_WORD} of (\d+)(?: registers (\d+))?:$")
_REDUCE = re.compile(rf"reduce (\w+) {_WORD} -> {_WORD}( by lane)?( clear)?( keeping nan)?(?: (\d+) at once)?$")
_SCAN = re.compile(rf"scan (\w+) {_WORD} -> {_WORD}(?: of (\d+))?(?: carry {_WORD})?$")
_FOR = re.compile(rf"for {_WORD} in (.*) \.\. (.*?)(?: pipelined (\d+))?:$")


def parse(text: str) -> TileProgram:
    """The program that ``text`` spells, as ``str`` prints it. Raises InputError RF180 (and RF181, RF182 of expressions)."""
    return _Reader(lines_of(text)).program()


@dataclass
class _Reader:
    lines: list[Line]
    pos: int = 0
    dtypes: dict[str, str] = field(default_factory=dict)
    """Of the parameters and buffers of the kernel being read."""

    @property
    def here(self) -> Line:
        return self.lines[self.pos] if self.pos < len(self.lines) else Line(len(self.lines) + 1, 0, "")

    def take(self) -> Line:
        line = self.here
        self.pos += 1
        return line

    def block(self, depth: int) -> Iterator[Line]:
        """The lines of a block, as long as the reader stands at one."""
        while self.here.text and self.here.depth >= depth:
            yield self.take()

    # -- programs and kernels ------------------------------------------------------------------------------------------

    def program(self) -> TileProgram:
        head = self.take()
        if not head.text.startswith("tile program "):
            head.fail("'tile program NAME'")
        args: list[TensorArg] = []
        outputs: list[tuple[str, str]] = []
        roundings: list[str] = []
        for line in self.block(1):
            word, _, rest = line.text.partition(" ")
            if word in ("in", "out", "workspace"):
                args.append(TensorArg(*_tensor(line, rest), word))  # type: ignore[arg-type]
            elif word == "output":
                name, _, arg = rest.partition(" = ")
                outputs.append((name, arg))
            elif word == "rounding":
                roundings.append(rest)
            else:
                line.fail("an argument, an output, a rounding or a kernel")
        kernels = []
        while self.here.text:
            kernels.append(self.kernel())
        name = head.text.removeprefix("tile program ")
        return TileProgram(name, tuple(args), tuple(kernels), tuple(outputs), tuple(roundings))

    def kernel(self) -> TileKernel:
        line = self.take()
        m = line.match(_KERNEL, "'kernel NAME(parameters) grid (...) threads N'")
        params = tuple(self._param(line, p) for p in commas(m[2]))
        grid = tuple((v, _size(line, n)) for v, _, n in (g.partition(" < ") for g in commas(m[3])))
        self.dtypes = {p.name: p.dtype for p in params}
        symbols: list[Symbol] = []
        while s := _SYMBOL.match(self.here.text):
            symbols.append(Symbol(s[1], int(s[2]), int(s[3])))
            self.take()
        lets: list[tuple[str, Expr]] = []
        buffers: list[Buffer] = []
        barriers: list[Barrier] = []
        while self.here.depth and (self.here.text.startswith("let ") or re.match(rf"{_WORD}: ", self.here.text)):
            line = self.take()
            if b := _BARRIER.match(line.text):
                barriers.append(Barrier(b[1], int(b[2]), int(b[3])))
            elif b := _BUFFER.match(line.text):
                buffers.append(Buffer(b[1], b[2], b[3], _shape(b[4][1:-1])))  # type: ignore[arg-type]
                self.dtypes[b[1]] = b[3]
            else:
                name, _, value = line.text.removeprefix("let ").partition(" = ")
                lets.append((name, self.index(value)))
        return TileKernel(m[1], params, grid, int(m[4]), tuple(lets), tuple(buffers), self.stmts(1), bool(m[5]),
                          int(m[6] or 0), _EXACT[m[7] or ""], barriers=tuple(barriers), cluster=int(m[8] or 1),
                          symbols=tuple(symbols))

    def _param(self, line: Line, text: str) -> Param:
        kept = _SPAN.search(text)
        text = text[:kept.start()] if kept else text
        name, dtype, shape = _tensor(line, text.removesuffix(" out"))
        return Param(name, dtype, shape, text.endswith(" out"), (int(kept[1]), int(kept[2])) if kept else None)

    # -- statements ----------------------------------------------------------------------------------------------------

    def stmts(self, depth: int) -> tuple[TileStmt, ...]:
        return tuple(self.stmt(line, depth) for line in self.block(depth))

    def stmt(self, line: Line, depth: int) -> TileStmt:
        word, _, rest = line.text.partition(" ")
        match word:
            case "copy":
                src, _, dst = rest.partition(" -> ")
                return Copy(self.slice(src), self.slice(dst))
            case "gemm":
                m = line.match(_GEMM, "'gemm A, B -> C POLICY'")
                a, b = commas(m[1])
                return Gemm(self.slice(a.removesuffix("^T")), self.slice(b.removesuffix("^T")), m[2], a.endswith("^T"),
                            b.endswith("^T"), bool(m[3]), m[5], flies=bool(m[4]))  # type: ignore[arg-type]
            case "reduce":
                m = line.match(_REDUCE, "'reduce OP A -> B'")
                return ReduceTile(m[1], m[2], m[3], bool(m[5]), lanes=bool(m[4]), nan=bool(m[6]), at_once=int(m[7] or 1))
            case "scan":
                m = line.match(_SCAN, "'scan OP A -> B'")
                return ScanTile(m[1], m[2], m[3], m[5] or "", int(m[4] or 0))
            case "fill":
                name, _, value = rest.partition(" ")
                return Fill(name, self.constant(line, value))
            case "parallel":
                loops = [p.partition(" < ") for p in commas(rest.removesuffix(":"))]
                body = tuple(self.assign(inner) for inner in self.block(depth + 1))
                return Parallel(tuple(v for v, _, _ in loops), tuple(int(n) for _, _, n in loops), body)
            case "for":
                m = line.match(_FOR, "'for VAR in FIRST .. LAST:'")
                return For(m[1], self.index(m[2]), self.index(m[3]), self.stmts(depth + 1), int(m[4] or 0))
            case "if":
                return If(self.expr(rest.removesuffix(":")), self.stmts(depth + 1))
            case "stop" if rest.startswith("if "):
                return Stop(self.expr(rest.removeprefix("if ")))
            case "roles:":
                return Roles(tuple(self.role(inner, depth + 1) for inner in self.block(depth + 1)))
            case "fetch":
                what, _, at = rest.partition(" signals ")
                src, _, dst = what.partition(" -> ")
                return Fetch(self.slice(src), self.slice(dst), self.at(at.removesuffix(" of all")), at.endswith(" of all"))
            case "send":
                src, _, dst = rest.partition(" -> ")
                return Send(self.slice(src), self.slice(dst.removesuffix(" alone")), dst.endswith(" alone"))
            case "await" if rest.split()[0] == "sent":
                return Sent(int(rest.removeprefix("sent").removeprefix(" but ") or 0))
            case "await":
                at, _, phase = rest.partition(" phase ")
                return Await(self.at(at), self.index(phase))
            case "arrive":
                one = rest.removesuffix(" of all")
                return Arrive(self.at(one.removesuffix(" each")), one.endswith(" each"), one != rest)
            case "drain":
                left, _, names = rest.partition(" for ")
                return Drain(int(left), tuple(commas(names)))
            case "take" | "pass" if rest == "turn":
                return Turn(word == "take")
            case "meet":
                return Meet(rest == "alone")
            case "let":
                name, _, value = rest.partition(" = ")
                return Let(name, self.index(value))
        line.fail("a statement")

    def role(self, line: Line, depth: int) -> Role:
        m = line.match(_ROLE, "'role NAME of N:'")
        return Role(m[1], int(m[2]), int(m[3] or 0), self.stmts(depth + 1))

    def at(self, text: str) -> At:
        name, _, slot = text.partition("[")
        return At(name, self.index(slot.removesuffix("]")))

    def assign(self, line: Line) -> Assign:
        target, found, value = line.text.partition("] = ")
        if not found:
            line.fail("'NAME[indices] = expression'")
        name, _, inside = target.partition("[")
        return Assign(name, tuple(map(self.index, commas(inside))), self.expr(value))

    # -- expressions ---------------------------------------------------------------------------------------------------

    def expr(self, text: str) -> Expr:
        return parse_expr(text, tensors=self.dtypes)

    def index(self, text: str) -> Expr:
        """An expression in which a bare number is an i64."""
        found = parse_expr(f"_[{text}]", tensors={**self.dtypes, "_": "f32"})
        assert isinstance(found, Load)
        return found.indices[0]

    def constant(self, line: Line, text: str) -> Const:
        found = parse_expr(text)
        return found if isinstance(found, Const) else line.fail("a constant")

    def slice(self, text: str) -> Slice:
        name, _, dims = text.partition("[")
        return Slice(name, tuple(self._dim(d) for d in commas(dims.removesuffix("]"))))

    def _dim(self, text: str) -> Dim:
        start, _, size = text.partition(" +: ")
        return Dim(self.index(start), int(size or 0))


def _tensor(line: Line, text: str) -> tuple[str, str, tuple[int, ...]]:
    m = _TENSOR.fullmatch(text) or line.fail("'NAME: DTYPE[shape]'")
    return m[1], m[2], tuple(_size(line, n) for n in commas(m[3]))


def _size(line: Line, text: str) -> Any:
    """A number, or a size of symbols."""
    if text.isdigit():
        return int(text)
    found = parse_expr(f"_[{text}]", tensors={"_": "f32"})
    assert isinstance(found, Load)
    return size_of(found.indices[0]) or line.fail("a number, or a size of symbols")


def _shape(text: str) -> tuple[int, ...]:
    return tuple(map(int, commas(text)))
