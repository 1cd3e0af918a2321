"""Norms in spellings that were once found nowhere and mentioned nowhere, and operators that nobody looks into."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from redfuser import pipeline
from redfuser.acrf.affine import Indices
from redfuser.acrf.expr import Const, Index, Op
from redfuser.errors import RedFuserError
from redfuser.frontend import import_model
from redfuser.partition import Partitioner
from redfuser.partition.positions import slides
from tests.partition.helpers import execute, flat, partitioned

HALF = torch.float16
NORMS = {
    "half_without_upcast": (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-5), (torch.randn(8, 64, dtype=HALF),)),
    "group_norm_of_a_matrix": (lambda x, w, b: F.group_norm(x, 4, w, b), (torch.randn(8, 32), torch.rand(32), torch.randn(32))),
    "group_norm_without_weight": (lambda x: F.group_norm(x, 4), (torch.randn(4, 32, 3, 3),)),
}


@pytest.mark.parametrize("name", NORMS)
def test_the_norm_is_one_region(name):
    f, args = NORMS[name]
    imported, p = partitioned(f, args)
    assert [x.name for x in p.regions] == ["norm.0"] and not p.refusals and not imported.opaque
    tolerance = 5e-3 if args[0].dtype == HALF else 2e-5
    for got, want in zip(execute(imported, p, args), flat(f(*args)), strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def half(q, k, v):
    s = q @ k.mT * 0.125
    m = s.amax(-1, keepdim=True)
    p = (s - m).exp()
    return p @ v, m, p.sum(-1, keepdim=True)


def merged(q, k, v):
    (o, m, n), (p, w, c) = half(q, k[:, :30], v[:, :30]), half(q, k[:, 30:], v[:, 30:])
    top = torch.maximum(m, w)
    a, b = (m - top).exp(), (w - top).exp()
    return (a * o + b * p) / (a * n + b * c)


def merged_by_logsumexp(q, k, v):
    s, t = q @ k[:, :30].mT, q @ k[:, 30:].mT
    a, b = s.logsumexp(-1, keepdim=True), t.logsumexp(-1, keepdim=True)
    return (s - a).exp() @ v[:, :30] + (t - b).exp() @ v[:, 30:], torch.maximum(a, b)


@pytest.mark.parametrize("f", [merged, merged_by_logsumexp])
def test_halves_that_are_merged_by_hand_are_two_attentions(f):
    """A row's result (its maximum, its sum) that the other half's kernel reads is a result, and no reason to part."""
    args = (torch.randn(2, 9, 16), torch.randn(2, 70, 16), torch.randn(2, 70, 16))
    imported, p = partitioned(f, args)
    assert [x.name for x in p.regions] == ["attn.0", "attn.1"] and not p.refusals
    for got, want in zip(execute(imported, p, args), flat(f(*args)), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


def both_ways(s):
    return torch.logsumexp(s, 0) + torch.logsumexp(s, 1)


def rows_of_both_ways(s, d):
    return (torch.logsumexp(s, 0)[None] + torch.logsumexp(s, 1)[:, None] - d).mean()


@pytest.mark.parametrize(("f", "args"), [(both_ways, (torch.randn(40, 40),)),
                                         (rows_of_both_ways, (torch.randn(40, 64), torch.randn(40, 64)))])
def test_an_operation_is_taken_whole(f, args):
    """A kernel that takes the logarithm of another row's sum, or a sum without its maximum, leaves the rest to torch in pieces."""
    report = pipeline.run(f, args, arch="sm_90a", build=False).report
    kinds = [s.kind for s in report.steps if s.op == "aten.logsumexp.default"]
    assert len(report.fused) == 2 and set(kinds) == {"fused"} and not report.refused


def test_a_chain_of_numbers_is_a_map():
    def f(a, b, c):
        return a + 0.1 * b + 0.01 * c

    for shape in ((), (1,), (1, 1)):
        imported, p = partitioned(f, args := tuple(torch.randn(shape) for _ in range(3)))
        assert len(p.maps) == 1
        torch.testing.assert_close(execute(imported, p, args)[0], f(*args))


def test_a_norm_by_given_statistics_is_a_map():
    norm = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).eval()
    report = pipeline.run(norm, (torch.randn(2, 4, 10, 10),), arch="sm_90a", build=False).report
    assert not report.cascades and not report.opaque
    assert [[o.name.split(".")[1] for o in m.ops] for m in report.maps] == [["conv2d", "batch_norm", "relu"]]


@pytest.mark.parametrize(("index", "sliding"), [
    ("h + c // 3 % 3", True), ("2 * h + c % 3", True), ("h + c", True),
    ("h * 64 + c", False), ("h // 4 * 64 + c", False), ("c * 8 + h", False), ("c // 9", False), ("h", False)])
def test_a_window_slides_and_a_head_does_not(index, sliding):
    parts = {"h": Index("h"), "c": Index("c")}
    e = eval(index, {"__builtins__": {}}, {n: _Index(x) for n, x in parts.items()}).e
    assert slides(Indices({"h": 8, "c": 64}), e, "c") == sliding


class _Index:
    """Index expressions written as Python."""

    def __init__(self, e):
        self.e = e

    def _with(self, name, other):
        return _Index(Op(name, (self.e, other.e if isinstance(other, _Index) else Const(other, "i64")), "i64"))

    def __add__(self, other):
        return self._with("add", other)

    def __mul__(self, other):
        return self._with("mul", other)

    __rmul__ = __mul__

    def __floordiv__(self, other):
        return self._with("floordiv", other)

    def __mod__(self, other):
        return self._with("mod", other)


@pytest.mark.parametrize("arch", ["cpu", "sm_90a"])
def test_a_convolution_is_left_to_the_library(arch):
    """It was computed step by step under the minimum over its channels: six times torch's time on a CPU."""
    model = torch.nn.Conv2d(16, 64, 3)
    report = pipeline.run(lambda x: model(x).amin(1, keepdim=True), (torch.randn(2, 16, 32, 32),), arch=arch, build=False).report
    assert not report.cascades and "RF305" in {n.code for n in report.notes}


@pytest.mark.parametrize("name", ["sum", "softmax", "logsumexp", "variance", "argmax", "product"])
def test_a_reduction_of_one_element_is_a_map(name):
    x = torch.randn(16, 1)
    x[1:4, 0] = torch.tensor([math.inf, math.nan, -math.inf])
    f = {"sum": lambda x: x.exp().sum(1, keepdim=True) + x, "softmax": lambda x: torch.softmax(x * 3, 1) * x,
         "logsumexp": lambda x: torch.logsumexp(x, 1, keepdim=True) + x, "argmax": lambda x: x.argmax(1, keepdim=True) + x,
         "variance": lambda x: x - torch.var(x, 1, correction=0, keepdim=True), "product": lambda x: (x @ x.T).exp()}[name]
    imported = import_model(f, (x,))
    p = Partitioner(imported, "preserve", "sm_90a", maps=True).run()
    assert not p.regions and not p.refusals and not p.notes and len(p.maps) == 1
    for got, want in zip(execute(imported, p, (x,)), flat(f(x)), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


def test_state_in_an_attribute_is_a_coded_error():
    class Keeps(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.last = torch.zeros(4)

        def forward(self, x):
            self.last.copy_(torch.tanh(x + self.last))
            return self.last * 2

    with pytest.raises(RedFuserError):
        pipeline.run(Keeps(), (torch.randn(4),), arch="cpu", build=False)


def test_attention_that_stays_a_call_counts_as_attention():
    q = torch.randn(2, 4, 16, 8)
    report = pipeline.run(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.1), (q,), arch="cpu", build=False).report
    assert [(c.name, c.fused) for c in report.cascades] == [("attn.0", False)] and report.coverage == 0.0
    assert report.cascades[0].reason.why == "attention with dropout"


def test_a_scan_and_a_gather_are_no_cascades():
    x = torch.randn(4, 16)
    report = pipeline.run(lambda x: x.cumsum(-1)[torch.tensor([1, 2])], (x,), arch="cpu", build=False).report
    assert not report.cascades and report.coverage == 1.0


@pytest.mark.parametrize("kept", [lambda at, pos: at <= pos, lambda at, pos: at + pos > 12, lambda at, pos: (at - pos).abs() < 3])
def test_positions_meet_integer_data_on_the_cpu(kept):
    """A decode step with a static cache: which places count is a comparison of a position with an int64 input."""

    def f(q, k, v, pos):
        scores = (q @ k.mT).float().masked_fill(~kept(torch.arange(16), pos[:, None])[None, None], float("-inf"))
        return torch.softmax(scores, -1).to(q.dtype) @ v

    half = torch.bfloat16
    args = (torch.randn(1, 2, 1, 8, dtype=half), *torch.randn(2, 1, 2, 16, 8, dtype=half), torch.tensor([5]))
    done = pipeline.run(f, args, arch="cpu", verify="0")
    assert [(x.name, x.fused) for x in done.report.cascades] == [("attn.0", True)]
    assert not {"RF441"} & {n.code for n in done.report.notes}


@pytest.mark.parametrize("mask", ["positions", "keys", "bias"])
def test_what_heads_share_beside_their_keys_does_not_make_them_one_block(mask):
    """A decode step over 512 keys: every head has a block of its own, whatever mask or bias all of them read."""

    def f(q, k, v, data):
        s = (q @ k.mT) * 0.125
        if mask == "bias":
            s = s + data
        else:
            keep = torch.arange(512) <= data[:, None, None, None] if mask == "positions" else data[:, None, None]
            s = s.masked_fill(~keep, torch.finfo(s.dtype).min)
        return torch.softmax(s, -1, dtype=torch.float32).to(q.dtype) @ v

    data = {"positions": torch.tensor([100, 511]), "keys": torch.rand(2, 512) > 0.5, "bias": torch.randn(2, 1, 1, 512, dtype=HALF)}
    args = (torch.randn(2, 8, 1, 64, dtype=HALF), *torch.randn(2, 2, 8, 512, 64, dtype=HALF), data[mask])
    _, p = partitioned(f, args)
    (region,) = p.regions
    assert len([n for n in region.cascade.inputs if n.dtype == "f16" and n.shape[-1] == 64]) == 3, region.cascade


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_scaled_weights_are_rounded_before_they_are_summed(dtype):
    """A constant leaves a sum of products only where nothing between the two was rounded."""
    def f(q, k, v):
        return (torch.softmax((q @ k.mT) * 0.2, -1) * 10).to(dtype).float() @ v

    args = (torch.randn(2, 8, 16), torch.randn(2, 40, 16), torch.randn(2, 40, 16))
    imported, p = partitioned(f, args)
    cast = {torch.bfloat16: "bf16(", torch.float8_e4m3fn: "e4m3(", torch.float8_e5m2: "e5m2("}[dtype]
    assert any(cast in str(x.cascade) for x in p.parts)
    for got, want in zip(execute(imported, p, args), flat(f(*args)), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-3)


@pytest.mark.parametrize("width, experts, joined", [(768, 128, True), (2048, 64, False), (8192, 64, False)])
def test_a_routers_product_is_the_librarys_where_one_block_would_walk_it_for_long(width, experts, joined):
    """On an H200 one kernel takes 6.3, 12.5 and 38.7 us, a library's product and a kernel 6.8, 9.4 and 17.9 (docs/results)."""
    x, w = torch.randn(2048, width, dtype=torch.bfloat16), torch.randn(width, experts, dtype=torch.bfloat16)
    _, p = partitioned(lambda x, w: torch.topk(torch.softmax((x @ w).float(), -1), 6), (x, w))
    assert [r.name for r in p.regions] == ["linear_topk.0" if joined else "topk.0"]
