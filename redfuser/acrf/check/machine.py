"""The machine that evaluates expressions, statements and reductions on labelled arrays.

A value is an array labelled with the axes it depends on; every sub-expression is computed on its own axes only. Used by
:mod:`redfuser.acrf.check.evaluate`, over any number system of :mod:`redfuser.acrf.check.domains`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from redfuser.acrf.cascade import Let, Reduce, Reducer, Stmt
from redfuser.acrf.check import pieces
from redfuser.acrf.check.domains import NUMPY, Array, Arrays, Domain
from redfuser.acrf.check.labelled import Labelled, common, union
from redfuser.acrf.check.picked import accumulated, highest, integer_op, k_best, lowest
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Index, Load, Op, Ref, children
from redfuser.acrf.state import Accumulator


class Source:
    """A tensor whose elements are drawn on demand, so that a sample of a large tensor stays small."""

    shape: tuple[int, ...]
    axis: str = ""
    """An axis that every element has besides its place; "" for none."""

    def at(self, places: tuple[Array, ...], numbers: Domain, own: bool = False) -> Array:
        """The elements at broadcast index arrays, as the number system stores them; ``axis`` in front. own: the places
        have it in front as well, each point of it its own."""
        raise NotImplementedError


State = dict[str, Labelled]
"""The values of a state's accumulators, by name."""


@dataclass(frozen=True)
class Machine:
    """One evaluation: a number system, the inputs, and for every axis the points at which it is evaluated, ascending
    (the whole extent, a segment of it, or a sample)."""

    numbers: Domain
    tensors: Mapping[str, Array | Source]
    dtypes: Mapping[str, str]
    ranges: Mapping[str, Array]
    stmt_axes: Mapping[str, tuple[str, ...]]
    values: dict[str, Labelled] = field(default_factory=dict)
    known: dict[int, tuple[Expr, Labelled]] = field(default_factory=dict)
    """Values of expression *objects*: a name is bound once on a machine, so an object has one value on it."""
    part: tuple[Machine, str, slice] | None = None
    """Of a segment: the machine of the whole row, the axis that was cut, and which of its points are here."""
    reading: dict[int, tuple[Expr, bool]] = field(default_factory=dict)
    """Of expression objects: does the value depend on a statement or a state? Shared by a machine's segments."""

    def segment(self, axis: str, start: int, stop: int) -> Machine:
        """The same inputs with one axis restricted to its points number start .. stop-1, and no values yet."""
        return Machine(self.numbers, self.tensors, self.dtypes, {**self.ranges, axis: self.ranges[axis][start:stop]},
                       self.stmt_axes, part=(self, axis, slice(start, stop)), reading=self.reading)

    def with_values(self, values: Mapping[str, Labelled]) -> Machine:
        return Machine(self.numbers, self.tensors, self.dtypes, self.ranges, self.stmt_axes, {**self.values, **values})

    # -- expressions --

    def expr(self, e: Expr) -> Labelled:
        if isinstance(e, Ref) and not e.indices:
            return self.values[e.name]
        found = self.known.get(id(e))
        if found is None:
            found = self.known[id(e)] = e, self._expr(e) if self.part is None or self._reads(e) else self._cut(e)
        return found[1]

    def _reads(self, e: Expr) -> bool:
        found = self.reading.get(id(e))
        if found is None:
            found = self.reading[id(e)] = e, isinstance(e, Ref) or any([self._reads(k) for k in children(e)])
        return found[1]

    def _cut(self, e: Expr) -> Labelled:
        """What reads no name has at every point the value that it has there in the whole row."""
        assert self.part is not None
        whole, axis, points = self.part
        x = whole.expr(e)
        return x.cut(axis, points)

    def _expr(self, e: Expr) -> Labelled:
        match e:
            case Const(value=v, dtype=d):
                return Labelled((), self.numbers.const(float(v), d) if d in FLOATS else np.asarray(v, NUMPY[d]))
            case Index(axis=a):
                return Labelled((a,), self.ranges[a])
            case Load(tensor=t, indices=ix):
                return self._load(self.tensors[t], ix)
            case Ref(name=n, indices=ix):
                return self._shifted(n, ix)
            case Cast(arg=arg, dtype=d):
                x = self.expr(arg)
                return Labelled(x.axes, self._cast(x.data, arg.dtype, d))
            case Op():
                return self._op(e)
        raise TypeError(f"not an expression: {e!r}")

    def _load(self, tensor: Array | Source, indices: tuple[Expr, ...]) -> Labelled:
        """Elements at index expressions; an index outside the tensor is clamped (a mask guards it)."""
        names = tuple(i.axis for i in indices if isinstance(i, Index))
        if len(names) == len(set(names)) and not isinstance(tensor, Source):
            cut = [self._slice(i, d) for i, d in zip(indices, tensor.shape, strict=True)]
            if None not in cut:
                return Labelled(names, np.asarray(tensor[tuple(c for c in cut if c is not None)], tensor.dtype))
        axes, at = self._places(indices, tensor.shape)
        if isinstance(tensor, Source):
            if tensor.axis in axes:
                along = axes.index(tensor.axis)
                own = tuple(np.ascontiguousarray(np.moveaxis(a, along, 0)) for a in at)
                return Labelled(axes, np.moveaxis(tensor.at(own, self.numbers, True), 0, along))
            return Labelled((tensor.axis, *axes) if tensor.axis else axes, tensor.at(at, self.numbers))
        return Labelled(axes, np.asarray(tensor[at], tensor.dtype))

    def _slice(self, i: Expr, extent: int) -> slice | int | None:
        """A plain index along one dimension."""
        if isinstance(i, Index):
            return _as_slice(self.ranges[i.axis], extent)
        return int(i.value) if isinstance(i, Const) and 0 <= i.value < extent else None

    def _shifted(self, name: str, indices: tuple[Expr, ...]) -> Labelled:
        """An earlier statement at other points of its axes: an index names a point, not a position in the sample."""
        axes, value = self.stmt_axes[name], self.values[name]
        out_axes, at = self._places(indices, None)
        besides = tuple(a for a in value.axes if a not in axes and a not in out_axes)
        shared = tuple(a for a in value.axes if a not in axes and a in out_axes)
        full = value.aligned((*besides, *shared, *axes))
        full = np.broadcast_to(full, [*full.shape[:len(full.shape) - len(axes)], *(len(self.ranges[a]) for a in axes)])
        own = [Labelled((a,), np.arange(len(self.ranges[a]))).aligned(out_axes) for a in shared]
        near = tuple(np.clip(np.searchsorted(self.ranges[a], i), 0, max(len(self.ranges[a]) - 1, 0))
                     for a, i in zip(axes, at, strict=True))
        where = (..., *own, *near)
        return Labelled((*besides, *out_axes), np.asarray(full[where], full.dtype))

    def _places(self, indices: tuple[Expr, ...],
                shape: tuple[int, ...] | None) -> tuple[tuple[str, ...], tuple[Any, ...]]:
        parts = [self.expr(i) for i in indices]
        axes = union(p.axes for p in parts)
        at = [p.aligned(axes) for p in parts]
        if shape is not None:
            at = [np.clip(i, 0, max(d - 1, 0)) for i, d in zip(at, shape, strict=True)]
        return axes, tuple(np.broadcast_arrays(*at)) if at else ()

    def _cast(self, x: Array, source: str, target: str) -> Array:
        if source in FLOATS and target in FLOATS:
            return self.numbers.round(x, source, target)
        if source in FLOATS:
            return self.numbers.truncate(x, target)
        if target in FLOATS:
            return self.numbers.enter(x, target)
        return x.astype(NUMPY[target])

    def _op(self, e: Op) -> Labelled:
        args = [self.expr(a) for a in e.args]
        axes, same = common(tuple([a.axes for a in args]))
        data = [a.data for a in args] if same else [a.aligned(axes) for a in args]
        if e.name == "select":
            return Labelled(axes, np.asarray(np.where(data[0], data[1], data[2]), data[1].dtype))
        if e.args[0].dtype in FLOATS:
            return Labelled(axes, self.numbers.op(e.name, data, e.args[0].dtype))
        return Labelled(axes, integer_op(e.name, data))

    # -- statements --

    def statement(self, s: Stmt) -> State:
        """Run one statement: the values of its names (also kept in ``self.values``)."""
        out = {s.name: self.expr(s.expr)} if isinstance(s, Let) else self._reduce(s)
        self.values.update(out)
        return out

    def _reduce(self, s: Reduce) -> State:
        if s.running:
            return {s.name: self.running(s)}
        payload = s.reducer.kind in ("argmax", "argmin", "topk")
        if not payload and s.dtype in FLOATS and s.expr.dtype in FLOATS:  # accumulated wide, rounded once
            wide = "f64" if "f64" in (s.dtype, s.expr.dtype) else "f32"
            (total,) = self.reduce(s.reducer, s.expr, s.over, wide, s.axes[-1:])
            return {s.name: self.stored(total, wide, s.dtype)}
        found = self.reduce(s.reducer, s.expr, s.over, s.expr.dtype if payload else s.dtype, s.axes[-1:])
        return dict(zip(s.names, found if len(s.names) == 2 else found[-1:], strict=True))

    def running(self, s: Reduce) -> Labelled:
        """The reductions of the elements up to each, at the points of the axis that are here: accumulated wide one after the
        other, each rounded once."""
        floats = s.dtype in FLOATS and s.expr.dtype in FLOATS
        wide = s.dtype if not floats else "f64" if "f64" in (s.dtype, s.expr.dtype) else "f32"
        x = self.expr(s.expr)
        axes = (*(a for a in x.axes if a != s.over), s.over)
        data = x.aligned(axes)
        data = np.broadcast_to(data, (*data.shape[:-1], len(self.ranges[s.over])))
        return self.stored(Labelled(axes, accumulated(s.reducer.kind, data, wide, self.numbers)), wide, s.dtype)

    def stored(self, x: Labelled, source: str, target: str) -> Labelled:
        """A total as its own dtype holds it."""
        return Labelled(x.axes, self._cast(x.data, source, target))

    def reduce(self, reducer: Reducer, body: Expr, over: str, dtype: str,
               tail: tuple[str, ...], place: Expr | None = None) -> tuple[Labelled, ...]:
        """Reduce over an axis, in ``dtype``: one value, or (values, indices) for argmax, argmin and topk, the latter's
        along the axis ``tail``, or what ``place`` says of the elements."""
        kind = reducer.kind
        if kind == "sum" and (fast := self._contract(body, over, dtype)) is not None:
            return (fast,)
        if self.part is None and (axis := pieces.longest(body, over, self.ranges, self.tensors, self.values)) is not None:
            return pieces.joined(axis, [self._at(axis, slice(n, n + 1)).reduce(reducer, body, over, dtype, tail, place)
                                        for n in range(len(self.ranges[axis]))])
        x = self.expr(body)
        axes = tuple(a for a in x.axes if a != over)
        data = x.aligned((*axes, over))
        if data.shape[-1] != len(self.ranges[over]):
            data = np.broadcast_to(data, (*data.shape[:-1], len(self.ranges[over])))
        if kind in ("any", "all"):
            return (Labelled(axes, np.any(data, -1) if kind == "any" else np.all(data, -1)),)
        if kind in ("argmax", "argmin", "topk"):
            own = self.ranges[over] if place is None else self.expr(place).aligned((*axes, over))
            places = np.broadcast_to(own, data.shape)
            best = k_best(data, places, reducer.k, kind == "argmin", dtype, self.numbers)
            if kind == "topk":
                return tuple(Labelled((*axes, *tail), v) for v in best)
            return tuple(Labelled(axes, v[..., 0]) for v in best)
        if body.dtype in FLOATS:
            data = np.ascontiguousarray(data)  # else the order of a sum in memory is another, and so is its error
            return (Labelled(axes, self.numbers.total(kind, data, dtype)),)
        f = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[kind]
        start = {"max": lowest(dtype), "min": highest(dtype), "sum": 0, "prod": 1}[kind]
        return (Labelled(axes, np.asarray(f.reduce(data, axis=-1, dtype=NUMPY[dtype], initial=start))),)

    def _at(self, axis: str, points: slice) -> Machine:
        """The same evaluation at some points of an axis."""
        ranges = {**self.ranges, axis: self.ranges[axis][points]}
        values = {n: v.cut(axis, points) for n, v in self.values.items()}
        return Machine(self.numbers, self.tensors, self.dtypes, ranges, self.stmt_axes, values)

    def _contract(self, body: Expr, over: str, dtype: str) -> Labelled | None:
        """A sum of products, as a contraction: the same terms without the full outer product in memory. Not where a factor is
        as large as that by itself: a library may take the other one, which each term is rounded with, out of the sum."""
        factors = _factors(body)
        if not isinstance(self.numbers, Arrays) or not self.numbers.contracts:
            return None
        if len(factors) < 2 or body.dtype not in ("f32", "f64"):
            return None
        each = [pieces.axes_of(f, self.ranges, self.tensors, self.values) for f in factors]
        if any(found == set().union(*each) for found in each):
            return None
        parts = [self.expr(f) for f in factors]
        axes = tuple(a for a in union(p.axes for p in parts) if a != over)
        if not any(over in p.axes for p in parts) or any(set(p.axes) == {*axes, over} for p in parts):
            return None
        letters = {a: chr(97 + i) for i, a in enumerate((*axes, over))}
        spec = ",".join("".join(letters[a] for a in p.axes) for p in parts) + "->" + "".join(letters[a] for a in axes)
        with np.errstate(all="ignore"):
            out = np.einsum(spec, *[p.data for p in parts], optimize=True)
        return Labelled(axes, self._cast(np.asarray(out), body.dtype, dtype))

    def combine(self, acc: Accumulator, a: tuple[Labelled, ...], b: tuple[Labelled, ...]) -> tuple[Labelled, ...]:
        """``a (reducer) b`` for one accumulator."""
        kind = acc.reducer.kind
        axes, _ = common(tuple([x.axes for x in (*a, *b)]))
        if kind in ("argmax", "argmin", "topk"):
            tail = acc.axes[-1] if kind == "topk" else ""
            front = tuple(x for x in axes if x != tail)
            k = acc.reducer.k if kind == "topk" else 1
            full = (*front, tail)
            size = [len(self.ranges[x]) for x in front] + [k]
            sides = [[np.broadcast_to(v.aligned(full), size) for v in side] for side in (a, b)]
            values, places = k_best(np.concatenate([sides[0][0], sides[1][0]], -1),
                                   np.concatenate([sides[0][1], sides[1][1]], -1), k, kind == "argmin", acc.dtype,
                                   self.numbers)
            if kind == "topk":
                return Labelled(full, values), Labelled(full, places)
            return Labelled(front, values[..., 0]), Labelled(front, places[..., 0])
        name = {"sum": "add", "prod": "mul", "any": "or", "all": "and"}.get(kind, kind)
        data = [a[0].aligned(axes), b[0].aligned(axes)]
        if acc.dtype in FLOATS:
            return (Labelled(axes, self.numbers.op(name, data, acc.dtype)),)
        return (Labelled(axes, integer_op(name, data)),)


def _as_slice(points: Array, extent: int) -> slice | None:
    """Contiguous points inside the extent, as a slice."""
    if len(points) == 0:
        return slice(0, 0)
    first, last = int(points[0]), int(points[-1])
    return slice(first, last + 1) if first >= 0 and last < extent and last - first + 1 == len(points) else None


def _factors(e: Expr) -> list[Expr]:
    return [f for a in e.args for f in _factors(a)] if isinstance(e, Op) and e.name == "mul" else [e]
