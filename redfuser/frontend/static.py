"""What a graph computes from no input: evaluated with torch, and written back as index arithmetic where it is that.

Models build masks and positions from ``arange`` and comparisons, often with detours that have no effect at the exported
shape (packed-sequence checks, padding of nothing). Each value that depends on no input is computed once; a uniform one
becomes a scalar, one that counts along a dimension becomes ``arange``, an elementwise operation on such values stays an
operation (``j <= i``), and what is left becomes a constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from redfuser.frontend.builder import Builder
from redfuser.frontend.dtypes import relax_dtype, supported
from redfuser.tvm_compat import relax

LIMIT = 1 << 27
"""Values with more elements than this are not evaluated."""

SHAPE_ONLY = {"aten.zeros_like.default": 0, "aten.ones_like.default": 1, "aten.new_zeros.default": 0,
              "aten.new_ones.default": 1, "aten.empty_like.default": 0, "aten.new_empty.default": 0,
              "aten.empty.memory_format": 0, "aten.empty_strided.default": 0, "aten.empty_permuted.default": 0,
              "aten.new_empty_strided.default": 0}
"""Operators whose result depends on shapes alone, with the value they fill it with (any, for the empty ones)."""

FILL_ARGUMENT = {"aten.full_like.default": 1, "aten.new_full.default": 2}
"""Operators that fill a shape with one of their arguments, with its position."""

INDEX_ARITHMETIC = frozenset(
    [f"aten.{n}.{k}" for n in ("eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or", "bitwise_xor", "add",
                               "sub", "mul", "rsub", "remainder", "floor_divide", "__and__", "__or__")
     for k in ("Tensor", "Scalar")]
    + [f"aten.{n}.default" for n in ("logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_not", "view",
                                     "reshape", "unsqueeze", "squeeze", "expand", "permute", "clone", "_to_copy",
                                     "_unsafe_view", "alias", "detach", "abs", "neg", "minimum", "maximum", "tril",
                                     "triu", "lift_fresh_copy", "floor_divide")]
    + ["aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar",
       "aten.masked_fill.Scalar", "aten.masked_fill.Tensor", "aten.squeeze.dim", "aten.squeeze.dims",
       "aten.transpose.int", "aten.div.Tensor_mode"])


class Statics:
    """The values of the nodes that depend on no input. ``literals`` are lifted tensors that are part of the program."""

    def __init__(self, graph: fx.Graph, literals: dict[str, torch.Tensor]) -> None:
        self._values: dict[fx.Node, Any] = {}
        self._nodes: set[fx.Node] = set()
        for node in graph.nodes:
            if node.op == "placeholder" and node.name in literals:
                self._nodes.add(node)
                self._values[node] = literals[node.name]
            elif node.op == "call_function" and self._is_static(node):
                self._nodes.add(node)

    def __contains__(self, node: Any) -> bool:
        return node in self._nodes

    def __getitem__(self, node: fx.Node) -> Any:
        """The node's value on the CPU."""
        if node not in self._values:
            # iterative, since masks of deep models hang on long chains
            order, stack = [], [node]
            while stack:
                n = stack.pop()
                if n in self._values or (filled_with(n) is not None):
                    continue
                order.append(n)
                stack.extend(n.all_input_nodes)
            for n in reversed(order):
                if n not in self._values:
                    self._values[n] = self._evaluate(n)
            if node not in self._values:
                self._values[node] = self._evaluate(node)
        return self._values[node]

    def get(self, node: Any) -> torch.Tensor | None:
        """The value if the node has one and it is a tensor; ``None`` otherwise."""
        value = self[node] if isinstance(node, fx.Node) and node in self else None
        return value if isinstance(value, torch.Tensor) else None

    def _is_static(self, node: fx.Node) -> bool:
        if not isinstance(node.target, torch._ops.OpOverload) and getattr(node.target, "__name__", "") != "getitem":
            return False
        val = node.meta.get("val")
        for v in val if isinstance(val, (list, tuple)) else [val]:
            if not isinstance(v, torch.Tensor) or not supported(v.dtype) or not isinstance(n := v.numel(), int) or n > LIMIT:
                return False
        if filled_with(node) is not None:
            return True
        if isinstance(node.target, torch._ops.OpOverload) and (
                torch.Tag.nondeterministic_seeded in node.target.tags or mutates(node)
                or any(mutates(user) for user in node.users)):
            return False
        return all(n in self._nodes for n in node.all_input_nodes)

    def _evaluate(self, node: fx.Node) -> Any:
        fill = filled_with(node)
        if fill is not None:
            val = node.meta["val"]
            return torch.full([1] * val.dim(), fill, dtype=val.dtype, device="cpu").expand(val.shape)
        value = lambda n: self[n] if n not in self._values else self._values[n]  # noqa: E731
        args = fx.node.map_arg(node.args, value)
        kwargs = dict(fx.node.map_arg(node.kwargs, value))
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        with torch.no_grad():
            try:
                return node.target(*args, **kwargs)
            except NotImplementedError:
                return _wider(node, args, kwargs)


NARROW = (torch.uint16, torch.uint32)
"""Unsigned types in which torch stores and converts on the CPU, and computes little (``arange``, ``add`` are missing)."""


def _wider(node: fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
    """What torch computes in none of ``NARROW`` on the CPU, computed in int64, and taken modulo 2^16 or 2^32 at its end."""
    def wide(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in NARROW:
            return value.to(torch.int64)
        return torch.int64 if isinstance(value, torch.dtype) and value in NARROW else value

    def narrow(value: Any, of: Any) -> Any:
        return value.to(of.dtype) if isinstance(value, torch.Tensor) else value

    result = node.target(*pytree.tree_map(wide, args), **pytree.tree_map(wide, kwargs))
    return pytree.tree_map(narrow, result, node.meta["val"])


def mutates(node: fx.Node) -> bool:
    """Whether the node changes an operand's values (``detach_`` has the form of an update but is none)."""
    schema = getattr(node.target, "_schema", None)
    return bool(getattr(schema, "is_mutable", False)) and str(node.target) != "aten.detach_.default"


def filled_with(node: fx.Node) -> Any:
    """The scalar that fills the node's result whatever its tensor arguments hold; ``None`` for other nodes."""
    target = str(node.target)
    if target in SHAPE_ONLY:
        return SHAPE_ONLY[target]
    if target in FILL_ARGUMENT:
        value = node.args[FILL_ARGUMENT[target]] if len(node.args) > FILL_ARGUMENT[target] else None
        return value if isinstance(value, (bool, int, float)) else None
    return None


def core(value: torch.Tensor) -> torch.Tensor:
    """``value`` with the dimensions that only repeat it (stride 0) cut to one element."""
    for d in range(value.dim()):
        if value.shape[d] > 1 and value.stride(d) == 0:
            value = value.narrow(d, 0, 1)
    return value


def uniform(value: torch.Tensor) -> Any:
    """The one number that fills a tensor, as a Python scalar; ``None`` if there are several (or none, or NaN)."""
    small = core(value).reshape(-1)
    if small.numel() == 0:
        return None
    if small.dtype.itemsize == 1 and small.dtype.is_floating_point:
        return None  # Relax has no literals of float8
    first = small[0]
    return first.item() if small.numel() == 1 or bool((small == first).all()) else None


@dataclass(frozen=True)
class Band:
    """A matrix that is ``inside`` where i + lower <= j <= i + upper (a missing bound does not bound), else ``outside``."""

    lower: int | None
    upper: int | None
    inside: Any
    outside: Any


def band(value: torch.Tensor) -> Band | None:
    """The band of a tensor of two values whose last two dimensions form a causal or windowed mask."""
    if value.dim() < 2 or value.numel() == 0 or (value.dtype.itemsize == 1 and value.dtype.is_floating_point):
        return None
    small = core(value)
    for d in range(small.dim() - 2):
        if small.shape[d] > 1:
            if bool((small != small.narrow(d, 0, 1)).any()):
                return None
            small = small.narrow(d, 0, 1)
    matrix = small.reshape(small.shape[-2:])
    rows, columns = matrix.shape
    if rows < 2 or columns < 2 or tuple(value.shape[-2:]) != (rows, columns):
        return None
    first = matrix[0, 0]
    same = matrix == first
    if bool(same.all()) or bool(first != first):
        return None
    second = matrix[~same][0]
    if not bool((same | (matrix == second)).all()):
        return None
    if not bool((same[1:, 1:] == same[:-1, :-1]).all()):  # it is alike along its diagonals
        return None
    along = torch.cat((same[:, 0].flip(0), same[0, 1:]))  # of the diagonals from the lowest, 1 - rows, up
    for inside, outside, mask in ((first, second, along), (second, first, ~along)):
        offsets = mask.nonzero() + 1 - rows
        low, high = int(offsets.min()), int(offsets.max())
        if high - low + 1 == offsets.numel():
            return Band(low if low > 1 - rows else None, high if high < columns - 1 else None, inside.item(),
                        outside.item())
    return None


def counting(value: torch.Tensor) -> tuple[int, int, int] | None:
    """``(axis, start, step)`` of a tensor whose elements are start + step * (index along axis), whole numbers."""
    if value.dtype == torch.bool or value.numel() == 0:
        return None
    small = core(value)
    varying = [d for d in range(small.dim()) if small.shape[d] > 1 and bool((small != small.narrow(d, 0, 1)).any())]
    if len(varying) != 1:
        return None
    line = small
    for d in range(small.dim()):
        if d != varying[0]:
            line = line.narrow(d, 0, 1)
    exact = line.reshape(-1).to(torch.float64)
    start, step = exact[0].item(), (exact[1] - exact[0]).item()
    if not (start.is_integer() and step.is_integer()) or abs(start) + abs(step) * exact.numel() > 2**24:
        return None
    if not bool((exact == start + step * torch.arange(exact.numel(), dtype=torch.float64, device=exact.device)).all()):
        return None
    return varying[0], int(start), int(step)


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
