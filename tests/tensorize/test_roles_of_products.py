"""Single products with roles: the same bits as TileLang's own pipeline, what breaks is found, and who is left alone."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.index import value
from redfuser.acrf.state import Fused
from redfuser.codegen.dialects import CUDA
from redfuser.codegen.tilelang import print_program
from redfuser.errors import InternalError, LoweringError
from redfuser.strategies import realise
from redfuser.strategies.program import Program
from redfuser.target import target
from redfuser.tensorize import TileConfig, TileProgram, configs, tensorize
from redfuser.tensorize.axes import choose
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.nodes import TensorArg, TileKernel
from redfuser.tensorize.ir.parse import parse
from redfuser.tensorize.ir.verify import verify
from redfuser.tensorize.schedule.in_flight import KeepInFlight
from redfuser.tensorize.schedule.order import GroupBlocks
from redfuser.tensorize.schedule.panels import SendPanels
from redfuser.untuned import untuned
from tests.tensorize.planting import Planted, found

H200 = target("sm_90a")
SMALL = replace(H200, sms=3)
"""A machine with so few multiprocessors that a block computes several tiles."""
BODIES = {
    "plain": ("", "  y[i, d] = {t}(o)\n"),
    "row scale": (", r: f32[{m}]", "  y[i, d] = {t}(o * r[i])\n"),
    "bias and gelu": (", r: {t}[{n}]", "  h[i, d] = f32({t}(o)) + f32(r[d])\n"
                      "  y[i, d] = {t}(h * 0.5 * (1.0 + tanh(0.7978845608028654 * (h + 0.044715 * h * h * h))))\n"),
    "residual": (", r: {t}[{m}, {n}]", "  y[i, d] = {t}(f32({t}(o)) + f32(r[i, d]))\n"),
    "two products": (", u: {t}[{n}, {k}]", "  v[i, d] = sum[k] f32(x[i, k]) * f32(u[d, k])\n  g[i, d] = f32({t}(o))\n"
                     "  y[i, d] = {t}(g / (1.0 + exp(-g)) * f32({t}(v)))\n"),
    "two results": ("", "  y[i, d] = {t}(o)\n  z[i, d] = {t}(o * 0.5)\n"),
    "single precision": ("", "  y[i, d] = o * 0.5\n"),
}


def program(kind: str, m: int = 264, n: int = 328, k: int = 264, dtype: str = "bf16") -> Program:
    more, body = BODIES[kind]
    text = (f"cascade product(x: {{t}}[{m}, {k}], w: {{t}}[{n}, {k}]{more}) over k\n"
            f"  o[i, d] = sum[k] f32(x[i, k]) * f32(w[d, k])\n{body}  return y{', z' * (kind == 'two results')}\n")
    fused = fuse(parse_cascade(text.format(t=dtype, m=m, n=n, k=k)))
    assert isinstance(fused, Fused)
    return realise(fused, "single")


def tiles(of: Program, schedule: str, columns: int = 256, machine: object = SMALL) -> TileProgram:
    return tensorize(of, TileConfig(128, 64, 256, 3, "registers", True, columns=columns, schedule=schedule), machine)  # type: ignore[arg-type]


def inputs(of: TileProgram) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {a.name: rng.standard_normal(a.shape).astype(interpret.NUMPY_DTYPES[a.dtype]) for a in of.args if a.role == "in"}


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.tobytes() == b.tobytes()


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("schedule", ["overlap", "persistent"])
def test_a_schedule_changes_no_bit(kind: str, schedule: str) -> None:
    of, columns = program(kind, dtype="f16" if kind == "row scale" else "bf16"), 128 if kind == "two products" else 256
    made = tiles(of, schedule, columns)
    assert parse(str(made)) == made and verify(made) == []
    given = inputs(made)
    wanted = interpret.run(tiles(of, "auto", columns), given)
    for seed in range(2):
        got = interpret.run(made, given, seed=seed)
        assert all(same_bits(a, got[name]) for name, a in wanted.items())


def test_rooms_that_do_not_come_out_even() -> None:
    """Three panels in two rooms: a tile begins in the room that the one before has sent last."""
    of = program("plain", 600, 184, 136, "f16")
    made = tiles(of, "persistent")
    text, given = str(made), inputs(made)
    assert text.count("send ") == 3 and text.count("await sent\n        meet alone") == 1
    assert same_bits(interpret.run(made, given)["y"], interpret.run(tiles(of, "auto"), given)["y"])
    with pytest.raises(InternalError, match="overwrites y_shared_0"):
        interpret.run(parse(text.replace("await sent\n        meet", "await sent but 1\n        meet")), given)


PLANTED: dict[str, Planted] = {
    "a slot given back before its product is done": ("drain 1\n          arrive w_empty[(turn * 5 + (k - 1)) % 3]",
                                                     "drain 1\n          arrive w_empty[(turn * 5 + k) % 3]", ""),
    "a slot given back before the wait": (
        "drain 1\n          arrive w_empty[(turn * 5 + (k - 1)) % 3]\n          arrive x_empty[(turn * 5 + (k - 1)) % 3]\n",
        "arrive x_empty[(turn * 5 + (k - 1)) % 3]\n          drain 1\n          arrive w_empty[(turn * 5 + (k - 1)) % 3]\n",
        "overwrites x_shared"),
    "one more product left under way": ("drain 1\n", "drain 2\n", "overwrites"),
    "no wait behind the loop": ("        drain 0 for o\n", "", "before its product is done|overwrites"),
    "the last wait leaves one": ("drain 0 for o\n", "drain 1 for o\n", "under way"),
    "the last slot is not given back": ("        arrive x_empty[(turn * 5 + 4) % 3]\n", "", "deadlock"),
    "a panel that is still being sent": ("await sent but 1\n", "await sent but 2\n", "y_shared_0"),
    "a panel written before all have seen it sent": ("        await sent but 1\n        meet alone\n", "        await sent but 1\n", "not met"),
    "a panel sent before all have written it": ("meet alone\n        send y_shared_1", "send y_shared_1", "not met"),
    "panels not awaited at the end": ("\n      await sent\n", "\n      await sent but 1\n", "under way"),
    "a panel in the other's room": ("-> y_shared_1\n        meet alone\n        send y_shared_1", "-> y_shared_0\n        meet alone\n        send y_shared_0", "y_shared_0"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_breaks_is_found(what: str) -> None:
    found(tiles(program("plain"), "persistent"), inputs, PLANTED[what], every=True)


def test_what_a_kernel_of_one_product_looks_like() -> None:
    text = str(tiles(program("bias and gelu"), "persistent"))
    assert "take turn" not in text and text.count("send ") == 4 and "drain 1\n" in text
    assert text.index("drain 0 for o") < text.index("exp2")  # a map a panel, behind the loop
    (before,) = re.findall(r"\n( *)[^\n]* async[^\n]*\n *drain 0 for o\n", text)
    (loop,) = re.findall(r"\n( *)for k in ", text.split("role compute")[1].split("role copy")[0])
    assert before == loop  # where it is waited for, in no loop: ptxas reads accumulators of a loop's product too early
    printed = print_program(tiles(program("plain"), "persistent"))
    assert "T.wait_wgmma(1)" in printed and "T.tma_store_wait(1)" in printed and "T.copy(o[0:128, 64:128], y_shared_1)" in printed


def one(of: TileProgram) -> TileKernel:
    (kernel,) = of.kernels
    return kernel


def test_blocks_go_in_groups_that_divide_their_rows() -> None:
    """All tiles are there once, in groups of sixteen or nearly so; a number of rows without such a divisor stays."""
    for rows, group in ((4096, 16), (128 * 34, 17), (128 * 37, 0), (2048, 0), (128 * 24, 12)):
        kernel = one(tiles(program("plain", rows, 2048, 128), "auto"))
        made = GroupBlocks()(kernel)
        if group:
            (_, count), = made.grid
            assert count == -(-rows // 128) * 8 and f"% {group}" in str(made)
            found = {tuple(_at(made, b)) for b in range(count)}
            assert len(found) == count and [_at(made, b)[1] for b in range(group)] == [0] * group
        else:
            assert made == kernel


def _at(kernel: TileKernel, block: int) -> list[int]:
    return [value(e, {kernel.grid[0][0]: block}) for _, e in kernel.lets]


def test_others_are_left_alone() -> None:
    """Sums that a matrix unit does not keep are added up step by step, and a row that is scaled first is written by threads."""
    fine = tiles(program("single precision"), "persistent")
    assert "drain 1\n" not in str(fine) and "take turn" in str(fine)
    kernel = one(tiles(program("plain"), "persistent"))
    short = one(tiles(program("plain", k=64), "persistent"))
    assert "for k in 0 .. 1:" in str(short) and "drain 1\n" not in str(short)
    assert KeepInFlight()(kernel) == kernel and SendPanels()(kernel) == kernel and GroupBlocks()(kernel) == kernel
    with pytest.raises(LoweringError, match="RF499"):
        tiles(program("plain", k=260), "persistent")  # rows of no whole 16 bytes: not the copy engine's


def test_what_the_program_rounds_is_kept_to_that() -> None:
    """A product that is rounded to half before something is made of it, or as something is added to it, is not summed apart;
    one that is not, is."""
    for body, apart in (("f32(bf16(o)) + f32(x[i, 0])", False), ("o + f32(x[i, 0])", False), ("tanh(f32(bf16(o * 0.5)))", False),
                        ("f32(bf16(o + f32(x[i, 0])))", False), ("f32(bf16(o)) - o", True), ("tanh(o + f32(x[i, 0]))", True),
                        ("(o + f32(x[i, 0])) * 2.0", True), ("f32(bf16(o - f32(x[i, 0])))", True)):
        fused = fuse(parse_cascade("cascade kept(x: bf16[256, 256], w: bf16[256, 256]) over k\n"
                                   f"  o[i, d] = sum[k] f32(x[i, k]) * f32(w[d, k])\n  y[i, d] = bf16({body})\n  return y\n"))
        assert isinstance(fused, Fused)
        assert ("o_segment" in str(tiles(realise(fused, "single"), "auto", 128))) == apart, body


@pytest.mark.parametrize(("body", "found"), [
    ("h * 0.5 * (1.0 + tanh(h * 2.0))", "h / (1.0 + exp2("), ("(tanh(h) + 1.0) * 3.0", "2.0 / (1.0 + exp2("),
    ("1.0 + tanh(h) * 2.0", "tanh(")])
def test_one_and_a_tangent_are_two_sigmoids(body: str, found: str) -> None:
    fused = fuse(parse_cascade("cascade gelu(x: f32[64, 256]) over k\n  m[i] = max[k] x[i, k]\n"
                               f"  h[i, k] = x[i, k] - m\n  y[i, k] = {body}\n  return y\n"))
    assert isinstance(fused, Fused)
    of = realise(fused, "resident")
    made = tensorize(of, configs(of, H200)[0], H200)
    assert found.replace("h /", "/") in str(made)
    x = np.concatenate([np.linspace(-12, 0, 16128), [-100.0] * 256]).reshape(64, 256).astype(np.float32)
    x[:, 0] = 0.0
    got = interpret.run(made, {"x": x})["y"]
    h = x.astype(np.float64)
    wanted = {"h * 0.5 * (1.0 + tanh(h * 2.0))": h / (1 + np.exp(-4 * h)), "(tanh(h) + 1.0) * 3.0": 6 / (1 + np.exp(-2 * h)),
              "1.0 + tanh(h) * 2.0": 1 + 2 * np.tanh(h)}[body]
    tight = 1e-5 * np.abs(wanted) if "tanh" not in found else 1e-6
    assert (np.abs(got - wanted) <= tight + 1e-37).all()


def test_a_gate_that_may_be_tiny_has_a_reciprocal_that_knows_tiny_numbers() -> None:
    """A sigmoid below 2^-126 is a number in bfloat16 and in the program; a softmax is divided as IEEE has it."""
    for dtype, name in (("bf16", "reciprocal_small"), ("f16", "reciprocal_approx")):
        made = tiles(program("two products", dtype=dtype), "persistent", 128)
        assert f"{name}(1.0 + " in print_program(made).replace(f'T.call_extern("float32", "{name}", ', f"{name}(")
        assert parse(str(made)) == made and (" exact small" in str(made)) == (dtype == "bf16")
    x = np.float32(2.0) ** np.linspace(0, 127.99, 4096, dtype=np.float32)  # as it is defined, without flushed numbers
    found, eighth = (np.float32(1) / (x * np.float32(0.125))) * np.float32(0.125), np.float32(2.0**-126) / 8
    assert eighth > 0 and (np.abs(found.astype(float) * x - 1) <= 2.0**-21).all() and found.min() < 2.0**-126


def test_products_with_roles_come_first_where_they_were_faster() -> None:
    """As one H200 had it: widths by waves, deep segments where sums are kept apart, none where the copy engine cannot."""
    wanted = {("plain", 4096, 4096, 4096): (256, 64, 4), ("plain", 512, 4096, 4096): (128, 64, 6),
              ("two products", 4096, 14336, 4096): (128, 64, 4),
              ("single precision", 8192, 4096, 4096): (128, 128, 3), ("plain", 128, 4096, 4096): None,
              ("plain", 4096, 4096, 4001): None, ("plain", 4096, 4096, 64): None, ("plain", 4096, 4096, 128): (256, 64, 4)}
    for (kind, *sizes), best in wanted.items():
        found = configs(program(kind, *sizes), H200)
        first = found[0]
        assert (first.schedule != "auto") == (best is not None) and any(c.schedule == "auto" for c in found), kind
        assert best is None or (first.columns, first.segment, first.stages) == best, (kind, first)
        tensorize(program(kind, *sizes), first, H200)


def test_maps_behind_a_product_in_steps_of_half_precision() -> None:
    """What is computed of a product through values of float16 leaves in panels as well; its tangent and its normal distribution
    are near ones, and the roundings of two products stand apart from calls (C7514)."""
    def printed(body: str, columns: int, dtype: str = "f16") -> str:
        more = ", v: {t}[328, 264]" * ("o1" in body)
        second = "  o1[i, d] = sum[k] f32(x[i, k]) * f32(v[d, k])\n" * ("o1" in body)
        text = ("cascade map(x: {t}[264, 264], w: {t}[328, 264]" + more + ") over k\n  o[i, d] = sum[k] f32(x[i, k]) * f32(w[d, k])\n"
                + second + body + "  return y\n").replace("{t}", dtype)
        fused = fuse(parse_cascade(text))
        assert isinstance(fused, Fused)
        return print_program(tiles(realise(fused, "single"), "persistent", columns))

    stepped = printed("  u[i, d] = f16(o)\n  y[i, d] = u * (f16(tanh(f32(f16(f32(u) * 0.8)))) + f16(1.0))\n", 256)
    assert stepped.count("T.tma_copy(y_shared_") == 4 and "tanh_approx" in stepped and "T.tanh" not in stepped
    assert '"normal_share", o[i, d] * 0.7' in printed("  u[i, d] = f32(f16(o))\n  y[i, d] = f16(u * (0.5 + erf(u * 0.7) * 0.5))\n", 256)
    gated = printed("  u[i, d] = f32(f16(o))\n  y[i, d] = f16(u * sigmoid(u)) * f16(o1)\n", 128)
    assert not [line for line in gated.splitlines() if "exp2_approx" in line and '"float16")' in line and "o[i" in line]


def test_the_share_of_a_normal_distribution_below() -> None:
    """The polynomial as it is printed, in single precision, beside erfc."""
    terms = [np.float32(c) for c in re.findall(r"(-?[0-9.]+e?-?[0-9]*)f\)", CUDA.prelude["normal_share"][2])]
    terms = [np.float32(re.findall(r"fmaf\(t, (.*?)f,", CUDA.prelude["normal_share"][2])[0]), *terms]
    x = np.linspace(-4.3, 4.3, 8001, dtype=np.float32)
    y = np.zeros_like(x)
    for c in terms:
        y = np.abs(x) * y + c
    share = np.where(x < 0, np.exp2(y), 1 - np.exp2(y))
    exact = np.array([math.erfc(-float(v)) / 2 for v in x])
    assert len(terms) == 8 and (np.abs(share - exact) <= 5e-5 * exact).all() and np.abs(share - exact).max() < 2e-6


@pytest.mark.parametrize("seed", range(8))
def test_drawn_shapes_change_no_bit(seed: int) -> None:
    """Widths of all numbers of panels, rings of all sizes, two groups and three, one tile a block and many."""
    rng = random.Random(seed)
    kind, dtype = rng.choice(list(BODIES)), rng.choice(["bf16", "f16"])
    of = program(kind, rng.randrange(65, 450), 8 * rng.randrange(5, 80), 8 * rng.randrange(8, 50), dtype)
    rows, machine = rng.choice([128, 192]), replace(H200, sms=rng.choice([1, 2, 3, 1000]), shared_bytes=1 << 20)
    config = TileConfig(rows, rng.choice([32, 64]), 2 * rows, rng.choice([2, 3, 4]), "registers", True,
                        columns=rng.choice([64, 128, 256]), schedule="persistent")
    made, wanted = (tensorize(of, replace(config, schedule=s), machine) for s in ("persistent", "auto"))
    given = inputs(made)
    got = interpret.run(made, given, seed=seed)
    assert all(same_bits(a, got[name]) for name, a in interpret.run(wanted, given).items()), (kind, config)


def deep_loss(rows: int, places: int, depth: int, label: str = "f32(bf16(p))") -> Fused:
    """The cross-entropy of a product too deep to hold. label: how the score of a row's own place is read."""
    fused = fuse(parse_cascade(
        f"cascade loss(x: bf16[{rows}, {depth}], w: bf16[{places}, {depth}], at: i64[{rows}]) over l\n"
        "  s[i, l] = sum[c] f32(x[i, c]) * f32(w[l, c])\n  p[i] = sum[l] select(l == at[i], s, 0.0)\n"
        "  m[i] = max[l] f32(bf16(s))\n  t[i] = sum[l] exp(f32(bf16(s)) - m)\n"
        f"  y[i] = m + log(t) - {label}\n  return y\n"))
    assert isinstance(fused, Fused)
    return fused


@pytest.mark.parametrize("schedule", ["overlap", "persistent"])
def test_blocks_reduce_the_tiles_that_they_make(schedule: str) -> None:
    of = realise(deep_loss(136, 600, 680), "multi", 3)
    auto = TileConfig(128, 256, 256, 3, "registers", True, chunk=64)
    plain, made = (tensorize(of, replace(auto, schedule=s), SMALL) for s in ("auto", schedule))  # type: ignore[arg-type]
    assert parse(str(made)) == made and verify(made) == []
    rng = np.random.default_rng(5)
    given = {"x": rng.standard_normal((136, 680)), "w": rng.standard_normal((600, 680)) * 0.1, "at": rng.integers(0, 600, 136)}
    given = {a.name: given[a.name].astype(interpret.NUMPY_DTYPES[a.dtype]) for a in of_inputs(made)}
    wanted, got = interpret.run(plain, given), interpret.run(made, given, seed=1)
    assert all(same_bits(a, got[name]) for name, a in wanted.items())
    s = given["x"].astype(np.float64) @ given["w"].astype(np.float64).T
    truth = np.log(np.exp(s).sum(-1)) - s[np.arange(136), given["at"]]
    assert np.abs(next(iter(got.values())) - truth).max() < 0.03  # scores of at most 15, rounded to bfloat16


def deep_norm(rows: int, width: int, depth: int, dtype: str = "bf16") -> Fused:
    """A residual added to a product too deep to hold, and what the norm of its rows divides by."""
    fused = fuse(parse_cascade(
        f"cascade norm(x: {dtype}[{rows}, {depth}], w: {dtype}[{width}, {depth}], r: {dtype}[{rows}, {width}]) over l\n"
        f"  s[i, l] = sum[c] f32(x[i, c]) * f32(w[l, c])\n  h[i, l] = r[i, l] + {dtype}(s)\n"
        f"  q[i] = sum[l] f32(h) * f32(h)\n  v[i] = rsqrt(q / {float(width)} + 0.00001)\n  return h, v\n"))
    assert isinstance(fused, Fused)
    return fused


@pytest.mark.parametrize("schedule", ["overlap", "persistent"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_blocks_write_the_tiles_that_they_reduce(schedule: str, dtype: str) -> None:
    """Panels of the row leave as a product's result does, and behind them the same numbers, as they were rounded, are added up."""
    of = realise(deep_norm(136, 600, 680, dtype), "multi", 3)
    auto = TileConfig(128, 256, 256, 3, "registers", True, chunk=64)
    plain, made = (tensorize(of, replace(auto, schedule=s), SMALL) for s in ("auto", schedule))  # type: ignore[arg-type]
    assert parse(str(made)) == made and verify(made) == []
    assert str(made.kernels[0]).count("send h_shared") == 4 and "r_shared" not in str(made)
    given = inputs(made)
    given["w"] = (given["w"].astype(np.float32) / 26).astype(given["w"].dtype)
    wanted, got = interpret.run(plain, given), interpret.run(made, given, seed=1)
    assert all(same_bits(a, got[name]) for name, a in wanted.items())
    h = given["r"].astype(np.float64) + given["x"].astype(np.float64) @ given["w"].astype(np.float64).T
    u = 2.0 ** (-8 if dtype == "bf16" else -11)
    assert np.abs(got["h"].astype(np.float64) - h).max() < 3 * u * np.abs(h).max()
    rounded = got["h"].astype(np.float64)
    truth = 1 / np.sqrt((rounded ** 2).mean(-1) + 1e-5)
    assert np.abs(got["v"] / truth - 1).max() < 1e-6, "of the rounded row, all of it and nothing beyond its end"


def test_a_row_that_is_written_is_tiled_as_a_product() -> None:
    chosen, of = untuned(deep_norm(16384, 4096, 4096), "sm_90a")
    best = configs(of, H200)[0]
    assert (chosen, of.splits, best.segment, best.chunk, best.schedule) == ("multi", 16, 256, 64, "persistent")
    kernel = tensorize(of, best, H200).kernels[0]
    assert [b.shape for b in kernel.buffers if b.scope == "shared"] == [(4, 128, 64), (4, 256, 64), (128, 64), (128, 64)]


def test_a_scale_of_rows_is_applied_to_their_sums() -> None:
    """The operands are what lies in memory, brought by the copy engine; no thread makes one."""
    fused = fuse(parse_cascade("cascade product(x: bf16[264, 264], w: bf16[328, 264], r: f32[264]) over k\n"
                               "  o[i, d] = sum[k] f32(bf16(f32(x[i, k]) * r[i])) * f32(w[d, k])\n  y[i, d] = bf16(o)\n"
                               "  return y\n"))
    assert isinstance(fused, Fused)
    made = tiles(realise(fused, "single"), "persistent")
    given = inputs(made)
    got = interpret.run(made, given)["y"].astype(np.float64)
    truth = (given["x"].astype(np.float64) * given["r"].astype(np.float64)[:, None]) @ given["w"].astype(np.float64).T
    assert np.abs(got - truth).max() < 2.0 ** -8 * np.abs(truth).max()
    assert verify(made) == [] and "fetch x" in str(made)


def of_inputs(program: TileProgram) -> list[TensorArg]:
    return [a for a in program.args if a.role == "in"]


def test_a_deep_product_is_tiled_as_one_and_not_walked() -> None:
    for label, splits, segment, kept in (("p", 250, 128, True), ("f32(bf16(p))", 125, 256, False)):
        chosen, of = untuned(deep_loss(4096, 32000, 4096, label), "sm_90a")
        best = configs(of, H200)[0]
        assert (chosen, of.splits, best.segment, best.schedule) == ("multi", splits, segment, "persistent"), label
        kernel = tensorize(of, best, H200).kernels[0]
        assert len([b for b in kernel.buffers if b.scope == "shared"]) == 2, "nothing but the operands"
        assert ("scores_segment" in str(kernel)) == kept, "logits that somebody reads in float32 are kept so"
    chosen, of = untuned(deep_loss(4096, 32000, 512), "sm_90a")
    assert of.splits < 10, "operands that stay on chip: a walk"


@pytest.mark.parametrize("kind", ["two products", "bias and gelu", "row scale"])
@pytest.mark.parametrize("m, columns", [(3, "i"), (64, "i"), (65, "d")])
def test_few_rows_are_columns(m: int, columns: str, kind: str) -> None:
    """Rows of a tile are padded to 64 or more, columns to 32 or 64. The rows are those of a longer product, which has its own
    order, but for a rounding of the result."""
    of = program(kind, m=m)
    assert choose(of.kernels[0], {a.name: int(a.extent) for a in of.axes}).columns == (columns,)
    made, longer = (tensorize(x, configs(x, H200)[0], H200) for x in (of, program(kind)))
    given = inputs(longer)
    short = {a.name: given[a.name][:a.shape[0]] for a in made.args if a.role == "in"}
    wanted, got = (interpret.run(x, v)["y"].astype(np.float64) for x, v in ((longer, given), (made, short)))
    assert got.shape == (m, 328) and np.abs(got - wanted[:m]).max() <= 2.0**-8 * np.abs(wanted[:m]).max()
