"""Views, slices, lookups and updates of ONNX, in torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from redfuser.frontend.onnx.node import Call, Unsupported, implements, ints, onnx_dtype, takes_known, tensor

takes_known({"Reshape": (1,), "Expand": (1,), "Unsqueeze": (1,), "Squeeze": (1,), "Slice": (1, 2, 3, 4), "Split": (1,),
             "Tile": (1,), "Pad": (1, 2, 3), "OneHot": (1,), "ConstantOfShape": (0,), "Trilu": (1,), "Range": (0, 1, 2)})


@implements("Reshape")
def reshape(call: Call, x: Tensor, shape: Any) -> Tensor:
    dims = ints(shape)
    if not call.get("allowzero", 0):
        dims = [x.shape[i] if d == 0 else d for i, d in enumerate(dims)]
    return torch.reshape(x, dims)


_BRIEF: dict[str, Any] = {
    "Transpose": lambda call, x: torch.permute(x, list(call.get("perm") or reversed(range(x.dim())))),
    "Expand": lambda call, x, shape: torch.broadcast_to(x, torch.broadcast_shapes(tuple(x.shape), tuple(ints(shape)))),
    "Concat": lambda call, *xs: torch.cat(xs, call.get("axis")),
    "Tile": lambda call, x, repeats: x.repeat(ints(repeats)),
    "Shape": lambda call, x: np.array(tuple(x.shape)[call.get("start", 0):call.get("end")], dtype=np.int64),
    "Size": lambda call, x: np.array(x.numel(), dtype=np.int64),
}
for _name, _h in _BRIEF.items():
    implements(_name)(_h)


@implements("Unsqueeze")
def unsqueeze(call: Call, x: Tensor, axes: Any = None) -> Tensor:
    dims = list(call.get("axes")) if axes is None else ints(axes)
    rank = x.dim() + len(dims)
    for d in sorted(d % rank for d in dims):
        x = torch.unsqueeze(x, d)
    return x


@implements("Squeeze")
def squeeze(call: Call, x: Tensor, axes: Any = None) -> Tensor:
    dims = call.get("axes") if axes is None else ints(axes)
    return torch.squeeze(x) if not dims else torch.squeeze(x, tuple(dims))


@implements("Flatten")
def flatten(call: Call, x: Tensor) -> Tensor:
    axis = call.get("axis", 1)
    axis = axis + x.dim() if axis < 0 else axis
    return torch.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@implements("Split")
def split(call: Call, x: Tensor, sizes: Any = None) -> Any:
    axis = call.get("axis", 0)
    if sizes is not None:
        return torch.split(x, ints(sizes), axis)
    if call.get("split"):
        return torch.split(x, list(call.get("split")), axis)
    return torch.split(x, -(-x.shape[axis] // (call.get("num_outputs") or call.written)), axis)


@implements("Slice")
def slice_(call: Call, x: Tensor, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None) -> Tensor:
    if call.opset < 10:
        first, last, dims = call.get("starts"), call.get("ends"), call.get("axes")
        by = None
    else:
        first, last = ints(starts), ints(ends)
        dims = ints(axes) if axes is not None else None
        by = ints(steps) if steps is not None else None
    for i, d in enumerate(dims or range(len(first))):
        step = by[i] if by else 1
        begin, end = first[i], last[i]
        if step < 0:
            line = range(x.shape[d])[begin:None if end < -x.shape[d] else end:step]
            x = torch.index_select(x, d, torch.tensor(line, dtype=torch.int64, device=x.device))
        else:
            x = x[(slice(None),) * (d % x.dim()) + (slice(begin, end, step),)]
    return x


@implements("Gather")
def gather(call: Call, x: Tensor, indices: Any) -> Tensor:
    axis = call.get("axis", 0) % x.dim()
    if isinstance(indices, np.ndarray) and not indices.ndim:  # known: a view, and no lookup
        return torch.select(x, axis, int(indices))
    where = tensor(indices)
    return looked_up(x, [None] * axis + [where.to(x.device, torch.int64)])


takes_known({"Gather": (1,)})


def looked_up(x: Tensor, where: list[Tensor | None]) -> Tensor:
    """``x[where]`` for indices of any rank: Python's brackets ask a tensor of rank 0 for its value, which an export has not."""
    found: Tensor = torch.ops.aten.index.Tensor(x, where)
    return found


@implements("GatherElements")
def gather_elements(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = call.get("axis", 0) % x.dim()
    return torch.gather(x, axis, _from_start(indices, x.shape[axis]))


def _from_start(indices: Tensor, extent: int) -> Tensor:
    indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + extent, indices)


@implements("GatherND")
def gather_nd(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    if call.get("batch_dims", 0):
        raise Unsupported("GatherND with batch dimensions")
    return looked_up(x, [indices[..., i] for i in range(indices.shape[-1])])


@implements("ScatterElements")
def scatter_elements(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = call.get("axis", 0) % x.dim()
    where = _from_start(indices, x.shape[axis])
    how = call.get("reduction", b"none").decode()
    if how == "none":
        return torch.scatter(x, axis, where, updates)
    name = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[how]
    return torch.scatter_reduce(x, axis, where, updates, name)


@implements("ScatterND")
def scatter_nd(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    how = call.get("reduction", b"none").decode()
    if how not in ("none", "add"):
        raise Unsupported(f"ScatterND with reduction {how}")
    where = tuple(indices[..., i] for i in range(indices.shape[-1]))
    return torch.index_put(x, where, updates, accumulate=how == "add")


@implements("Pad")
def pad(call: Call, x: Tensor, pads: Any = None, value: Any = None, axes: Any = None) -> Tensor:
    mode = call.get("mode", b"constant").decode()
    amounts = list(call.get("pads")) if pads is None else ints(pads)
    dims = [d % x.dim() for d in ints(axes)] if axes is not None else list(range(x.dim()))
    if isinstance(value, Tensor):
        raise Unsupported("a padding value that depends on data")
    fill = call.get("value", 0.0) if call.opset < 11 else 0 if value is None else np.asarray(value).item()
    before, after = [0] * x.dim(), [0] * x.dim()
    for i, d in enumerate(dims):
        before[d], after[d] = amounts[i], amounts[i + len(dims)]
    if mode == "constant":
        flat = [n for d in reversed(range(x.dim())) for n in (before[d], after[d])]
        while len(flat) > 2 and flat[-1] == flat[-2] == 0:
            flat = flat[:-2]
        return F.pad(x, flat, "constant", fill)
    for d, n in enumerate(x.shape):  # torch has these for some ranks and axes; looked up, they are for all
        line = np.arange(max(-before[d], 0), n - max(-after[d], 0))
        line = np.pad(line, (max(before[d], 0), max(after[d], 0)), mode)  # type: ignore[call-overload]
        if not np.array_equal(line, np.arange(n)):
            x = torch.index_select(x, d, torch.from_numpy(line).to(x.device))
    return x


@implements("Dropout")
def dropout(call: Call, x: Tensor, ratio: Any = None, training: Any = None) -> Any:
    if training is not None and not (isinstance(training, np.ndarray) and not training.any()):
        raise Unsupported("Dropout in training mode")
    call.get("ratio")  # of training
    return (x, torch.ones_like(x, dtype=torch.bool)) if call.outputs > 1 else x


takes_known({"Dropout": (1, 2)})


@implements("OneHot")
def one_hot(call: Call, indices: Tensor, depth: Any, values: Tensor) -> Tensor:
    count = ints(depth)[0]
    axis = call.get("axis", -1)
    where = _from_start(indices, count)
    axis = axis % (where.dim() + 1)
    line = torch.arange(count, device=where.device).reshape([-1 if d == axis else 1 for d in range(where.dim() + 1)])
    return torch.where(torch.unsqueeze(where, axis) == line, values[1], values[0])


@implements("Trilu")
def trilu(call: Call, x: Tensor, k: Any = None) -> Tensor:
    diagonal = ints(k)[0] if k is not None else 0
    return torch.triu(x, diagonal) if call.get("upper", 1) else torch.tril(x, diagonal)


@implements("DepthToSpace")
def depth_to_space(call: Call, x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    n = call.get("blocksize")
    if call.get("mode", b"DCR") == b"CRD":
        return x.reshape(b, c // n**2, n, n, h, w).permute(0, 1, 4, 2, 5, 3).reshape(b, c // n**2, h * n, w * n)
    return x.reshape(b, n, n, c // n**2, h, w).permute(0, 3, 4, 1, 5, 2).reshape(b, c // n**2, h * n, w * n)


@implements("SpaceToDepth")
def space_to_depth(call: Call, x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    n = call.get("blocksize")
    order = (0, 1, 3, 5, 2, 4) if call.get("mode", b"DCR") == b"CRD" else (0, 3, 5, 1, 2, 4)
    return x.reshape(b, c, h // n, n, w // n, n).permute(order).reshape(b, c * n * n, h // n, w // n)


@implements("EyeLike")
def eye_like(call: Call, x: Tensor) -> Tensor:
    rows, columns = torch.arange(x.shape[0], device=x.device)[:, None], torch.arange(x.shape[1], device=x.device)
    dtype = call.get("dtype")
    return (columns == rows + call.get("k", 0)).to(x.dtype if dtype is None else onnx_dtype(dtype))
