"""In which order the configurations of a program are tried, remembered: ranking lowers each of the likeliest, and gives the
same order while nothing that it depends on has changed (:mod:`redfuser.verdicts` says what that is)."""

from __future__ import annotations

import json
from collections.abc import Callable

from redfuser import strict
from redfuser.cache import Cache, key_of
from redfuser.chain import JUDGES
from redfuser.strategies.program import Program
from redfuser.target import Target
from redfuser.tensorize.config import TileConfig
from redfuser.verdicts import content, digest

LOOKED = 16
"""Of an order, so many are kept: a plan tries a few."""


def first_configurations(program: Program, target: Target, rank: Callable[[Program, Target], list[TileConfig]],
                         store: Cache | None = None) -> list[TileConfig]:
    """The first configurations of ``rank(program, target)``, best first. Raises LoweringError as ``rank`` does, which is asked
    again every time then."""
    store = Cache() if store is None else store
    judges = digest(*JUDGES)
    about = (program.fused, program.strategy, program.splits, program.segment or 0, target)
    key = key_of("order", judges, content(about)) if judges else ""
    if key and (kept := store.get(key)) is not None:
        return [strict.read(TileConfig, c) for c in json.loads(kept)]
    found = rank(program, target)[:LOOKED]
    if key:
        store.put(key, json.dumps([c.to_json() for c in found]).encode())
    return found
