"""A compiled graph as a CUDA graph: ``mode="reduce-overhead"``.

The first call runs as it is; the second is captured, and replayed from then on. Parameters and buffers, which torch.compile
knows to stay, are read and written where they lie: when one lies elsewhere, the call is captured again. The other inputs are
copied into the graph's own, and back where the graph writes them. Results are copies, so that none is overwritten by the next
call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from redfuser.dynamo import told

CAPTURES = 8
"""Captures of one graph before it runs without."""
Compute = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


class Replayed:
    """Thread-safe: a call at a time, each stream after the last. written: inputs that ``compute`` writes into."""

    def __init__(self, compute: Compute, written: Sequence[int], device: torch.device, name: str,
                 fallback: str = "warn") -> None:
        self.fallback = "warn" if fallback == "error" else fallback  # it runs as it is compiled, only not replayed
        self.compute, self.written, self.device, self.name = compute, frozenset(written), device, name
        self.lock = threading.Lock()
        self.calls = self.captures = 0
        self.places: tuple[int, ...] = ()
        self.fixed: frozenset[int] = frozenset()
        self.graph: Any = None
        self.own: list[torch.Tensor] = []
        self.results: Sequence[torch.Tensor] = ()
        self.done: Any = None

    def __call__(self, tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        if self.captures > CAPTURES or torch.cuda.is_current_stream_capturing():
            return self.compute(tensors)
        with self.lock, torch.cuda.device(self.device):
            self.calls += 1
            if self.calls == 1:
                self.fixed = frozenset(k for k, t in enumerate(tensors) if _stays(t))
                return self.compute(tensors)
            places = tuple([tensors[k].data_ptr() for k in sorted(self.fixed)])
            stream = torch.cuda.current_stream()
            if self.done is not None:
                stream.wait_event(self.done)
            if self.graph is None or places != self.places:
                if not self._capture(tensors):
                    return self.compute(tensors)
                self.places = places
            for k, (mine, given) in enumerate(zip(self.own, tensors)):
                if k not in self.fixed:
                    mine.copy_(given.detach())
            self.graph.replay()
            found = [r.clone() for r in self.results]
            for k in self.written.difference(self.fixed):
                tensors[k].detach().copy_(self.own[k])
            self.done = stream.record_event()
            return found

    def _capture(self, tensors: list[torch.Tensor]) -> bool:
        """Capturing computes nothing: the replay after it does."""
        self.captures += 1
        own = [t if k in self.fixed else _like(t) for k, t in enumerate(tensors)]
        graph = torch.cuda.CUDAGraph()
        why = f"was captured {CAPTURES} times, for parameters that lie elsewhere each time"
        if self.captures <= CAPTURES:
            try:
                with torch.cuda.graph(graph):
                    results = self.compute(own)
                self.graph, self.own, self.results = graph, own, results
                return True
            except RuntimeError as error:
                self.captures = CAPTURES + 1
                why = f"cannot be captured ({str(error).strip().splitlines()[0][:200]})"
        self.graph, self.own, self.results = None, [], ()
        note = f"{why}: it runs without a CUDA graph"
        told.tell(told.GraphReport(self.name, "given back", code="RF512", note=note), self.fallback)
        return False


def _stays(tensor: torch.Tensor) -> bool:
    """Whether torch.compile says that a tensor stays where it is."""
    return isinstance(tensor, torch.nn.Parameter) or getattr(tensor, "_dynamo_static_input_type", None) is not None


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
