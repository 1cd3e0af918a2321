"""Operators made of others, in a block of autocast, get the operands that their products would.

    with torch.autocast("cpu", torch.bfloat16):
        y = torch.einsum("id,jd->ij", x, x)        -->    einsum("id,jd->ij", bf16(x), bf16(x))

Eager torch casts the operands of the product that ``einsum`` comes to; torch's decomposition of an exported program takes the
operator apart behind autocast, whose casts are then missing, and a result of float32 stands for one of bfloat16. The export has
noted the dtype, so that such operators are told by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map

IMPLICIT = "CompositeImplicitAutograd"


def taken_apart(module: fx.GraphModule) -> Iterator[tuple[fx.Node, fx.GraphModule, torch.dtype]]:
    """The nodes whose results are halves of operands that are not, with their block's module and the results' dtype."""
    for block in _blocks(module):
        for node in block.graph.nodes:
            val, target = node.meta.get("val"), node.target
            given = {v.dtype for n in node.all_input_nodes if isinstance(v := n.meta.get("val"), torch.Tensor)}
            halves = isinstance(val, torch.Tensor) and val.dtype in (torch.float16, torch.bfloat16) and torch.float32 in given
            if halves and isinstance(target, torch._ops.OpOverload) and "dtype" not in target._overloadname and \
                    torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), IMPLICIT):
                yield node, block, val.dtype


def _blocks(module: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """The modules of blocks of autocast, and those inside them."""
    for m in module.modules():
        for node in m.graph.nodes if isinstance(m, fx.GraphModule) else ():
            if getattr(node.target, "__name__", "") == "wrap_with_autocast":
                block = m.get_submodule(str(node.args[4].target))
                yield from (inner for inner in block.modules() if isinstance(inner, fx.GraphModule))


def lowered(target: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
    """``target`` of operands that are cast as autocast does."""
    def run(*args: Any, **kwargs: Any) -> Any:
        def cast(a: Any) -> Any:
            return a.to(dtype) if isinstance(a, torch.Tensor) and a.dtype == torch.float32 else a
        return target(*tree_map(cast, args), **tree_map(cast, kwargs))
    return run
