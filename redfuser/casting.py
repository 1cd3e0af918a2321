"""torch.autocast around a model. An export is made above it and holds none of its casts, but those of an autocast inside of
the model: so a model that is compiled under one is exported with it inside. What is compiled runs without."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

Casts = tuple[tuple[str, torch.dtype], ...]
"""Kinds of device for which autocast is on, and to which dtype."""


def casts() -> Casts:
    return tuple((k, torch.get_autocast_dtype(k)) for k in ("cpu", "cuda") if torch.is_autocast_enabled(k))


@contextlib.contextmanager
def uncast() -> Iterator[None]:
    """No autocast."""
    with contextlib.ExitStack() as off:
        for kind, _ in casts():
            off.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextlib.contextmanager
def inside(module: nn.Module, within: Casts) -> Iterator[None]:
    """``module`` with these casts in its own forward."""
    if not within:
        yield
        return
    own, kept = module.forward, vars(module).get("forward")

    @functools.wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as on:
            for kind, dtype in within:
                on.enter_context(torch.autocast(kind, dtype=dtype))
            return own(*args, **kwargs)

    module.forward = forward
    try:
        yield
    finally:
        if kept is None:
            del module.forward
        else:
            module.forward = kept
