"""Levels of torch.func's transforms in a graph, and what is left of them.

A graph enters and leaves a level by calls of its own. Where it fails in between, nothing leaves the level, and every later use
of torch.func, torch.export or torch.compile in the process fails as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import fx
from torch.autograd import forward_ad

DERIVATIVES = ("_grad_increment_nesting", "_jvp_increment_nesting")


def derivatives(module: fx.GraphModule) -> bool:
    """Whether a graph, or one inside of it, enters ``torch.func.grad`` or its like, for which torch.export has no form."""
    return any(n.op == "call_function" and getattr(n.target, "__name__", "") in DERIVATIVES
               for m in module.modules() if isinstance(m, fx.GraphModule) for n in m.graph.nodes)


@contextlib.contextmanager
def undone() -> Iterator[None]:
    """Levels that are open at the end and were not at the beginning are left, and torch's switches stand as they stood."""
    functorch, autograd = torch._C._functorch, torch._C._autograd
    depth, grad, forward = functorch.get_dynamic_layer_stack_depth(), torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
    hooks, inplace = autograd._saved_tensors_hooks_is_enabled(), functorch.get_inplace_requires_grad_allowed()
    try:
        yield
    finally:
        if functorch.get_dynamic_layer_stack_depth() > depth:
            if forward_ad._current_level < 0:
                with contextlib.suppress(RuntimeError):  # none is open
                    torch._C._exit_dual_level(level=0)
            functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
            torch._C._set_grad_enabled(grad)
            torch._C._set_fwd_grad_enabled(forward)
            functorch.set_inplace_requires_grad_allowed(inplace)
            if hooks:
                autograd._saved_tensors_hooks_enable()
