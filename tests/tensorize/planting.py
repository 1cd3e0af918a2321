"""Errors planted in a tile program's text, which the interpreter is to find in every order of its roles."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from redfuser.errors import InternalError
from redfuser.tensorize import TileProgram
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.parse import parse

Planted = tuple[str | re.Pattern[str], str, str]
"""A part of a kernel's text, what stands there instead, and what is said of it (empty: that it is about roles)."""


def found(made: TileProgram, inputs: Callable[[TileProgram], dict[str, np.ndarray]], planted: Planted, seeds: int = 2,
          every: bool = False) -> None:
    """The planted error is reported, whatever the order. every: it stands wherever the text does, not once."""
    text, (old, new, said) = str(made), planted
    count = 0 if every else 1
    broken = old.sub(new, text, count=count) if isinstance(old, re.Pattern) else text.replace(old, new, count or -1)
    assert broken != text, text
    given = inputs(made)
    for seed in range(seeds):
        with pytest.raises(InternalError, match=said or "roles"):
            interpret.run(parse(broken), given, seed=seed)
