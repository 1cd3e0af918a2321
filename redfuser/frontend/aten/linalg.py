"""Contractions and convolutions: the accumulation dtype written out, the result rounded once."""

from __future__ import annotations

from typing import Any

from redfuser.errors import InputError
from redfuser.frontend.aten.context import HALF, Context, Decline, accumulator, converts
from redfuser.frontend.dtypes import relax_dtype
from redfuser.grouped import DTYPES, GROUP_ENDS, GROUPED_MM
from redfuser.tvm_compat import dtype_of, relax, shape_of

op = relax.op


def product(c: Context, x: Any, y: Any, last: bool = True) -> Any:
    """``x @ y`` in the accumulator dtype (not yet rounded); ``last``: nothing but the rounding follows."""
    dtype = dtype_of(x)
    if dtype != dtype_of(y):  # torch.export asks for shapes alone
        raise InputError("RF107", f"a product of {dtype} and {dtype_of(y)}", where=c.builder.origin.source,
                         why="torch multiplies tensors of one dtype: the same call fails without RedFuser",
                         help="convert one of the two, or the model's weights: model.to(x.dtype)")
    if not (dtype in HALF or dtype in ("float32", "float64")):
        raise Decline(f"a product of {dtype}")
    if 0 in (*shape_of(x), *shape_of(y)):
        raise Decline("an empty product")
    acc = accumulator(dtype)
    return c.emit(op.matmul(x, y, out_dtype=acc if acc != dtype else None), "" if last and acc == c.dtype else "acc")


@converts("aten.mm.default", "aten.bmm.default", "aten.matmul.default", "aten.mv.default", "aten.dot.default")
def matmul(c: Context, self: Any, **rest: Any) -> Any:
    (other,) = rest.values()
    return c.narrow(product(c, self, other))


@converts("aten._int_mm.default")
def int_mm(c: Context, self: Any, mat2: Any) -> Any:
    return c.emit(op.matmul(self, mat2, out_dtype="int32"))


@converts("aten._grouped_mm.default")
def grouped_product(c: Context, self: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Rows up to ``offs[e]`` times matrix ``e``; nothing is known of rows behind the last."""
    if offs is None or bias is not None or c.dtype not in map(relax_dtype, DTYPES) or not \
            dtype_of(self) == dtype_of(mat2) == c.dtype or (len(shape_of(self)), len(shape_of(mat2))) != (2, 3):
        raise Decline("a grouped product of another form than rows times matrices")
    if 0 in (*shape_of(self), *shape_of(mat2)):
        raise Decline("an empty product")
    ends = c.call(GROUP_ENDS, [offs], shape_of(self)[0], shape=shape_of(offs), dtype="int32", suffix="ends")
    return c.call(GROUPED_MM, [self, mat2, ends], shape=c.shape, dtype=c.dtype)


@converts("transformers.grouped_mm_fallback.default")
def grouped_rows(c: Context, input: Any, weight: Any, offs: Any) -> Any:
    """The same as transformers' operator, which it takes where torch.compile has no other: rows behind the last end are 0."""
    y = grouped_product(c, input, weight, offs)
    rows, groups = shape_of(y)[0], shape_of(offs)[0]
    last = c.emit(op.strided_slice(offs, axes=[0], begin=[groups - 1], end=[groups], strides=[1]), "last")
    row = c.cast(c.emit(op.arange(0, rows, 1, "int64"), "count"), dtype_of(offs), "row")
    inside = c.emit(op.reshape(c.emit(op.less(row, last), "inside"), [rows, 1]), "covered")
    return c.emit(op.where(inside, y, c.const(0, c.dtype)))


@converts("aten.addmm.default")
def addmm(c: Context, self: Any, mat1: Any, mat2: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    return _affine(c, self, mat1, mat2, beta, alpha)


@converts("aten.baddbmm.default")
def baddbmm(c: Context, self: Any, batch1: Any, batch2: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    return _affine(c, self, batch1, batch2, beta, alpha)


def _affine(c: Context, bias: Any, x: Any, y: Any, beta: Any, alpha: Any) -> Any:
    acc = accumulator(c.dtype)
    r = product(c, x, y, alpha == 1 and beta == 0)
    if alpha != 1:
        r = c.emit(op.multiply(r, c.const(alpha, acc)), "alpha")
    if beta == 0:
        return c.narrow(r)
    bias = c.cast(bias, acc, "bias")
    if beta != 1:
        bias = c.emit(op.multiply(bias, c.const(beta, acc)), "beta")
    return c.narrow(c.emit(op.add(r, bias), "biased" if acc != c.dtype else ""))


@converts("aten._cdist_forward.default")
def distances(c: Context, x1: Any, x2: Any, p: float, compute_mode: int | None) -> Any:
    """``sqrt(max(|x|^2 + |y|^2 - 2 x y, 0))`` where torch takes a product too: it says so, or there are more than 25 points."""
    points = max(shape_of(x1)[-2], shape_of(x2)[-2])
    if p != 2 or compute_mode == 2 or (compute_mode != 1 and points <= 25) or c.dtype not in ("float32", "float64"):
        raise Decline("distances that are no product")
    rank = len(shape_of(x1))
    turned = [*range(rank - 2), rank - 1, rank - 2]
    left, right = (c.emit(op.sum(c.emit(op.multiply(x, x), "square"), [-1], True), "norm") for x in (x1, x2))
    inner = product(c, x1, c.emit(op.permute_dims(x2, turned), "columns"), False)
    square = c.emit(op.add(c.emit(op.multiply(inner, c.const(-2.0, c.dtype)), "inner"), left), "more")
    square = c.emit(op.add(square, c.emit(op.permute_dims(right, turned), "row")), "distance")
    return c.emit(op.sqrt(c.emit(op.maximum(square, c.const(0.0, c.dtype)), "least")))


@converts("aten.linear.default")
def linear(c: Context, input: Any, weight: Any, bias: Any = None) -> Any:
    rank = len(shape_of(weight))
    if rank != 2:
        raise Decline("linear with a weight vector")
    given = getattr(c.raw["input"], "meta", {}).get("val")
    apart = bias is not None and len(shape_of(input)) > 2 and given is not None and not given.is_contiguous()
    r = product(c, input, c.emit(op.permute_dims(weight, [1, 0]), "weight"), bias is None or apart)
    if apart:  # of several matrices that lie in pieces a library rounds the products; torch adds the bias then
        return c.emit(op.add(c.narrow(r), bias))
    if bias is not None:
        acc = accumulator(c.dtype)
        r = c.emit(op.add(r, c.cast(bias, acc, "bias")), "biased" if acc != c.dtype else "")
    return c.narrow(r)


@converts("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default")
def conv(c: Context, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    return convolution(c, input, weight, bias, stride, padding, dilation, False, (), groups)


@converts("aten.convolution.default")
def convolution(c: Context, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
                transposed: bool, output_padding: Any, groups: int) -> Any:
    rank = len(shape_of(weight)) - 2
    dtype = dtype_of(input)
    if transposed and bias is not None and len(shape_of(input)) == rank + 2 and dtype == dtype_of(weight) == dtype_of(bias):
        # torch adds it in a kernel of its own, to what the library has rounded
        r = c.call("aten.convolution.default", [input, weight], None, stride, padding, dilation, True, output_padding, groups,
                   shape=c.shape, dtype=dtype, suffix="acc")
        return c.emit(op.add(r, c.emit(op.reshape(bias, (1, shape_of(bias)[0], *([1] * rank))), "bias_row")))
    if transposed or rank not in (1, 2, 3) or len(shape_of(input)) != rank + 2:
        raise Decline("a transposed or unbatched convolution")
    if dtype_of(weight) != dtype or not (dtype in HALF or dtype in ("float32", "float64")):
        raise Decline(f"a convolution of {dtype} and {dtype_of(weight)}")
    f = {1: op.nn.conv1d, 2: op.nn.conv2d, 3: op.nn.conv3d}[rank]
    spread = lambda v: tuple(int(i) for i in v) * (rank if len(v) == 1 else 1)  # noqa: E731
    acc = accumulator(dtype)
    pad = spread(padding)
    r = f(input, weight, strides=spread(stride), padding=(*pad, *pad), dilation=spread(dilation), groups=int(groups),
          out_dtype=acc if acc != dtype else None)
    if bias is None:
        return c.narrow(c.emit(r, "acc" if acc != dtype else ""))
    # a library rounds its sums before it adds the bias, in a kernel of its own
    r = c.cast(c.emit(r, "acc"), dtype, "rounded")
    row = c.emit(op.reshape(bias, (1, shape_of(bias)[0], *([1] * rank))), "bias_row")
    return c.emit(op.add(r, row))
