"""How a graph's effects and results are made of what a function without effects returns: plain data, beside the artifact."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from redfuser import strict


class GivenBack(Exception):
    """A graph that is not ours: a code of docs/codes.md and what it does, for the default backend's sake."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(f"{code} {why}")
        self.code, self.why = code, why


@dataclass(frozen=True, slots=True)
class Out:
    """One result of the graph: the ``input`` of that index itself; a ``view`` of an input's memory; a ``result`` of the
    function; a ``part`` (a view) of one; a ``value`` (a number or None). Strides and offset count elements, the offset from
    its owner's own."""

    kind: Literal["input", "view", "result", "part", "value"]
    of: int = 0
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0
    value: Any = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """inputs: of the graph's inputs, then of ``constants`` (attributes of the graph), those that the function takes.
    outputs: the graph's results. results: shape and strides of the function's first results; the others are written back
    into the inputs ``writes``, in that order."""

    inputs: tuple[int, ...]
    constants: tuple[str, ...]
    outputs: tuple[Out, ...]
    results: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    writes: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Any) -> Recipe:
        """Raises ValueError for anything else."""
        return strict.read(Recipe, data)
