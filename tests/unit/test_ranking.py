"""The order of configurations is found once, and again where something that it depends on is another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from redfuser.cache import Cache
from redfuser.errors import LoweringError
from redfuser.ranking import first_configurations
from redfuser.strategies import realise
from redfuser.strategies.program import Program
from redfuser.target import Target
from redfuser.tensorize import TileConfig, configs
from tests import fused_examples
from tests.chain.lowered import HOPPER


def test_an_order_is_found_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def rank(program: Program, target: Target) -> list[TileConfig]:
        asked.append(target.arch)
        return configs(program, target)

    store, program = Cache(tmp_path), realise(fused_examples.softmax(40, 300, "f32"), "single", 1)
    first = first_configurations(program, HOPPER, rank, store)
    assert first == configs(program, HOPPER)[:len(first)] and len(first) > 1
    assert first_configurations(program, HOPPER, rank, store) == first and asked == ["sm_90a"]
    first_configurations(realise(fused_examples.softmax(40, 301, "f32"), "single", 1), HOPPER, rank, store)
    first_configurations(program, replace(HOPPER, sms=7), rank, store)
    first_configurations(realise(program.fused, "multi", 2), HOPPER, rank, store)
    assert len(asked) == 4


def test_what_has_no_order_is_asked_again(tmp_path: Path) -> None:
    def rank(program: Program, target: Target) -> list[TileConfig]:
        raise LoweringError("RF410", "no room")

    store, program = Cache(tmp_path), realise(fused_examples.softmax(40, 300, "f32"), "single", 1)
    for _ in range(2):
        with pytest.raises(LoweringError, match="RF410"):
            first_configurations(program, HOPPER, rank, store)
    assert first_configurations(program, HOPPER, configs, store) == configs(program, HOPPER)[:16]
