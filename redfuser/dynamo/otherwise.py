"""Where graphs go that are not ours: torch's default backend, or eager torch where that cannot run here."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from redfuser.dynamo import told
from redfuser.dynamo.options import Chosen


def compiled(gm: fx.GraphModule, inputs: Sequence[Any], chosen: Chosen, name: str) -> Callable[..., Any]:
    """While torch.compile compiles: the graph by the other backend. What the backend asks of torch.compile (to begin again,
    with a number as a constant) is raised as it is."""
    from torch._dynamo.backends.registry import lookup_backend
    from torch._dynamo.exc import RestartAnalysis

    eager = fx.GraphModule(gm, copy.deepcopy(gm.graph)).forward  # backends rewrite what they are given
    try:
        backend: Any = lookup_backend(chosen.otherwise)
        if chosen.cuda_graphs and chosen.otherwise == "inductor":
            from torch._inductor import list_mode_options

            return backend(gm, list(inputs), config_patches=list_mode_options("reduce-overhead"))  # type: ignore[no-any-return]
        return backend(gm, list(inputs))  # type: ignore[no-any-return]
    except RestartAnalysis:
        raise
    except Exception as error:
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        note = f"runs as eager torch: {chosen.otherwise} raised {type(error).__name__}: {line[:200]}"
        told.tell(told.GraphReport(name, "given back", code="RF138", note=note),
                  "warn" if chosen.fallback == "error" else chosen.fallback)
        return eager


def at_call(gm: fx.GraphModule, chosen: Chosen) -> Callable[..., Any]:
    """When a graph with symbolic sizes is called: compiled by the other backend for all sizes."""
    return torch.compile(gm, backend=chosen.otherwise, dynamic=True)  # type: ignore[no-any-return]
