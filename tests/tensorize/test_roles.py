"""Roles of warp groups: the same values as TileLang's own pipeline in whatever order members run, and what breaks is found."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.index import value
from redfuser.acrf.state import Fused
from redfuser.chain import twin
from redfuser.codegen.tilelang import print_program
from redfuser.errors import InternalError, LoweringError
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import TileConfig, TileProgram, configs, tensorize
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.nodes import For, Roles, TileKernel
from redfuser.tensorize.ir.parse import parse
from redfuser.tensorize.ir.parts import Buffer, Param, Slice
from redfuser.tensorize.ir.verify import verify
from redfuser.tensorize.model import lacks, needs
from redfuser.tensorize.schedule import SCHEDULES, scheduled
from redfuser.tensorize.schedule.counts import counts
from redfuser.tensorize.schedule.order import OrderBlocks
from redfuser.tensorize.schedule.roles import engine
from redfuser.tensorize.schedule.specialise import GROUP, KEPT
from tests.tensorize import examples
from tests.tensorize.examples import Shape
from tests.tensorize.planting import Planted, found

SMALL = replace(target("sm_90a"), sms=3)
"""A machine with so few multiprocessors that a block computes several tiles."""
SHAPE = Shape(b=1, h=3, hk=3, i=264, n=336, d=64)
GROUPED = replace(SHAPE, h=4, hk=2, dtype="bf16")
MASKS = examples.masks(SHAPE)
TWO = """cascade two(q: f16[264, 3, 64], k: f16[336, 3, 64], v: f16[336, 3, 64], u: f16[336, 3, 64]) over l
  s[h, i, l] = sum[c] f32(q[i, h, c]) * f32(k[l, h, c])
  m[h, i] = max[l] s
  t[h, i] = sum[l] exp(s - m)
  o[h, i, e] = sum[l] exp(s - m) / t * f32(v[l, h, e])
  r[h, i, g] = sum[l] exp(s - m) / t * f32(u[l, h, g])
  y[i, h, e] = f16(o)
  z[i, h, g] = f16(r)
  return y, z
"""
WEIGHTED = """cascade weighted(q: bf16[264, 3, 64], k: bf16[336, 3, 64], v: bf16[336, 3, 64], w: bf16[264, 336]) over l
  s[h, i, l] = sum[c] f32(q[i, h, c]) * f32(k[l, h, c])
  m[h, i] = max[l] s
  t[h, i] = sum[l] exp(s - m)
  o[h, i, e] = sum[l] exp(s - m) / t * f32(w[i, l]) * f32(v[l, h, e])
  y[i, h, e] = bf16(o)
  return y
"""

UNDER = """cascade under(q: bf16[264, 3, 64], k: bf16[336, 3, 64], v: bf16[336, 3, 64], a: f32[3]) over l
  s[h, i, l] = sum[c] f32(q[i, h, c]) * f32(k[l, h, c])
  p[h, i, l] = select(l <= i + 72 and i + 72 - l < 210, tanh(f32(bf16(s)) * 0.125 / 30.0) * 30.0, -inf) + a[h] * f32(l - i)
  m[h, i] = max[l] p
  t[h, i] = sum[l] exp(p - m)
  o[h, i, e] = sum[l] exp(p - m) / t * f32(v[l, h, e])
  y[i, h, e] = bf16(o)
  return y
"""
DIFFERENCE = """cascade difference(q: bf16[264, 3, 64], k: bf16[336, 3, 64], g: bf16[264, 3, 64], h: bf16[336, 3, 64], v: bf16[336, 3, 64]) over l
  s[b, i, l] = sum[c] f32(q[i, b, c]) * f32(k[l, b, c])
  r[b, i, l] = sum[z] f32(g[i, b, z]) * f32(h[l, b, z])
  m[b, i] = max[l] s
  n[b, i] = max[l] r
  t[b, i] = sum[l] exp(s - m)
  u[b, i] = sum[l] exp(r - n)
  o[b, i, e] = sum[l] (exp(s - m) / t - exp(r - n) / u * 0.8) * f32(v[l, b, e])
  y[i, b, e] = bf16(o)
  return y
"""


def cascade(text: str) -> Fused:
    found = fuse(parse_cascade(text))
    assert isinstance(found, Fused)
    return found


CASES: dict[str, Callable[[], Fused]] = {
    "plain": lambda: examples.attention(SHAPE),
    "causal": lambda: examples.attention(SHAPE, mask=MASKS["causal"]),
    "window": lambda: examples.attention(SHAPE, mask=MASKS["window"]),
    "mask of data": lambda: examples.attention(SHAPE, mask=MASKS["data"]),
    "bias and cap": lambda: examples.attention(SHAPE, bias="tile", cap=30.0),
    "grouped heads": lambda: examples.attention(GROUPED, mask=examples.masks(GROUPED)["causal"], bias="alibi"),
    "two results": lambda: cascade(TWO),
    "weights of data": lambda: cascade(WEIGHTED),
    "mask under a bias": lambda: cascade(UNDER),
    "difference": lambda: cascade(DIFFERENCE),
}
WAYS = [("overlap", 128), ("persistent", 128), ("persistent", 192)]


@cache
def tiles(case: str, schedule: str, rows: int = 128) -> TileProgram:
    config = TileConfig(rows, 64, 2 * rows, 2, "registers", True, schedule=schedule)
    return tensorize(realise(CASES[case](), "single"), config, SMALL)


def inputs(program: TileProgram) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {a.name: rng.random(a.shape) < 0.7 if a.dtype == "bool" else
            rng.standard_normal(a.shape).astype(interpret.NUMPY_DTYPES[a.dtype]) for a in program.args if a.role == "in"}


@pytest.mark.parametrize("case", [c for c in CASES if c not in ("weights of data", "difference")])
@pytest.mark.parametrize(("schedule", "rows"), WAYS)
def test_a_schedule_changes_no_bit(case: str, schedule: str, rows: int) -> None:
    made = tiles(case, schedule, rows)
    assert isinstance(made.kernels[0].body[-1], Roles)
    given = inputs(made)
    wanted = interpret.run(tiles(case, "auto", rows), given)
    for seed in range(2):
        got = interpret.run(made, given, seed=seed)
        for name, array in wanted.items():
            assert np.array_equal(array, got[name], equal_nan=True), (name, seed)


@pytest.mark.parametrize("schedule", ["overlap", "persistent"])
def test_the_text_reads_back_and_is_well_formed(schedule: str) -> None:
    made = tiles("mask of data", schedule)
    assert parse(str(made)) == made
    assert verify(made) == []


# Each is one line of a kernel changed, and what is said of it.
PLANTED: dict[str, Planted] = {
    "a slot given back before its product is done": (
        "drain 0 for o_acc\n        arrive v_empty[(step - 1) % 2]", "arrive v_empty[(step - 1) % 2]\n        drain 0 for o_acc",
        "overwrites"),
    "a slot that is never given back": ("\n        arrive k_empty[step % 2]", "", "deadlock"),
    "a slot given back twice": ("\n        arrive k_empty[step % 2]", "\n        arrive k_empty[step % 2]\n        arrive k_empty[step % 2]", ""),
    "a phase off by one": ("await k_full[step % 2] phase step // 2", "await k_full[step % 2] phase step // 2 + 1", ""),
    "the copier's phase off by one": ("await v_empty[step % 2] phase step // 2 - 1", "await v_empty[step % 2] phase step // 2 - 2", ""),
    "no wait for a tile": ("await v_full[(step - 1) % 2] phase (step - 1) // 2\n", "", "before"),
    "a tile brought to the wrong slot": ("-> v_shared[step % 2, 0 +: 64, 0 +: 64]", "-> v_shared[(step + 1) % 2, 0 +: 64, 0 +: 64]", ""),
    "the wrong slot signals": ("signals v_full[step % 2]", "signals v_full[(step + 1) % 2]", ""),
    "scores read before they are there": ("drain 1 for scores", "drain 2 for scores", "done"),
    "an accumulator scaled under its product": ("drain 0 for o_acc\n        arrive v_empty", "arrive v_empty", ""),
    "results sent before all have written": ("meet alone\n      send", "send", "met"),
    "results not awaited": ("\n      await sent", "", "under way"),
    "a turn that is not passed on": ("pass turn\n        drain 1", "drain 1", "deadlock"),
    "a turn passed twice": ("pass turn\n        drain 1", "pass turn\n        pass turn\n        drain 1", "twice"),
    "a tile brought that nobody awaits": ("for step in 0 .. 6:", "for step in 0 .. 7:", "under way"),
    "slots given back in another order": ("arrive k_empty[step % 2]", "arrive k_empty[(step + 1) % 2]", "waits for"),
    "a tile that is read while it comes": ("drain 1 for scores", "drain 1 for scores\n        parallel i < 64:\n          row_sum[i] = f32("
                                          "v_shared[(step - 1) % 2, 0, i])\n          row_sum[i] = f32(k_shared[step % 2 * 0, 3, i])", ""),
    "a condition on a tile that may be overwritten": (
        "pass turn\n        drain 1", "pass turn\n        if v_shared[step % 2, 0, 0] < f16(2000.0):\n          meet alone\n        drain 1", ""),
    "a tile cleared under its product": ("pass turn\n        drain 1", "pass turn\n        fill k_shared 0.0\n        drain 1", "overwrites"),
    "results read by other threads of the group": (
        "copy o_acc -> q_shared\n", "copy o_acc -> q_shared\n      parallel i < 128, d < 64:\n        o_acc[i, d] = f32(q_shared[127 - i, d])\n", "before"),
    "a barrier that waits for one group": ("k_empty: barrier[2] of 2", "k_empty: barrier[2] of 1", ""),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_breaks_is_found(what: str) -> None:
    """Every one of a few orders finds it: the clocks say what was ordered, not luck."""
    found(tiles("plain", "overlap"), inputs, PLANTED[what], seeds=3, every=True)


def test_results_of_the_tile_before_are_not_overwritten() -> None:
    made = tiles("plain", "persistent")
    text = str(made)
    assert "await sent\n        meet" in text
    for broken in (text.replace("await sent\n        meet", "meet", 1), text.replace("await sent\n        meet alone", "await sent", 1),
                   text.replace("arrive q_empty[turn % 2]\n", "", 1)):
        with pytest.raises(InternalError, match="roles"):
            interpret.run(parse(broken), inputs(made))


def test_one_thread_does_not_speak_for_others_that_still_read() -> None:
    """A mask is read by every thread, so that a group meets before it gives the slot back."""
    text = str(tiles("mask of data", "persistent"))
    assert "meet alone\n" in text.split("arrive mask_empty")[0]
    with pytest.raises(InternalError, match="overwrites mask_shared"):
        interpret.run(parse(text.replace("          meet alone\n          arrive mask", "          arrive mask")),
                      inputs(tiles("mask of data", "persistent")))


def test_weights_in_pieces_run_beside_the_next_scores() -> None:
    """Of a sum of two that is rounded to bfloat16 two pieces count, not the three of a result in single precision; what makes
    them goes behind the products of the step before."""
    made = tiles("difference", "overlap")
    assert len(made.roundings) == 2 and all("2 bf16 pieces" in r and "the result is kept to 2^-16" in r for r in made.roundings)
    assert "v_shared[(step - 1) % 2" in str(made) and "drain 4 for" in str(made)
    given = inputs(made)
    assert np.array_equal(interpret.run(made, given)["y"], interpret.run(tiles("difference", "auto"), given)["y"])
    wide = tensorize(realise(cascade(DIFFERENCE.replace("bf16(o)", "o * 1.0")), "single"), TileConfig(64, 64, 128, 2, "registers", False), SMALL)
    assert all("3 bf16 pieces" in r for r in wide.roundings)


def test_a_tile_that_weights_are_made_of_is_given_back_after_them() -> None:
    """What the last product of a step is made of goes behind the last product of the step before, and its reads with it."""
    plain = tiles("weights of data", "auto")
    text = str(plain)
    made = "      scores[i, j] = scores[i, j] * f32(w_shared[i, j])\n"
    assert made in text and "    copy scores -> weights\n" in text
    text = text.replace(made, "      scores[i, j] = scores[i, j] * 1.0\n").replace(
        "    copy scores -> weights\n", "    parallel i < 128, j < 64:\n      weights[i, j] = bf16(scores[i, j] * f32(w_shared[i, j]))\n")
    turned = parse(text)
    skewed = replace(turned, kernels=(scheduled(turned.kernels[0], SCHEDULES["overlap"](SMALL)),))
    assert "v_shared[(step - 1) % 2" in str(skewed)
    given = inputs(plain)
    for seed in range(2):
        assert np.array_equal(interpret.run(plain, given)["y"], interpret.run(skewed, given, seed=seed)["y"])


@pytest.mark.parametrize(("case", "schedule", "rows"), [
    ("plain", "overlap", 128), ("mask of data", "overlap", 192), ("bias and cap", "overlap", 128), ("mask of data", "persistent", 192)])
def test_named_barriers_are_of_one_meeting(case: str, schedule: str, rows: int) -> None:
    """A hardware barrier has one number of threads at a time: who meets in the loop alone may come while others meet together."""
    text = print_program(tiles(case, schedule, rows))
    sizes: dict[int, list[int]] = defaultdict(list)
    for name, count in re.findall(r"T\.(?:sync_threads|named_barrier_arrive)\((.*), (\d+)\)", text):
        for tx in range(0, rows * 2, 128):
            sizes[eval(name, {"tx": tx})].append(int(count))
    assert max(sizes) < 16 and 0 not in sizes
    assert all(len(set(found)) == 1 or (found == sorted(found)[::-1] and case == "plain") for found in sizes.values()), sizes


@pytest.mark.parametrize(("length", "several"), [(2048, True), (512, False)])
def test_blocks_of_a_twin_compute_as_many_tiles_as_the_kernels(length: int, several: bool) -> None:
    """The largest twin has few tiles, yet what a block does from tile to tile is held on it where the kernel's blocks do it."""
    program = realise(examples.attention(Shape(b=2, h=8, hk=4, i=length, n=2048, d=64)), "single")
    config, machine = TileConfig(192, 128, 384, 2, "registers", True, schedule="persistent"), target("sm_90a")
    assert ("for turn" in str(tensorize(program, config, machine))) == several
    for deep in (False, True):
        small = twin.of_tiles(program, config, deep)
        made = str(tensorize(small, config, twin.machine(small, program, config, machine)))
        assert ("for turn" in made) == several


def test_the_copy_engine_knows_five_dimensions() -> None:
    kernel = tiles("plain", "overlap").kernels[0]
    for shape, fits in (((2, 2, 2, 64, 64), True), ((2, 2, 2, 2, 64, 64), False), ((64, 60), False)):
        kernel = replace(kernel, params=(Param("x", "f16", shape),))
        assert engine(kernel, Slice("x")) == fits


def test_steps_of_unknown_operations_are_not_known() -> None:
    kernel = tiles("plain", "auto").kernels[0]
    (loop,) = (s for s in kernel.body if isinstance(s, For))
    assert counts(kernel, loop) == {6}
    turned = parse(str(tiles("plain", "auto")).replace("for step in 0 .. 6", "for step in 0 .. abs(i_block)")).kernels[0]
    assert counts(turned, next(s for s in turned.body if isinstance(s, For))) == {0}


@pytest.mark.parametrize("groups", [2, 3])
def test_registers_that_are_taken_were_given_back(groups: int) -> None:
    """setmaxnreg waits for ever for registers that nobody gives back."""
    made = tiles("plain", "overlap", 64 * groups)
    (roles,) = (s for s in made.kernels[0].body if isinstance(s, Roles))
    compute, copy = roles.roles
    own = 65536 // (GROUP * (groups + 1)) // 8 * 8
    assert copy.registers == KEPT and compute.registers % 8 == 0
    assert GROUP * (own - copy.registers) >= GROUP * groups * (compute.registers - own)
    assert needs(made.kernels[0], SMALL).threads == GROUP * (groups + 1)
    more = replace(compute, registers=compute.registers + 8)
    assert "wait for ever" in lacks(replace(made.kernels[0], body=(Roles((more, copy)),)), SMALL)


def test_a_barrier_is_of_copies_or_of_groups() -> None:
    text = str(tiles("plain", "overlap"))
    assert verify(parse(text.replace("role copy of 1", "role copy of 2")))
    assert verify(parse(text.replace("drain 1 for scores", "drain 1 for scores\n        arrive k_full[step % 2]")))


def test_blocks_in_order_are_all_blocks() -> None:
    plain = tiles("causal", "auto").kernels[0]
    ordered = OrderBlocks()(plain)
    assert len(ordered.grid) == 1
    (name, total), points = ordered.grid[0], []
    for block in range(total):
        at = {name: block}
        for n, e in ordered.lets:
            at[n] = value(e, at)
        points.append(tuple(at[v] for v, _ in plain.grid))
    assert len(set(points)) == total == np.prod([n for _, n in plain.grid])
    assert len(counts(plain, next(s for s in plain.body if hasattr(s, "stages")))) > 1


@pytest.mark.parametrize("case", ["rows of odd length", "no tensor memory accelerator"])
def test_a_kernel_without_roles_says_so(case: str) -> None:
    machine, config = SMALL, TileConfig(128, 64, 256, 2, "registers", True, schedule="overlap")
    program = realise(examples.attention(SHAPE), "single")
    if case == "rows of odd length":
        program = realise(examples.attention(replace(SHAPE, n=333), bias="tile"), "single")
    else:
        machine = target("sm_80")
    with pytest.raises(LoweringError, match="RF499"):
        tensorize(program, config, machine)
    assert configs(program, machine)[0].schedule == "auto"


def test_kernels_beside_one_with_roles_have_nothing_in_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """TileLang's own barriers are off for all of them."""
    from redfuser.tensorize import tiles as package

    config = TileConfig(128, 64, 256, 2, "registers", True, schedule="overlap")
    program = realise(examples.attention(SHAPE), "multi", 2)
    made, plain = tensorize(program, config, SMALL), tensorize(program, replace(config, schedule="auto"), SMALL)
    first, *others = made.kernels
    assert isinstance(first.body[-1], Roles) and others and not any(b.scope == "shared" for k in others for b in k.buffers)
    given = inputs(made)
    for name, array in interpret.run(plain, given).items():
        np.testing.assert_array_equal(interpret.run(made, given)[name], array)
    known = package.scheduled

    def staged(kernel: TileKernel, *rest: object) -> TileKernel:
        found = known(kernel, *rest)  # type: ignore[arg-type]
        room = Buffer("room", "shared", "f32", (4,))
        return found if isinstance(found.body[-1], Roles) else replace(found, buffers=(*found.buffers, room))

    monkeypatch.setattr(package, "scheduled", staged)
    with pytest.raises(LoweringError, match="RF499"):
        tensorize(program, config, SMALL)


def test_what_is_wrong_with_a_schedule_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the kernel has no roles for is not proposed; one that comes out ill-formed is, and says so when it is tried."""
    from redfuser.tensorize import tiles as package

    program = realise(examples.attention(SHAPE), "single")
    assert configs(program, SMALL)[0].schedule != "auto"
    monkeypatch.setattr(package, "verify", lambda whole: ["a statement is wrong"])
    first = configs(program, SMALL)[0]
    assert first.schedule != "auto"
    with pytest.raises(LoweringError, match="RF903"):
        tensorize(program, first, SMALL)


def test_a_few_rows_over_many_keys_take_roles() -> None:
    """One group computes and one copies; not over few keys, nor of so many blocks that three share a multiprocessor. What they compute is what sixteen rows without roles do, whose products are other instructions'."""
    def first(n: int, splits: int, batch: int = 4) -> TileConfig:
        fused = examples.attention(Shape(b=batch, h=64, hk=8, i=1, n=n, d=128))
        return configs(realise(fused, "multi" if splits > 1 else "single", splits), target("sm_90a"))[0]

    assert (first(4096, 4).schedule, first(4096, 4).rows, first(4096, 4).segment) == ("overlap", 64, 128)
    assert first(512, 4).schedule == "auto"
    assert first(4096, 1, 128).schedule != "auto" and first(4096, 1, 132).schedule == "auto"
    small = realise(examples.attention(Shape(b=1, h=8, hk=2, i=1, n=300, d=64)), "multi", 2)
    roles = tensorize(small, TileConfig(64, 64, 128, 2, "registers", True, schedule="overlap"), target("sm_90a"))
    plain = tensorize(small, TileConfig(16, 64, 128, 2, "shared", False), target("sm_90a"))
    assert "role compute of 1" in str(roles)
    given = inputs(roles)
    wanted = interpret.run(plain, given, wide=True)
    for seed in range(3):
        for name, array in interpret.run(roles, given, wide=True, seed=seed).items():
            np.testing.assert_allclose(array, wanted[name], rtol=1e-12)


@pytest.mark.parametrize("shape, at", [("3, 5, 1, {d}", "b, h, 0, c"), ("3, 5, {d}", "b, h, c"), ("3, {e}", "b, h * {d} + c")])
def test_one_row_of_heads_that_share_nothing_takes_roles(shape: str, at: str) -> None:
    """Its rows are along a dimension of one element, all but the first outside: 1 x 32 x 32768 of 128 took 132 us on an H200 in
    tiles of sixteen rows, and takes 121 (cuDNN: 123)."""
    text = f"""cascade one(q: f16[{shape}], k: f16[3, 5, {{n}}, {{d}}], v: f16[3, 5, {{n}}, {{d}}]) over l
  s[b, h, l] = sum[c] f32(q[{at}]) * f32(k[b, h, l, c])
  m[b, h] = max[l] s
  t[b, h] = sum[l] exp(s - m)
  o[b, h, i] = sum[l] exp(s - m) / t * f32(v[b, h, l, i])
  y[b, h, i] = f16(o)
  return y, t
"""
    fused = fuse(parse_cascade(text.format(n=4096, d=128, e=5 * 128)))
    assert isinstance(fused, Fused), fused
    assert configs(realise(fused, "multi", 4), target("sm_90a"))[0].schedule == "overlap"
    fused = fuse(parse_cascade(text.format(n=200, d=64, e=5 * 64)))
    assert isinstance(fused, Fused), fused
    for splits in (1, 2):
        small = realise(fused, "multi" if splits > 1 else "single", splits)
        roles = tensorize(small, TileConfig(64, 64, 128, 2, "registers", True, schedule="overlap"), target("sm_90a"))
        given = inputs(roles)
        wanted = examples.reference(fused, given)
        for name, array in interpret.run(roles, given, wide=True, seed=splits).items():
            np.testing.assert_allclose(array, wanted[name], rtol=1e-6, atol=1e-6)


def test_a_vector_is_no_tile() -> None:
    """Numbers of documents are eight bytes each, and no reason to think that keys are."""
    text = """cascade document(q: f16[2, 16, 2048, 64], k: f16[2, 16, 2048, 64], v: f16[2, 16, 2048, 64], a: i64[2048]) over l
  s[b, h, i, l] = sum[c] f32(q[b, h, i, c]) * f32(k[b, h, l, c])
  w[b, h, i, l] = select(a[i] == a[l], s, -inf)
  m[b, h, i] = max[l] w
  t[b, h, i] = sum[l] exp(w - select(m == -inf, 0.0, m))
  o[b, h, i, e] = sum[l] exp(w - select(m == -inf, 0.0, m)) / t * f32(v[b, h, l, e])
  y[b, h, i, e] = f16(o)
  return y
"""
    fused = fuse(parse_cascade(text))
    assert isinstance(fused, Fused), fused
    found = configs(realise(fused, "single", 1), target("sm_90a"))
    assert found[0].schedule != "auto" and found[0].rows == 128
