"""Every spelling of a cascade is found, reduces to one canonical text, and means what torch computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from redfuser.acrf.cascade import Cascade
from redfuser.acrf.expr import Const, Op, map_children
from tests.partition.helpers import execute, flat, partitioned, text
from tests.partition.spellings import CASES

SAME = [
    ("sdpa", "decomposed", "scaled_query", "folded_heads"),
    ("sdpa_causal", "causal_arange", "causal_triu", "causal_tril"),
    ("gqa_repeat", "gqa_expand", "gqa_sdpa"),
    ("softmax", "softmax_manual"),
    ("variance", "variance_manual"),
    ("rms_norm_manual", "rms_norm_manual"),
]
TOLERANCE = {torch.float64: 2e-5, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
_FOUND: dict[str, object] = {}


def found(name):
    if name not in _FOUND:
        _FOUND[name] = partitioned(*CASES[name])
    return _FOUND[name]


def errors(got, want):
    """Largest error of each result, in units of the tolerance for its dtype."""
    out = []
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype
        if not w.is_floating_point():
            allowed = max(1.0, 0.02 * w.numel()) if w.dtype == torch.int8 else 0.1  # a rounding on the edge, never an index
            out.append(float((g != w).sum()) / allowed)
            continue
        scale = TOLERANCE[w.dtype] * max(1.0, float(w.abs().max()))
        out.append(float((g.double() - w.double()).abs().max()) / scale)
    return out


@pytest.mark.parametrize("name", CASES)
def test_the_cascade_is_found(name, golden):
    _imported, p = found(name)
    assert p.regions, "nothing was found"
    golden(f"partition/{name}.txt", text(p))


@pytest.mark.parametrize("name", CASES)
def test_the_cascade_means_what_torch_computes(name):
    f, args = CASES[name]
    imported, p = found(name)
    got = execute(imported, p, args)
    with torch.no_grad():
        want = flat(f(*args))
    assert max(errors(got, want)) <= 1.0


@pytest.mark.parametrize("group", SAME, ids=lambda g: g[0])
def test_spellings_of_one_cascade_have_one_text(group):
    assert len({tuple(r.key for r in found(name)[1].regions) for name in group}) == 1


@pytest.mark.parametrize("name", ["manual", "layer_norm", "alibi", "gqa_expand", "inertia"])
def test_a_wrong_constant_or_index_is_seen(name):
    f, args = CASES[name]
    imported, p = found(name)

    def worse(e):
        e = map_children(e, worse)
        if isinstance(e, Const) and e.dtype == "f32":
            return Const(e.value * 1.01, "f32")
        if isinstance(e, Op) and e.name == "floordiv":
            return Op("mod", e.args, e.dtype)
        if isinstance(e, Op) and e.name == "exp":
            return Op("exp2", e.args, e.dtype)
        if isinstance(e, Op) and e.name == "div" and name == "inertia":
            return Op("mul", e.args, e.dtype)
        return e

    def change(c: Cascade) -> Cascade:
        return replace(c, stmts=tuple(replace(s, expr=worse(s.expr)) for s in c.stmts))

    with torch.no_grad():
        want = flat(f(*args))
    assert max(errors(execute(imported, p, args, change), want)) > 1.0
