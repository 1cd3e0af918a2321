"""An outer graph held to what a file may hold."""

from __future__ import annotations

from typing import Any

import torch

from redfuser.outer import OuterGraph
from redfuser.runtime.guard import check_graph
from redfuser.runtime.rehearsal import rehearse
from redfuser.runtime.shapes import Shaped


def rehearsal(graph: OuterGraph, args: Any) -> tuple[Shaped, ...]:
    """The results' dtypes and shapes, as loading the graph from a file would find them for these inputs."""
    def shaped(t: torch.Tensor) -> Shaped:
        return Shaped(t.dtype, tuple(t.shape))

    given = [shaped(a) for a in args if isinstance(a, torch.Tensor)]
    constants = {name: shaped(t) for name, t in graph.constants.items()}
    return rehearse(check_graph(graph.source, set(constants)), graph.inputs, given, constants, {}, len(graph.outputs))
