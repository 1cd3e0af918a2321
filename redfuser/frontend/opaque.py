"""Torch operators that stay torch calls: how their arguments become JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from redfuser.frontend import in_memory
from redfuser.frontend.dtypes import supported
from redfuser.frontend.imported import OpaqueCall, Provenance


class NotJson(Exception):
    """An argument has no place in a template (a generator, a stream, a Python object)."""


def template(value: Any, tensor: Callable[[Any], int]) -> Any:
    """``value`` as JSON; ``tensor`` numbers the graph nodes met on the way."""
    if isinstance(value, torch.fx.Node):
        return {"tensor": tensor(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [template(v, tensor) for v in value]
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": True}
    if isinstance(value, torch.layout):
        return {"layout": str(value).removeprefix("torch.")}
    if isinstance(value, torch.memory_format):
        return {"memory_format": str(value).removeprefix("torch.")}
    raise NotJson(type(value).__name__)


def describe(node: torch.fx.Node, provenance: Provenance) -> tuple[OpaqueCall, list[torch.fx.Node]]:
    """The call that a graph node makes, and the nodes whose tensors it takes, in the order of the template's numbers."""
    tensors: list[torch.fx.Node] = []

    def number(arg: torch.fx.Node) -> int:
        if arg not in tensors:
            tensors.append(arg)
        return tensors.index(arg)

    args = tuple(template(list(node.args), number))
    kwargs = {k: {"device": True} if k == "device" and v is not None else template(v, number)
              for k, v in node.kwargs.items()}
    val = node.meta["val"]
    single = isinstance(val, torch.Tensor)
    values = [val] if single else list(val)
    results = tuple(i for i, v in enumerate(values) if isinstance(v, torch.Tensor))
    return OpaqueCall(str(node.target), args, kwargs, len(values), single, results, provenance), tensors


def shaped_by_data(node: torch.fx.Node) -> bool:
    """Whether a tensor of the node's has as many elements as data say. No two such extents can be compared: torch raises."""
    val = node.meta.get("val")
    values = list(val) if isinstance(val, (list, tuple)) else [val]
    return any(not isinstance(s, int) for v in values if isinstance(v, torch.Tensor) for s in v.shape)


def runnable(node: torch.fx.Node) -> str:
    """Why the node cannot run as an opaque torch call; empty if it can."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        called = [str(a) for a in node.args if isinstance(a, torch._ops.OpOverload)]
        return f"{called[0]} writes into what it is given" if called else "control flow"
    if not isinstance(node.target, torch._ops.OpOverload):
        return "not a torch operator"
    if node.target in in_memory.DECOMPOSITIONS:
        return in_memory.UNNAMED
    val = node.meta.get("val")
    values = [val] if isinstance(val, torch.Tensor) else list(val) if isinstance(val, (list, tuple)) else []
    if not any(isinstance(v, torch.Tensor) for v in values):
        return "its result is not a tensor"
    for v in values:
        if v is None:
            continue
        if not isinstance(v, torch.Tensor):
            return "one of its results is not a tensor"
        if not supported(v.dtype):
            return f"its result has dtype {str(v.dtype).removeprefix('torch.')}"
    if shaped_by_data(node):
        return "the shape of its result depends on data"
    try:
        describe(node, Provenance())
    except NotJson as e:
        return f"an argument is a {e}"
    return ""
