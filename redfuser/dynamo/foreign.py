"""Graphs of torch.compile that are not ours, as can be seen by looking at them: each function raises GivenBack for its kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from redfuser.dynamo.key import NAMESPACES
from redfuser.dynamo.recipe import GivenBack
from redfuser.frontend.levels import derivatives
from redfuser.frontend.untracked import lost


def autocast(gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """torch.export writes down operators without the casts that autocast puts before them."""
    kinds = {x.device.type for x in inputs if isinstance(x, torch.Tensor)}
    inside = any(n.op == "call_function" and getattr(n.target, "__name__", "") == "_enter_autocast" and
                 (n.args[2] if len(n.args) > 2 else n.kwargs.get("enabled", True)) is not False for n in gm.graph.nodes)
    if inside or any(torch.is_autocast_enabled(kind) for kind in kinds):
        raise GivenBack("RF133", "runs under autocast, whose casts it does not hold")


def derived(gm: fx.GraphModule) -> None:
    """torch.export has no form for tensors inside of a derivative."""
    if derivatives(gm):
        raise GivenBack("RF130", "takes derivatives (torch.func)")


def overlapping(x: torch.Tensor) -> bool:
    """Whether two elements may lie in one place (a broadcast input, a window over another)."""
    end = 0
    for n, stride in sorted(((n, s) for n, s in zip(x.shape, x.stride()) if n != 1), key=lambda p: p[1]):
        if stride <= end:
            return x.numel() > 0
        end += (n - 1) * stride
    return False


def numbers(gm: fx.GraphModule) -> None:
    """torch.compile makes an input of a Python float as soon as it has had two values. Raises GivenBack RF132."""
    given = [n for n in gm.graph.nodes if n.op == "placeholder" and (source := n.meta.get("grapharg")) is not None
             and source.pass_arg_as_tensor and any(u.op == "call_method" and u.target == "item" for u in n.users)]
    if given:
        raise GivenBack("RF132", f"takes a float that is another from call to call ({given[0].name}); with"
                                 " torch._dynamo.config.specialize_float = True it is ours for each value")


def libraries(program: Any) -> None:
    """The compile process knows torch's operators alone, and so does a file. Raises GivenBack RF135; and RF133 for what of its
    inputs a graph reads in a way that torch.export does not see."""
    if found := lost(program):
        raise GivenBack("RF133", f"makes tensors of others in a way that cannot be captured ({', '.join(found[:3])})")
    for node in program.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace not in NAMESPACES:
            raise GivenBack("RF135", f"calls {node.target}, an operator of a library")
