"""Whole models: every layer's cascades are found, equal layers share one text, and explaining them takes seconds."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from redfuser.frontend import import_model
from redfuser.partition import partition
from tests.e2e import models
from tests.partition.helpers import execute, flat
from tests.seconds import within


def kinds(p):
    return Counter(r.name.split(".")[0] for r in p.regions)


def agrees(imported, p, model, args, tolerance):
    got = execute(imported, p, args)
    with torch.no_grad():
        want = flat(model(*args))
    for g, w in zip(got, want, strict=True):
        assert float((g.double() - w.double()).abs().max()) <= tolerance * float(w.double().abs().max())


@pytest.mark.slow
def test_bert_base_in_seconds_with_one_text_per_kind_of_layer():
    model, args = models.bert_base(layers=12)
    imported = import_model(model, args)
    with within(6):
        p = partition(imported)
    assert kinds(p) == {"attn": 12, "norm": 25} and not p.refusals
    assert len({r.key for r in p.regions}) == 3  # embeddings, attention, residual norm
    assert set(p.kept) <= {"relax.matmul", "relax.add", "relax.nn.gelu", "relax.permute_dims", "relax.take",
                           "relax.strided_slice", "relax.gather_elements", "relax.broadcast_to"}
    for r in p.regions:
        assert r.ops and all(o.op for o in r.ops) and r.covered >= set(r.outputs.values())


@pytest.mark.slow
@pytest.mark.parametrize(("make", "want", "tolerance"), [
    (lambda: models.llama_decode(dtype=torch.float16), {"attn": 1, "norm": 2}, 2e-2),
    (lambda: models.gemma2(dtype=torch.float16), {"attn": 2}, 2e-2),
    (lambda: models.qwen3_moe(), {"attn": 1, "topk": 1}, 1e-4),
], ids=["llama_decode", "gemma2", "qwen3_moe"])
def test_a_model_with_its_cascades_interpreted(make, want, tolerance):
    model, args = make()
    imported = import_model(model, args)
    p = partition(imported)
    found = kinds(p)
    assert all(found[k] >= n for k, n in want.items()), found
    agrees(imported, p, model, args, tolerance)
