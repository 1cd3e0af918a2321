"""A pass that changes what a kernel computes is found under ``REDFUSER_VERIFY=strict``, by name."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from redfuser import chain, gate
from redfuser.acrf.expr import Const, Expr, Op, map_children
from redfuser.chain import steps
from redfuser.chain.samples import cases
from redfuser.errors import InternalError
from redfuser.strategies.program import Kernel
from redfuser.tensorize import rewrite, schedule, tensorize
from redfuser.tensorize import tiles as package
from redfuser.tensorize.ir.effects import with_exprs
from redfuser.tensorize.ir.nodes import ReduceTile, TileKernel
from redfuser.tensorize.rewrite.facts import each_value
from redfuser.tensorize.schedule.history import History
from redfuser.tensorize.schedule.lanes import SumByLane
from redfuser.verdicts import Verdict
from tests import fused_examples
from tests.chain.kernels import fused as named
from tests.chain.lowered import HOPPER, program_of


@dataclass(frozen=True)
class Forgetful:
    """Leaves the mask of a ragged row out."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        def go(e: Expr) -> Expr:
            match e:
                case Op(name="select", args=(_, x, Const())):
                    return x
            return map_children(e, go)

        return replace(kernel, body=tuple(with_exprs(s, go) for s in kernel.body))


@dataclass(frozen=True)
class Careless:
    """Leaves the first statement out."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        return replace(kernel, body=kernel.body[1:])


@dataclass(frozen=True)
class Unscaled:
    """Loses the scale of the scores."""

    def __call__(self, kernel: Kernel, at: rewrite.Setting) -> Kernel:
        def go(e: Expr) -> Expr:
            match e:
                case Op(name="mul", args=(Op() as x, Const())):
                    return go(x)
            return map_children(e, go)

        return each_value(kernel, go)


@dataclass(frozen=True)
class Dangling:
    """Drops the last reduction."""

    def __call__(self, kernel: Kernel, at: rewrite.Setting) -> Kernel:
        return replace(kernel, body=kernel.body[:-1])


def test_passes_hold() -> None:
    for fused, strategy, splits in ((fused_examples.attention(1, 1, 1, 40, 100, 32, "f16"), "single", 1),
                                    (fused_examples.variance(4, 1500), "multi", 3)):
        program, config = program_of(fused, strategy, splits)
        assert chain.tile_passes(program, config, HOPPER) == ()


def test_a_pass_that_regroups_a_sum_is_held_to_the_cascade(monkeypatch: pytest.MonkeyPatch) -> None:
    program, config = program_of(named("torch attention"), "overlap")
    lanes, history = replace(config, schedule="overlap-lanes"), History()
    tensorize(program, lanes, HOPPER, history)
    assert SumByLane.__name__ in [name for name, _ in history.steps]
    assert chain.tile_passes(program, lanes, HOPPER) == ()
    whole = SumByLane.__call__

    def greatest(self: SumByLane, kernel: TileKernel) -> TileKernel:
        made = whole(self, kernel)
        return replace(made, body=tuple(
            replace(s, op="max") if isinstance(s, ReduceTile) and s.src.endswith("_lanes") else s for s in made.body))

    monkeypatch.setattr(SumByLane, "__call__", greatest)
    found = chain.tile_passes(program, lanes, HOPPER)
    assert found and "SumByLane, tile program" in found[0], found


@pytest.mark.parametrize("wrong, what", [(Unscaled(), "attention, Unscaled, "), (Dangling(), "attention, Dangling: o_acc is never reduced")])
def test_a_wrong_rewrite_is_named(wrong: rewrite.Pass, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, config = program_of(fused_examples.attention(1, 1, 1, 20, 70, 32, "f16"), "single")
    monkeypatch.setattr(rewrite, "PASSES", (*rewrite.PASSES, wrong))
    found = tuple(steps.scalar_violations(program, config, HOPPER, [c for c in cases(program.fused) if c.wide][:1]))
    assert found and what in found[0], found


@pytest.mark.parametrize("wrong, what", [(Forgetful(), "Forgetful, "), (Careless(), "Careless: row_max is read before")])
def test_a_wrong_pass_is_named(wrong: schedule.Pass, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, config = program_of(fused_examples.softmax(40, 300, "f32"), "single")
    monkeypatch.setattr(schedule, "PASSES", (schedule.PASSES[0], wrong, *schedule.PASSES[1:]))
    monkeypatch.setattr(package, "verify", lambda tiles: [])
    found = chain.tile_passes(program, config, HOPPER)
    assert found and what in found[0], found
    monkeypatch.setattr(chain, "tile_program", lambda *about, **_: Verdict("now"))
    with pytest.raises(InternalError, match="RF903"):
        gate.checked_tiles(program, config, HOPPER, "strict")
