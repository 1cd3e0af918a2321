"""Cascades as people write them: each is found whole, or refused for the reason that applies to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("tvm")

import torch

import redfuser
from redfuser import numerics
from redfuser.acrf.check.verify import check
from redfuser.acrf.expr import Ref
from redfuser.frontend import import_model
from redfuser.frontend.local import REDUCTIONS
from redfuser.partition import partition
from redfuser.target import TARGETS
from tests.corpus.torch_written import APART, UNFUSED, WRITTEN, Row
from tests.partition.helpers import execute, flat, outside, partitioned
from tests.partition.test_spellings import errors

CHECKED = ("read_where_another_is_best", "nll_gather", "quiet_softmax_by_zero", "weights_used_three_times", "argmax_router",
           "guarded_maximum", "variance_of_what_counts", "distillation", "entropy_by_xlogy",
           "renyi_entropy", "fourth_moment_of_weights")
"""Rows whose certificate is checked: shapes of state that no row of the text corpus has."""

COMPILED = ("cross_entropy", "loss_of_the_best", "switch_router", "one_hot_loss")


def found(row):
    with torch.no_grad():
        imported = import_model(row.function, row.inputs)
    return imported, partition(imported)


@pytest.mark.parametrize("name", WRITTEN)
def test_the_cascade_is_whole(name):
    row = WRITTEN[name]
    imported, p = found(row)
    assert [str(r.reason.code) for r in p.refusals] == [] and not p.opaque
    assert len(p.regions) == row.regions
    assert not [o for r in p.parts for o in outside(r.cascade)]
    assert {op.removeprefix("relax.") for op in p.kept} & (REDUCTIONS | {"topk", "nn.softmax"}) == set(row.outside)
    if name in CHECKED:
        assert [v for r in p.regions for v in check(r.fused)] == []
    with torch.no_grad():
        want = flat(row.function(*row.inputs))
        got = [g.reshape(w.shape) for g, w in zip(execute(imported, p, row.inputs), want, strict=True)]  # a scalar is [1]
        assert max(errors(got, want)) <= 1.0


@pytest.mark.parametrize("name", UNFUSED)
def test_the_reason_names_the_operator_and_the_line(name):
    row = UNFUSED[name]
    _imported, p = found(row)
    assert [(r.reason.code, r.reason.provenance.op) for r in p.refusals] == [(row.code, row.op)]
    (refusal,) = p.refusals
    assert refusal.reason.provenance.source.startswith("torch_written.py:") and refusal.reason.help and refusal.reason.why
    assert p.kept or p.maps  # a sum that is left of it is one kernel with its map


@pytest.mark.parametrize("name", APART)
def test_a_join_that_is_not_made_is_a_note(name):
    row = APART[name]
    _imported, p = found(row)
    assert p.regions and not p.refusals
    (note,) = (n for n in p.notes if n.code == row.code)
    assert note.about.startswith(f"{row.op} (torch_written.py:") and note.text


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_it_computes_what_torch_does(name):
    row = WRITTEN[name]
    compiled = redfuser.compile(row.function, row.inputs, target="cpu", fallback="error")
    numerics.require(numerics.check(compiled, row.function, row.inputs), name)


def test_a_refused_pair_ends_partitioning():
    """Two softmaxes and two sums refused together, whichever of them the cascade grew from."""

    def divergence(x, y):
        p, q = torch.softmax(x, -1), torch.softmax(y, -1)
        m = 0.5 * (p + q)
        return 0.5 * (p * (p.log() - m.log())).sum(-1) + 0.5 * (q * (q.log() - m.log())).sum(-1)

    _imported, p = found(Row(divergence, (torch.randn(6, 50), torch.randn(6, 50))))
    assert {n.code for n in p.notes} | {r.reason.code for r in p.refusals} >= {"RF201"}
    assert sum(len(r.outputs) for r in p.regions) >= 2


@pytest.mark.parametrize("stage", ["forming.outline", "canonical._Outliner.reference", "draft.verdict"])
def test_an_error_of_ours_is_a_refusal(stage, monkeypatch, caplog):
    def broken(*_args):
        raise KeyError("planted")

    def malformed(_self, e):
        return Ref("nobody", e.dtype)

    monkeypatch.setattr(f"redfuser.partition.{stage}", malformed if stage.endswith("reference") else broken)
    _imported, p = found(WRITTEN["loss_of_the_best"])
    assert not p.regions and "RF902" in caplog.text
    if not stage.startswith("draft"):
        assert {r.reason.code for r in p.refusals} == {"RF902"}


def test_a_label_out_of_bounds_reads_inside_the_row():
    row = WRITTEN["nll_gather"]
    compiled = redfuser.compile(row.function, row.inputs, target="cpu", fallback="error")
    x, t = row.inputs
    wild = t.clone()
    wild[0], wild[1] = 1 << 30, -5
    got = compiled(x, wild)
    assert torch.isfinite(got).all() and torch.allclose(got[2:], row.function(x, t)[2:], atol=1e-5)


class Loss(torch.nn.Module):
    def forward(self, x, w, y):
        return torch.nn.functional.cross_entropy((x @ w.mT).float(), y, reduction="none")


def loss_of(rows, depth, places):
    y = torch.randint(places, (rows,))
    y[1] = -100
    return torch.randn(rows, depth).bfloat16(), torch.randn(places, depth).bfloat16() * depth ** -0.5, y


@pytest.mark.parametrize("rows, depth, sms, whole", [(64, 1032, 2, True), (64, 1032, 132, False), (40, 1032, 2, False)])
def test_the_loss_of_a_deep_product_needs_no_logits(rows, depth, sms, whole, monkeypatch):
    """The target's logit is taken as the row is made; a product of few rows or few tiles stays a library's."""
    monkeypatch.setitem(TARGETS, "sm_90a", replace(TARGETS["sm_90a"], sms=sms))
    args = loss_of(rows, depth, 520)
    imported, p = partitioned(Loss(), args)
    assert ("relax.matmul" not in p.kept) == whole and [r.reason.code for r in p.refusals] == []
    (region,) = p.regions
    assert any("select(l == min(max(" in str(s) for s in region.cascade.stmts) == whole
    if whole:
        assert max(errors(execute(imported, p, args), flat(Loss()(*args)))) <= 1.0


def test_the_loss_of_a_language_model_needs_no_logits():
    args = torch.empty(4096, 4096).bfloat16(), torch.empty(32000, 4096).bfloat16(), torch.zeros(4096, dtype=torch.int64)
    _imported, p = partitioned(Loss(), args)
    assert "relax.matmul" not in p.kept and len(p.regions) == 1


def test_a_product_that_is_read_elsewhere_is_written(monkeypatch):
    monkeypatch.setitem(TARGETS, "sm_90a", replace(TARGETS["sm_90a"], sms=2))

    def both(x, w, y):
        logits = x @ w.mT
        return torch.nn.functional.cross_entropy(logits.float(), y), logits.amax(0)

    _imported, p = found(Row(both, loss_of(64, 1032, 520)))
    assert "relax.matmul" in p.kept


def test_a_router_with_one_group_masks_nothing() -> None:
    """As DeepSeek's code is configured by others: the group's scores, its top-k and its mask are nothing, and two kernels remain.
    With several groups the mask is read where the experts are chosen."""
    def route(x: torch.Tensor, b: torch.Tensor, groups: int, kept: int) -> tuple[torch.Tensor, torch.Tensor]:
        scores = x.sigmoid()
        biased = scores + b
        grouped = biased.view(-1, groups, 64 // groups).topk(2)[0].sum(-1)
        mask = torch.zeros_like(grouped).scatter_(1, grouped.topk(kept, sorted=False)[1], 1)
        mask = mask.unsqueeze(-1).expand(-1, groups, 64 // groups).reshape(-1, 64)
        places = biased.masked_fill(~mask.bool(), 0.0).topk(8)[1]
        weights = scores.gather(1, places)
        return places, weights / (weights.sum(-1, keepdim=True) + 1e-20) * 2.5

    args = (torch.randn(40, 64), torch.randn(64) * 0.1)
    for groups, kept, parts in ((1, 1, 2), (8, 4, 3)):
        def f(x: torch.Tensor, b: torch.Tensor, groups: int = groups, kept: int = kept) -> tuple[torch.Tensor, torch.Tensor]:
            return route(x, b, groups, kept)

        imported = import_model(f, args)
        p = partition(imported)
        assert len(p.parts) >= parts and not p.opaque and "relax.scatter_elements" not in p.kept, p.kept
        assert groups > 1 or (not p.kept and len(p.parts) == 2)
        for mine, theirs in zip(execute(imported, p, args), f(*args), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("of", [
    lambda x, y, i: torch.scatter(x, 1, i, y).exp() * 2, lambda x, y, i: torch.scatter(x.mT, 0, i.mT, 3.0).exp() + x.mT,
    lambda x, y, i: torch.zeros_like(x).scatter(-1, i, 1.0) * x], ids=["tensor", "number, down", "marks"])
def test_a_scatter_to_few_places_is_a_map_beside_others(of):
    """And of more than eight, or by itself, torch's call."""
    args = (torch.randn(30, 40), torch.randn(30, 8), torch.stack([torch.randperm(40)[:8] for _ in range(30)]))
    imported = import_model(of, args)
    p = partition(imported)
    assert len(p.parts) == 1 and not p.kept and not p.opaque
    (mine,) = execute(imported, p, args)
    torch.testing.assert_close(mine, of(*args))
    many = torch.stack([torch.randperm(40)[:9] for _ in range(30)])
    assert partition(import_model(lambda x, i: torch.scatter(x, 1, i, 1.0).exp() * 2, (args[0], many))).kept
    assert partition(import_model(lambda x, i: torch.scatter(x, 1, i, 1.0), (args[0], args[2]))).kept
