"""Lookups by index. Indices may be negative in torch: they are wrapped unless their values are known."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from redfuser.frontend.aten.context import Context, Decline, axis_of, converts
from redfuser.frontend.aten.shapes import along
from redfuser.frontend.static import counting
from redfuser.tvm_compat import bytes_of, dtype_of, op_name, relax, shape_of

op = relax.op


@converts("aten.embedding.default")
def embedding(c: Context, weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False,
              sparse: bool = False) -> Any:
    return c.emit(op.take(weight, indices, axis=0))


@converts("aten.index_select.default")
def index_select(c: Context, self: Any, dim: int, index: Any) -> Any:
    return _taken(c, self, index, axis_of(dim, len(shape_of(self))), c.static("index"))


def _taken(c: Context, x: Any, index: Any, axis: int, known: torch.Tensor | None, perm: Any = None) -> Any:
    """``x[index]`` along an axis. Rows of a map that nothing else reads are the map of rows, ``(a * w)[i] = a[i] * w[i]``, so
    that whoever reads them computes it, where its operands are no more to move than its result. ``known``: the index's values.
    ``perm``: the order that ``index`` undoes."""
    if known is not None and (counted := _counted(c, x, axis, known)) is not None:
        return counted
    if axis == 0 and (before := _before(c, x, perm)) is not None:
        return before
    value = c.builder.value(x)
    shape, reads = shape_of(x), list(c.node.args[0].users)
    if axis or op_name(value) not in _MAPS or reads != [c.node] or len(shape_of(index)) != 1 or shape_of(index)[0] > shape[0]:
        return c.emit(op.take(x, index, axis=axis))
    wide = {a: c.builder.value(a) for a in value.args if isinstance(a, relax.Var)}
    sources = {a: v.args[0] if op_name(v) == "astype" and bytes_of(v.args[0].struct_info) < bytes_of(a.struct_info) else a
               for a, v in wide.items()}
    rowwise = [a for a in sources if len(shape_of(a)) == len(shape) and shape_of(a)[0] == shape[0] > 1]
    sorted_ = {a: _before(c, sources[a], perm) for a in rowwise}
    if 8 * sum(bytes_of(sources[a].struct_info) for a in rowwise if sorted_[a] is None) > 9 * bytes_of(x.struct_info):
        return c.emit(op.take(x, index, axis=axis))
    rows = {a: c.cast(sorted_[a] or c.emit(op.take(sources[a], index, axis=0), "rows"), dtype_of(a), "wide") for a in rowwise}
    c.builder.begin(c.node.name, c.builder.provenance[x.name_hint])
    return c.emit(relax.Call(value.op, [rows.get(a, a) for a in value.args], value.attrs, value.sinfo_args))


def _counted(c: Context, x: Any, axis: int, index: torch.Tensor) -> Any:
    """``x`` at positions in equal steps, from its end to its start too: arithmetic, and no gather. None for any others."""
    extent, at = shape_of(x)[axis], index.flatten().tolist()
    step = at[1] - at[0] if len(at) > 1 else 1
    equal = all(-extent <= p < extent and (p - at[0] - i * step) % extent == 0 for i, p in enumerate(at))
    return along(c, x, axis, at[0], step, len(at)) if index.dim() == 1 and at and equal else None


def _before(c: Context, x: Any, perm: Any) -> Any:
    """What ``x`` is the rows of, in the order ``perm``; None where it is no such thing."""
    value = c.builder.value(x)
    if perm is not None and op_name(value) == "expand_dims" and 0 not in (axes := [int(a) for a in value.attrs.axis]):
        inner = _before(c, value.args[0], perm)
        return None if inner is None else c.emit(op.expand_dims(inner, axes), "before")
    taken = perm is not None and op_name(value) == "take" and int(value.attrs.axis or 0) == 0 and value.args[1].same_as(perm)
    return value.args[0] if taken else None


def _undone(c: Context, node: Any, index: Any) -> Any:
    """The order of a sort that ``index`` undoes: ``torch.empty(n).index_put([order], arange(n))``; None for any other index."""
    value = c.builder.value(index)
    if str(getattr(node, "target", "")) != "aten.index_put.default" or len(node.args) != 3 or not _runs(value, PUT):
        return None
    numbers, order = c.statics.get(node.args[2]), value.args[1].fields[1]
    if numbers is None or tuple(numbers.shape) != shape_of(index) or counting(numbers) != (0, 0, 1):
        return None
    return order if _is_order(c, order) else None


def _is_order(c: Context, index: Any) -> bool:
    """The places of what was sorted along its one axis: each place once."""
    value = c.builder.value(index)
    return isinstance(value, relax.TupleGetItem) and value.index == 1 and len(shape_of(index)) == 1 and \
        _runs(c.builder.value(value.tuple_value), "aten.sort")


def _runs(value: Any, target: str) -> bool:
    """Is it a call of that operator, which torch runs?"""
    return op_name(value) == "call_dps_packed" and str(value.args[0].global_symbol).startswith(f"torchop.{target}.")


PUT = "aten.index_put"
_MAPS = ("add", "divide", "multiply", "subtract")


@converts("aten.gather.default")
def gather(c: Context, self: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    axis = axis_of(dim, len(shape_of(self)))
    source, wanted = shape_of(self), shape_of(index)
    if len(source) != len(wanted) or not source:
        raise Decline("a gather of scalars")
    for a, (have, want) in enumerate(zip(source, wanted, strict=True)):
        if a != axis and want < have:
            self = c.emit(op.strided_slice(self, axes=[a], begin=[0], end=[want], strides=[1]), "used")
    return c.emit(op.gather_elements(self, index, axis))


def wrapped(c: Context, index: Any, extent: int, known: Any) -> Any:
    """``index`` with negative positions counted from the end: a comparison, a sum and a choice, which are three kernels of
    torch's."""
    if (int(known.min()) >= 0) if known is not None else _counts(c, index):
        return index
    below = c.emit(op.less(index, c.const(0, dtype_of(index))), "negative")
    c.builder.part()
    turned = c.emit(op.add(index, c.const(extent, dtype_of(index))), "from_end")
    c.builder.part()
    chosen = c.emit(op.where(below, turned, index), "wrapped")
    c.builder.part()
    return chosen


def _counts(c: Context, index: Any) -> bool:
    """Whether the index comes from an operator that counts positions from 0, through views and quotients of its result."""
    value = c.builder.value(index)
    while op_name(value) in ("reshape", "expand_dims", "squeeze", "permute_dims", "broadcast_to", "repeat",
                             "strided_slice") or (op_name(value) == "floor_divide" and isinstance(value.args[1], relax.Constant)
                                                  and value.args[1].data.numpy().min() > 0):
        index, value = value.args[0], c.builder.value(value.args[0])
    if _is_order(c, index):
        return True
    if isinstance(value, relax.TupleGetItem):
        return value.index == 1 and op_name(c.builder.value(value.tuple_value)) == "topk"
    return op_name(value) in ("argmax", "argmin")


@converts("aten.index.Tensor")
def index(c: Context, self: Any, indices: Any) -> Any:
    """One index tensor is a take. Several that together enumerate a grid (as vmap'ed masks do) are a broadcast view of
    the data; several of which all but the last do are a gather along the last axis; several others that cover the leading
    dimensions are an ``index_tensor``, behind others a take of one axis."""
    known = [c.statics.get(raw) if raw is not None else None for raw in c.raw["indices"]]
    present = [i for i, x in enumerate(indices) if x is not None]
    if any(dtype_of(indices[i]) not in ("int64", "int32") for i in present):
        raise Decline("a boolean index")
    shape = shape_of(self)
    if len(present) == 1:
        (axis,) = present
        at, order = indices[axis], _undone(c, c.raw["indices"][axis], indices[axis])
        at = at if order is not None else wrapped(c, at, shape[axis], known[axis])
        return _taken(c, self, at, axis, known[axis], order)
    if present != list(range(present[0], present[0] + len(present))):
        raise Decline("indices with dimensions between them")
    if present[0] > 0:
        if not all(known[i] is not None and _inside(known[i], shape[i]) for i in present):
            raise Decline("several indices behind whole axes, whose values are not known: torch refuses those out of bounds")
        return _side_by_side(c, self, [wrapped(c, indices[i], shape[i], known[i]) for i in present], present[0])
    if all(known[i] is not None for i in present):
        grid = _grid(c, self, [known[i] for i in present])
        if grid is not None:
            return grid
    if (rows := _of_rows(c, self, indices, known, present)) is not None:
        return rows
    return c.emit(op.index_tensor(self, [wrapped(c, indices[i], shape[i], known[i]) for i in present]))


def _inside(places: torch.Tensor, extent: int) -> bool:
    """Are known places those of an axis, from either end?"""
    return places.numel() == 0 or (int(places.min()) >= -extent and int(places.max()) < extent)


def _side_by_side(c: Context, x: Any, places: list[Any], first: int) -> Any:
    """``x[:, i, j]`` at places that are known to lie inside: the axes as one, of which ``i * n + j`` is taken."""
    shape, last = shape_of(x), first + len(places)
    places = [c.cast(p, "int64") for p in places]
    at = places[0]
    for i, place in zip(range(first + 1, last), places[1:], strict=True):
        at = c.emit(op.add(c.emit(op.multiply(at, c.const(shape[i], dtype_of(at))), "line"), place), "place")
    one = c.emit(op.reshape(x, [*shape[:first], prod(shape[first:last]), *shape[last:]]), "one_axis")
    return c.emit(op.take(one, at, axis=first))


def _grid(c: Context, x: Any, indices: list[Any]) -> Any:
    """``x[i0, i1, ...]`` where every index counts up along a result dimension of its own, or is 0: a view."""
    shape = shape_of(x)
    rank = max(i.dim() for i in indices)
    target = c.shape[:rank]
    place: list[int | None] = []
    for axis, i in enumerate(indices):
        d = _counts_along(i, rank, shape[axis])
        if d is None and _only(i, shape[axis]):
            place.append(None)
            continue
        if d is None:
            return None
        place.append(d)
    used = {d: a for a, d in enumerate(place) if d is not None}
    if len(used) + place.count(None) != len(place):
        return None
    rest = list(range(len(indices), len(shape)))
    order = [used[d] for d in sorted(used)]
    squeezed = [a for a, d in enumerate(place) if d is None]
    turned = c.emit(op.permute_dims(x, [*squeezed, *order, *rest]), "turned")
    lead = [1] * rank
    for d, a in used.items():
        lead[d] = shape[a]
    tail = [shape[a] for a in rest]
    spread = c.emit(op.reshape(turned, [*lead, *tail]), "spread")
    return c.emit(op.broadcast_to(spread, [*target, *tail]))


def _counts_along(i: Any, rank: int, extent: int) -> int | None:
    """The dimension of a result of ``rank`` dimensions along which known places count through an axis, from 0 to its end."""
    wide = [d for d, n in enumerate(i.shape) if n > 1]
    whole = len(wide) == 1 and i.reshape(-1).tolist() == list(range(extent))
    return wide[0] - i.dim() + rank if whole else None


def _only(i: Any, extent: int) -> bool:
    """Are known places all of an axis that has one?"""
    return extent == 1 and i.numel() > 0 and not bool(i.any())


def _of_rows(c: Context, x: Any, indices: Any, known: Any, present: list[int]) -> Any:
    """``x[arange(n), i]`` and ``x[arange(n)[:, None], i]``: of every row its own elements. None for any others."""
    shape, lead = shape_of(x), len(present) - 1
    ranks = [len(shape_of(indices[a])) for a in present]
    rank = max(ranks)
    if len(shape) != len(present) or lead < 1 or rank - lead not in (0, 1) or ranks[lead] != rank:
        return None
    if shape_of(indices[lead])[:lead] != shape[:lead]:
        return None
    if not all(known[a] is not None and (_counts_along(known[a], rank, shape[a]) == a or _only(known[a], shape[a]))
               for a in present[:lead]):
        return None
    places = wrapped(c, indices[lead], shape[lead], known[lead])
    if rank == lead:
        places = c.emit(op.expand_dims(places, [lead]), "place")
    found = c.emit(op.gather_elements(x, places, lead), "of_rows")
    return c.emit(op.squeeze(found, [lead])) if rank == lead else found
