"""Levels of torch.func's transforms. A graph of torch.compile enters and leaves them by calls of their own; where it fails in
between, nothing leaves them, and every later use of torch.func, torch.export or torch.compile in the process fails as well."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def undone() -> Iterator[None]:
    """Levels that are open at the end and were not at the beginning are left."""
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    finally:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
