"""The corpus in both directions: the torch spelling of a row computes what its text computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from redfuser.acrf.evaluate import run
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
