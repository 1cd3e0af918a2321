"""Relax operators that move or make data: views, slices, gathers, scatters, the k best, fills. Those of the normal form
(:data:`redfuser.frontend.local.OPERATORS`), here as in the other tables: there are no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redfuser.outer.scope import Scope, literal, scalar, shape_text, torch_dtype
from redfuser.tvm_compat import dtype_of, permute_axes, prim_int, relax, shape_of

Rule = Callable[[Scope, Any], str]


def _reshape(s: Scope, c: Any) -> str:
    return f"{s.tensor(c.args[0])}.reshape({shape_text(shape_of(c))})"


def _expand_dims(s: Scope, c: Any) -> str:
    axes = sorted(int(a) % len(shape_of(c)) for a in c.attrs.axis)
    if len(axes) > 2:
        return _reshape(s, c)
    return s.tensor(c.args[0]) + "".join(f".unsqueeze({a})" for a in axes)


def _squeeze(s: Scope, c: Any) -> str:
    rank = len(shape_of(c.args[0]))
    if c.attrs.axis is None:
        return f"{s.tensor(c.args[0])}.squeeze()"
    axes = sorted(int(a) % rank for a in c.attrs.axis)
    return f"{s.tensor(c.args[0])}.squeeze({axes[0] if len(axes) == 1 else shape_text(tuple(axes))})"


def _permute(s: Scope, c: Any) -> str:
    return view_text(s.tensor(c.args[0]), permute_axes(c))


def view_text(x: str, axes: tuple[int, ...]) -> str:
    """``x`` with its axes in another order."""
    swapped = [i for i, a in enumerate(axes) if i != a]
    if len(swapped) == 2:
        return f"{x}.transpose({swapped[0]}, {swapped[1]})"
    return f"{x}.permute{shape_text(axes)}"


def _broadcast(s: Scope, c: Any) -> str:
    return f"{s.tensor(c.args[0])}.expand({shape_text(shape_of(c))})"


def _fields(arg: Any) -> list[Any]:
    return list(arg.fields) if isinstance(arg, relax.Tuple) else [arg]


def _concat(s: Scope, c: Any) -> str:
    axis = 0 if c.attrs.axis is None else int(c.attrs.axis)
    fields = _fields(c.args[0])
    if len(fields) == 1 and not isinstance(c.args[0], relax.Tuple):
        return f"torch.cat({s.text(fields[0])}, {axis})"
    return f"torch.cat([{', '.join(s.tensor(f) for f in fields)}], {axis})"


def _repeat(s: Scope, c: Any) -> str:
    x = s.tensor(c.args[0]) if c.attrs.axis is not None else f"{s.tensor(c.args[0])}.flatten()"
    axis = int(c.attrs.axis) if c.attrs.axis is not None else 0
    return f"{x}.repeat_interleave({int(c.attrs.repeats)}, {axis})"


def _flip(s: Scope, c: Any) -> str:
    return f"{s.tensor(c.args[0])}.flip({int(c.attrs.axis)})"


def slices(c: Any) -> list[tuple[int, int, int, int]]:
    """(axis, begin, end, step) of a strided_slice, within bounds."""
    shape = shape_of(c.args[0])
    axes, begins, ends = ([prim_int(v) for v in t.fields] for t in c.args[1:4])
    steps = [prim_int(v) for v in c.args[4].fields] if len(c.args) > 4 else [1] * len(axes)
    found = []
    for axis, begin, end, step in zip(axes, begins, ends, steps, strict=True):
        extent = shape[axis]
        span = range(extent)[begin:end:step]
        found.append((axis % len(shape), span.start, span.stop, step))
    return found


def _slice(s: Scope, c: Any) -> str:
    shape = shape_of(c.args[0])
    items = [":"] * len(shape)
    x = s.tensor(c.args[0])
    for axis, begin, end, step in slices(c):
        if step < 0:
            # torch has no negative steps: take the same elements in rising order, then turn them round
            span = range(begin, end, step)
            if len(span):
                begin, end, step = span[-1], span[0] + 1, -step
            x, c_axis = f"{x}", axis
            items[axis] = f"{begin}:{end}" + (f":{step}" if step != 1 else "")
            return f"{x}[{', '.join(items[:axis + 1])}].flip({c_axis})" + _rest(c, axis)
        items[axis] = f"{begin or ''}:{end if end != shape[axis] else ''}" + (f":{step}" if step != 1 else "")
    while len(items) > 1 and items[-1] == ":":
        items.pop()
    return f"{x}[{', '.join(items)}]"


def _rest(c: Any, done: int) -> str:
    others = [x for x in slices(c) if x[0] != done]
    if others:
        raise NotImplementedError("a slice with negative and other steps")
    return ""


def _index(s: Scope, expr: Any) -> str:
    """An index operand in the dtype torch wants."""
    text = s.tensor(expr)
    return text if dtype_of(expr) in ("int64", "bool") else f"{text}.long()"


def _take(s: Scope, c: Any) -> str:
    x, indices = c.args
    shape, value = shape_of(x), scalar(indices)
    if c.attrs.axis is None:
        return f"{s.tensor(x)}.flatten()[{_index(s, indices)}]"
    axis = int(c.attrs.axis) % len(shape)
    if value is not None:
        return f"{s.tensor(x)}.select({axis}, {int(value)})"
    if axis == 0 and len(shape) == 2 and dtype_of(indices) in ("int64", "int32"):
        return f"F.embedding({s.tensor(indices)}, {s.tensor(x)})"
    rank = len(shape_of(indices))
    if rank == 1:
        return f"torch.index_select({s.tensor(x)}, {axis}, {_index(s, indices)})"
    return f"{s.tensor(x)}[{', '.join([':'] * axis + [_index(s, indices)])}]"


def _gather(s: Scope, c: Any) -> str:
    return f"torch.gather({s.tensor(c.args[0])}, {int(c.attrs.axis)}, {_index(s, c.args[1])})"


def _index_tensor(s: Scope, c: Any) -> str:
    return f"{s.tensor(c.args[0])}[{', '.join(_index(s, i) for i in _fields(c.args[1]))}]"


_SCATTER = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax", "mean": "mean"}


def _scatter(s: Scope, c: Any) -> str:
    x, indices, source = s.tensor(c.args[0]), _index(s, c.args[1]), s.tensor(c.args[2])
    axis, how = int(c.attrs.axis), str(c.attrs.reduction)
    if how == "update":
        return f"{x}.scatter({axis}, {indices}, {source})"
    if how == "add":
        return f"{x}.scatter_add({axis}, {indices}, {source})"
    return f'{x}.scatter_reduce({axis}, {indices}, {source}, "{_SCATTER[how]}")'


def _topk(s: Scope, c: Any) -> str:
    k = int(c.attrs.k)
    axis = int(c.attrs.axis)
    if k < 1:
        k = shape_of(c.args[0])[axis]
    largest = "" if bool(c.attrs.largest) else ", largest=False"
    text = f"torch.topk({s.tensor(c.args[0])}, {k}, {axis}{largest})"
    kind, index = str(c.attrs.ret_type), str(c.attrs.dtype)
    if kind == "values":
        return f"{text}.values"
    if kind == "indices":
        return f"{text}.indices" + ("" if index == "int64" else f".to({torch_dtype(index)})")
    return text  # a narrower index dtype is applied where the indices are taken out of the pair


def _arange(s: Scope, c: Any) -> str:
    start, end, step = (getattr(a.value, "value", a.value) for a in c.args[:3])
    span = f"{end}" if start == 0 and step == 1 else f"{start}, {end}" if step == 1 else f"{start}, {end}, {step}"
    return f"torch.arange({span}, dtype={torch_dtype(dtype_of(c))}, device={s.device()})"


def _full(s: Scope, c: Any) -> str:
    shape, dtype = shape_text(shape_of(c)), torch_dtype(dtype_of(c))
    value = scalar(c.args[1])
    if value is None:
        return f"{s.tensor(c.args[1])}.to({dtype}).expand({shape})"
    return f"torch.full({shape}, {literal(value, dtype_of(c))}, dtype={dtype}, device={s.device()})"


VIEWS = frozenset({"reshape", "expand_dims", "squeeze", "permute_dims", "broadcast_to"})
"""Operators spelled as a method of their operand."""

RULES: dict[str, Rule] = {
    "reshape": _reshape, "expand_dims": _expand_dims, "squeeze": _squeeze, "permute_dims": _permute,
    "broadcast_to": _broadcast, "concat": _concat, "repeat": _repeat, "flip": _flip, "strided_slice": _slice, "take": _take,
    "gather_elements": _gather, "index_tensor": _index_tensor, "scatter_elements": _scatter, "topk": _topk, "arange": _arange,
    "full": _full,
}
