"""Scalar TIR: its text, its structure, its refusals, and that the artifact loads without TVM."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

from redfuser import tvm_compat as tc
from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.state import Fused
from redfuser.errors import BuildError, LoweringError
from redfuser.kernels import produce
from redfuser.runtime import launcher
from redfuser.strategies import cpu, realise, tir
from redfuser.strategies.tir_expr import Texts
from tests import fused_examples as examples
from tests.evaluated import run


@pytest.mark.parametrize(("strategy", "splits"), [("single", 1), ("multi", 3)])
def test_text(strategy: str, splits: int, golden: Callable[[str, str], None]) -> None:
    """Attention with a ragged last segment, as plain scalar TIR."""
    program = realise(examples.attention(1, 2, 1, 3, 70, 4, "f16"), strategy, splits, segment=32)
    golden(f"strategies/attention_{strategy}_tir.txt", tir.entry_script(program, "attention"))


def test_scheduled_text(golden: Callable[[str, str], None]) -> None:
    golden("strategies/softmax_cpu_tir.txt", cpu.source(realise(examples.softmax(3, 40, "bf16"), "resident")))


def test_every_block_has_its_role_and_axes() -> None:
    program = realise(examples.attention(1, 2, 1, 3, 70, 4), "multi", 3)
    module = tir.to_primfuncs(program)
    assert [g.name_hint for g in module.functions] == [k.name for k in program.kernels]
    for kernel in program.kernels:
        found: dict[str, list[str]] = {}

        def visit(node: object, found: dict[str, list[str]] = found) -> None:
            if isinstance(node, tc.tirx.SBlock) and node.name_hint != "root":
                role = str(node.annotations["redfuser.role"])
                found.setdefault(role, []).append(", ".join(map(str, node.annotations["redfuser.axes"])))

        tc.tirx.stmt_functor.post_order_visit(module[kernel.name].body, visit)
        assert set(found) == {b.role for b in (*kernel.init, *kernel.body, *kernel.tail)}
        for b in (*kernel.init, *kernel.body, *kernel.tail):
            assert ", ".join(b.axes) in found[b.role]


def _fused(text: str) -> Fused:
    result = fuse(parse_cascade(text))
    assert isinstance(result, Fused), result
    return result


@pytest.mark.parametrize(("strategy", "splits"), [("single", 1), ("multi", 3), ("resident", 1)])
def test_read_as_tvm_reads_it(strategy: str, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole expressions evaluated at once give what TVM's own reader gives, operation by operation."""
    import tvm
    from tvm.script import from_source
    from tvm.script import tirx as T

    ours, seen = tc.parse_prim_func, []

    def read(text: str) -> object:
        seen.append(text)
        return ours(text)

    monkeypatch.setattr(tc, "parse_prim_func", read)
    for f in (examples.attention(1, 2, 1, 3, 70, 4, "f16"), examples.variance(3, 90), examples.softmax(3, 40, "bf16")):
        tir.to_primfuncs(realise(f, strategy, splits))  # type: ignore[arg-type]
    assert len(seen) >= 3
    for text in seen:
        tvm.ir.assert_structural_equal(ours(text), from_source(text, {"T": T}))


def test_scalars_and_no_grid() -> None:
    """A cascade over everything: no grid axes, scalar input and output."""
    f = _fused("cascade scaled_logsumexp(x: f32[100], w: f32[]) over l\n  m = max[l] x[l]\n"
               "  t = sum[l] exp(x[l] - m)\n  y = log(t) + m * w[]\n  return y")
    x = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    want = run(f.cascade, {"x": x, "w": np.float32(0.5)})["y"]
    for strategy, splits in (("single", 1), ("multi", 3)):
        got = launcher(cpu.build(realise(f, strategy, splits, 16)))(torch.from_numpy(x), torch.tensor(0.5))
        assert got.shape == () and abs(float(got) - float(want)) < 1e-5


def test_derived_variance_is_stable_in_every_form() -> None:
    """The algebra's own state for a variance about 1e4, through LLVM."""
    f = _fused("cascade variance(x: f32[2, 1000]) over l\n  s[i] = sum[l] x[i, l]\n  mean[i] = s / 1000.0\n"
               "  v[i] = sum[l] (x[i, l] - mean) * (x[i, l] - mean)\n  return v")
    x = (np.random.default_rng(0).standard_normal((2, 1000)) + 1e4).astype(np.float32)
    want = run(f.cascade, {"x": x})["v"]
    for strategy, splits in (("single", 1), ("multi", 7)):
        got = launcher(cpu.build(realise(f, strategy, splits)))(torch.from_numpy(x)).numpy()
        assert np.abs(got / want - 1).max() < 1e-5


@pytest.mark.parametrize(("rows", "n"), [(9, 4096), (3, 300_000)])
def test_long_rows_keep_their_digits(rows: int, n: int) -> None:
    """torch takes a variance in float64 on a CPU: what ours may be off by is four roundings, however long the row and whatever
    rounds the same way at each of its elements."""
    f = _fused(f"cascade variance(x: f32[{rows}, {n}]) over l\n  s[i] = sum[l] x[i, l]\n  mean[i] = s / {n}.0\n"
               "  v[i] = sum[l] (x[i, l] - mean) * (x[i, l] - mean)\n"
               f"  y[i] = v / {n}.0\n  return y")
    kernel = launcher(produce("variance", f, "cpu", verify="0").spec)
    draw = torch.Generator().manual_seed(0)
    for x in (torch.randint(-2, 3, (rows, n), generator=draw).float(), 2e3 * torch.randn(rows, n, generator=draw)):
        want = x.double().var(-1, correction=0)
        assert ((kernel(x) / want - 1).abs() < 4 * 2**-24).all()


@pytest.mark.parametrize("columns", [192, 512, 1000])
def test_long_products_of_lanes_keep_their_digits(columns: int) -> None:
    """Rows are lanes here, each with its own sums: in one register they were off by a rounding of every term, and float32
    attention of 192 columns and more was refused for it (RF905)."""
    f = _fused(f"cascade scored(q: f32[64, {columns}], k: f32[130, {columns}]) over l\n  s[i, l] = sum[c] q[i, c] * k[l, c]\n"
               "  m[i] = max[l] s\n  t[i] = sum[l] exp(s - m)\n  return m, t")
    q, k = (torch.rand(n, columns, generator=torch.Generator().manual_seed(n)) for n in (64, 130))
    got, _ = launcher(produce("scored", f, "cpu", verify="0").spec)(q, k)
    assert ((got / (q.double() @ k.double().mT).amax(-1) - 1).abs() < 6 * 2**-24).all()


def test_a_select_guards_its_loads() -> None:
    """Loads outside a tensor under a select (a concatenation along the row) are never made."""
    f = _fused("cascade joined(a: f32[2, 8], b: f32[2, 8]) over l where l = 8\n"
               "  p[i, l] = select(l < 4, a[i, l + 4], b[i, l - 4])\n  m[i] = max[l] p\n"
               "  t[i] = sum[l] exp(p - m)\n  y[i] = m + log(t)\n  return y")
    assert "T.if_then_else" in cpu.source(realise(f, "single"))
    a, b = (np.random.default_rng(i).standard_normal((2, 8)).astype(np.float32) for i in (0, 1))
    want = run(f.cascade, {"a": a, "b": b})["y"]
    got = launcher(cpu.build(realise(f, "single", segment=3)))(torch.from_numpy(a), torch.from_numpy(b))
    assert np.abs(got.numpy() - want).max() < 1e-5


def test_nothing_of_a_number_is_kept() -> None:
    """``0 / t`` and ``0 * t`` are NaN where t is 0, or is infinite, or is NaN: TVM folds both to 0 where it sees the constant."""
    f = _fused("cascade zeros(x: f32[4, 8]) over l\n  t[i] = sum[l] x[i, l]\n"
               "  y[i] = 0.0 / t\n  z[i] = t * 0.0\n  return y, z")
    x = torch.ones(4, 8)
    x[1], x[2, 3], x[3, 5] = 0.0, float("inf"), float("nan")
    y, z = launcher(cpu.build(realise(f, "single")))(x)
    assert torch.equal(y.isnan(), torch.tensor([False, True, False, True])) and not y[::2].any()
    assert torch.equal(z.isnan(), torch.tensor([False, False, True, True])) and not z[:2].any()


def test_a_gather_along_the_row() -> None:
    """A value read at positions that data gives (the probabilities of chosen experts), in every form."""
    f = _fused("cascade chosen(x: f32[3, 40], idx: i64[3, 2]) over l\n  m[i] = max[l] x[i, l]\n"
               "  t[i] = sum[l] exp(x[i, l] - m)\n  y[i, k] = exp(x[i, idx[i, k]] - m) / t\n  return y")
    x, idx = torch.randn(3, 40), torch.tensor([[1, 2], [39, 0], [5, 5]])
    for strategy, splits in (("single", 1), ("resident", 1), ("multi", 3)):
        got = launcher(cpu.build(realise(f, strategy, splits)))(x, idx)
        torch.testing.assert_close(got, torch.softmax(x, -1).gather(1, idx))


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LoweringError, match="RF432"):
        cpu.source(realise(examples.softmax(1, 1_000_000), "resident"))
    fp8 = _fused("cascade amax(x: e4m3[2, 8]) over l\n  m[i] = max[l] f32(x[i, l])\n  return m")
    with pytest.raises(LoweringError, match="RF431"):
        cpu.source(realise(fp8, "single"))
    symbolic = _fused("cascade total(x: f32[I, L]) over l\n  s[i] = sum[l] x[i, l]\n  return s")
    with pytest.raises(LoweringError, match="RF433"):
        cpu.source(realise(symbolic, "single"))
    with pytest.raises(LoweringError, match="RF435"):
        cpu.source(realise(examples.logsumexp(3, 0), "multi", 2))
    monkeypatch.setattr(cpu, "compiler", lambda: None)
    with pytest.raises(BuildError, match="RF440"):
        cpu.build(realise(examples.softmax(3, 40), "single"))


LOAD = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tvm", "tilelang"):
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocked())
import torch, tvm_ffi
kernel = tvm_ffi.load_module(sys.argv[1])["softmax"]
x, y = torch.randn(3, 40), torch.empty(3, 40)
kernel(x, y)
assert torch.allclose(y, torch.softmax(x, -1), atol=1e-6)
print("loaded")
"""


def test_artifact_loads_without_tvm(tmp_path) -> None:
    path = tmp_path / "softmax.so"
    path.write_bytes(cpu.build(realise(examples.softmax(3, 40), "single")).binaries[0])
    done = subprocess.run([sys.executable, "-c", LOAD, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "loaded", done.stderr


def test_an_element_is_named_where_several_are_stored() -> None:
    """Of ``x, y = y, x`` the second store must not read what the first left."""
    texts = Texts(lambda axis: f"v_{axis}", lambda r: (f"{r.name}[0]", r.dtype), {}, {}, {})
    assert texts.bind("y[0]", "float32") == "y[0]" and not texts.lets
    assert [texts.bind(f"{n}[0]", "float32", before=True) for n in "yxy"] == ["x0", "x1", "x0"]
    assert texts.lets == ["x0: T.let[T.float32] = y[0]", "x1: T.let[T.float32] = x[0]"]
    assert texts.bind("(y[0] + 1)", "float32") == texts.bind("(y[0] + 1)", "float32") == "x2"
