"""The normal form: golden text of small modules, and what holds of every import."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from redfuser import tvm_compat as tc
from redfuser.frontend import Imported, Static, import_model
from redfuser.frontend.forms import unit_insertions
from redfuser.frontend.local import OPERATORS
from tests.interpret import run

relax = tc.relax


def text(imported: Imported) -> str:
    """The bindings, one per line, as ``name: dtype[shape] = op(operands)``."""
    lines = []
    for b in tc.bindings(imported.mod["main"]):
        info = b.var.struct_info
        kind = f"{info.dtype}{list(tc.shape_of(b.var))}" if isinstance(info, tc.TensorStructInfo) else "tuple"
        value = str(b.value).splitlines()[-1]
        value = re.sub(r'R\.const\(([^,]+), "[^"]*"\)', r"\1", value)
        value = re.sub(r"R\.prim_value\((-?\d+)\)", r"\1", value)
        value = re.sub(r', (out_)?dtype="[^"]*"', "", value).replace("R.shape", "")
        lines.append(f"{b.var.name_hint}: {kind} = {value}")
    return "\n".join(lines)


def check_invariants(imported: Imported) -> None:
    """What other stages rely on."""
    func = imported.mod["main"]
    assert tc.relax.analysis.check_well_formed(imported.mod)
    assert len(func.body.blocks) == 1 and isinstance(func.body.blocks[0], relax.DataflowBlock)
    names = [b.var.name_hint for b in tc.bindings(func)] + [p.name_hint for p in func.params]
    assert len(set(names)) == len(names) and all(n.isidentifier() for n in names)
    assert [p.name_hint for p in func.params] == [i.name for i in imported.inputs]
    assert [tc.shape_of(p) for p in func.params] == [i.shape for i in imported.inputs]
    kinds = [i.kind for i in imported.inputs]
    assert kinds == sorted(kinds, key=lambda k: k != "user"), "user inputs come first"
    assert set(imported.weights) == {i.name for i in imported.inputs if i.kind != "user"}
    used: set[str] = set()
    for b in reversed(tc.bindings(func)):
        if isinstance(b.var, relax.DataflowVar):
            assert b.var.name_hint in used, f"{b.var.name_hint} is dead"
        if tc.op_name(b.value):
            assert tc.op_name(b.value) in OPERATORS
            assert b.var.name_hint in imported.provenance
        used.update(v.name_hint for v in relax.analysis.free_vars(b.value))
        x = b.value.args[0] if isinstance(b.value, relax.Call) else None
        if tc.op_name(b.value) in ("reshape", "broadcast_to"):
            assert tc.shape_of(x) != tc.shape_of(b.var)
        if tc.op_name(b.value) == "astype":
            assert tc.dtype_of(x) != tc.dtype_of(b.var)
        if tc.op_name(b.value) in ("matmul", "sum", "mean", "nn.softmax", "variance", "cumsum", "exp"):
            assert tc.dtype_of(b.var) not in ("float16", "bfloat16")
    packed = {str(b.value.args[0].global_symbol) for b in tc.bindings(func) if tc.op_name(b.value) == "call_dps_packed"}
    assert packed == set(imported.opaque)


def test_causal_attention_in_half() -> None:
    q = torch.zeros(1, 2, 4, 8, dtype=torch.float16)
    imported = import_model(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, q, q))
    check_invariants(imported)
    assert text(imported).replace("scaled_dot_product_attention", "sdpa") == """\
sdpa_keys: float16[1, 2, 8, 4] = R.permute_dims(k, axes=[0, 1, 3, 2])
sdpa_scores: float32[1, 2, 4, 4] = R.matmul(q, sdpa_keys)
sdpa_scaled: float32[1, 2, 4, 4] = R.multiply(sdpa_scores, 0.35355338454246521)
sdpa_rows: int64[4] = R.arange(0, 4, 1)
sdpa_row: int64[4, 1] = R.expand_dims(sdpa_rows, axis=[1])
sdpa_columns: int64[4] = R.arange(0, 4, 1)
sdpa_column: int64[1, 4] = R.expand_dims(sdpa_columns, axis=[0])
sdpa_causal: bool[4, 4] = R.less_equal(sdpa_column, sdpa_row)
sdpa_masked: float32[1, 2, 4, 4] = R.where(sdpa_causal, sdpa_scaled, "-inf")
sdpa_weights: float32[1, 2, 4, 4] = R.nn.softmax(sdpa_masked, axis=3)
sdpa_values: float32[1, 2, 4, 8] = R.astype(v)
sdpa_acc: float32[1, 2, 4, 8] = R.matmul(sdpa_weights, sdpa_values)
sdpa: float16[1, 2, 4, 8] = R.astype(sdpa_acc)"""


def test_mask_noise_becomes_index_arithmetic() -> None:
    """A causal mask with a packed-sequence check that has no effect, as transformers builds it."""

    def model(s: Tensor) -> Tensor:
        positions = torch.arange(6).unsqueeze(0).expand(2, -1)
        packed = (torch.cat([positions[:, :1] - 1, positions], -1).diff(dim=-1) != 1).cumsum(-1)
        batch, i, j = torch.arange(2)[:, None, None], torch.arange(6)[None, :, None], torch.arange(6)[None, None, :]
        same = packed[batch, i] == packed[batch, j]
        mask = torch.ones((), dtype=torch.bool) & same & (positions[batch, j] <= positions[batch, i])
        return torch.where(mask, s, -math.inf)

    imported = import_model(model, (torch.randn(2, 6, 6),))
    check_invariants(imported)
    ops = [tc.op_name(b.value) for b in tc.bindings(imported.mod["main"])]
    assert sorted(ops) == ["arange", "arange", "expand_dims", "expand_dims", "less_equal", "where"]


def test_constant_masks_are_read_as_bands() -> None:
    band = torch.ones(6, 6, dtype=torch.bool).tril(0).triu(-2)
    additive = torch.where(band, 0.0, torch.finfo(torch.float32).min)

    def model(s: Tensor) -> tuple[Tensor, Tensor]:
        return torch.where(band, s, -math.inf), s + additive

    x = torch.randn(6, 6)
    imported = import_model(model, (x,))
    check_invariants(imported)
    assert not imported.weights
    assert not any(isinstance(a, relax.Constant) and tc.shape_of(a) for b in tc.bindings(imported.mod["main"])
                   if isinstance(b.value, relax.Call) for a in b.value.args)
    for ours, theirs in zip(run(imported, (x,)), model(x), strict=True):
        assert torch.equal(ours, theirs)


def test_a_guarded_softmax_is_zero_wherever_it_would_be_nan() -> None:
    def model(s: Tensor) -> Tensor:
        p = torch.softmax(torch.where(torch.ones(4, 4, dtype=torch.bool).tril(), s @ s, -math.inf), -1)
        return torch.where(torch.isnan(p), 0.0, p)

    s = torch.randn(4, 4)
    imported = import_model(model, (s,))
    assert "isnan" not in text(imported)
    for bad in (0.0, math.nan, math.inf, -math.inf):
        s[2, 1] = bad
        torch.testing.assert_close(run(imported, (s,))[0], model(s), equal_nan=True)


def test_safe_softmax_stays_safe_where_rows_may_be_masked() -> None:
    def model(s: Tensor, m: Tensor) -> Tensor:
        p = torch.softmax(torch.where(m, s @ s, -math.inf), -1)
        return torch.where(torch.isnan(p), 0.0, p)

    s, m = torch.randn(4, 4), torch.rand(4, 4) > 0.5
    m[1] = False
    imported = import_model(model, (s, m))
    assert "isnan" not in text(imported)
    torch.testing.assert_close(run(imported, (s, m))[0], model(s, m))


def test_views_and_casts_collapse() -> None:
    def model(x: Tensor) -> tuple[Tensor, ...]:
        return (x.reshape(6, 4).reshape(2, 12), x.permute(2, 0, 1).permute(1, 2, 0), x.float().half(), x[:, :, None][:, :, 0],
                x.unsqueeze(0).squeeze(0) * 1.0, x.expand(5, 2, 3, 4)[0] + 1)

    imported = import_model(model, (torch.randn(2, 3, 4).half(),))
    assert [tc.op_name(b.value) for b in tc.bindings(imported.mod["main"]) if tc.op_name(b.value)] == [
        "reshape", "broadcast_to", "strided_slice", "squeeze", "add"]


def test_few_elements_of_a_map_are_picked_before_it() -> None:
    x, y = torch.randn(4, 32).bfloat16(), torch.randint(0, 32, (4, 1))

    def picked(f: object) -> list[tuple[str, tuple[int, ...]]]:
        imported = import_model(f, (x, y))
        check_invariants(imported)
        torch.testing.assert_close(run(imported, (x, y)), [f(x, y)])
        return [(tc.op_name(b.value), tc.shape_of(b.var)) for b in tc.bindings(imported.mod["main"])]

    assert picked(lambda x, y: torch.exp(x.float() / 0.7).gather(1, y)) == [
        ("gather_elements", (4, 1)), ("astype", (4, 1)), ("divide", (4, 1)), ("exp", (4, 1))]
    assert picked(lambda x, y: x.float().index_select(1, y[:, 0]))[1:] == [("take", (4, 4)), ("astype", (4, 4))]
    many = picked(lambda x, y: x[:, :2].float().gather(1, y.expand(4, 8) % 2))  # as many again: the map has less to do
    assert many.index(("astype", (4, 2))) < many.index(("gather_elements", (4, 8)))
    two = picked(lambda x, y: (x.float() + x.float().flip(1)).gather(1, y))  # of two tensors: stays a map of all
    assert two[-1] == ("gather_elements", (4, 1))
    bytes_ = picked(lambda x, y: x.to(torch.float8_e4m3fn).float().gather(1, y))  # torch gathers none of 8 bits
    assert bytes_[-1] == ("gather_elements", (4, 1))


def test_one_tensor_passed_twice_is_two_inputs() -> None:
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    imported = import_model(lambda a, b: a - b, (x, x))
    torch.testing.assert_close(run(imported, (x, y))[0], x - y)


def test_weights_alias_the_model() -> None:
    module = nn.Linear(4, 3)
    imported = import_model(module, (torch.randn(2, 4),))
    check_invariants(imported)
    assert {w.data_ptr() for w in imported.weights.values()} == {module.weight.data_ptr(), module.bias.data_ptr()}
    assert [i.kind for i in imported.inputs] == ["user", "weight", "weight"]


def test_leaves_say_what_every_argument_is() -> None:
    def model(x: Tensor, scale: float, extra: dict[str, Tensor], flag: bool = True) -> dict[str, Tensor | None]:
        return {"y": x * scale + extra["b"] if flag else x, "z": None, "x": x}

    imported = import_model(model, (torch.ones(2), 0.5, {"b": torch.ones(2)}), {"flag": True})
    assert imported.in_leaves == ("x", Static(0.5), "extra_b", Static(True))
    y, z, x = imported.out_leaves
    assert isinstance(y, str) and z == Static(None) and x == "x"
    assert imported.out_spec is not None and imported.in_spec is not None


def test_provenance_names_the_users_line() -> None:
    def model(x: Tensor) -> Tensor:
        return torch.softmax(x * 2, -1)  # the line that matters

    source = Path(__file__).read_text().splitlines()
    line = next(i for i, t in enumerate(source, 1) if "# the line that " + "matters" in t)
    imported = import_model(model, (torch.randn(2, 3),))
    softmax = next(b.var.name_hint for b in tc.bindings(imported.mod["main"]) if tc.op_name(b.value) == "nn.softmax")
    assert imported.provenance[softmax].source == f"test_normal_form.py:{line}"
    assert "softmax" in imported.provenance[softmax].op


def test_provenance_names_the_users_line_inside_a_block_without_autocast() -> None:
    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", enabled=False):
                y = torch.softmax(x * 2, -1)  # the first line in there
                return y / torch.logsumexp(x, -1, keepdim=True)  # the second line in there

    source = Path(__file__).read_text().splitlines()
    first, second = (next(i for i, t in enumerate(source, 1) if f"# the {n} line " + "in there" in t) for n in ("first", "second"))
    imported = import_model(nn.Sequential(Layer(), Layer()), (torch.randn(2, 3),))
    places = [p.source for p in imported.provenance.values() if "softmax" in p.op or "div" in p.op]
    assert places == [f"test_normal_form.py:{n}" for n in (first, second)] * 2


def test_function_that_closes_over_a_module() -> None:
    module = nn.Linear(4, 3)
    imported = import_model(lambda x: module(x).relu(), (torch.randn(2, 4),))
    assert [i.kind for i in imported.inputs] == ["user", "weight", "weight"]
    assert imported.inputs[0].name == "x"


@pytest.mark.parametrize("style", ["cat", "index_put", "slice", "empty"])
def test_decode_steps_against_a_cache(style: str) -> None:
    def model(q: Tensor, k: Tensor, v: Tensor, cache_k: Tensor, cache_v: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        if style == "index_put":
            cache_k, cache_v = cache_k.clone(), cache_v.clone()
            cache_k[:, :, position], cache_v[:, :, position] = k, v
        elif style == "slice":
            cache_k, cache_v = cache_k.clone(), cache_v.clone()
            cache_k[:, :, 5:6], cache_v[:, :, 5:6] = k, v
        else:
            past = () if style == "empty" else (cache_k, cache_v)
            cache_k, cache_v = (torch.cat([p, t], -2) for p, t in zip(past or (torch.zeros(0),) * 2, (k, v), strict=True))
        mask = torch.arange(cache_k.shape[2])[None] <= position if style in ("index_put", "slice") else None
        return F.scaled_dot_product_attention(q, cache_k, cache_v, mask, enable_gqa=True), cache_k, cache_v

    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, h, 1, 8, generator=g) for h in (4, 2, 2))
    args = (q, k, v, torch.randn(2, 2, 6, 8, generator=g), torch.randn(2, 2, 6, 8, generator=g), torch.tensor([5]))
    imported = import_model(model, args)
    check_invariants(imported)
    for ours, theirs in zip(run(imported, args), model(*args), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert bool(imported.opaque) == (style == "index_put")
    assert not any(0 in tc.shape_of(a) for b in tc.bindings(imported.mod["main"]) if tc.op_name(b.value) == "concat"
                   for a in b.value.args[0].fields)


def test_same_text_from_a_second_import() -> None:
    module = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    first, second = (text(import_model(module, (x,))) for _ in range(2))
    assert first == second


def test_unit_insertions() -> None:
    assert unit_insertions((3, 4), (1, 3, 1, 4)) == (0, 2)
    assert unit_insertions((3, 4), (4, 3, 1)) is None
    assert unit_insertions((1, 3), (1, 1, 3)) == (1,)
    assert unit_insertions((3,), (3,)) is None
