"""Errors planted in a tile program, one at a time: a constant off by 1e-6, a guard dropped, operands swapped, a wrong extent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from redfuser.acrf.expr import Const, Op
from redfuser.tensorize.ir.nodes import Dim, Fill, For, Gemm, If, TileProgram

ORDERED = frozenset({"sub", "div", "lt", "le", "gt", "ge", "pow"})


def mutants(program: TileProgram) -> Iterator[tuple[str, TileProgram]]:
    """(what was planted, the program with it); each node of each kernel's body in turn."""
    for k, kernel in enumerate(program.kernels):
        for what, body in _changed(kernel.body):
            changed = replace(kernel, body=body)
            yield f"{kernel.name}: {what}", replace(program, kernels=(*program.kernels[:k], changed, *program.kernels[k + 1:]))


def _changed(node: Any) -> Iterator[tuple[str, Any]]:
    """The node with one change somewhere in it."""
    yield from _here(node)
    if isinstance(node, tuple):
        for i, child in enumerate(node):
            yield from ((w, (*node[:i], c, *node[i + 1:])) for w, c in _changed(child))
    elif is_dataclass(node) and not isinstance(node, Const):
        for f in fields(node):
            if f.compare and f.name not in ("policy", "stages"):
                value = getattr(node, f.name)
                if isinstance(value, tuple) or is_dataclass(value):
                    yield from ((w, replace(node, **{f.name: c})) for w, c in _changed(value))


def _here(node: Any) -> Iterator[tuple[str, Any]]:
    match node:
        case Const(value=v, dtype=d) if d in ("f32", "f16", "bf16") and v and math.isfinite(v) and abs(v) < 1e20:
            yield f"constant {v!r} * (1 + 1e-6)", replace(node, value=v * (1 + 1e-6))
        case Op(name="select", args=(_, a, b)):
            yield f"guard dropped: {a} for {node}", a
            yield f"guard dropped: {b} for {node}", b
        case Op(name=name, args=(a, b)) if name in ORDERED and a != b:
            yield f"operands swapped: {node}", replace(node, args=(b, a))
        case Dim(start=s, size=n):
            yield f"start + 1: {node}", replace(node, start=Op("add", (s, Const(1, "i64")), "i64"))
            if n > 1:
                yield f"size - 1: {node}", replace(node, size=n - 1)
        case For(start=a, stop=b):
            yield f"first step left out: {node.var}", replace(node, start=Op("add", (a, Const(1, "i64")), "i64"))
            yield f"last step left out: {node.var}", replace(node, stop=Op("sub", (b, Const(1, "i64")), "i64"))
        case If():
            yield "a condition that is never true", replace(node, body=(), cond=Const(False, "bool"))
        case Gemm(a=a, b=b):
            yield f"not accumulated: {node}", replace(node, clear=not node.clear)
        case Fill(value=v) if v.value == 0.0:
            yield f"another start: {node}", replace(node, value=replace(v, value=1.0))


def everywhere(node: Any, change: Callable[[Any], Any]) -> Any:
    """The node with ``change`` applied to every part of it, innermost first; None drops a statement."""
    if isinstance(node, tuple):
        return tuple(c for c in (everywhere(child, change) for child in node) if c is not None)
    if is_dataclass(node) and not isinstance(node, type):
        parts = {f.name: getattr(node, f.name) for f in fields(node)}
        kept = {n: everywhere(v, change) if isinstance(v, tuple) or is_dataclass(v) else v for n, v in parts.items()}
        return change(replace(node, **kept))
    return node


__all__ = ["everywhere", "mutants"]
