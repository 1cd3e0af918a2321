"""One call of a compiled model as a CUDA graph: the whole model for the host time of a single launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map

from redfuser.errors import InputError, RedFuserError
from redfuser.runtime.parts import whole

WARM_UP = 3
"""Calls before capture, on a side stream: libraries choose algorithms and allocate workspaces in them."""


class Captured:
    """``captured(*args)`` copies the arguments into the graph's own inputs, replays it on the current stream and returns
    the results: copies by default, or with ``copy_outputs=False`` the graph's own tensors, which the next call overwrites.

    A caller that writes into ``inputs`` (the graph's own, in the order of the signature) itself calls :meth:`replay`.

    Raises :class:`InputError` RF512 when the model does not run on a GPU or cannot be captured, and for arguments the
    model's own errors (RF502 to RF514).
    """

    def __init__(self, model: Any, args: Any, kwargs: Mapping[str, Any], *, copy_outputs: bool = True) -> None:
        self._signature, self._copy = model._signature, copy_outputs
        given = self._signature.bind(args, kwargs)
        device = model._device_for(given)
        self._signature.check(given, device)
        if device.type != "cuda":
            raise InputError("RF512", f"the model is on {device}", why="CUDA graphs need a GPU",
                             help="move the model to a GPU, or call it directly")
        self._device = device
        with torch.no_grad(), torch.cuda.device(device):
            formats = (torch.contiguous_format, torch.preserve_format)
            self.inputs = [tensor.detach().clone(memory_format=formats[whole(tensor)]) for tensor in given]
            bound = model._eager if model._eager is not None and model._eager.device == device else model._bind(device)
            self._keep = bound  # kernels and constants must outlive the graph

            def run() -> Any:
                return bound.run(device, *self.inputs, *bound.constants)

            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    run()
            torch.cuda.current_stream().wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(self._graph):
                    self._outputs = run()
            except RedFuserError:
                raise
            except RuntimeError as error:
                raise InputError("RF512", "the model cannot be captured", why=str(error).strip().splitlines()[0],
                                 help="some operation synchronises with the host; call the model directly") from error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self._signature.bind(args, kwargs)
        self._signature.check(given, self._device)
        with torch.no_grad(), torch.cuda.device(self._device):
            for mine, theirs in zip(self.inputs, given, strict=True):
                mine.copy_(theirs)
            result = self.replay()
            return tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, result) if self._copy else result

    def replay(self) -> Any:
        """Run on what ``inputs`` holds now; the result is the graph's own and the next replay overwrites it."""
        self._graph.replay()
        return self._signature.unbind(self._outputs)
