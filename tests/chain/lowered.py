"""From a torch function or a fused cascade to what the chain checks: twins of its kernel, with their cases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from redfuser import frontend, partition
from redfuser.acrf.state import Fused
from redfuser.chain import twin
from redfuser.errors import LoweringError
from redfuser.strategies import realise, select
from redfuser.strategies.program import Program
from redfuser.target import target
from redfuser.tensorize import TileConfig, configs, tensorize
from tests.chain.twins import Twin

HOPPER = target("sm_90a")
SCHEDULES = ("overlap", "persistent")


def fused_of(f: Callable[..., Any], *args: torch.Tensor, casts: str = "preserve") -> Fused:
    (region,) = partition.partition(frontend.import_model(f, args, None), casts).regions
    return region.fused


def program_of(fused: Fused, strategy: str = "", splits: int = 1) -> tuple[Program, TileConfig]:
    """The program that the model of resources (or the caller) chooses, and the smallest configuration that has tiles: the
    rows of a test are short, and of several steps all the same. A strategy may be a schedule of roles. Raises LoweringError
    where none has."""
    if strategy in SCHEDULES:
        program = realise(fused, "single", 1)
        usual = TileConfig(128, 128, 256, 2, "registers", True, schedule=strategy)  # type: ignore[arg-type]
        for config in (*(c for c in configs(program, HOPPER) if c.schedule == strategy), usual):
            with contextlib.suppress(LoweringError):
                tensorize(program, config, HOPPER)
                return program, config
        tensorize(program, usual, HOPPER)
    program = realise(fused, strategy, splits) if strategy else realise(fused, *select(fused, HOPPER))  # type: ignore[arg-type]
    found = sorted(configs(program, HOPPER), key=lambda c: (c.segment, c.rows))
    for config in found[:3]:
        with contextlib.suppress(LoweringError):
            tensorize(program, config, HOPPER)
            return program, config
    return program, found[0]


def twin_of(fused: Fused, deep: bool, strategy: str = "", splits: int = 1) -> Twin:
    """One twin of a kernel, lowered. Raises LoweringError where it has no tiles."""
    program, config = program_of(fused, strategy, splits)
    small = twin.of_tiles(program, config, deep)
    tiles = tensorize(small, config, twin.machine(small, program, config, HOPPER))
    return Twin(strategy if strategy in SCHEDULES else program.strategy, deep, small, tiles)
