"""Columns appended to a row (the logit of an attention sink, the key of a new token behind a cache) take part in its
reductions; the row stays a row.

A concatenation of one long piece and a few of extent 1 is carried through maps, views and products piece by piece, as far as
reductions over the joined axis and slices that lie within one piece ask for it::

    p = softmax(concat(s, c))           m = maximum(max(s), c)
    o = p[..., :-1] @ v         -->     t = sum(exp(s - m)) + exp(c - m)
                                        o = exp(s - m) / t @ v

    p = softmax(q @ concat(k, a)^T)     s = q @ k^T, c = q @ a^T, m = max(s), n = maximum(m, c)
    o = p @ concat(v, b)        -->     t = sum(exp(s - m)), r = t * exp(m - n)
                                        o = (exp(s - m) / t @ v * r + exp(c - n) * b) / (r + exp(c - n))

In the last the row is walked as if it were alone, and the columns meet its sums at the end. Equal in exact arithmetic. Where
the joined tensor is wanted itself it is still written; where it is a result of the program, it is read as it is written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import Any, Protocol

from redfuser.tvm_compat import dtype_of, op_name, permute_axes, relax, shape_of

op = relax.op
COMBINE = {"sum": op.add, "max": op.maximum, "min": op.minimum, "prod": op.multiply}
PIECES = 4
"""Pieces at most: each column is a value of its own in every reduction."""
DEPTH = 24
"""Maps at most between a concatenation and its reader."""

MANY = 1 << 28
"""Multiplications of a product of halves, from which on it stays one where no softmax is its left operand: the sum of its
pieces is in float32, and so is what torch makes of them. Distances of bfloat16 points as a product (one H200, us: in pieces, in
one, eager): 4096 x 4096 of 64 numbers 254, 100, 122, 2048 x 2048 of 128 80, 30, 70, three of 512 x 512 of 256 56, 76, 98."""

RANGE = {"float32": (-3.4028234663852886e38, 1.1754943508222875e-38),
         "float64": (-1.7976931348623157e308, 2.2250738585072014e-308)}
"""The lowest number, and the smallest positive one that is normal."""
Pieces = tuple[Any, ...]


class Emitter(Protocol):
    """What is needed of the builder. ``kept``: names of what the program returns."""

    kept: Collection[str]

    def emit(self, expr: Any, suffix: str = "") -> Any: ...

    def value(self, expr: Any) -> Any: ...


class Appended:
    """The pieces of values, found once per value and axis. ``maps`` are the elementwise operators."""

    def __init__(self, builder: Emitter, maps: frozenset[str]) -> None:
        self.builder, self.maps = builder, maps
        self.known: dict[tuple[Any, int], Pieces | None] = {}
        self.scores: dict[tuple[str, ...], Pieces] = {}
        """What weights are the softmax of, by their pieces' names."""

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
            if x.name_hint in self.builder.kept:
                return None
            found = tuple(call.args[0].fields)
            extents = [shape_of(p)[axis] for p in found]
            joined = (int(call.attrs.axis) if call.attrs.axis is not None else 0) % len(shape_of(x))
            return found if joined == axis and len(found) <= PIECES and sum(e > 1 for e in extents) == 1 else None
        if name in ("permute_dims", "repeat", "expand_dims", "broadcast_to", "reshape"):
            return self._viewed(call, name, axis, depth)
        if name == "matmul":
            return self._columns(call, axis, depth)
        if name in ("nn.softmax", "nn.log_softmax"):
            along = int(call.attrs.axis) % len(shape_of(x)) == axis and x.name_hint not in self.builder.kept
            return self._shares(call.args[0], axis, name == "nn.log_softmax") if along else None
        if name not in self.maps:
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

    def _viewed(self, call: Any, name: str, axis: int, depth: int) -> Pieces | None:
        """The pieces of a view that leaves the joined axis an axis."""
        x, shape = call.args[0], shape_of(call)
        old, at = shape_of(x), axis
        if name == "permute_dims":
            at = permute_axes(call)[axis]
        elif name == "broadcast_to":
            at = axis - len(shape) + len(old)
        elif name == "expand_dims":
            new = sorted(int(a) % len(shape) for a in call.attrs.axis)
            at = -1 if axis in new else axis - sum(a < axis for a in new)
        elif name == "reshape":
            at = next((a for a in range(len(old)) if prod(old[:a]) == prod(shape[:axis]) and old[a] == shape[axis]), -1)
        elif call.attrs.axis is None or int(call.attrs.axis) % len(old) == axis:
            return None
        found = self.pieces(x, at, depth - 1) if at >= 0 and old[at] == shape[axis] else None
        return found and tuple(self.builder.emit(self._view(call, name, p, (*shape[:axis], shape_of(p)[at], *shape[axis + 1:])),
                                                 "piece") for p in found)

    def _view(self, call: Any, name: str, p: Any, shape: tuple[int, ...]) -> Any:
        """A piece viewed as ``call`` views the whole."""
        if name == "permute_dims":
            return op.permute_dims(p, list(permute_axes(call)))
        if name == "repeat":
            return op.repeat(p, int(call.attrs.repeats), int(call.attrs.axis))
        return op.broadcast_to(p, shape) if name == "broadcast_to" else op.reshape(p, shape)

    def _columns(self, call: Any, axis: int, depth: int) -> Pieces | None:
        """The pieces of a product along its columns."""
        x, y = call.args
        found = self.pieces(y, len(shape_of(y)) - 1, depth - 1) if axis == len(shape_of(call)) - 1 and len(
            shape_of(x)) > 1 < len(shape_of(y)) else None
        return found and tuple(self._column(x, p, dtype_of(call)) if shape_of(p)[-1] == 1 else self.builder.emit(
            relax.Call(call.op, [x, p], call.attrs), "piece") for p in found)

    def _column(self, x: Any, p: Any, dtype: str) -> Any:
        """One column of a product: a sum along the rows of ``x``, in the product's own dtype."""
        emit, turned = self.builder.emit, [*range(len(shape_of(p)) - 2), len(shape_of(p)) - 1, len(shape_of(p)) - 2]
        row = emit(op.permute_dims(p, turned), "turned")
        return emit(op.sum(emit(op.multiply(*self._wide((x, row), dtype)), "terms"), [len(shape_of(x)) - 1], True), "piece")

    def _wide(self, operands: Sequence[Any], dtype: str) -> list[Any]:
        return [v if dtype_of(v) == dtype else self.builder.emit(op.astype(v, dtype), "wide") for v in operands]

    def product(self, call: Any) -> Any:
        """A product that sums over the joined axis, the sum of those of the pieces; None for other values."""
        x, y = call.args
        if len(shape_of(x)) < 2 or len(shape_of(y)) < 2:
            return None
        right = self.pieces(y, len(shape_of(y)) - 2)
        left = right and self.pieces(x, len(shape_of(x)) - 1)
        if left is None or right is None or [shape_of(p)[-1] for p in left] != [shape_of(p)[-2] for p in right]:
            return None
        scores = self.scores.get(tuple(getattr(p, "name_hint", "") for p in left))
        if scores is not None and dtype_of(call) in RANGE:
            return self._weighed(scores, right, call)
        if dtype_of(x) != dtype_of(call) and prod(shape_of(call)) * shape_of(x)[-1] >= MANY:
            return None
        emit, out = self.builder.emit, None
        for a, b in zip(left, right, strict=True):
            part = emit(op.multiply(*self._wide((a, b), dtype_of(call))), "column") if shape_of(a)[-1] == 1 else emit(
                relax.Call(call.op, [a, b], call.attrs), "row")
            out = part if out is None else emit(op.add(out, part), "all")
        return out

    def _weighed(self, scores: Pieces, values: Pieces, call: Any) -> Any:
        """Values weighed by a softmax. A row that is hidden as a whole has the lowest number for its maximum and the smallest
        for its sum: no NaN, and no weight beside columns that are seen; where nothing is, ``n`` makes NaN."""
        emit, dtype = self.builder.emit, dtype_of(call)
        low, tiny = (relax.const(v, dtype) for v in RANGE[dtype])
        row = next(i for i, s in enumerate(scores) if shape_of(s)[-1] > 1)
        n = emit(op.max(scores[row], [-1], True), "largest")
        m = emit(op.maximum(n, low), "seen")
        e = emit(op.exp(emit(op.subtract(scores[row], m), "shifted")), "exp")
        t = emit(op.maximum(emit(op.sum(e, [-1], True), "sum"), tiny), "sum")
        out = emit(relax.Call(call.op, [emit(op.divide(e, t), "weights"), values[row]], call.attrs), "row")
        columns = [(s, v) for i, (s, v) in enumerate(zip(scores, values, strict=True)) if i != row]
        for s, _ in columns:
            n = emit(op.maximum(n, s), "all")
        t = emit(op.multiply(t, emit(op.exp(emit(op.subtract(m, n), "shifted")), "share")), "sum")
        out = emit(op.multiply(out, t), "row")
        for s, v in columns:
            w = emit(op.exp(emit(op.subtract(s, n), "shifted")), "column")
            t = emit(op.add(t, w), "sum")
            out = emit(op.add(out, emit(op.multiply(w, v), "column")), "all")
        return op.divide(out, t)

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

    def _shares(self, x: Any, axis: int, log: bool) -> Pieces | None:
        """The pieces of a (log-)softmax over the joined axis."""
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
            return tuple(emit(op.subtract(s, logarithm), "piece") for s in shifted)
        shares = tuple(emit(op.divide(w, t), "piece") for w in weights)
        self.scores[tuple(p.name_hint for p in shares)] = found
        return shares
