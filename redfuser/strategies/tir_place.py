"""A statement as a TIR block at its place: the loops around it, the positions of its axes, its lines.

Annotated with its role and axes; ``across`` (an axis whose points are lanes) puts a vectorised loop around it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.acrf.expr import Const, Expr, Op, indices_of, refs_of
from redfuser.acrf.facts import algebra
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block
from redfuser.strategies.tir_expr import is_nan, wide
from redfuser.strategies.tir_held import Held, identifier

SCALAR = ("T.nearbyint", "T.call_pure_extern", "T.if_then_else")
"""Calls that TVM's vectoriser makes a loop of, of those that :mod:`redfuser.strategies.tir_expr` prints for lanes."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the r-axis: where it starts (text) and how many elements it has."""

    start: str
    length: int


class Placed(Held):
    """Blocks of one kernel, and those that compute each element by itself."""

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
        return [f"for lane in {self.loop(block, self.width)}:", *indent(block)] if self.across in b.axes else block

    @staticmethod
    def loop(block: list[str], lanes: int) -> str:
        """The loop over lanes around a block: in turn where a binding calls what TVM makes no vector of, since it makes a loop
        of such a block without what is bound in it (``lane`` is then nobody's)."""
        bound = any(": T.let[" in line and any(f"{call}(" in line for call in SCALAR) for line in block)
        return f"range({lanes})" if bound else f"T.vectorized({lanes})"

    def length(self, axis: str, span: Span | None) -> int:
        return span.length if span is not None and axis == self.raxis else self.extents[axis]

    def pointwise(self, b: Block, span: Span | None) -> list[str]:
        match b.exprs:
            case (Op(name="select", args=(test, yes, no)),) if b.role == "post" and self.of_a_row(test):
                return [f"if {self.texts().value(test)}:", *indent(self.pointwise(replace(b, exprs=(yes,)), span)),
                        "else:", *indent(self.pointwise(replace(b, exprs=(no,)), span))]
        texts = self.texts(settled=b.role in ("finalize", "epilogue"))
        values = [texts.value(e) for e in b.exprs]
        if len(values) > 1:
            values = [texts.bind(v, wide(self.dtypes[n]), before=True) for n, v in zip(b.names, values, strict=True)]
        body = [*texts.lets, *(self.store(n, v) for n, v in zip(b.names, values, strict=True))]
        return self.loops(b.axes, span, self.sides(b, self.block(b, f"{b.role}_{b.name}", b.axes, span, body)))

    def of_a_row(self, test: Expr) -> bool:
        """Is something decided once for all of a row?"""
        names = refs_of(test)
        return bool(names) and not indices_of(test) and all(self.scratch.get(n, (("",),))[0] == () for n in names)


def neutral(b: Block) -> tuple[Const, ...]:
    """The neutral elements of a block's reducer in its dtype; a place below 0 is none."""
    assert b.reducer is not None
    value, *place = algebra.neutral(b.reducer, b.dtype)
    return (value, Const(-1, "i64")) if place else (value,)


def combined(kind: str, a: str, b: str, dtype: str) -> str:
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


def indent(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
