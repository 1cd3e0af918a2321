"""Every model of the zoo as an outer graph without a fused region equals eager: the text is the whole model."""

from __future__ import annotations

import gc

import pytest
import torch

from redfuser.frontend import import_model
from redfuser.outer import emit
from tests.e2e.models import MODELS
from tests.outer_graphs import rehearsal

CASES = [(name, torch.float32) for name in MODELS] + [("bert", torch.float16), ("llama", torch.bfloat16)]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=[f"{n}-{str(d).removeprefix('torch.')}" for n, d in CASES])
def test_model_equals_eager(name: str, dtype: torch.dtype) -> None:
    model, args = MODELS[name](dtype)
    graph = emit(import_model(model, args))
    rehearsed = rehearsal(graph, args)
    with torch.no_grad():
        want = model(*args)
        got = graph.function()(*args)
    want = want if isinstance(want, tuple) else (want,)
    for w, g, r in zip(want, got, rehearsed, strict=True):
        assert w.dtype == g.dtype == r.dtype and w.shape == r.shape
        unit = torch.finfo(w.dtype).eps
        assert (w.double() - g.double()).abs().max() <= 8 * unit * w.abs().max()
    del model, graph
    gc.collect()
