"""Columns appended to a row (the logit of an attention sink) take part in its reductions; the row stays a row.

A concatenation of one long piece and a few of extent 1 is carried through maps piece by piece, as far as reductions over
the joined axis and slices that lie within one piece ask for it::

    p = softmax(concat(s, c))           m = maximum(max(s), c)
    o = p[..., :-1] @ v         -->     t = sum(exp(s - m)) + exp(c - m)
                                        o = exp(s - m) / t @ v

Equal in exact arithmetic. Where the joined tensor is wanted itself it is still written.
"""

from __future__ import annotations

from typing import Any, Protocol

from redfuser.tvm_compat import op_name, relax, shape_of

op = relax.op
COMBINE = {"sum": op.add, "max": op.maximum, "min": op.minimum, "prod": op.multiply}
PIECES = 4
"""Pieces at most: each column is a value of its own in every reduction."""
DEPTH = 24
"""Maps at most between a concatenation and its reader."""

Pieces = tuple[Any, ...]


class Emitter(Protocol):
    """What is needed of the builder."""

    def emit(self, expr: Any, suffix: str = "") -> Any: ...

    def value(self, expr: Any) -> Any: ...


class Appended:
    """The pieces of values, found once per value and axis. ``maps`` are the elementwise operators."""

    def __init__(self, builder: Emitter, maps: frozenset[str]) -> None:
        self.builder, self.maps = builder, maps
        self.known: dict[tuple[Any, int], Pieces | None] = {}

    def pieces(self, x: Any, axis: int, depth: int = DEPTH) -> Pieces | None:
        """``x`` as a row and columns along ``axis``; None where it is made in another way."""
        if not isinstance(x, relax.Var) or not depth:
            return None
        if (x, axis) not in self.known:
            self.known[x, axis] = self._pieces(x, axis, depth)
        return self.known[x, axis]

    def _pieces(self, x: Any, axis: int, depth: int) -> Pieces | None:
        call = self.builder.value(x)
        name = op_name(call)
        if name == "concat" and isinstance(call.args[0], relax.Tuple):
            found = tuple(call.args[0].fields)
            extents = [shape_of(p)[axis] for p in found]
            joined = (int(call.attrs.axis) if call.attrs.axis is not None else 0) % len(shape_of(x))
            return found if joined == axis and len(found) <= PIECES and sum(e > 1 for e in extents) == 1 else None
        if name not in self.maps or name == "broadcast_to":
            return None
        columns: list[Pieces | Any] = []
        extents = []
        for a in call.args:
            at = axis - len(shape_of(x)) + len(shape_of(a))
            if at < 0 or shape_of(a)[at] == 1:
                columns.append(a)
                continue
            got = self.pieces(a, at, depth - 1)
            if got is None or (extents and extents != [shape_of(p)[at] for p in got]):
                return None
            extents = [shape_of(p)[at] for p in got]
            columns.append(got)
        if not extents:
            return None
        return tuple(self.builder.emit(relax.Call(call.op, [c[i] if isinstance(c, tuple) else c for c in columns], call.attrs,
                                                  call.sinfo_args if name == "astype" else None), "piece")
                     for i in range(len(extents)))

    def total(self, name: str, x: Any, axis: int, keep: bool) -> Any:
        """A reduction over the joined axis, combined from those of the pieces; None for other values."""
        found = self.pieces(x, axis) if name in COMBINE else None
        if found is None:
            return None
        out = None
        for p in found:
            one = shape_of(p)[axis] == 1
            part = (p if keep else self.builder.emit(op.squeeze(p, [axis]), "column")) if one else self.builder.emit(
                getattr(op, name)(p, [axis], keep), "row")
            out = part if out is None else self.builder.emit(COMBINE[name](out, part), "all")
        return out

    def softmax(self, x: Any, axis: int, log: bool) -> Any:
        """(log-)softmax over the joined axis, joined again: a slice of it takes one piece."""
        found = self.pieces(x, axis)
        if found is None:
            return None
        emit = self.builder.emit
        m = self.total("max", x, axis, True)
        shifted = [emit(op.subtract(p, m), "shifted") for p in found]
        weights = [emit(op.exp(s), "exp") for s in shifted]
        t = None
        for w in weights:
            part = w if shape_of(w)[axis] == 1 else emit(op.sum(w, [axis], True), "sum")
            t = part if t is None else emit(op.add(t, part), "all")
        if log:
            logarithm = emit(op.log(t), "log")
            return op.concat([emit(op.subtract(s, logarithm), "piece") for s in shifted], axis)
        return op.concat([emit(op.divide(w, t), "piece") for w in weights], axis)
