"""One thread block, or several of the same steps side by side, walked through a kernel's tile operations with NumPy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, Op
from redfuser.errors import InternalError
from redfuser.tensorize.ir.eight import added
from redfuser.tensorize.ir.flight import Let
from redfuser.tensorize.ir.nodes import Copy, Fill, For, Gemm, If, Parallel, ReduceTile, ScanTile, TileKernel, TileStmt
from redfuser.tensorize.ir.parts import LANES, RUN, Slice
from redfuser.tensorize.ir.pointwise import apply, converted
from redfuser.tensorize.ir.spans import spans


class Parted(Exception):
    """Control depends on data, and the sets of inputs go different ways."""


class Block:
    """The storage and variables of one thread block, or of several side by side. A variable is an int, or an index array
    inside ``parallel``, or (``apart``) an int of each block; arrays of values have the sets of inputs, and for each of them the
    blocks, in front of the points. Parameters are the blocks' common ones."""

    def __init__(self, store: dict[str, np.ndarray], count: int, blocks: Sequence[tuple[int, ...]], names: Sequence[str],
                 dtypes: Mapping[str, np.dtype]) -> None:
        self.store, self.dtypes = store, dtypes
        self.common = frozenset(store)
        self.blocks, self.count = len(blocks), count * len(blocks)
        self.sets: np.ndarray = np.repeat(np.arange(count), self.blocks)
        self.vars: dict[str, int | np.ndarray] = {}
        self.apart: set[str] = set()
        for k, name in enumerate(names):
            self._let(name, np.tile([b[k] for b in blocks], count))
        self.spans: dict[str, tuple[int, int]] = {}
        """What the elements of parameters are."""
        self.points: dict[str, tuple[int, int]] = {}
        """Variables of the enclosing ``parallel``: position and extent."""

    def open(self, kernel: TileKernel) -> None:
        """The scalars and the storage of a kernel."""
        self.spans = spans(kernel)
        for name, expr in kernel.lets:
            self._let(name, self.eval(expr))
        for b in kernel.buffers:
            self.store[b.name] = np.full((self.count, *b.shape), garbage(self.dtypes[b.dtype]), self.dtypes[b.dtype])

    def number(self, e: Expr) -> int:
        """A value that steers every block alike."""
        return _common(self.eval(e))

    def _let(self, name: str, value: Any) -> None:
        if self.blocks > 1 and isinstance(value, np.ndarray):
            self.apart.add(name)
            self.vars[name] = value
        else:
            self.vars[name] = _common(value)

    def exec(self, stmt: TileStmt) -> None:
        match stmt:
            case Copy(src, dst):
                self._write(dst, self._read(src))
            case Gemm(a, b, c, ta, tb, clear):
                x: np.ndarray = self._read(a).astype(self.dtypes["f32"], copy=False)
                y: np.ndarray = self._read(b).astype(self.dtypes["f32"], copy=False)
                x, y = x.swapaxes(-1, -2) if ta else x, y.swapaxes(-1, -2) if tb else y
                if x.itemsize == 4 and {self.store[s.buffer].dtype.itemsize for s in (a, b)} == {1}:
                    self.store[c][...] = added(np.zeros_like(self.store[c]) if clear else self.store[c], x, y)
                else:
                    self.store[c][...] = x @ y if clear else self.store[c] + x @ y
            case ReduceTile(op, src, dst, clear, lanes=lanes, nan=nan):
                function = {"sum": np.add, "max": np.maximum if nan else np.fmax, "min": np.minimum if nan else np.fmin}[op]
                row, to = self.store[src], self.store[dst]
                if lanes:
                    row = row.reshape(*row.shape[:-1], -1, LANES, RUN).swapaxes(-2, -3).reshape(*row.shape[:-1], LANES, -1)
                row = function.reduce(row, axis=-1).reshape(to.shape)
                self.store[dst][...] = row if clear else function(self.store[dst], row)
            case ScanTile(op, src, dst, carry, n):
                function = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[op]
                own = slice(n or None)
                row = self.store[src][..., own].copy()
                for d in (1 << k for k in range((row.shape[-1] - 1).bit_length())):  # in as few roundings as threads do it
                    row[..., d:] = function(row[..., :-d], row[..., d:])
                if carry:
                    row = function(self.store[carry][..., None], row)
                    self.store[carry][...] = row[..., -1]
                self.store[dst][..., own] = row
            case Fill(buffer, value):
                self.store[buffer][...] = value.value
            case Parallel(names, extents, body):
                self._parallel(names, extents, body)
            case For(var, start, stop, body):
                for k in range(_common(self.eval(start)), _common(self.eval(stop))):
                    self.vars[var] = k
                    for inner in body:
                        self.exec(inner)
            case If(cond, body):
                if _common(self.eval(cond)):
                    for inner in body:
                        self.exec(inner)
            case Let(var, value):
                self.vars[var] = self.number(value)
            case _:
                raise InternalError("RF900", f"the tile interpreter does not know {type(stmt).__name__}")

    def _windows(self, s: Slice) -> Iterator[tuple[tuple[slice | int, ...], tuple[slice | int, ...], slice]]:
        """(part of the array, part of the tile that it fills, whose tile it is); points outside leave nothing. All of them
        have the sets of inputs in front."""
        starts = [self._start(d.start) for d in s.dims]
        apart = any(isinstance(x, np.ndarray) for x in starts)
        every, common = slice(None), self.blocks > 1 and s.buffer in self.common
        for k in range(self.blocks if apart or common else 1):
            own = slice(k, None, self.blocks) if apart or common else every
            outer: list[slice | int] = [every if common else own]
            inner: list[slice | int] = [every]
            for extent, dim, first in zip(self.store[s.buffer].shape[1:] if s.dims else (), s.dims, starts, strict=True):
                start = int(first[k]) if isinstance(first, np.ndarray) else first
                if dim.size == 0:
                    if not 0 <= start < extent:
                        raise InternalError("RF900", f"point index {start} outside {extent} in {s}")
                    outer.append(start)
                else:
                    if start < 0:
                        raise InternalError("RF900", f"slice starts at {start} in {s}")
                    n = max(0, min(dim.size, extent - start))
                    outer.append(slice(min(start, extent), min(start, extent) + n))
                    inner.append(slice(0, n))
            yield tuple(outer), tuple(inner), own

    def _start(self, e: Expr) -> int | np.ndarray:
        """Where a slice begins: in every block alike, or in each of them."""
        value = self.eval(e)
        if self.blocks == 1 or not isinstance(value, np.ndarray) or (value == value.ravel()[0]).all():
            return _common(value)
        of_set = value.reshape(-1, self.blocks)
        if (of_set != of_set[0]).any():
            raise Parted
        return np.asarray(of_set[0])

    def _shape(self, s: Slice) -> tuple[int, ...]:
        return (self.count, *(s.sizes if s.dims else self.store[s.buffer].shape[1:]))

    def _read(self, s: Slice) -> np.ndarray:
        array = self.store[s.buffer]
        tile = np.zeros(self._shape(s), array.dtype)
        for outer, inner, own in self._windows(s):
            tile[own][inner] = array[outer]
        return tile

    def _write(self, s: Slice, tile: np.ndarray) -> None:
        array, shape = self.store[s.buffer], self._shape(s)
        given = tile.reshape(shape) if tile.size == math.prod(shape) else tile
        for outer, inner, own in self._windows(s):
            array[outer] = given[own][inner].astype(array.dtype)

    def _parallel(self, names: tuple[str, ...], extents: tuple[int, ...], body: tuple) -> None:
        saved = dict(self.vars)
        self.vars.update(zip(names, _mesh(extents), strict=True))
        self.points = {n: (k, e) for k, (n, e) in enumerate(zip(names, extents, strict=True))}
        shape = (self.count, *extents)
        for a in body:
            array = self.store[a.target]
            if tuple(i.axis if isinstance(i, Index) else "" for i in a.indices) == names and _fits(
                    extents, array.shape[1:]) and not self._shared(a.target) and a.target not in self.spans:
                part = (slice(None), *(slice(e) for e in extents))
                array[part] = np.asarray(self.eval(a.expr)).astype(array.dtype)
                continue
            value = np.broadcast_to(self.eval(a.expr), shape).astype(array.dtype)
            index, inside = self._places(a.target, [self.eval(i) for i in a.indices], shape)
            array[tuple(i[inside] for i in index)] = self._kept(a.target, value[inside])
        self.vars, self.points = saved, {}

    def _shared(self, name: str) -> bool:
        return self.blocks > 1 and name in self.common

    def _places(self, name: str, indices: Sequence[Any], shape: tuple[int, ...]) -> tuple[list[np.ndarray], np.ndarray]:
        """Where points of ``shape`` lie in an array, and which of them lie in it."""
        sets = (self.sets if self._shared(name) else np.arange(shape[0])).reshape(-1, *[1] * (len(shape) - 1))
        index = [np.broadcast_to(i, shape) for i in (sets, *indices)]
        inside: np.ndarray = np.ones(shape, bool)
        for i, extent in zip(index[1:], self.store[name].shape[1:], strict=True):
            inside &= (i >= 0) & (i < extent)
        return index, inside

    def eval(self, e: Expr) -> np.ndarray | int | float | bool:
        match e:
            case Const(value=v, dtype=d):
                return v if d == "i64" else self.dtypes[d].type(v)
            case Index(axis=a):
                value = self.vars[a]
                return value.reshape(-1, *[1] * len(self.points)) if a in self.apart else value  # type: ignore[union-attr]
            case Load(tensor=name, indices=indices):
                if (part := self._window_of_points(name, indices)) is not None:
                    return part
                return self._gather(name, [self.eval(i) for i in indices])
            case Cast(arg=arg, dtype=d):
                return converted(np.asarray(self.eval(arg)), self.dtypes[d])
            case Op(name=name, args=args, dtype=d):
                return apply(name, [self.eval(a) for a in args], d)
        raise InternalError("RF900", f"the tile interpreter cannot evaluate {e}")

    def _window_of_points(self, name: str, indices: tuple[Expr, ...]) -> np.ndarray | None:
        """A load whose indices are variables of the enclosing ``parallel``, each once: a slice, broadcast to the points."""
        if name in self.spans:
            return None
        found = [self.points.get(i.axis) if isinstance(i, Index) else None for i in indices]
        places = [f for f in found if f is not None]
        array = self.store[name]
        order = [k for k, _ in places]
        if len(places) < len(indices) or not places or len(set(order)) < len(order) or not _fits(
                tuple(e for _, e in places), array.shape[1:]):
            return None
        turned = (0, *(1 + k for k in sorted(range(len(order)), key=order.__getitem__)))
        whole = (slice(None), *(slice(e) for _, e in places))
        part = array[whole].transpose(turned)
        if self._shared(name):
            part = np.repeat(part, self.blocks, 0)
        shape = [self.count, *[1] * len(self.points)]
        for k, e in places:
            shape[1 + k] = e
        return part.reshape(shape)

    def _gather(self, name: str, indices: Sequence[Any]) -> np.ndarray:
        array = self.store[name]
        points = np.broadcast_shapes((1,) * len(self.points), *(np.shape(i) for i in indices))
        shape = (self.count, *points[len(points) - len(self.points):])
        index, inside = self._places(name, indices, shape)
        safe = tuple(np.where(inside, i, 0) for i in index)
        self._kept(name, array[safe][inside])
        return np.where(inside, array[safe], array.dtype.type(0)).astype(array.dtype)

    def _kept(self, name: str, values: np.ndarray) -> np.ndarray:
        """Elements that are written to a parameter or read of it: what its span says."""
        if name in self.spans and values.size:
            low, high = self.spans[name]
            if values.min() < low or values.max() > high:
                raise InternalError("RF900", f"{name} has {values.min()} to {values.max()}, which is not in {low} .. {high}")
        return values


def _common(value: Any) -> int:
    """The number that steers every set of inputs alike."""
    if isinstance(value, (int, np.generic)):
        return int(value)
    found = np.unique(value)
    if len(found) != 1:
        raise Parted
    return int(found[0])


@lru_cache(maxsize=256)
def _mesh(extents: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """An index array for each variable of a ``parallel``."""
    return tuple(np.meshgrid(*(np.arange(e) for e in extents), indexing="ij", sparse=True))


def _fits(extents: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(extents) == len(shape) and all(e <= n for e, n in zip(extents, shape, strict=True))


def garbage(dtype: np.dtype) -> float:
    """What storage holds before it is written: NaN where there is one, else a large number nobody expects."""
    return float("nan") if dtype.kind in "fV" and dtype.itemsize > 1 else 85
