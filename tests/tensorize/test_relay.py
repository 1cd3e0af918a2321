"""One warp group weighs what others accumulate over many columns: what is computed, what breaks, where it does not apply."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.state import Fused
from redfuser.codegen.tilelang import print_program
from redfuser.errors import InternalError, LoweringError
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import TileConfig, TileProgram, configs, tensorize
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.nodes import Roles
from redfuser.tensorize.ir.parse import parse
from redfuser.tensorize.ir.verify import verify
from redfuser.tensorize.rewrite.quotients import same
from redfuser.tensorize.schedule.part_columns import PartColumns
from tests.tensorize.planting import Planted, found

HOPPER = target("sm_90a")
RELAY = TileConfig(64, 64, 256, 2, "shared", True, schedule="relay")
LATENT = """cascade latent(q: bf16[2, 100, 576], x: bf16[2, 200, 576]) over l where e = 512
  s[b, i, l] = sum[c] f32(q[b, i, c]) * f32(x[b, l, c])
  m[b, i] = max[l] s * 0.0417
  t[b, i] = sum[l] exp(s * 0.0417 - m)
  o[b, i, e] = sum[l] exp(s * 0.0417 - m) / t * f32(x[b, l, e])
  y[b, i, e] = bf16(o)
  return y
"""
APART = """cascade apart(q: f16[100, 32], k: f16[200, 32], v: f16[200, 512]) over l
  s[i, l] = sum[c] f32(q[i, c]) * f32(k[l, c])
  m[i] = max[l] s
  t[i] = sum[l] exp(s - m)
  o[i, e] = sum[l] exp(s - m) / t * f32(v[l, e])
  y[i, e] = f16(o)
  return y, m
"""
NARROW = APART.replace("512", "64")
LATE = """cascade late(q: f16[200, 32], k: f16[200, 32], v: f16[200, 512]) over l
  s[i, l] = sum[c] f32(q[i, c]) * f32(k[l, c])
  w[i, l] = select(l + 200 <= i, s, -inf)
  m[i] = max[l] w
  t[i] = sum[l] exp(w - select(m == -inf, 0.0, m))
  o[i, e] = sum[l] exp(w - select(m == -inf, 0.0, m)) * f32(v[l, e])
  y[i, e] = f16(o)
  return y, t
"""
"""Loops whose last step lies before their first."""


def cascade(text: str) -> Fused:
    fused = fuse(parse_cascade(text))
    assert isinstance(fused, Fused), fused
    return fused


def tiles(text: str, schedule: str, splits: int = 1) -> TileProgram:
    program = realise(cascade(text), "multi" if splits > 1 else "single", splits)
    return tensorize(program, replace(RELAY, schedule=schedule), HOPPER)  # type: ignore[arg-type]


def inputs(made: TileProgram) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {a.name: rng.standard_normal(a.shape).astype(interpret.NUMPY_DTYPES[a.dtype]) for a in made.args if a.role == "in"}


@pytest.mark.parametrize(("text", "splits"), [(LATENT, 1), (LATENT, 2), (APART, 1), (NARROW, 1), (LATE, 1),
                                              (LATE.replace("+ 200", "+ 70"), 1)])
def test_the_same_values_in_any_order_of_the_roles(text: str, splits: int) -> None:
    """A product over 512 columns is one of 256 and one more: without roundings the same to float64's, else as far from it."""
    made, plain = tiles(text, "relay", splits), tiles(text, "auto", splits)
    assert verify(made) == [] and parse(str(made)) == made and "roles:" in str(made)
    given = inputs(made)
    exact, one = interpret.run(plain, given, wide=True), interpret.run(plain, given)
    for seed in range(3):
        wide, two = interpret.run(made, given, wide=True, seed=seed), interpret.run(made, given, seed=seed)
        for name, array in exact.items():
            np.testing.assert_allclose(wide[name], array, rtol=1e-12, atol=1e-12)
            far = [np.max(np.abs(x[name].astype(np.float64) - array)) for x in (one, two)]
            assert far[1] <= 1.1 * far[0]


def test_who_holds_what() -> None:
    """Accumulators with the groups that share their columns, everything of a row's statistics with one."""
    (kernel,) = tiles(LATENT, "relay").kernels
    roles = next(s for s in kernel.body if isinstance(s, Roles))
    assert [(r.name, r.groups, r.registers) for r in roles.roles] == [("accumulate", 2, 160), ("weigh", 1, 168), ("copy", 1, 24)]
    assert sum(128 * r.groups * r.registers for r in roles.roles) <= HOPPER.registers
    text = print_program(tiles(LATENT, "relay"))
    assert "o_acc_0, policy=T.GemmWarpPolicy.FullCol" in text and "scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow" in text
    assert "T.warpgroup_fence_operand(scores, num_regs=32)" in text and "T.warpgroup_fence_operand(o_acc_1, num_regs=64)" in text


def test_no_thread_has_more_registers_than_there_are() -> None:
    """Where accumulators leave many, they are more than one group may take."""
    (kernel,) = tiles(NARROW, "relay").kernels
    roles = next(s for s in kernel.body if isinstance(s, Roles))
    assert all(24 <= r.registers <= 240 and r.registers % 8 == 0 for r in roles.roles), kernel


# Each is a line of the kernel changed, and what is said of it.
PLANTED: dict[str, Planted] = {
    "weights written under their product": (re.compile(r" *await handed_empty\[0\] phase k - 1\n"), "", "overwrites|while|before"),
    "weights multiplied before they are there": (re.compile(r" *await handed_full\[0\] phase k\n"), "", "before|while"),
    "handed over before all have written": ("arrive handed_full[0] each", "arrive handed_full[0]", "before"),
    "given back before the product is done": (
        re.compile(r"( *drain 0 for o_acc_1\n *arrive x_shared_1_empty.*\n)( *arrive handed_empty\[0\] each\n)"), r"\2\1", "while"),
    "given back by one thread for all": ("arrive handed_empty[0] each", "arrive handed_empty[0]", "while"),
    "a tile given back before its last reader": (
        re.compile(r"( *drain 1 for o_acc_0\n)( *arrive x_shared_0_empty.*\n)"), r"\2\1", "overwrites"),
    "a tile given back under its product": ("drain 1 for o_acc_0", "drain 2", "overwrites"),
    "a correction under its own product": (
        re.compile(r"( *parallel i < 64, d < 256:\n *o_acc_1.*t_scale_handed.*\n)((?: *await.*\n)?(?: *gemm.*o_acc_1.*\n))"), r"\2\1", "done"),
    "a phase off by one": ("await handed_full[0] phase k\n", "await handed_full[0] phase k + 1\n", ""),
    "a wait that nobody ends": ("await handed_full[0] phase 4\n", "await handed_full[0] phase 5\n", "phase"),
    "results over an operand that is still read": (re.compile(r" *await handed_full\[0\] phase 4\n"), "", ""),
    "registers of another role": (re.compile(r"(role accumulate.*\n)"), r"\1      fill row_sum 0.0\n", "in registers of"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_breaks_is_found(what: str) -> None:
    found(tiles(LATENT, "relay"), inputs, PLANTED[what])


def test_where_it_does_not_apply() -> None:
    """Accumulators that one group's rows hold, and blocks of another number of rows."""
    with pytest.raises(LoweringError, match="RF499"):
        tensorize(realise(cascade(NARROW), "single", 1), replace(RELAY, weights="registers", rows=128), HOPPER)
    many = LATENT.replace("[2, ", "[64, ")  # of a few sequences blocks share the columns (test_parts_of_columns)
    assert configs(realise(cascade(many), "single", 1), HOPPER)[0].schedule == "relay"
    assert "relay" not in {c.schedule for c in configs(realise(cascade(NARROW), "single", 1), HOPPER)}
    assert "relay" not in {c.schedule for c in configs(realise(cascade(LATENT), "single", 1), target("sm_80"))}


def test_rows_of_all_groups_are_sent_when_all_have_written() -> None:
    """Groups that share columns hold a part of every row."""
    made = tiles(NARROW, "relay")
    text = str(made)
    broken = re.sub(r"meet\n( *send y_shared.*)\n", r"meet alone\n\1 alone\n", text)
    assert broken != text, text
    with pytest.raises(InternalError, match="roles"):
        for seed in range(6):
            interpret.run(parse(broken), inputs(made), seed=seed)


def test_what_has_no_parts_is_left_whole() -> None:
    (kernel,) = tiles(APART.replace("512", "384"), "auto").kernels  # 384 columns are no multiple of 256
    assert PartColumns()(kernel) is kernel


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_reciprocal_is_taken_where_it_is_the_same_number(dtype: str) -> None:
    """Of the root of every head's size, and constants that no type holds exactly."""
    half = interpret.NUMPY_DTYPES[dtype]
    alike = {d: same(dtype, float(half.type(d ** 0.5))) for d in (40, 64, 72, 80, 96, 112, 128, 160, 192, 256, 576)}
    assert all(alike.values())
    assert not same(dtype, 0.1) and not same(dtype, 0.0) and not same(dtype, float("inf"))
    every = np.arange(1 << 16, dtype=np.uint16).view(half)
    with np.errstate(all="ignore"):
        for d, holds in alike.items():
            c = half.type(d ** 0.5)
            left = (every.astype(np.float64) / np.float64(c)).astype(np.float32).astype(half)
            right = (every.astype(np.float32) * np.float32(1.0 / float(c))).astype(half)
            assert holds == np.array_equal(left.astype(np.float64), right.astype(np.float64), equal_nan=True), d
