"""The CPU's schedules beside what they are schedules of: rows side by side, exponentials kept, segments that a mask hides."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import pytest
import torch

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.expr import Expr, Index, Op, op
from redfuser.acrf.index import i64, iadd, imul
from redfuser.acrf.state import Fused
from redfuser.kernels import produce
from redfuser.runtime import launcher
from redfuser.strategies import cpu, realise
from redfuser.strategies.tir import entry_script
from redfuser.strategies.tir_rows import possible, side_by_side
from tests import fused_examples as examples
from tests.evaluated import run
from tests.numeric.test_cpu_kernels import hold

WINDOW = """cascade window(q: f32[2, 53, 20], k: f32[2, 300, 20], v: f32[2, 300, 20], bias: f32[53, 300]) over l
  s[b, i, l] = sum[c] q[b, i, c] * k[b, l, c]
  p[b, i, l] = select(l <= i + 120 and i < l + 10, s + bias[i, l], -inf)
  m[b, i] = max[l] p
  t[b, i] = sum[l] exp(p - m)
  o[b, i, e] = sum[l] exp(p - m) / t * v[b, l, e]
  return o"""
SOFTMAX = """cascade softmax(x: f32[6, 200]) over l
  m[i] = max[l] x[i, l]
  t[i] = sum[l] exp(x[i, l] - m)
  y[i, l] = exp(x[i, l] - m) / t
  return y"""


def fused(text: str) -> Fused:
    found = fuse(parse_cascade(text))
    assert isinstance(found, Fused), found
    return found


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_rows_that_no_tiles_divide(dtype: str) -> None:
    """Three tiles of sixteen, the last of which begins earlier; columns of a head that no four divide."""
    hold(examples.attention(1, 4, 2, 37, 150, 22, dtype), "single", dtype=dtype)


def test_rows_that_share_are_lanes() -> None:
    """Queries, which share keys; not heads, which have them in groups; nothing where no operand is shared, or few rows share it."""
    def axis(f: Fused) -> str | None:
        program = realise(f, "single")
        return side_by_side(program, program.kernels[0], cpu.LANES)

    assert axis(examples.attention(2, 16, 4, 40, 90, 20)) == "i"
    assert axis(examples.attention(2, 16, 4, 1, 90, 20)) is None
    assert axis(examples.softmax(64, 90)) is None


def test_nan_is_asked_of_vectors() -> None:
    """TVM makes a loop of a vector that is asked isnan."""
    for f in (examples.softmax(64, 90), examples.attention(1, 2, 1, 40, 90, 20)):
        assert "isnan" not in cpu.source(realise(f, "single"))


def test_an_exponential_is_computed_once() -> None:
    """Of a row on chip: what is written is the sum's term over the sum, and the program's own NaN where all is -inf."""
    made = produce("softmax", fused(SOFTMAX), "cpu", verify="0")
    usual = made.stages["tir"].split('if (m_[0] == T.float32("-inf"))')[1].split("else:")[1]
    assert "T.reinterpret" not in usual
    x = torch.randn(6, 200) * 4
    x[1], x[2, 3], x[3, 5], x[4, :150] = -torch.inf, torch.nan, torch.inf, -torch.inf
    torch.testing.assert_close(launcher(made.spec)(x), torch.softmax(x, -1), equal_nan=True, rtol=1e-6, atol=1e-9)


def test_a_long_row_on_chip_keeps_its_digits() -> None:
    """Equal terms round alike: added lane by lane in 128 strips, those of this row's second half were off by 27 units."""
    x = torch.randn(4, 32768, generator=torch.Generator().manual_seed(0))
    x[:, 16384:] = 0.0
    f = fused(SOFTMAX.replace("[6, 200]", "[4, 32768]"))
    got, want = launcher(cpu.build(realise(f, "resident")))(x), torch.softmax(x.double(), -1)
    at = x.argmax(-1, keepdim=True)  # where exp(0) is exact, and all that is wrong is the sum
    assert ((got.gather(1, at) / want.gather(1, at) - 1).abs() < 6 * 2**-24).all()


@pytest.mark.parametrize("text", ["o[i, e] = sum[l] exp(w[i, l] - m) * x[i, l, e]",
                                  "o[i] = sum[l] exp(w[i, l] - m) * x[i, l, 3]"])
def test_columns_keep_their_digits(text: str) -> None:
    """Sums down columns, which lie apart: equal terms in turn were off by up to a roundoff each."""
    f = fused("cascade columns(w: f32[3, 1000], x: f32[3, 1000, 12]) over l\n  m[i] = max[l] w[i, l]\n  " + text + "\n  return o")
    kernel, draw = launcher(cpu.build(realise(f, "single"))), torch.Generator().manual_seed(0)
    for x in (torch.rand(3, 1, 12, generator=draw).expand(3, 1000, 12).contiguous(), torch.rand(3, 1000, 12, generator=draw)):
        want = x.double().sum(1) if "[i, e]" in text else x[..., 3].double().sum(1)
        assert ((kernel(torch.zeros(3, 1000), x) / want - 1).abs() < 16 * 2**-24).all()


def test_statistics_of_a_batch_keep_their_digits() -> None:
    """Rows beside columns that a product reads: 64 equal terms in turn were off by 57 roundoffs."""
    f = fused("""cascade batch(x: f32[5, 96, 7], g: f32[7], w: f32[24, 96]) over l
      t[b, i] = sum[l] x[b, l, i]
      v[b, i] = sum[l] (x[b, l, i] - t / 96.0) * (x[b, l, i] - t / 96.0)
      o[b, i, e] = sum[l] (x[b, l, i] - t / 96.0) / sqrt(v) * g[i] * w[e, l]
      return v, o""")
    program = realise(f, "single")
    assert side_by_side(program, program.kernels[0], cpu.LANES) == "i"
    x = torch.randn(5, 96, 7, generator=torch.Generator().manual_seed(0)) * 1e-4
    x[:, 0] += 500 + 1000 * torch.rand(5, 7, generator=torch.Generator().manual_seed(1))
    v = launcher(cpu.build(program))(x, torch.ones(7), torch.ones(24, 96))[0]
    assert ((v / (x.double().var(1) * 95) - 1).abs() < 24 * 2**-24).all()


def test_hidden_segments_are_not_walked() -> None:
    """A window over tiles of queries: infinite values that none of them sees are not met, and those that some see are right."""
    f = fused(WINDOW)
    program = realise(f, "single", segment=16)
    kernel = launcher(cpu.build(program))
    draw = torch.Generator().manual_seed(0)
    q, k, v, bias = (torch.randn(*(int(n) for n in t.shape), generator=draw) for t in f.cascade.inputs)
    want = run(f.cascade, dict(zip("qkv", (x.numpy() for x in (q, k, v)), strict=True)) | {"bias": bias.numpy()})["o"]
    torch.testing.assert_close(kernel(q, k, v, bias).double(), torch.from_numpy(want), rtol=1e-5, atol=1e-5)
    v[:, 176:] = torch.inf  # the last query sees 172
    assert kernel(q, k, v, bias).isfinite().all()


def test_a_test_of_a_box_is_false_where_nothing_holds() -> None:
    """Against every point, for conditions of every form."""
    rng = random.Random(0)
    extents = {"i": 40, "l": 64}

    def side() -> Expr:
        e: Expr = i64(rng.randint(-30, 60))
        for a in ("i", "l"):
            e = iadd(e, imul(Index(a), rng.choice((0, 0, 1, 1, -1, 2))))
        return e

    def condition(depth: int) -> Expr:
        if depth and rng.random() < 0.6:
            return op(rng.choice(("and", "or")), condition(depth - 1), condition(depth - 1))
        return Op(rng.choice(("le", "lt", "ge", "gt")), (side(), side()), "bool")

    def holds(e: Expr, at: dict[str, int]) -> int:
        match e:
            case Index(axis=a):
                return at[a]
            case Op(name="neg", args=(x,)):
                return -holds(x, at)
            case Op(name=name, args=(x, y)):
                a, b = holds(x, at), holds(y, at)
                return {"and": a and b, "or": a or b, "le": a <= b, "lt": a < b, "ge": a >= b, "gt": a > b, "add": a + b,
                        "mul": a * b, "sub": a - b}[name]
        return int(e.value)  # type: ignore[attr-defined]

    said = set()
    stub = SimpleNamespace(And=lambda a, b: a and b, Or=lambda a, b: a or b)
    for _ in range(300):
        c, first = condition(2), {"i": rng.randint(0, 30), "l": rng.randint(0, 56)}
        text = possible(c, {"i": ("i0", 8), "l": ("l0", 8)}, extents)
        met = any(holds(c, dict(zip(("i", "l"), p, strict=True)))
                  for p in itertools.product(*(range(first[a], first[a] + 8) for a in ("i", "l"))))
        verdict = bool(eval(text, {"T": stub, "i0": first["i"], "l0": first["l"]})) if text else True
        assert verdict or not met, (c, first)
        if isinstance(c, Op) and c.name not in ("and", "or") and text:
            assert verdict == met, (c, first)
        said.add(verdict)
    assert said == {True, False}


def test_a_hidden_segment_is_walked_where_its_elements_are_results() -> None:
    """A mask's segments may be left out of sums, not out of what is written on the way."""
    body = "p[i, l] = select(l <= i, x[i, l], -inf)\n  m[i] = max[l] p\n  t[i] = sum[l] exp(p - m)\n  return "
    found = {}
    for results in ("t", "p, t"):
        cascade = parse_cascade(f"cascade c(x: f32[300, 300]) over l\n  {body}{results}\n")
        state = fuse(cascade)
        assert isinstance(state, Fused)
        program = realise(state, "single", 1, 64)
        found[results] = "if (" in entry_script(program, "k", lanes=16)
    assert found == {"t": True, "p, t": False}
