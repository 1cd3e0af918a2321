"""The outer graph: the whole model as straight-line torch source around its fused kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class OuterGraph:
    """``source`` defines ``forward``; executing it needs torch and the functions named in ``kernels``, nothing else.

    ``forward`` takes ``inputs`` (the user's tensors), then ``weights``, then ``constants``, all positionally, and returns
    one tensor or a tuple. ``inputs`` and ``weights`` pair the parameter's name with the name in ``Imported.inputs``;
    ``constants`` are tensors that the program itself holds (masks and tables that depend on no input), on the CPU.
    ``calls`` counts the torch functions by name, ``opaque`` lists the torch operators kept as opaque calls.
    """

    source: str
    inputs: tuple[tuple[str, str], ...]
    weights: tuple[tuple[str, str], ...]
    constants: dict[str, torch.Tensor] = field(repr=False)
    kernels: tuple[str, ...]
    outputs: int
    calls: dict[str, int] = field(default_factory=dict)
    opaque: tuple[str, ...] = ()

    def function(self, kernels: Mapping[str, Callable[..., Any]] | None = None) -> Callable[..., Any]:
        """``forward`` with these kernels in scope."""
        return load_forward(self.source, kernels)


def load_forward(source: str, kernels: Mapping[str, Callable[..., Any]] | None = None) -> Callable[..., Any]:
    """Execute generated source (of this process or of a saved artifact) and return its ``forward``."""
    scope: dict[str, Any] = dict(kernels or {})
    exec(compile(source, "<redfuser outer graph>", "exec"), scope)
    return scope["forward"]  # type: ignore[no-any-return]


__all__ = ["OuterGraph", "load_forward"]
