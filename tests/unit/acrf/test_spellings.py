"""The corpus in both directions: the torch spelling of a row computes what its text computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from redfuser.acrf.evaluate import run
from redfuser.acrf.fuse import fuse
from redfuser.acrf.verify import check
from tests.corpus.torch_spellings import REFUSED, SPELLINGS
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


@pytest.mark.parametrize("name", ["softmax_value", "variance", "inertia", "layernorm", "route", "masked_window", "entropy",
                                  "rmsnorm_gemm"])
def test_the_model_gives_the_state_that_the_text_gives(name, lifted):
    (region,) = lifted(SPELLINGS[name]).regions
    assert check(region.fused) == []
    kinds = [sorted(str(a.reducer) for a in f.state.accumulators)
             for f in (region.fused, fuse(TEXTS[name].cascade, TEXTS[name].casts))]
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize("name", ["reduced_temperature", "top_p"])
def test_the_model_is_refused_for_the_reason_that_the_text_is(name, lifted):
    assert TEXTS[name].directive("expect") in {r.reason.code for r in lifted(REFUSED[name]).refusals}
