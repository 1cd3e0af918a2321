"""Reductions and scans. Half-precision sums accumulate in float32 and are rounded once, as torch does."""

from __future__ import annotations

import math
from typing import Any

import torch

from redfuser.frontend.aten.context import FLOATS, Context, Decline, accumulator, axes_of, axis_of, converts
from redfuser.frontend.dtypes import relax_dtype
from redfuser.places import COPY, MOVE
from redfuser.tvm_compat import dtype_of, relax, shape_of

op = relax.op
PRODUCTS = frozenset({f"aten::{n}" for n in ("mm", "bmm", "addmm", "baddbmm", "matmul", "linear")})
"""Matrix products. A convolution is no such: a library makes it, and its pictures are reduced whole."""
LARGEST = {"float32": torch.finfo(torch.float32).max, "float64": torch.finfo(torch.float64).max}


def extent(x: Any, axes: list[int]) -> int:
    shape = shape_of(x)
    count = 1
    for a in axes:
        count *= shape[a]
    return count


def nonempty(x: Any, axes: list[int]) -> list[int]:
    if not shape_of(x) or extent(x, axes) == 0:
        raise Decline("a reduction of a scalar or of nothing")
    return axes


def _of_a_product(node: Any, row: int) -> bool:
    """Are its elements a product's, or a map of them, row by row, and does nobody else read them?"""
    if not isinstance(node, torch.fx.Node) or not isinstance(node.target, torch._ops.OpOverload):
        return False
    if sum(bool(u.users) or u.op == "output" for u in node.users) > 1:  # an assertion makes nothing
        return False
    made, name = node.meta.get("val"), node.target._schema.name
    if not isinstance(made, torch.Tensor) or made.shape[-1:] != (row,):
        return False
    kept = torch.Tag.pointwise in node.target.tags or name in MOVE | COPY
    return name in PRODUCTS or (kept and any(_of_a_product(a, row) for a in node.all_input_nodes))


def reduced(c: Context, f: Any, x: Any, axes: list[int], keepdim: bool, suffix: str = "") -> Any:
    """``f`` over ``axes``. Of what a product makes first along its rows, which a kernel reduces as it makes them."""
    last = len(shape_of(x)) - 1
    others = [a for a in axes if a != last]
    if last in axes and others and _of_a_product(next(iter(c.node.args), None), shape_of(x)[last]):
        x, axes = c.emit(f(x, [last], keepdim), "rows"), others
    return c.emit(f(x, axes, keepdim), suffix)


@converts("aten.sum.default", "aten.sum.dim_IntList")
def sum_(c: Context, self: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    axes = nonempty(self, axes_of(dim, len(shape_of(self))))
    x = c.cast(self, accumulator(c.dtype), "wide")
    return c.narrow(reduced(c, op.sum, x, axes, keepdim, "sum" if accumulator(c.dtype) != c.dtype else ""))


@converts("aten.mean.default", "aten.mean.dim")
def mean(c: Context, self: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    axes = nonempty(self, axes_of(dim, len(shape_of(self))))
    x = c.cast(self, accumulator(c.dtype), "wide")
    return c.narrow(reduced(c, op.mean, x, axes, keepdim, "mean" if accumulator(c.dtype) != c.dtype else ""))


@converts("aten.prod.default", "aten.prod.dim_int")
def prod(c: Context, self: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    axes = nonempty(self, axes_of(dim, len(shape_of(self))))
    x = c.cast(self, accumulator(c.dtype), "wide")
    return c.narrow(c.emit(op.prod(x, axes, keepdim), "prod" if accumulator(c.dtype) != c.dtype else ""))


def _extreme(f: Any) -> Any:
    def convert(c: Context, self: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if dtype_of(self) == "bool" or dtype_of(self).startswith("float8"):
            raise Decline(f"an extremum of {dtype_of(self)}")
        return reduced(c, f, self, nonempty(self, axes_of(dim, len(shape_of(self)))), keepdim)

    return convert


largest = converts("aten.amax.default", "aten.max.default")(_extreme(op.max))
converts("aten.amin.default", "aten.min.default")(_extreme(op.min))


@converts("aten.aminmax.default")
def aminmax(c: Context, self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    if dtype_of(self) == "bool" or dtype_of(self).startswith("float8"):
        raise Decline(f"an extremum of {dtype_of(self)}")
    axes = nonempty(self, axes_of(dim, len(shape_of(self))))
    return (c.emit(op.min(self, axes, keepdim), "low"), c.emit(op.max(self, axes, keepdim), "high"))


def _extreme_with_index(f: Any, index: Any) -> Any:
    def convert(c: Context, self: Any, dim: int, keepdim: bool = False) -> Any:
        if dtype_of(self) == "bool" or not shape_of(self):
            raise Decline("an extremum of truth values or of a scalar")
        axis = axis_of(dim, len(shape_of(self)))
        return (c.emit(f(self, [axis], keepdim), "value"), c.emit(index(self, axis, keepdim), "index"))

    return convert


converts("aten.max.dim")(_extreme_with_index(op.max, op.argmax))
converts("aten.min.dim")(_extreme_with_index(op.min, op.argmin))


def _arg(f: Any) -> Any:
    def convert(c: Context, self: Any, dim: Any = None, keepdim: bool = False) -> Any:
        rank = len(shape_of(self))
        if not rank or dtype_of(self) == "bool":
            raise Decline("argmax of truth values or of a scalar")
        if dim is None:
            if keepdim:
                raise Decline("argmax of everything with keepdim")
            flat = c.emit(op.reshape(self, [extent(self, list(range(rank)))]), "flat")
            return c.emit(f(flat, 0, False))
        return c.emit(f(self, axis_of(dim, rank), keepdim))

    return convert


converts("aten.argmax.default")(_arg(op.argmax))
converts("aten.argmin.default")(_arg(op.argmin))


def _quantifier(f: Any) -> Any:
    """``any`` is the maximum and ``all`` the minimum of truth values."""

    def convert(c: Context, self: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if c.dtype != "bool":
            raise Decline("any/all of bytes")
        axes = nonempty(self, axes_of(dim, len(shape_of(self))))
        return c.cast(c.emit(f(c.cast(c.cast(self, "bool"), "int8", "bits"), axes, keepdim), "best"), "bool", "")

    return convert


converts("aten.any.default", "aten.any.dim", "aten.any.dims")(_quantifier(op.max))
converts("aten.all.default", "aten.all.dim", "aten.all.dims")(_quantifier(op.min))


def variance(c: Context, x: Any, axes: list[int], correction: Any, keepdim: bool, suffix: str) -> Any:
    """``sum((x - mean)^2) / (n - correction)`` in the dtype of ``x``."""
    n = extent(x, axes)
    correction = 1 if correction is None else correction
    if n - correction <= 0:
        raise Decline("a variance with no degree of freedom")
    v = op.variance(x, axes, keepdim)
    if correction == 0:
        return c.emit(v, suffix)
    v = c.emit(v, "population")
    return c.emit(op.multiply(v, c.const(n / (n - correction), dtype_of(x))), suffix)


@converts("aten.var.correction", "aten.var.dim", "aten.var.default")
def var(c: Context, self: Any, dim: Any = None, correction: Any = None, keepdim: bool = False,
        unbiased: bool = True) -> Any:
    axes = nonempty(self, axes_of(dim, len(shape_of(self))))
    correction = correction if unbiased else 0
    return c.narrow(variance(c, c.wide(self), axes, correction, keepdim, "wide" if c.dtype not in LARGEST else ""))


@converts("aten.std.correction", "aten.std.dim", "aten.std.default")
def std(c: Context, self: Any, dim: Any = None, correction: Any = None, keepdim: bool = False,
        unbiased: bool = True) -> Any:
    axes = nonempty(self, axes_of(dim, len(shape_of(self))))
    v = variance(c, c.wide(self), axes, correction if unbiased else 0, keepdim, "variance")
    return c.narrow(c.emit(op.sqrt(v)))


@converts("aten.var_mean.correction", "aten.var_mean.dim", "aten.var_mean.default")
def var_mean(c: Context, self: Any, dim: Any = None, correction: Any = None, keepdim: bool = False,
             unbiased: bool = True) -> Any:
    axes = nonempty(self, axes_of(dim, len(shape_of(self))))
    x = c.wide(self)
    v = variance(c, x, axes, correction if unbiased else 0, keepdim, "var")
    m = c.emit(op.mean(x, axes, keepdim), "mean")
    return (c.cast(v, c.dtype), c.cast(m, c.dtype))


@converts("aten.linalg_vector_norm.default")
def vector_norm(c: Context, self: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    axes = nonempty(self, axes_of(dim, len(shape_of(self))))
    x = c.cast(self, accumulator(c.dtype), "wide")
    if ord == 1 or (ord and all(int(shape_of(self)[a]) == 1 for a in axes)):  # of one element torch takes no powers
        return c.narrow(c.emit(op.sum(c.emit(op.abs(x), "abs"), axes, keepdim)))
    if ord == 2:
        return c.narrow(c.emit(op.sqrt(c.emit(op.sum(c.emit(op.multiply(x, x), "square"), axes, keepdim), "sum"))))
    if ord == float("inf"):
        return c.narrow(c.emit(op.max(c.emit(op.abs(x), "abs"), axes, keepdim)))
    if ord == -float("inf"):
        return c.narrow(c.emit(op.min(c.emit(op.abs(x), "abs"), axes, keepdim)))
    if ord == 4:
        square = c.emit(op.multiply(x, x), "square")
        total = c.emit(op.sum(c.emit(op.multiply(square, square), "fourth"), axes, keepdim), "sum")
        return c.narrow(c.emit(op.sqrt(c.emit(op.sqrt(total), "root"))))
    if ord == 0:
        return c.narrow(c.emit(op.sum(c.cast(c.cast(x, "bool", "other"), dtype_of(x), "one"), axes, keepdim)))
    if ord > 0:
        total = c.emit(op.sum(c.emit(op.power(c.emit(op.abs(x), "abs"), c.const(ord, dtype_of(x))), "power"), axes, keepdim),
                       "sum")
        return c.narrow(c.emit(op.power(total, c.const(1.0 / ord, dtype_of(x)))))
    raise Decline(f"norm of order {ord}")


@converts("aten.dist.default")
def dist(c: Context, self: Any, other: Any, p: Any = 2) -> Any:
    wide = accumulator(c.dtype)
    return vector_norm(c, c.emit(op.subtract(c.cast(self, wide), c.cast(other, wide)), "difference"), p)


@converts("aten.softmax.int", "aten._softmax.default")
def softmax(c: Context, self: Any, dim: int, dtype: Any = None, half_to_float: bool = False) -> Any:
    return _rowwise(c, self, dim, dtype, op.nn.softmax)


@converts("aten.log_softmax.int", "aten._log_softmax.default")
def log_softmax(c: Context, self: Any, dim: int, dtype: Any = None, half_to_float: bool = False) -> Any:
    return _rowwise(c, self, dim, dtype, op.nn.log_softmax)


def _rowwise(c: Context, x: Any, dim: int, dtype: Any, f: Any) -> Any:
    rank = len(shape_of(x))
    if not rank:
        raise Decline("softmax of a scalar")
    if dtype is not None:
        x = c.cast(x, relax_dtype(dtype), "cast")
    if dtype_of(x) not in FLOATS:
        raise Decline(f"softmax of {dtype_of(x)}")
    return c.in_wide(lambda w: f(w, axis_of(dim, rank)), x)


@converts("aten.logsumexp.default")
def logsumexp(c: Context, self: Any, dim: Any, keepdim: bool = False) -> Any:
    """``log(sum(exp(x - m))) + m`` with the row maximum clamped to the finite range, so that rows of -inf give -inf
    and rows with +inf give +inf, as torch defines."""
    if c.dtype not in FLOATS or dtype_of(self) not in FLOATS:
        raise Decline("logsumexp of integers")
    axes = nonempty(self, axes_of(dim, len(shape_of(self))))
    x = c.wide(self)
    m = c.emit(op.max(x, axes, True), "max")
    m = finite(c, m)
    total = c.emit(op.sum(c.emit(op.exp(c.emit(op.subtract(x, m), "shifted")), "exp"), axes, True), "sum")
    result = c.emit(op.add(c.emit(op.log(total), "log"), m), "keep" if not keepdim else "wide")
    if not keepdim:
        result = c.emit(op.squeeze(result, axes), "wide")
    return c.narrow(result)


def finite(c: Context, m: Any, above: bool = True) -> Any:
    """``m`` with -inf (and +inf) replaced by the largest finite value of that sign; NaN stays."""
    largest = LARGEST[dtype_of(m)]
    m = c.emit(op.maximum(m, c.const(-largest, dtype_of(m))), "floor")
    return c.emit(op.minimum(m, c.const(largest, dtype_of(m))), "finite") if above else m


@converts("aten.topk.default")
def topk(c: Context, self: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Also for ``sorted=False``, whose order torch leaves open."""
    rank = len(shape_of(self))
    if not rank:
        raise Decline("topk of a scalar")
    if int(k) == shape_of(self)[axis_of(dim, rank)] == 1:  # a router with one group
        return (self, c.emit(op.full(shape_of(self), c.const(0, "int64"), "int64"), "indices"))
    both = c.emit(op.topk(self, int(k), axis_of(dim, rank), "both", bool(largest), "int64"), "both")
    return (c.emit(relax.TupleGetItem(both, 0), "values"), c.emit(relax.TupleGetItem(both, 1), "indices"))


BESIDE = 32
"""Columns up to which a scan along an axis that is not the fastest is one along rows between permutations: torch's has a thread
for each column, which walks all of it (4096 tokens by 8 experts took .6 ms on an H200)."""


def _scan(f: Any) -> Any:
    def convert(c: Context, self: Any, dim: int, dtype: Any = None) -> Any:
        rank = len(shape_of(self))
        if not rank:
            raise Decline("a scan of a scalar")
        acc = accumulator(c.dtype)
        x, axis, shape = c.cast(self, acc, "wide"), axis_of(dim, rank), shape_of(self)
        if axis == rank - 1 or not 1 < math.prod(shape[axis + 1:]) <= BESIDE:
            return c.narrow(c.emit(f(x, axis, acc), "scan" if acc != c.dtype else ""))
        order = [a for a in range(rank) if a != axis] + [axis]
        rows = c.emit(f(c.emit(op.permute_dims(x, order), "rows"), rank - 1, acc), "scan")
        return c.narrow(c.emit(op.permute_dims(rows, [order.index(a) for a in range(rank)]), "back"))

    return convert


converts("aten.cumsum.default")(_scan(op.cumsum))
converts("aten.cumprod.default")(_scan(op.cumprod))
