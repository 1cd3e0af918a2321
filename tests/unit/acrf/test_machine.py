"""What the checker's evaluators do for speed gives what the plain way gives."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from redfuser.acrf.cascade import Cascade
from redfuser.acrf.check import pieces
from redfuser.acrf.check.evaluate import FusedMachine, share
from redfuser.acrf.check.labelled import Labelled
from redfuser.acrf.check.machine import Machine
from redfuser.acrf.check.samples import sample
from redfuser.acrf.check.stress import TRIAL, Strained, machine, strained, strains
from redfuser.acrf.check.systems import domain
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.expr import Index, Load, Ref, walk
from redfuser.acrf.state import Fused
from redfuser.acrf.text import parse_cascade
from tests.unit.acrf.corpus import ACCEPT

NAMES = ("attention_causal", "softmax_value", "variance", "inertia", "route", "route_one", "argmax_probability", "layernorm")
CASES = [c for c in ACCEPT if c.name in NAMES]


def on(case: object, length: int = 5) -> FusedMachine:
    f = fuse(case.cascade, case.casts)  # type: ignore[attr-defined]
    assert isinstance(f, Fused)
    f = share(f)
    return FusedMachine.on(f, sample(f.cascade, {}, "generic", length, 0).machine(f.cascade, domain("digits")))


def same(a: Labelled, b: Labelled) -> bool:
    x, y = np.broadcast_arrays(a.aligned(tuple(dict.fromkeys((*a.axes, *b.axes)))), b.aligned(
        tuple(dict.fromkeys((*a.axes, *b.axes)))))
    return all(p == q or (p != p and q != q) for p, q in zip(x.ravel(), y.ravel(), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_merges_of_all_pairs_are_the_merges_of_each(case: object) -> None:
    f = on(case)
    with np.errstate(all="ignore"):
        states = [f.init(), *(f.step(f.init(), *ends) for ends in pairwise((0, 1, 3, f.length)))]
        pairs = [(a, b) for a in states for b in states]
        together, apart = f.merges(pairs), [f.merge(a, b) for a, b in pairs]
    for got, want in zip(together, apart, strict=True):
        assert got.keys() == want.keys()
        assert all(same(got[n], want[n]) for n in want)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_segment_sees_the_rows_values_where_no_name_is_read(case: object) -> None:
    f = on(case)
    axis, whole = f.fused.cascade.raxis, f.whole
    parts = [x for a in f.fused.state.accumulators for x in walk(a.contribution)]
    parts += [x for s in f.fused.producers for x in walk(s.expr)]
    parts = [x for x in parts if not any(isinstance(y, Ref) for y in walk(x))]
    assert any(isinstance(x, (Load, Index)) for x in parts) or not parts
    for start, stop in ((0, 0), (0, 2), (1, 4), (0, f.length)):
        cut = whole.segment(axis, start, stop)
        plain = Machine(whole.numbers, whole.tensors, whole.dtypes, cut.ranges, whole.stmt_axes)
        assert all(same(cut.expr(x), plain.expr(x)) for x in parts)


GATHERED = """cascade gathered(x: f32[6, 9], y: i64[6], v: f32[8, 3]) over l where i = 6, l = 9
  m[i] = max[l] x[i, l]
  at[i] = argmax[l] x[i, l]
  t[i] = sum[l] exp(x[i, l] - m)
  d[i] = x[i, y[i]] - x[i, at] - m[y[i]] + v[at % 8, 0]
  return m, t, d"""


@pytest.mark.parametrize("cascade", [*(c.cascade for c in CASES), parse_cascade(GATHERED)], ids=lambda c: c.name)
def test_many_trials_at_once_are_each_of_them(cascade: Cascade) -> None:
    s = sample(cascade, {}, "positive", 7, 0)
    every = list(strains(cascade, 7))[:5]
    tensors = strained(cascade, s, every, 3)
    results = []
    for these in (slice(None), *(slice(i, i + 1) for i in range(len(every)))):
        part = {n: t.only(these) for n, t in tensors.items()}
        m = machine(cascade, s, part, len(every[these]), domain("program"))
        with np.errstate(all="ignore"):
            for stmt in cascade.stmts:
                m.statement(stmt)
        results.append({n: np.broadcast_to(v := m.values[n].aligned((TRIAL, *cascade.stmt(n).axes)),
                                           (len(every[these]), *v.shape[1:])) for n in cascade.outputs})
    together, *apart = results
    for n in cascade.outputs:
        assert np.allclose(together[n], np.concatenate([a[n] for a in apart]), 1e-5, equal_nan=True), n


def test_elements_are_drawn_from_their_distribution() -> None:
    i, j = np.meshgrid(np.arange(300), np.arange(400), indexing="ij")
    kinds = (("normal", 0, 1), ("positive", 1, 12**-0.5), ("shifted", 1e4, 1), ("wide", 0, 2e4 / 12**0.5))
    x = Strained((300, 400), "f64", tuple(k for k, *_ in kinds), np.arange(4, dtype=np.uint64)).at((i, j), domain("f64"))
    for (_, mean, deviation), row in zip(kinds, x, strict=True):
        assert len(np.unique(row)) > 0.99 * row.size
        assert abs(row.mean() - mean) < 0.02 * deviation and abs(row.std() - deviation) < 0.01 * deviation


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("trials", [False, True], ids=["a sample", "many trials"])
def test_what_is_reduced_piece_by_piece_is_what_is_reduced_at_once(case: object, trials: bool,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    f, met = on(case, 9).fused, []
    joined = pieces.joined
    monkeypatch.setattr(pieces, "joined", lambda axis, parts: (met.append(axis), joined(axis, parts))[1])
    for seed in range(8):
        s = sample(f.cascade, {}, "generic", 9, seed)
        tensors = strained(f.cascade, s, list(strains(f.cascade, 9))[:3], 0)
        found = []
        for at_once in (1 << 23, 1):
            monkeypatch.setattr(pieces, "AT_ONCE", at_once)
            m = machine(f.cascade, s, tensors, 3, domain("f64", True)) if trials else s.machine(f.cascade, domain("f64", True))
            with np.errstate(all="ignore"):
                for stmt in f.cascade.stmts:
                    m.statement(stmt)
            found.append({n: (x.axes, x.data.tobytes()) for n, x in m.values.items()})
        assert found[0] == found[1]
    assert met
