"""What the checker's evaluators do for speed gives what the plain way gives."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from redfuser.acrf.domains import domain
from redfuser.acrf.evaluate import FusedMachine, share
from redfuser.acrf.expr import Index, Load, Ref, walk
from redfuser.acrf.fuse import fuse
from redfuser.acrf.labelled import Labelled
from redfuser.acrf.machine import Machine
from redfuser.acrf.samples import LONG, noise, sample
from redfuser.acrf.state import Fused
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


def test_noise_is_a_function_of_the_place() -> None:
    shape = (300, 400)
    i, j = np.meshgrid(np.arange(300), np.arange(400), indexing="ij")
    for kind, mean, deviation in (("normal", 0, 1), ("positive", 1, 12**-0.5), ("shifted", 1e4, 1), ("wide", 0, 2e4 / 12**0.5)):
        whole = noise(kind, 7, (i, j), shape)
        assert np.array_equal(whole[5:9, ::3], noise(kind, 7, (i[5:9, ::3], j[5:9, ::3]), shape))
        assert not np.array_equal(whole, noise(kind, 8, (i, j), shape)) and len(np.unique(whole)) > 0.99 * whole.size
        assert abs(whole.mean() - mean) < 0.02 * deviation and abs(whole.std() - deviation) < 0.01 * deviation
    spikes = np.mean(noise("spike", 7, (i, j), shape) == 3e4)
    assert 0.008 < spikes < 0.012


def test_a_long_row_reads_the_same_elements_in_every_number_system() -> None:
    f = fuse(CASES[0].cascade)
    assert isinstance(f, Fused)
    tensors = sample(f.cascade, {}, "normal", LONG + 1, 0).tensors.values()
    places = [tuple(np.arange(3) % d for d in t.shape) for t in tensors]
    for t, p in zip(tensors, places, strict=True):
        x, y = (t.at(p, domain(d)) for d in ("f64", "program"))
        assert np.array_equal(x, y.astype(np.float64)) and np.any(x)
