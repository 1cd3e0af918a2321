"""The outer graph: the whole model as straight-line torch source around its fused kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class OuterGraph:
    """``source`` is one function ``forward`` of straight-line code. Executing it needs ``torch``, ``F``
    (torch.nn.functional), ``device``, the tensors of ``constants`` and the functions of ``kernels`` in scope, and nothing
    else; the grammar is that of :mod:`redfuser.runtime.guard`.

    ``forward`` takes the user's tensors, named in ``inputs``, and returns a tuple with one tensor per name in
    ``outputs``. ``constants`` are the weights it uses (aliases of the model's own, named in ``weights`` by their name in
    ``Imported.weights``) and tables that depend on no input, those on the CPU. ``kernels`` maps a function of the source
    to the kernel it stands for. ``calls`` counts the torch functions by name, ``opaque`` lists the torch operators kept
    as opaque calls.
    """

    source: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: dict[str, torch.Tensor] = field(repr=False)
    weights: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    opaque: tuple[str, ...] = ()

    def function(self, kernels: Mapping[str, Callable[..., Any]] | None = None,
                 device: str = "cpu") -> Callable[..., tuple[torch.Tensor, ...]]:
        """``forward`` of this process: with these kernels and with the constants moved to ``device``."""
        import torch

        scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "device": torch.device(device),
                                 **{n: t.to(device) for n, t in self.constants.items()}, **(kernels or {})}
        exec(compile(self.source, "<redfuser outer graph>", "exec"), scope)
        return scope["forward"]
