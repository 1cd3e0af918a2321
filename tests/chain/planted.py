"""Errors planted in a tile program, one at a time: a constant off by 1e-6, a guard dropped, operands swapped, a wrong extent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from redfuser.acrf.expr import FLOATS, Const, Op
from redfuser.tensorize.ir.nodes import Fill, For, Gemm, If, Parallel, ReduceTile, TileProgram
from redfuser.tensorize.ir.parts import Dim

ORDERED = frozenset({"sub", "div", "lt", "le", "gt", "ge", "pow"})
JOINED = frozenset({"and", "or"})
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Mutant:
    """``kind`` and ``what`` were planted at ``path``, which is the same place in another twin of the kernel."""

    kind: str
    what: str
    path: Path
    tiles: TileProgram

    @property
    def place(self) -> tuple[str, Path]:
        return self.kind, self.path

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


def mutants(program: TileProgram) -> Iterator[Mutant]:
    """Each node of each kernel in turn."""
    for k, kernel in enumerate(program.kernels):
        def planted(changed: Any, k: int = k) -> TileProgram:
            return replace(program, kernels=(*program.kernels[:k], changed, *program.kernels[k + 1:]))

        for v, n in kernel.grid:
            if n > 1:
                grid = tuple((w, m - (w == v)) for w, m in kernel.grid)
                yield Mutant("extent", f"{v} < {n - 1}", (k, "grid", v), planted(replace(kernel, grid=grid)))
        for part in ("lets", "body"):
            for kind, what, path, changed in _changed(getattr(kernel, part), (k, part)):
                yield Mutant(kind, what, path, planted(replace(kernel, **{part: changed})))


def _changed(node: Any, path: Path) -> Iterator[tuple[str, str, Path, Any]]:
    """The node with one change somewhere in it."""
    yield from ((kind, what, (*path, kind, n), changed) for n, (kind, what, changed) in enumerate(_here(node)))
    if isinstance(node, tuple):
        for i, child in enumerate(node):
            yield from ((a, b, p, (*node[:i], c, *node[i + 1:])) for a, b, p, c in _changed(child, (*path, i)))
    elif is_dataclass(node) and not isinstance(node, Const):
        for f in fields(node):
            if f.compare and f.name not in ("policy", "stages"):
                value = getattr(node, f.name)
                if isinstance(value, tuple) or is_dataclass(value):
                    yield from ((a, b, p, _with(node, f.name, c)) for a, b, p, c in _changed(value, (*path, f.name)))


def _with(node: Any, field: str, value: Any) -> Any:
    return replace(node, **{field: value})


def _here(node: Any) -> Iterator[tuple[str, str, Any]]:
    match node:
        case Const(value=v, dtype=d) if d in FLOATS and v and math.isfinite(v) and abs(v) < 1e20:
            yield "constant", f"{v!r} * (1 + 1e-6)", replace(node, value=v * (1 + 1e-6))
        case Op(name="select", args=(_, a, b)):
            yield "guard", f"{a} for {node}", a
            yield "guard", f"{b} for {node}", b
        case Op(name=name, args=(a, b)) if name in JOINED:
            yield "guard", f"{a} for {node}", a
            yield "guard", f"{b} for {node}", b
        case Op(name=name, args=(a, b)) if name in ORDERED and a != b:
            yield "operands", f"{node}", replace(node, args=(b, a))
        case Dim(start=s, size=n):
            yield "extent", f"{node} from one further", replace(node, start=Op("add", (s, Const(1, "i64")), "i64"))
            if n > 1:
                yield "extent", f"{node} without the last", replace(node, size=n - 1)
        case Parallel(vars=names, extents=extents):
            for k, (v, n) in enumerate(zip(names, extents, strict=True)):
                if n > 1:
                    yield "extent", f"{v} < {n - 1} for {node.body[0]}", replace(
                        node, extents=(*extents[:k], n - 1, *extents[k + 1:]))
        case For(start=a, stop=b):
            yield "extent", f"{node.var} without the first", replace(node, start=Op("add", (a, Const(1, "i64")), "i64"))
            yield "extent", f"{node.var} without the last", replace(node, stop=Op("sub", (b, Const(1, "i64")), "i64"))
        case If():
            yield "guard", f"{node.cond} never", replace(node, body=(), cond=Const(False, "bool"))
        case Gemm():
            yield "start", f"clear, or not, in {node}", replace(node, clear=not node.clear)
        case ReduceTile(clear=False):
            yield "start", f"clear in {node}", replace(node, clear=True)
        case Fill(value=v) if v.value == 0.0:
            yield "start", f"{node} with 1", replace(node, value=replace(v, value=1.0))


def everywhere(node: Any, change: Callable[[Any], Any]) -> Any:
    """The node with ``change`` applied to every part of it, innermost first; None drops a statement."""
    if isinstance(node, tuple):
        return tuple(c for c in (everywhere(child, change) for child in node) if c is not None)
    if is_dataclass(node) and not isinstance(node, type):
        parts = {f.name: getattr(node, f.name) for f in fields(node)}
        kept = {n: everywhere(v, change) if isinstance(v, tuple) or is_dataclass(v) else v for n, v in parts.items()}
        return change(replace(node, **kept))
    return node


__all__ = ["Mutant", "everywhere", "mutants"]
