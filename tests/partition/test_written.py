"""Cascades as people write them: each is found whole, or refused for the reason that applies to it."""

from __future__ import annotations

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
from tests.corpus.torch_written import APART, UNFUSED, WRITTEN, Row
from tests.partition.helpers import execute, flat, partitioned
from tests.partition.test_spellings import errors

CHECKED = ("read_where_another_is_best", "nll_gather", "quiet_softmax_by_zero", "weights_used_three_times", "argmax_router",
           "guarded_maximum", "variance_of_what_counts")
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
    assert p.kept


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


@pytest.mark.parametrize("stage", ["search.outline", "canonical._Outliner.reference", "draft.Drafter.check"])
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


@pytest.mark.parametrize("rows, depth, places, whole", [(72, 1040, 520, True), (40, 1040, 520, False), (72, 64, 520, False)])
def test_the_loss_of_a_deep_product_needs_no_logits(rows, depth, places, whole):
    """The target's logit is taken as the row is made; where the product is shallow or has few rows it stays with the library."""
    args = loss_of(rows, depth, places)
    imported, p = partitioned(Loss(), args)
    assert ("relax.matmul" not in p.kept) == whole and [r.reason.code for r in p.refusals] == []
    (region,) = p.regions
    assert any("select(l == min(max(" in str(s) for s in region.cascade.stmts) == whole
    want = flat(Loss()(*args))
    assert max(errors(execute(imported, p, args), want)) <= 1.0


def test_a_product_that_is_read_elsewhere_is_written():
    def both(x, w, y):
        logits = x @ w.mT
        return torch.nn.functional.cross_entropy(logits.float(), y), logits.amax(0)

    _imported, p = found(Row(both, loss_of(72, 1040, 520)))
    assert "relax.matmul" in p.kept
