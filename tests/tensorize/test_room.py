"""What of a multiprocessor a block takes: shared memory, by what lives when, and registers."""

from random import Random

import pytest

from redfuser.errors import LoweringError
from redfuser.strategies import realise
from redfuser.target import PARTS, TARGETS, target
from redfuser.tensorize import TileConfig, tensorize
from redfuser.tensorize.model import (
    Needs,
    fits,
    lacks,
    needs,
    require_room,
    resident,
    time_of,
)
from redfuser.tensorize.model.shared import Life, arena_bytes, dynamic_bytes, shared_bytes
from tests import fused_examples as examples
from tests.tensorize.test_model import kernel

HOPPER = target("sm_90a")


def buffers(*sizes, body=""):
    """A kernel of 128 threads with shared buffers of so many floats, filled one after the other."""
    lines = [f"  b{i}: shared f32[{n}]" for i, n in enumerate(sizes)]
    lines += [f"  fill b{i} 0.0" for i in range(len(sizes))]
    return kernel("kernel k(y: f32[4] out) grid (one < 1) threads 128\n" + "\n".join(lines) + f"\n{body}")


@pytest.mark.parametrize("at", TARGETS.values(), ids=lambda t: t.part)
def test_a_byte_more_does_not_fit(at):
    most = at.shared_bytes // 4
    assert fits(buffers(most), at) and lacks(buffers(most), at) == ""
    assert shared_bytes(buffers(most + 1), at) == at.shared_bytes + 4
    with pytest.raises(LoweringError) as error:
        require_room(buffers(most + 1), at)
    assert error.value.code == "RF410" and str(at.shared_bytes) in str(error.value)
    assert time_of(buffers(most + 1), at) is None


def test_what_never_lives_together_shares_a_place():
    """By turns they fit, at once they do not."""
    half = HOPPER.shared_bytes // 4 // 2 + 64
    assert fits(buffers(half, half), HOPPER)
    both = "".join(f"  parallel i < 4:\n    y[i] = b{i}[i] + b{1 - i}[i]\n" for i in (0, 1))
    assert not fits(buffers(half, half, body=both), HOPPER)


@pytest.mark.parametrize("stages, places", [(1, 1), (2, 2), (3, 3), (4, 4)])
def test_a_pipelined_copy_has_a_place_for_every_stage(stages, places):
    """A rectangle, or element by element (rows read backwards); what chooses among elements is no copy."""
    text = ("kernel k(x: f16[4096, 64], y: f32[64, 64] out) grid (one < 1) threads 128\n"
            "  a: shared f16[64, 64]\n  b: shared f16[64, 64]\n  c: fragment f32[64, 64]\n  fill c 0.0\n  fill a 0.0\n"
            f"  for k in 0 .. 64 pipelined {stages}:\n    {{}}\n    gemm a, b -> c rows\n  copy c -> y\n")
    back = "parallel i < 64, j < 64:\n      b[i, j] = {}"
    for brought, own in (("copy x[k * 64 +: 64, 0 +: 64] -> b", places), (back.format("x[4095 - (k * 64 + i), j]"), places),
                         (back.format("select(k < 63, x[4095 - (k * 64 + i), j], f16(0.0))"), 1)):
        k = kernel(text.format(brought))
        assert shared_bytes(k, HOPPER) == 64 * 64 * 2 * (1 + own)
        assert shared_bytes(k, TARGETS["gfx942"]) == 64 * 64 * 2 * 2  # TileLang pipelines nothing there


def test_a_row_that_a_wave_multiplies_is_reduced_through_shared_memory():
    """Its products lay their operand out as they do their sum: four threads 16 apart hold a row, which meet there."""
    k = kernel("kernel k(x: f16[64, 64], v: f16[64, 64], y: f32[64, 64] out) grid (one < 1) threads 128\n"
               "  p: fragment f16[64, 64]\n  w: fragment f16[64, 64]\n  b: shared f16[64, 64]\n  m: fragment f16[64]\n"
               "  c: fragment f32[64, 64]\n  copy v[0 +: 64, 0 +: 64] -> b\n  copy x[0 +: 64, 0 +: 64] -> p\n  reduce max p -> m\n"
               "  copy p -> w\n  fill c 0.0\n  gemm w, b -> c rows\n  copy c -> y\n")
    assert shared_bytes(k, HOPPER) == 64 * 64 * 2 and shared_bytes(k, TARGETS["gfx942"]) == 64 * 64 * 2 + 128 * 2


def test_who_copies():
    """One warp group where the copy engine can, as many threads as compute where rows are not multiples of 16 bytes."""
    text = ("kernel k(x: f16[4096, {w}], z: f16[4096, 64]) grid (one < 1) threads 256 specialized\n  a: shared f16[128, 64]\n"
            "  b: shared f16[64, 64]\n  d: shared f16[64, 64]\n  c: fragment f32[128, 64]\n  fill c 0.0\n  fill a 0.0\n"
            "  for k in 0 .. 64 pipelined 2:\n    copy x[k * 64 +: 64, 0 +: 64] -> b\n    gemm a, b -> c rows\n"
            "    copy z[k * 64 +: 64, 0 +: 64] -> d\n    gemm a, d -> c rows\n")
    assert [needs(kernel(text.format(w=w)), HOPPER).threads for w in (64, 65)] == [384, 512]
    assert needs(kernel(text.format(w=64)), TARGETS["sm_80"]).threads == 256


def test_barriers_of_roles_take_room():
    """They are static memory, which no launch asks for: a kilobyte less is left. A role's rows are its own threads'."""
    text = ("kernel k(x: f16[128, 64], y: f16[128, 64] out) grid (one < 1) threads 256\n  s: fragment f32[64, 64]\n  m: fragment f32[64]\n"
            "  a: shared f16[64, 64]\n{barrier}  roles:\n    role first of 2:\n{wait}      fill s 0.0\n    role second of 1:\n"
            "      gemm a, a^T -> s clear rows\n      reduce max s -> m clear\n")
    with_, none = (kernel(text.format(barrier=b, wait=w)) for b, w in (("  full: barrier[1] of 1\n", "      await full[0] phase 0\n"), ("", "")))
    assert shared_bytes(with_, HOPPER) == dynamic_bytes(with_, HOPPER) + 1024 == shared_bytes(none, HOPPER) + 1024
    assert dynamic_bytes(none, HOPPER) == 64 * 64 * 2  # four warps have 16 rows each: none meets another's


def test_registers_that_nobody_has():
    """Tiles that a loop carries, and a product where a thread has 64 registers: ptxas gives up on that one (C7600)."""
    carried = ("kernel k(x: f32[512, 512], y: f32[512, 512] out) grid (one < 1) threads {t}\n  a: fragment f32[128, {n}]\n"
               "  fill a 0.0\n  for k in 0 .. 4:\n    parallel i < 128, j < {n}:\n      a[i, j] = a[i, j] + x[i, j]\n  copy a -> y\n")
    assert fits(kernel(carried.format(t=128, n=255)), HOPPER) and "256 registers" in lacks(kernel(carried.format(t=128, n=256)), HOPPER)
    assert fits(kernel(carried.format(t=512, n=512)), HOPPER) and "of 128" in lacks(kernel(carried.format(t=512, n=516)), HOPPER)
    by_hand = ("kernel k(x: f16[4096, 65], z: f16[4096, 64]) grid (one < 1) threads 512 specialized\n  a: shared f16[256, 64]\n"
               "  b: shared f16[64, {n}]\n  d: shared f16[64, 64]\n  c: fragment f32[256, {n}]\n  fill c 0.0\n  fill a 0.0\n"
               "  for k in 0 .. 64 pipelined 2:\n    copy x[k * 64 +: 64, 0 +: {n}] -> b\n    gemm a, b -> c rows\n"
               "    copy z[k * 64 +: 64, 0 +: 64] -> d\n    parallel i < 64, j < 64:\n      a[i, j] = d[i, j]\n")
    assert fits(kernel(by_hand.format(n=64)), HOPPER) and "of 64" in lacks(kernel(by_hand.format(n=128)), HOPPER)
    attention = realise(examples.attention(1, 32, 32, 4096, 4096, 128, "f16"), "single", 1)
    wide = [TileConfig(256, s, 512, 1, "registers", True) for s in (112, 128)]  # of 96 registers; ptxas was asked for both
    assert "of about 96 registers" in str(needs(tensorize(attention, wide[0], HOPPER).kernels[0], HOPPER))
    with pytest.raises(LoweringError, match="96 registers a thread for a product and 4 beside them, of 96"):
        tensorize(attention, wide[1], HOPPER)


def test_lives_in_an_arena():
    """Never less than what lives at once, never more than everything side by side; alone, as declared."""
    random = Random(7)
    for _ in range(300):
        lives = []
        for i in range(random.randint(2, 9)):
            start = random.randrange(12)
            align = random.choice((16, 16, 128, 1024))
            lives.append(Life(f"b{i}", start, start + random.randint(1, 6), 4 * random.randint(1, 900), align))
        total = arena_bytes(lives)
        assert total >= max(sum(v.size for v in lives if v.start <= at < v.end) for at in range(20))
        assert total <= sum(-(-v.size // v.align) * v.align + v.align for v in lives) and total % 16 == 0
    assert arena_bytes([Life("b", 0, 1, 20)]) == 20 and arena_bytes([]) == 0


@pytest.mark.parametrize("part, need, blocks", [
    ("H200", Needs(40960, 128, 117), 4), ("H200", Needs(40960, 128, 96), 5), ("H200", Needs(0, 1024, 32), 2),
    ("H200", Needs(0, 64, 16), 32), ("A10", Needs(0, 64, 16), 16), ("A100", Needs(40960, 128, 96), 4), ("H200", Needs(232448, 384, 168), 1)])
def test_blocks_of_a_multiprocessor(part, need, blocks):
    assert resident(need, PARTS[part]) == blocks
