"""Tensorisation: a segment program as tile operations, ready to print.

    tensorize(program, config, target) -> TileProgram      configs(program, target) -> [TileConfig], best first
"""

from __future__ import annotations

from redfuser.artifact import ArgSpec
from redfuser.tensorize.config import TileConfig
from redfuser.tensorize.configs import configs
from redfuser.tensorize.ir.nodes import TileProgram
from redfuser.tensorize.tiles import Watcher, tensorize


def spec_skeleton(program: TileProgram) -> tuple[ArgSpec, ...]:
    """The tensor arguments in launcher order: inputs, outputs, workspaces."""
    return tuple(ArgSpec(a.name, a.dtype, a.shape, a.role) for a in program.args)


__all__ = ["TileConfig", "TileProgram", "Watcher", "configs", "spec_skeleton", "tensorize"]
