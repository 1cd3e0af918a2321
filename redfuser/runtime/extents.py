"""How large an integer input may be: what a trial may draw for it, so that labels are not all the same.

The torch code of a region is run on tensors without data. An integer that comes to index a tensor, moved about, chosen among
or not, is below that dimension's extent; one that arithmetic changed on its way is drawn as 0, which most tensors have. Where
the model has a constant for it, that is taken. What leaves its tensor all the same is caught before a GPU sees it
(:class:`Bounded`): there, it ends the process's use of the device.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from redfuser.places import COPY, MOVE
from redfuser.runtime.parts import Parts

FREE = 4
"""What an integer that indexes nothing is drawn below: labels of segments, say, that are compared."""
CHOICE = frozenset({"aten::where", "aten::masked_fill"})
SUMS = frozenset({"aten::sum", "aten::amax", "aten::amin", "aten::any", "aten::all"})
INDEXED = {"aten::gather": ("dim", "index"), "aten::index_select": ("dim", "index"), "aten::index": (None, "indices"),
           "aten::embedding": (0, "indices"), "aten::index_put": (None, "indices"),
           **{f"aten::{n}": ("dim", "index") for n in ("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy")}}
"""Operators that read or write at places: the dimension (a parameter's name, or the dimension itself) and the places."""
FROM_THE_END = frozenset({"aten::index", "aten::index_put"})
"""Those of them whose places may be negative; to the others such a place is one outside."""


def _places(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[torch.Tensor, int, torch.Tensor]]:
    """What an operator reads at places: the tensor, the dimension, the places."""
    if (name := func._schema.name) in INDEXED:
        dim, places = INDEXED[name]
        given = {**dict(zip((a.name for a in func._schema.arguments), args)), **(kwargs or {})}
        table = given["weight" if "weight" in given else "self"]
        listed = enumerate(given[places]) if dim is None else [(given[dim] if isinstance(dim, str) else dim, given[places])]
        yield from ((table, d, index) for d, index in listed if index is not None)


class Bounded(TorchDispatchMode):
    """Within it, places outside their tensor are an IndexError, on a GPU too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for table, d, index in _places(func, args, kwargs):
            if index.numel() and index.dtype not in (torch.bool, torch.uint8):
                least, most = (int(x) for x in index.aminmax())
                extent = table.shape[d] if table.dim() else 1
                if least < (-extent if func._schema.name in FROM_THE_END else 0) or most >= extent:
                    raise IndexError(f"places {least} to {most} of {extent}")
        return func(*args, **(kwargs or {}))


def fixed(parts: Parts) -> dict[str, dict[int, torch.Tensor]]:
    """Per kernel that the graph calls, the positions of inputs that are constants of integers, with these."""
    graph = parts.graph
    whole = {n: t for n, t in parts.constants.items() if not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool)}
    found: dict[str, dict[int, torch.Tensor]] = {}
    for call in ast.walk(ast.parse(graph.source)) if whole else ():
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in graph.kernels:
            for i, arg in enumerate(map(_bare, call.args)):
                if isinstance(arg, ast.Name) and arg.id in whole:
                    found.setdefault(graph.kernels[call.func.id], {}).setdefault(i, whole[arg.id])
    return found


def _bare(e: ast.expr) -> ast.expr:
    """What is moved about, not computed."""
    while isinstance(e, ast.Call) and isinstance(e.func, ast.Attribute) and e.func.attr in ("contiguous", "reshape"):
        e = e.func.value
    return e


class _Indices(TorchDispatchMode):
    """From which inputs a value comes (by id, kept alive), and whether only moved about; and the least extent per input."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.of = {id(t): (t, frozenset({i}), True) for i, t in enumerate(inputs) if not t.is_floating_point()}
        self.least: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        read = [t for t in tree_flatten((args, kwargs))[0] if id(t) in self.of]
        for table, d, index in _places(func, args, kwargs):
            if id(index) in self.of:
                _, inputs, plain = self.of[id(index)]
                extent = table.shape[d] if plain and table.dim() else 1
                self.least |= {i: min(extent, self.least.get(i, extent)) for i in inputs}
        plain = name in MOVE or name in COPY or name in CHOICE
        if not (plain or name in INDEXED or name in SUMS or torch.Tag.pointwise in func.tags):
            self.least |= {i: 1 for t in read for i in self.of[id(t)][1]}  # it may read at places
        for t in tree_flatten(out)[0]:
            if read and isinstance(t, torch.Tensor) and t.dtype != torch.bool:
                self.of[id(t)] = (t, frozenset().union(*(self.of[id(r)][1] for r in read)),
                                  plain and all(self.of[id(r)][2] for r in read))
        return out


def extents(unfused: Callable[..., Any], shapes: Sequence[tuple[torch.dtype, tuple[int, ...]]]) -> list[int]:
    """Per input, how many values it may be drawn from. ``unfused``: the torch code, from the device and the inputs."""
    inputs = [torch.empty(shape, dtype=dtype, device="meta") for dtype, shape in shapes]
    mode = _Indices(inputs)
    try:
        with torch.no_grad(), mode:
            unfused(torch.device("meta"), *inputs)
    except Exception:  # an operator without a shape function
        return [1] * len(inputs)
    return [max(1, mode.least.get(i, FREE)) for i in range(len(inputs))]
