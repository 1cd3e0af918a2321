"""Run a tile program with NumPy: every block in turn, every tile operation as an array operation.

The meaning is that of the tile IR, with real storage types (fp16, bf16 and fp8 round through ml_dtypes), zero fill past
an edge and dropped stores, so tails, masks, loop ranges and roundings are checked without a GPU. It is a reference: it
knows nothing of threads, layouts or pipelining. Several sets of inputs run at once, along a leading dimension of every
array: what takes time is the walk.

``wide`` stores and computes fp32 and narrower in float64 (and 8-bit floats too, unless ``steps``), so that what remains of
a difference from the program is no rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, Op
from redfuser.errors import InputError, InternalError
from redfuser.tensorize.ir.nodes import (
    Copy,
    Fill,
    For,
    Gemm,
    If,
    Parallel,
    ReduceTile,
    Slice,
    TileKernel,
    TileProgram,
    TileStmt,
)

NUMPY_DTYPES: dict[str, np.dtype] = {
    "f64": np.dtype(np.float64), "f32": np.dtype(np.float32), "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16), "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2), "i64": np.dtype(np.int64), "i32": np.dtype(np.int32),
    "i8": np.dtype(np.int8), "u8": np.dtype(np.uint8), "bool": np.dtype(np.bool_),
}


HALVES_AND_SINGLES = ("f32", "f16", "bf16")
EIGHT_BITS = ("e4m3", "e5m2")


def storage(wide: bool = False, steps: bool = True) -> dict[str, np.dtype]:
    """The NumPy type that holds each dtype."""
    widened = (*HALVES_AND_SINGLES, *(() if steps else EIGHT_BITS)) if wide else ()
    return {**NUMPY_DTYPES, **{d: NUMPY_DTYPES["f64"] for d in widened}}


def run(program: TileProgram, inputs: Mapping[str, np.ndarray], wide: bool = False,
        steps: bool = True) -> dict[str, np.ndarray]:
    """Run on ``inputs`` (by argument name, of the declared shapes); returns the outputs by the cascade's own names.

    wide: in float64, as far as floats go; steps: keep the roundings to 8-bit floats then.
    Raises InputError RF498 when an input is missing or has another shape than declared.
    """
    return run_all(program, [inputs], wide, steps)[0]


def run_all(program: TileProgram, sets: Sequence[Mapping[str, np.ndarray]], wide: bool = False,
            steps: bool = True) -> list[dict[str, np.ndarray]]:
    """:func:`run` on several sets of inputs."""
    try:
        memory = _run(program, sets, storage(wide, steps))
    except _Parted:
        return [r for given in sets for r in run_all(program, [given], wide, steps)]
    return [{name: memory[arg][k] for name, arg in program.outputs} for k in range(len(sets))]


def _run(program: TileProgram, sets: Sequence[Mapping[str, np.ndarray]],
         dtypes: Mapping[str, np.dtype]) -> dict[str, np.ndarray]:
    memory: dict[str, np.ndarray] = {}
    for arg in program.args:
        if arg.role == "in":
            for inputs in sets:
                if arg.name not in inputs or tuple(inputs[arg.name].shape) != arg.shape:
                    got = inputs[arg.name].shape if arg.name in inputs else "nothing"
                    raise InputError("RF498", f"argument {arg.name} must have shape {arg.shape}, got {got}")
            given = np.stack([np.asarray(inputs[arg.name]).astype(NUMPY_DTYPES[arg.dtype]) for inputs in sets])
            memory[arg.name] = given.astype(dtypes[arg.dtype])
        else:
            memory[arg.name] = np.full((len(sets), *arg.shape), _garbage(dtypes[arg.dtype]), dtypes[arg.dtype])
    with np.errstate(all="ignore"):
        for kernel in program.kernels:
            _run_kernel(kernel, memory, dtypes, len(sets))
    return memory


class _Parted(Exception):
    """Control depends on data, and the sets of inputs go different ways."""


def _common(value: Any) -> int:
    """The number that steers every set of inputs alike."""
    if isinstance(value, (int, np.generic)):
        return int(value)
    found = np.unique(value)
    if len(found) != 1:
        raise _Parted
    return int(found[0])


def _fits(extents: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(extents) == len(shape) and all(e <= n for e, n in zip(extents, shape, strict=True))


def _garbage(dtype: np.dtype) -> float:
    """What storage holds before it is written: NaN where there is one, else a large number nobody expects."""
    return float("nan") if dtype.kind in "fV" and dtype.itemsize > 1 else 85


def _run_kernel(kernel: TileKernel, memory: dict[str, np.ndarray], dtypes: Mapping[str, np.dtype], count: int) -> None:
    views = {p.name: memory[p.name].reshape(count, *p.shape) for p in kernel.params}
    for point in itertools.product(*(range(extent) for _, extent in kernel.grid)):
        block = _Block(dict(views), dict(zip((v for v, _ in kernel.grid), point, strict=True)), dtypes)
        for name, expr in kernel.lets:
            block.vars[name] = _common(block.eval(expr))
        for b in kernel.buffers:
            block.store[b.name] = np.full((count, *b.shape), _garbage(dtypes[b.dtype]), dtypes[b.dtype])
        for stmt in kernel.body:
            block.exec(stmt)


class _Block:
    """One thread block's storage and variables. A variable is an int, or an index array inside ``parallel``; arrays of
    values have the sets of inputs in front of the points."""

    def __init__(self, store: dict[str, np.ndarray], variables: dict[str, int | np.ndarray],
                 dtypes: Mapping[str, np.dtype]) -> None:
        self.store, self.vars, self.dtypes = store, variables, dtypes
        self.points: dict[str, tuple[int, int]] = {}
        """Variables of the enclosing ``parallel``: position and extent."""

    def exec(self, stmt: TileStmt) -> None:
        match stmt:
            case Copy(src, dst):
                self._write(dst, self._read(src, dst))
            case Gemm(a, b, c, ta, tb, clear):
                x: np.ndarray = self._read(a, None).astype(self.dtypes["f32"])
                y: np.ndarray = self._read(b, None).astype(self.dtypes["f32"])
                product = (x.swapaxes(-1, -2) if ta else x) @ (y.swapaxes(-1, -2) if tb else y)
                self.store[c][...] = product if clear else self.store[c] + product
            case ReduceTile(op, src, dst, clear):
                function = {"sum": np.add, "max": np.fmax, "min": np.fmin}[op]
                row = function.reduce(self.store[src], axis=-1).reshape(self.store[dst].shape)
                self.store[dst][...] = row if clear else function(self.store[dst], row)
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
            case _:
                raise InternalError("RF900", f"the tile interpreter does not know {type(stmt).__name__}")

    def _window(self, s: Slice) -> tuple[list[slice | int], list[slice | int], tuple[int, ...]]:
        """(part of the array, part of the tile that it fills, full tile shape); points outside leave nothing. All of
        them have the sets of inputs in front."""
        array = self.store[s.buffer]
        dims, every = s.dims, slice(None)
        if not dims:
            return [every] * array.ndim, [every] * array.ndim, array.shape
        outer: list[slice | int] = [every]
        inner: list[slice | int] = [every]
        for extent, dim in zip(array.shape[1:], dims, strict=True):
            start = _common(self.eval(dim.start))
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
        return outer, inner, (array.shape[0], *s.sizes)

    def _read(self, s: Slice, dst: Slice | None) -> np.ndarray:
        outer, inner, shape = self._window(s)
        array = self.store[s.buffer]
        tile = np.zeros(shape, array.dtype)
        tile[tuple(inner)] = array[tuple(outer)]
        return tile

    def _write(self, s: Slice, tile: np.ndarray) -> None:
        outer, inner, shape = self._window(s)
        array = self.store[s.buffer]
        source = tile.reshape(shape)[tuple(inner)] if tile.size == int(np.prod(shape)) else tile[tuple(inner)]
        array[tuple(outer)] = source.astype(array.dtype)

    def _parallel(self, names: tuple[str, ...], extents: tuple[int, ...], body: tuple) -> None:
        saved = dict(self.vars)
        mesh = np.meshgrid(*(np.arange(e) for e in extents), indexing="ij", sparse=True)
        self.vars.update(zip(names, mesh, strict=True))
        self.points = {n: (k, e) for k, (n, e) in enumerate(zip(names, extents, strict=True))}
        for a in body:
            array = self.store[a.target]
            if tuple(i.axis if isinstance(i, Index) else "" for i in a.indices) == names and _fits(extents, array.shape[1:]):
                part = (slice(None), *(slice(e) for e in extents))
                array[part] = np.asarray(self.eval(a.expr)).astype(array.dtype)
                continue
            shape = (array.shape[0], *extents)
            value = np.broadcast_to(self.eval(a.expr), shape).astype(array.dtype)
            index, inside = self._places(array, [self.eval(i) for i in a.indices], shape)
            array[tuple(i[inside] for i in index)] = value[inside]
        self.vars, self.points = saved, {}

    def _places(self, array: np.ndarray, indices: Sequence[Any], shape: tuple[int, ...]) -> tuple[list[np.ndarray], np.ndarray]:
        """Where points of ``shape`` lie in ``array``, and which of them lie in it."""
        sets = np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
        index = [np.broadcast_to(i, shape) for i in (sets, *indices)]
        inside: np.ndarray = np.ones(shape, bool)
        for axis, i in enumerate(index):
            inside &= (i >= 0) & (i < array.shape[axis])
        return index, inside

    def eval(self, e: Expr) -> np.ndarray | int | float | bool:
        match e:
            case Const(value=v, dtype=d):
                return v if d == "i64" else self.dtypes[d].type(v)
            case Index(axis=a):
                return self.vars[a]
            case Load(tensor=name, indices=indices):
                if (part := self._window_of_points(name, indices)) is not None:
                    return part
                return self._gather(name, [self.eval(i) for i in indices])
            case Cast(arg=arg, dtype=d):
                return np.asarray(self.eval(arg)).astype(self.dtypes[d])
            case Op(name=name, args=args, dtype=d):
                return apply(name, [self.eval(a) for a in args], d)
        raise InternalError("RF900", f"the tile interpreter cannot evaluate {e}")

    def _window_of_points(self, name: str, indices: tuple[Expr, ...]) -> np.ndarray | None:
        """A load whose indices are variables of the enclosing ``parallel``, each once: a slice, broadcast to the points."""
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
        shape = [array.shape[0], *[1] * len(self.points)]
        for k, e in places:
            shape[1 + k] = e
        return part.reshape(shape)

    def _gather(self, name: str, indices: Sequence[Any]) -> np.ndarray:
        array = self.store[name]
        points = np.broadcast_shapes((1,) * len(self.points), *(np.shape(i) for i in indices))
        shape = (array.shape[0], *points[len(points) - len(self.points):])
        index, inside = self._places(array, indices, shape)
        safe = tuple(np.where(inside, i, 0) for i in index)
        return np.where(inside, array[safe], array.dtype.type(0)).astype(array.dtype)


def apply(name: str, args: list, dtype: str) -> np.ndarray | int:
    """One pointwise operation in the precision of its dtype."""
    if dtype == "i64" and all(isinstance(a, (int, np.integer)) for a in args):
        x = [int(a) for a in args]
        return int(_INTEGER[name](*x))
    return _ARRAY[name](*args)


_INTEGER: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b, "min": min, "max": max, "neg": lambda a: -a, "select": lambda c, a, b: a if c else b,
}


def _erf(x: np.ndarray) -> np.ndarray:
    import math

    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(np.asarray(x).dtype)


def _one(x: np.ndarray) -> np.generic:
    return np.asarray(x).dtype.type(1)


_ARRAY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "floordiv": np.floor_divide,
    "mod": np.mod, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal, "and": np.logical_and, "or": np.logical_or, "not": np.logical_not, "neg": np.negative,
    "abs": np.abs, "sqrt": np.sqrt, "rsqrt": lambda x: _one(x) / np.sqrt(x), "exp": np.exp, "exp2": np.exp2,
    "log": np.log, "log2": np.log2, "tanh": np.tanh, "sigmoid": lambda x: _one(x) / (_one(x) + np.exp(-x)),
    "erf": _erf, "floor": np.floor, "ceil": np.ceil, "round": np.rint, "sin": np.sin, "cos": np.cos,
    "pow": np.power, "min": np.minimum, "max": np.maximum, "select": np.where, "isnan": np.isnan,
}
