"""What a compiled model is made of, as data: what it is built from, and what goes into a file of it and comes out again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from redfuser.artifact import KernelSpec
from redfuser.report import Report
from redfuser.runtime.signature import Signature


@dataclass(frozen=True)
class Graph:
    """Straight-line torch code (:mod:`redfuser.runtime.guard` has its grammar) and the names it uses. ``source`` defines
    ``forward``, whose parameters are ``inputs`` and which returns a tuple of ``outputs`` tensors. ``kernels`` maps a
    name in the source to the name of a kernel, ``references`` a kernel's name to the torch code it stands for."""

    source: str
    inputs: tuple[str, ...]
    outputs: int
    kernels: Mapping[str, str] = field(default_factory=dict)
    references: Mapping[str, str] = field(default_factory=dict)

    def laid(self, name: str, constant: torch.Tensor) -> torch.Tensor:
        """A constant that is the model's alone, as the text wants it in memory: a weight that nothing reads but convolutions
        with channels last. A kernel takes what lies row by row."""
        if constant.dim() != 4:
            return constant
        read = re.findall(rf"\b{re.escape(name)}\b(\.contiguous\(memory_format=torch\.channels_last\))?", self.source)
        return constant.contiguous(memory_format=torch.channels_last) if read and all(read) else constant


@dataclass(frozen=True)
class Parts:
    """``constants`` by their names in the graph, wherever they are; ``kernels`` by name; ``stages`` per kernel, as stage to
    text."""

    graph: Graph
    constants: Mapping[str, torch.Tensor]
    kernels: Mapping[str, KernelSpec]
    signature: Signature
    report: Report
    stages: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def whole(tensor: torch.Tensor) -> bool:
    """Does it lie without gaps, row by row or with channels last? Other inputs are copied before a call."""
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))
