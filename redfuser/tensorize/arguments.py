"""The tensor arguments of a program: their names and extents."""

from __future__ import annotations

from redfuser.acrf.cascade import Tensor
from redfuser.errors import LoweringError
from redfuser.strategies.program import Program


def argument_name(program: Program, name: str) -> str:
    """The parameter that holds a buffer: inputs by their own name, outputs as ``out_NAME``, workspaces as they are."""
    outputs = program.fused.cascade.outputs
    return f"out_{name}" if name in outputs else name


def tensors(program: Program) -> list[tuple[Tensor, str]]:
    """Every tensor argument with its role, inputs first."""
    out = [(t, "in") for t in program.fused.cascade.inputs]
    written = {t.name: t for k in program.kernels for t in k.writes}
    out += [(written[n], "out") for n in program.fused.cascade.outputs]
    return out + [(t, "workspace") for t in program.workspaces]


def static_extent(extent: int | str, what: str) -> int:
    """The extent, or LoweringError RF485 where it is symbolic."""
    if not isinstance(extent, int):
        raise LoweringError("RF485", f"{what} has the symbolic extent {extent}",
                            why="tile programs have static shapes", help="compile once per shape")
    return extent
