"""A tensor that depends on no input, as operators: one value, a count along an axis, a band beside the diagonal."""

from __future__ import annotations

from typing import Any

import torch

from redfuser.frontend.builder import Builder
from redfuser.frontend.dtypes import relax_dtype
from redfuser.frontend.static import Band, band, counting, uniform
from redfuser.tvm_compat import relax

op = relax.op


def written_down(builder: Builder, value: torch.Tensor) -> Any:
    """Emit ``value``; None where it is a table of numbers."""
    emit, dtype, shape = builder.emit, relax_dtype(value.dtype), tuple(value.shape)
    fill = uniform(value)
    if fill is not None:
        constant = relax.const(fill, dtype)
        return emit(op.full(shape, constant, dtype)) if shape else constant
    count = counting(value)
    if count is not None:
        axis, start, step = count
        if step > 0:
            line = emit(op.arange(start, start + step * shape[axis], step, "int64"), "count")
        else:  # Relax infers a wrong extent for negative steps
            line = emit(op.arange(0, -step * shape[axis], -step, "int64"), "count")
            line = emit(op.subtract(relax.const(start, "int64"), line), "down")
        line = emit(op.reshape(line, [shape[axis] if d == axis else 1 for d in range(len(shape))]), "line")
        line = emit(op.astype(line, dtype), "cast") if dtype != "int64" else line
        return emit(op.broadcast_to(line, shape))
    edges = band(value)
    return _banded(builder, value, edges, dtype) if edges is not None else None


def _banded(builder: Builder, value: torch.Tensor, edges: Band, dtype: str) -> Any:
    """A mask whose two values lie inside and outside a diagonal band: comparisons of row and column numbers."""
    emit, rank, shape = builder.emit, value.dim(), tuple(value.shape)
    rows, columns = shape[-2:]
    i = emit(op.reshape(emit(op.arange(0, rows, 1, "int64"), "rows"), [*[1] * (rank - 2), rows, 1]), "row")
    j = emit(op.reshape(emit(op.arange(0, columns, 1, "int64"), "columns"), [*[1] * (rank - 1), columns]), "column")
    mask = None
    for limit, compare in ((edges.upper, op.less_equal), (edges.lower, op.greater_equal)):
        if limit is not None:
            side = emit(compare(j, emit(op.add(i, relax.const(limit, "int64")), "edge")), "side")
            mask = side if mask is None else emit(op.logical_and(mask, side), "band")
    if dtype != "bool":
        mask = emit(op.where(mask, relax.const(edges.inside, dtype), relax.const(edges.outside, dtype)), "mask")
    elif not edges.inside:
        mask = emit(op.logical_not(mask), "mask")
    return emit(op.broadcast_to(mask, shape))
