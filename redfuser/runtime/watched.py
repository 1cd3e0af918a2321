"""Calls that are not just calls: under a tracer, a dispatch mode or a function transform, or with tensors that have no plain
memory. Kernels read memory through a pointer, which none of these sees: a tracer would record the example's result.

Where the kernels' operators (:mod:`redfuser.runtime.ops`) serve, they are called instead; otherwise the call is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C import _functorch
from torch.autograd import forward_ad

from redfuser.errors import InputError

tracing = torch._C._get_tracing_state
casting = torch._C._is_any_autocast_enabled
modes = torch._C._len_torch_dispatch_stack
transforms = _functorch.peek_interpreter_stack
derivatives = forward_ad
"""``derivatives._current_level`` is at least 0 inside ``forward_ad.dual_level``."""


def by_operators(tensors: Sequence[Any]) -> bool:
    """Whether the call must go through the kernels' operators. Raises InputError RF517 where they have no rule."""
    given = [t for t in tensors if isinstance(t, torch.Tensor)]
    top = transforms()
    functional = top is not None and top.key() == _functorch.TransformType.Functionalize
    if top is not None and not functional and any(_functorch.is_functorch_wrapped_tensor(t) for t in given):
        raise _refused(f"torch.func ({top.key().name.lower()})")
    if derivatives._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in given):
        raise _refused("forward-mode differentiation")
    return tracing() is not None or modes() > 0 or functional


def _refused(what: str) -> InputError:
    return InputError("RF517", f"a compiled model has no rule for {what}", why="its kernels compute one result for tensors of "
                      "fixed shapes, and no derivative", help="transform the original model, or call the compiled one outside")


def scripting() -> InputError:
    """What ``torch.jit.script`` is told."""
    return InputError("RF517", "a compiled model cannot be scripted", why="torch.jit.script reads Python source",
                      help="torch.jit.trace, torch.export and torch.compile take it; compiled.save(path) keeps it")


def plain(tensors: Sequence[Any], names: Sequence[str]) -> None:
    """Raises InputError RF518 for the first tensor whose elements are not in dense memory of its own."""
    for name, tensor in zip(names, tensors, strict=True):
        if isinstance(tensor, torch.Tensor) and (what := _odd(tensor)):
            raise InputError("RF518", f"input '{name}' is {what}", why="kernels read dense tensors",
                             help="convert it before the call: .to_dense(), torch.nested.to_padded_tensor, a real tensor")


def _odd(tensor: torch.Tensor) -> str:
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {str(tensor.layout).removeprefix('torch.')}"
    if tensor.device.type == "meta":
        return ""  # said better by the device check
    try:
        missing = tensor.numel() > 0 and tensor.data_ptr() == 0
    except RuntimeError:
        missing = True
    return f"a {type(tensor).__name__} without memory of its own" if missing else ""
