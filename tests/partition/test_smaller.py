"""A region of which no kernel can be made gives way to the next smaller one, down to single cascades; nothing is dropped
whole, and the report says which joins were given up."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from redfuser import pipeline
from redfuser.acrf.state import NotFusable
from redfuser.frontend import import_model
from redfuser.kernels import produce
from redfuser.partition import Partitioner
from redfuser.partition.smaller import apart
from redfuser.plan import Produced
from redfuser.reported import Reason
from tests.partition.helpers import execute, flat

HALF = torch.float16


def r(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype)


def rms(x, w):
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def planned(f, args, arch="sm_90a", verify="0"):
    return pipeline.run(f, args, arch=arch, build=False, verify=verify).report


def fused(report):
    return sorted(c.name.split(".")[0] for c in report.fused)


def codes(report):
    return {n.code for n in report.notes}


def test_a_norm_survives_the_projection_that_reads_it_and_the_heads_that_it_is_cut_into():
    def f(x, w, p):
        return F.linear(rms(x, w), p).view(2, 128, 8, 64).transpose(1, 2)

    report = planned(f, (r(2, 128, 512, dtype=HALF), r(512, dtype=HALF), r(512, 512, dtype=HALF)))
    assert [c.split("_")[0] for c in fused(report)] == ["norm"] and report.coverage == 1.0
    assert any(n.code.startswith("RF4") and "not joined with" in n.text for n in report.notes)


def test_a_norm_survives_the_projections_before_and_after_it():
    def f(x, g, d, w, p):
        return F.linear(rms(x + F.linear(g, d), w), p)

    args = (r(2, 128, 512, dtype=HALF), r(2, 128, 1024, dtype=HALF), r(512, 1024, dtype=HALF), r(512, dtype=HALF),
            r(512, 512, dtype=HALF))
    report = planned(f, args)
    assert fused(report) == ["norm"] and report.coverage == 1.0 and "RF497" in codes(report)


def test_a_cascade_survives_the_reduction_before_it():
    for f, shape, want, why in (
            (lambda x: torch.softmax(x.amax(2), 1), (8, 32, 16), ["softmax"], "RF491"),
            (lambda x: F.layer_norm(x.sum(1), (32,)), (8, 16, 32), ["norm"], "RF491"),
            (lambda x: F.normalize(F.normalize(x, dim=1).flatten(1)), (8, 16, 32), ["norm"], "RF305")):
        report = planned(f, (r(*shape),))
        assert fused(report) == want and report.coverage == 1.0 and why in codes(report)


def test_a_map_behind_a_score_stays_where_a_product_that_no_unit_takes_leaves():
    """A head with one output behind a float32 product: the product is the library's, and the score's sigmoid is the row's."""
    def f(x, v, a, w, b):
        return torch.sigmoid(F.linear(torch.relu(F.linear(x, v, a)), w, b))

    report = planned(f, (r(8192, 512), r(256, 512), r(256), r(1, 256), r(1)))
    assert fused(report) == ["statistics"] and "RF490" in codes(report) and report.coverage > 0.8, report


def test_what_is_reduced_per_step_is_given_up_before_the_row_that_reads_it():
    def f(s, v):
        e = torch.exp(s.sum(-1, keepdim=True).clamp(-5, 5))
        return (e * v[:, None]).sum(2) / (e.sum(2) + 1e-6)

    report = planned(f, (r(2, 17, 17, 12), r(2, 17, 12)))
    assert fused(report) == ["attn"] and report.coverage == 1.0
    assert [n.text.split("not joined with ")[1].split(":")[0] for n in report.notes if n.code == "RF491"] == ["aten.sum.dim_IntList"]


def test_attention_whose_products_no_unit_takes_keeps_its_softmax_and_says_that_it_is_not_fused():
    report = planned(lambda q, k, v: torch.softmax(q @ k.mT / 8, -1) @ v, (r(2, 4, 128, 512),) * 3)
    assert fused(report) == ["softmax"]
    (kept,) = report.refused
    assert kept.name == "attn.0" and kept.reason.code == "RF490" and report.coverage == 0.5
    assert "planned, not built" in report.summary()


def test_attention_of_which_one_product_fits_is_fused_as_far_as_it_fits():
    report = planned(lambda q, k, v: torch.softmax(q @ k.mT / 8, -1) @ v, (r(2, 4, 128, 128),) * 3)
    assert fused(report) == ["attn"] and [n.code for n in report.notes if "not joined with aten.matmul" in n.text] == ["RF490"]


def test_an_attention_that_torch_runs_as_one_call_is_not_taken_apart_for_a_part_of_it():
    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    for width, want, kept in ((64, ["attn"], {}), (128, [], {"attn.0": "RF305"}),
                              (512, [], {"softmax.0": "RF305", "attn.0": "RF490"})):
        report = planned(attention, (r(2, 4, 128, width),) * 3)
        assert fused(report) == want and {c.name: c.reason.code for c in report.refused} == kept
        apart = [c.reason for c in report.refused if c.reason.code == "RF305"]  # and what refused the whole of it is said
        assert all(": RF490 " in r.why and r.help != "nothing to change" for r in apart)


class _Refusing:
    """Stands for everything after partition: refuses what ``bad`` says of the cascade, and counts."""

    def __init__(self, bad):
        self.bad, self.asked = bad, []

    def __call__(self, wanted, arch, records=None, refused=None, **options):
        refused([])
        self.asked += [str(fused.cascade) for _, fused in wanted]
        return [Produced(name, reason=Reason("RF452", why="no")) if self.bad(fused.cascade) else produce(
            name, fused, arch, **options) for name, fused in wanted]


def test_down_to_nothing_every_try_is_smaller_and_the_model_still_runs(monkeypatch):
    def f(q, k, v, w):
        return rms(torch.softmax(q @ k.mT / 8 + 1.0, -1) @ v, w) * 2.0

    args = (r(4, 16, 8), r(4, 16, 8), r(4, 16, 8), r(8))
    for limit in (7, 3, 0):  # a target that takes cascades of at most so many statements
        refusing = _Refusing(lambda c, limit=limit: len(c.stmts) > limit)
        monkeypatch.setattr(pipeline, "produce_all", refusing)
        got = pipeline.run(f, args, arch="cpu", build=False, verify="0")
        assert len(set(refusing.asked)) == len(refusing.asked) < 20  # nothing is asked twice
        assert all(len(x.cascade.stmts) <= limit for x in got.partition.regions)
        for g, w in zip(execute(got.imported, got.partition, args), flat(f(*args)), strict=True):
            torch.testing.assert_close(g, w, rtol=2e-4, atol=2e-5)
        assert len(got.report.fused) == len(got.partition.regions)
    assert not got.partition.regions and {c.name for c in got.report.refused} == {"attn.0", "norm.0"}


def test_what_fails_for_the_machine_is_not_cut(monkeypatch):
    monkeypatch.setattr(pipeline, "produce_all", lambda wanted, *_, refused, **__: refused([]) or [
        Produced(name, reason=Reason("RF450", why="no nvcc")) for name, _fused in wanted])
    got = pipeline.run(lambda x: torch.softmax(x, -1), (r(4, 16),), arch="sm_90a", build=False)
    assert [c.reason.code for c in got.report.refused] == ["RF450"]


def test_a_certificate_that_does_not_hold_gives_way_too(monkeypatch):
    from redfuser import verdicts
    from redfuser.acrf.check import verify

    def check(fused, *_a, **_k):
        return ["rebase: planted"] if any(s.names[0].startswith("o") for s in fused.cascade.stmts) else []

    monkeypatch.setattr(verify, "check", check)
    monkeypatch.setattr(verdicts, "digest", lambda *packages: "")
    with pytest.warns(RuntimeWarning, match="RF901"):
        report = planned(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, (r(2, 16, 8),) * 3, "cpu", "1")
    assert [c.split("_")[-1] for c in fused(report)] == ["softmax"] and report.refused[0].reason.code == "RF901"


def test_equal_layers_give_way_together_and_the_others_stay():
    def model(x):
        for _ in range(3):
            x = torch.softmax(x @ x.mT, -1) @ x
        return F.layer_norm(x, (16,))

    search = Partitioner(import_model(model, (r(2, 16, 16),)))
    names = [x.name for x in search.run().regions]
    assert names == ["attn.0", "attn.1", "attn.2", "norm.0"]
    reason = NotFusable("RF410", "", "fits", "too large", "")
    for _ in range(4):  # a transpose, the scores, the contraction
        found = search.run()
        search.give_up({x.name: reason for x in found.regions if x.name.startswith("attn")})
    assert [x.name for x in found.regions] == ["softmax.0", "softmax.1", "softmax.2", "norm.0"]
    assert len({x.key for x in found.regions}) == 2 and [x.name for x in found.refusals] == ["attn.0", "attn.1", "attn.2"]


def test_a_result_that_what_follows_shows_to_be_wrong_is_not_fused_without_it(monkeypatch):
    """``s * sum 1 / x`` is infinite where ``sum s / x`` is NaN, which nobody tells apart until 1 is divided by it. Of a row that
    is held the elements are divided as the program says."""
    def f(x):
        return 300 / (x.sum(-1, keepdim=True) / x).sum(-1)

    report = planned(f, (r(8, 300),), arch="cpu", verify="1")
    assert len(report.fused) == 1 and not report.refused
    monkeypatch.setattr(pipeline, "holds", lambda fused, arch: False)
    report = planned(f, (r(8, 300),), arch="cpu", verify="1")
    (loss,) = [c.reason for c in report.refused if c.reason]
    assert loss.code == "RF901" and loss.why.startswith("result")


def test_after_eight_failed_checks_the_regions_of_one_operation_are_taken_singly():
    """Each check took seconds: the ninth region that begins with the same operation is not cut join by join."""
    def f(*rows):
        weights = [torch.exp(y - y.amax(1, True)) for y in (x * (1.01 + k / 100) for k, x in enumerate(rows))]
        return [(e / e.sum(1, True)).T for e in weights]

    imported = import_model(f, tuple(r(4, 32) for _ in range(11)))
    for code, singly in (("RF905", 3), ("RF490", 0)):
        search = Partitioner(imported, maps=False)
        found = search.run().regions
        search.give_up({x.name: NotFusable(code, "", "it does not hold", "", "") for x in found})
        assert len(found) == 11 and sum(apart(x.draft.units) <= search.banned for x in search.accepted) == singly


def test_a_sum_beside_a_norm_that_is_fused_is_no_loss():
    """Experts summed, a gate of the normalised row and a norm are not joined; the norm has its kernel, and a sum is no cascade."""
    def f(x, e, g, w):
        h = rms(g, torch.ones(64))
        return rms(x + (e.sum(1) + torch.sigmoid(h @ w) * h), torch.ones(64))

    report = planned(f, (r(24, 64), r(24, 5, 64), r(24, 64), r(64, 1)))
    assert fused(report) == ["norm", "norm_linear"] and not report.refused
    assert any(n.code == "RF207" for n in report.notes)
