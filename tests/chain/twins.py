"""A twin of a kernel with what the chain draws for it. It needs no compiler: what was lowered once can be pickled and checked
elsewhere (:mod:`tests.chain.planted_table`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from redfuser.chain import tiles
from redfuser.chain.samples import Case, cases
from redfuser.strategies.program import Program
from redfuser.tensorize.ir.nodes import TileProgram


@dataclass(frozen=True)
class Twin:
    """``form``: the strategy or schedule it came of; ``tiles``: the twin's ``program``, lowered."""

    form: str
    deep: bool
    program: Program
    tiles: TileProgram

    @cached_property
    def cases(self) -> list[Case]:
        return cases(self.program.fused, self.deep)

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if k != "cases"}

    def wrong(self, changed: TileProgram) -> str:
        """The first violation of another tile program in this one's place; empty when it holds."""
        return next(tiles.violations(self.program, changed, self.cases), "")
