"""The outer graph: every spelling against torch, regions in their place, text that executes with torch alone."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from redfuser import tvm_compat as tc
from redfuser.acrf.cascade import Axis, Cascade, Let, Reduce, Reducer, Tensor
from redfuser.acrf.expr import Cast, Index, Load, Ref, op
from redfuser.errors import InternalError, UnsupportedError
from redfuser.frontend import import_model
from redfuser.outer import emit
from redfuser.partition import partition
from tests.outer_graphs import rehearsal

R = torch.randn


class Block(nn.Module):
    """Embedding, pre-norm attention with grouped heads, GELU network: what the peepholes are for."""

    def __init__(self, d: int = 32) -> None:
        super().__init__()
        self.e, self.n = nn.Embedding(50, d), nn.LayerNorm(d)
        self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 64), nn.Linear(64, d)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.e(ids)
        b, t, d = h.shape
        x = self.n(h)
        q = self.q(x).view(b, t, 4, d // 4).transpose(1, 2)
        k, v = self.kv(x).view(b, t, 2, 2, d // 4).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        h = h + self.o(a.transpose(1, 2).reshape(b, t, d))
        return h + self.down(F.gelu(self.up(h)))


def compare(model: Any, args: tuple[torch.Tensor, ...], exact: bool = True) -> Any:
    imported = import_model(model, args)
    graph = emit(imported)
    rehearsed = rehearsal(graph, args)
    with torch.no_grad():
        want = model(*args)
        got = graph.function()(*args)
    want = want if isinstance(want, tuple) else (want,)
    assert len(want) == len(got) == len(graph.outputs)
    for w, g, r in zip(want, got, rehearsed, strict=True):
        assert w.shape == g.shape == r.shape and w.dtype == g.dtype == r.dtype
        if exact:
            assert torch.equal(w.nan_to_num(), g.nan_to_num())
        else:
            torch.testing.assert_close(g, w, equal_nan=True)
    return graph


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_block(dtype: torch.dtype, golden: Callable[[str, str], None]) -> None:
    torch.manual_seed(0)
    graph = compare(Block().to(dtype).eval(), (torch.randint(0, 50, (2, 10)),))
    assert graph.calls["F.linear"] == 5 and graph.calls["F.scaled_dot_product_attention"] == 1
    assert graph.calls["F.layer_norm"] == graph.calls["F.gelu"] == 1 and ".to(" not in graph.source
    golden("outer/block.txt", graph.source)


torch.manual_seed(0)
X, H = R(3, 4, 6), R(3, 4, 6).half()
OPS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "arithmetic": (lambda x, y: (x + y * 2 - 0.1) / (1.5 - y) ** 2, (X, X.flip(0))),
    # 0.125: torch's CPU rounds a constant to half first, its GPU and the importer do not
    "half arithmetic": (lambda x, y: (x + y * 2 - 0.125) * y, (H, H.flip(0))),
    "integers": (lambda i: (i // 3, i % 3, -i, i * 2 - 1, torch.div(i, 2, rounding_mode="trunc")), (torch.arange(-6, 6),)),
    "comparisons": (lambda x: ((x > 0) & (x <= 1)) | ~(x == x.abs()), (X,)),
    "unary": (lambda x: torch.exp(x).sqrt() + x.sigmoid().log() + x.tanh() + x.sin().cos() + torch.erf(x), (X,)),
    "half unary": (lambda x: torch.exp(x) + F.silu(x) + F.gelu(x, approximate="tanh"), (H,)),
    "extrema": (lambda x, y: (torch.maximum(x, y), x.clamp(min=0.5), x.clamp(-1, 1), x.amax(-1), x.amin((0, 1))), (X, X.neg())),
    "reductions": (lambda x: (x.sum(-1, keepdim=True), x.mean((0, 2)), x.var(-1), x.std(1, correction=0), x.prod(1)), (X,)),
    "half reductions": (lambda x: (x.sum(-1), x.mean(-1, keepdim=True), x.softmax(-1), F.layer_norm(x, (6,))), (H,)),
    "arg": (lambda x: (x.argmax(-1), x.argmin(1, keepdim=True), *x.max(1)), (X,)),
    "topk and sort": (lambda x: (*torch.topk(x, 3, -1), x.cumsum(1)), (X,)),
    "sort": (lambda x: (x.sort(-1).values, torch.sort(x, dim=1, descending=True, stable=True).indices, x.argsort(-1)), (X,)),
    "padding": (lambda x: (F.pad(x, (1, 0), value=float("-inf")), F.pad(x, (1, 1), mode="reflect")), (X,)),
    "windows": (lambda x: (F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1)), (R(2, 4, 9, 8),)),
    "batch norm": (lambda x, m, v: F.batch_norm(x, m, v), (R(2, 4, 9), R(4), R(4).abs())),
    "half batch norm": (lambda x, m, v: (F.batch_norm(x, m, v), F.batch_norm(x, m, v, m + 1, v)),
                        (R(2, 4, 9).half(), R(4).half(), R(4).abs().half())),
    "where": (lambda x: (torch.where(x > 0, x, 0.0), x.masked_fill(x < 0, float("-inf")), torch.where(x > 0, 1.0, -1.0)), (X,)),
    "views": (lambda x: (x.transpose(0, 1).reshape(4, 18), x.unsqueeze(1).expand(3, 2, 4, 6), x[1:, ::2, -2:]), (X,)),
    "join": (lambda x: (torch.cat([x, x.neg()], 1), torch.stack([x, x], 0), x.split(2, 1)[1], x.repeat_interleave(2, 1)), (X,)),
    "gather": (lambda x, i: (x[i], x.gather(0, i.view(-1, 1, 1).expand(2, 4, 6)), x.index_select(0, i)),
               (X, torch.tensor([2, 0]))),
    "scatter": (lambda x, i: torch.zeros_like(x).scatter(1, i, x), (R(3, 4), torch.stack([torch.randperm(4)] * 3))),
    "convolution": (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), (R(2, 3, 8, 8), R(4, 3, 3, 3), R(4))),
    "half product": (lambda x, y: (x @ y, torch.bmm(x, y)), (R(2, 3, 4).half(), R(2, 4, 5).half())),
    "addmm": (lambda x, y, b: torch.addmm(b, x, y), (R(3, 4), R(4, 5), R(5))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (R(2, 4, 5, 5), R(4), R(4))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (6,), w, 1e-5), (X, R(6))),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), (X,)),
    "pad and tril": (lambda x: (F.pad(x, (1, 2), value=3.0), x.tril(1), x.flip(1)), (X,)),
    "masked attention": (lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
                         (R(2, 3, 5, 8), R(2, 3, 7, 8), R(2, 3, 7, 8), R(2, 1, 5, 7) > -1)),
    "casts": (lambda x: (x.to(torch.int32), x.half().float(), (x > 0).float(), x.double()), (X,)),
    "nothing": (lambda x: x, (X,)),
    "opaque": (lambda x: torch.histc(x, 4, -2.0, 2.0), (X,)),
}


@pytest.mark.parametrize("name", OPS)
def test_spelling(name: str) -> None:
    function, args = OPS[name]
    compare(function, args, exact=False)


def test_a_batch_norm_of_halves_is_one_call() -> None:
    """It was seven: each operand widened, and the result rounded, by kernels of their own."""
    m = torch.nn.BatchNorm2d(4).half().eval()
    graph = compare(m, (R(2, 4, 5, 6).half(),))
    assert graph.calls == {"F.batch_norm": 1} and ".to(" not in graph.source


def test_every_operator_of_the_normal_form_is_spelled_and_no_other() -> None:
    from redfuser.frontend.local import OPERATORS
    from redfuser.outer.spelling import RULES

    assert set(RULES) | {"call_dps_packed"} == OPERATORS


HIDDEN = torch.ones(5, 7, dtype=torch.bool).tril(-1)
SPELLED = {
    "where": lambda q, k, v, m: torch.where(m, q @ k.mT, -torch.inf).softmax(-1) @ v,
    "plus": lambda q, k, v, m: (q @ k.mT + torch.log(m.to(q.dtype))).softmax(-1) @ v,
}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("how", SPELLED)
def test_a_softmax_of_a_row_that_a_mask_hides_is_nan(how: str, half: bool) -> None:
    """It was spelled as torch's attention, which makes 0 of it: what is left unfused was wrong, and a kernel that was right was
    refused for it."""
    q, k, v = (t.half() if half else t for t in (R(2, 3, 5, 8), R(2, 3, 7, 8), R(2, 3, 7, 8)))
    graph = emit(import_model(SPELLED[how], (q, k, v, HIDDEN)), [])
    assert "F.scaled_dot_product_attention" not in graph.source
    got, want = graph.function({})(q, k, v, HIDDEN)[0], SPELLED[how](q, k, v, HIDDEN)
    assert want[:, :, 0].isnan().all()
    torch.testing.assert_close(got, want, equal_nan=True)


def test_attention_by_hand_of_float32_is_not_torchs_own() -> None:
    """That makes NaN of every row where one key is infinite."""
    args = (R(2, 3, 5, 8), R(2, 3, 7, 8), R(2, 3, 7, 8))
    own, by_hand = (emit(import_model(f, args), []).calls for f in (
        F.scaled_dot_product_attention, lambda q, k, v: (q @ k.mT * 0.25).softmax(-1) @ v))
    assert own["F.scaled_dot_product_attention"] == 1 and "F.scaled_dot_product_attention" not in by_hand


def test_torchs_own_attention_under_a_mask_that_is_known_stays_one_call() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(5, 7).masked_fill(torch.ones(5, 7, dtype=torch.bool).triu(2), -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    graph = emit(import_model(attention, (R(2, 3, 5, 8), R(2, 3, 7, 8), R(2, 3, 7, 8))), [])
    assert graph.calls["F.scaled_dot_product_attention"] == 1


def test_integer_division_that_truncates() -> None:
    """ONNX divides integers so; by a tensor, torch's own spelling would end the process for the smallest integer and -1."""
    import onnx

    kinds = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.INT64, [6]) for n in ("a", "b", "c")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Div", ["a", "b"], ["c"])], "g", kinds[:2], kinds[2:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    emitted = emit(import_model(model))
    a, b = torch.tensor([7, -7, 7, -7, 0, torch.iinfo(torch.int64).min]), torch.tensor([2, 2, -2, -2, 5, -1])
    (found,) = emitted.function()(a, b)
    assert found.tolist() == [3, -3, -3, 3, 0, torch.iinfo(torch.int64).min]
    assert rehearsal(emitted, (a, b))[0].dtype == found.dtype


def test_masks_are_computed_once() -> None:
    """What depends on no input is a constant of the graph."""
    graph = compare(lambda x: x + torch.arange(6) * torch.arange(6), (X,))
    assert "arange" not in graph.source and len(graph.constants) == 1


def test_text_is_deterministic() -> None:
    model, args = Block().eval(), (torch.randint(0, 50, (2, 10)),)
    assert emit(import_model(model, args)).source == emit(import_model(model, args)).source


# -- regions -------------------------------------------------------------------------------------------------------------


def _normalised(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    s = torch.softmax((x * 2.0).transpose(0, 1), -1)
    return s @ w + x.sum()


def _region(imported: Any) -> Any:
    """softmax and its scale as one region; x reaches it transposed."""
    names = {tc.op_name(b.value): b.var.name_hint for b in tc.bindings(imported.mod["main"])}
    load = op("mul", Load("x", (Index("i"), Index("l")), "f32"), Cast(Ref("two", "f32"), "f32"))
    cascade = Cascade("soft", (Tensor("x", "f32", (6, 4)),), (Axis("i", 6), Axis("l", 4)), "l",
                      (Reduce(("m",), ("i",), Reducer("max"), "l", load, "f32"), Let("y", ("i", "l"), Ref("m", "f32"))), ("y",))
    return SimpleNamespace(name="soft.0", cascade=cascade, inputs={"x": names["permute_dims"]},
                           outputs={"y": names["nn.softmax"]}, covered=frozenset({names["nn.softmax"]}))


@pytest.mark.parametrize("of", [
    lambda x, w: x.t().contiguous().exp(), lambda x, w: (torch.relu(x.transpose(0, 1).clone(memory_format=torch.contiguous_format)), x),
    lambda x, w: torch.sort((x @ w).t().contiguous(), 0), lambda x, w: (x @ w) * 2.0, lambda x, w: x[:, ::2].contiguous() + 1.0],
    ids=["turned", "with an input", "places", "a product", "a part"])
def test_what_torch_lays_row_by_row_lies_so(of: Callable[..., Any]) -> None:
    """The caller may view it: there is nothing left of ``contiguous()`` in the graph but that."""
    x, w = R(4, 6), R(6, 3)
    got, want = emit(import_model(of, (x, w))).function()(x, w), of(x, w)
    for mine, theirs in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine.is_contiguous() and theirs.is_contiguous() and mine.view(-1).shape == theirs.view(-1).shape


def test_what_lies_row_by_row_is_not_copied() -> None:
    for of in (lambda x, w: (x @ w) * 2.0, lambda x, w: torch.softmax(x, -1), lambda x, w: torch.cat([x, x], 1)):
        assert "contiguous" not in emit(import_model(of, (R(4, 6), R(6, 3)))).source


def test_region_becomes_one_call() -> None:
    x, w = R(4, 6), R(4, 3)
    imported = import_model(_normalised, (x, w))
    graph = emit(imported, [_region(imported)], {"soft.0": "k0_soft"})
    assert graph.kernels == {"k0_soft": "k0_soft"} and "softmax(" not in graph.source.replace("k0_soft(", "")
    calls = []

    def kernel(t: torch.Tensor) -> torch.Tensor:
        calls.append(t.is_contiguous())
        return torch.softmax(t, -1)

    (got,) = graph.function({"k0_soft": kernel})(x, w)
    torch.testing.assert_close(got, _normalised(x, w))
    assert calls == [True]
    with pytest.raises(InternalError, match="RF472"):
        emit(imported, [_region(imported)], {})


def test_region_that_cannot_run_at_one_place() -> None:
    imported = import_model(_normalised, (R(4, 6), R(4, 3)))
    region = _region(imported)
    region.inputs = {"x": imported.mod["main"].body.body.name_hint}
    with pytest.raises(InternalError, match="RF470"):
        emit(imported, [region], {"soft.0": "k"})


def test_unspellable_operators_are_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from redfuser.outer import spelling

    rules = {k: v for k, v in spelling.RULES.items() if k not in ("sin", "cos")}
    monkeypatch.setattr(spelling, "RULES", rules)
    with pytest.raises(UnsupportedError, match=r"RF471.*cos.*sin"):
        emit(import_model(lambda x: x.sin() + x.cos(), (X,)))


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_halves_meet_float32_without_a_copy(half: torch.dtype) -> None:
    """torch widens what it reads; halves that others read wide as well are widened once."""
    def of(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * y, y - x, x / y, y + x[0]

    args = (R(3, 5).to(half), R(3, 5))
    assert ".to(torch.float32)" not in compare(of, args).source
    both = compare(lambda x, y: (w := x.float(), w * y, w + y), args).source
    assert both.count(".to(torch.float32)") == 1
    number = compare(lambda x, y: x * y + y.float().sum(), (R(3, 5).to(half), R(()).to(half)), exact=False)
    assert number.outputs


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_halves_times_a_number_are_one_call(half: torch.dtype) -> None:
    """torch multiplies in float32 and rounds once. What others read wide stays wide; a sum's number torch may round first."""
    x = (R(300) * 10.0 ** torch.arange(-150, 150).div(20)).to(half)
    assert ".to(" not in compare(lambda x: (x * 0.10206, 70000.0 * x), (x,)).source
    assert compare(lambda x: (w := x.float() * 0.3, w.to(half)), (x,)).source.count(".to(") == 2
    assert ".to(torch.float32)" in compare(lambda x: (x.float() + 0.3).to(half), (x,)).source


def test_what_torch_adds_at_places_is_its_own_call_and_needs_no_copy() -> None:
    """Atomic additions where index_put would sort, of whole rows in scatter_add's way; a kernel reads what is written into a
    copy as it lies."""
    def gather(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.zeros(7, 5).index_add(0, at, x.tanh(), alpha=2).relu() * 2 + torch.zeros(5, 7).index_add(1, at, x.mT).mT

    args = (R(30, 5), torch.randint(0, 7, (30,)))
    text = compare(gather, args, exact=False).source
    assert text.count("index_add.") == text.count("scatter_add.") == 1 and "index_put" not in text
    imported = import_model(gather, args)
    p = partition(imported)
    fused = emit(imported, p.parts, {r.name: f"k{i}" for i, r in enumerate(p.parts)}).source
    assert p.parts and "scatter_add" in fused and ".clone(" not in fused
