"""Index maps and mask ranges against brute force; planted errors are seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redfuser.acrf.affine import Affine, Indices, atom
from redfuser.acrf.expr import Const, Expr, Index, Op, op
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import TileConfig, tensorize
from redfuser.tensorize.indexing import view, zero_filled
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.pointwise import apply
from redfuser.tensorize.masks import Analysis, Rows
from tests import fused_examples as cascades
from tests.tensorize import examples


def value(e: Expr, point: dict[str, Any]) -> Any:
    match e:
        case Const(value=v):
            return int(v)
        case Index(axis=a):
            return point[a]
        case Op(name=n, args=args, dtype=d):
            return apply(n, [value(a, point) for a in args], d)
    raise TypeError(e)


def i64(v: int) -> Const:
    return Const(v, "i64")


@st.composite
def conditions(draw, depth: int = 2) -> Expr:
    if depth and draw(st.booleans()):
        return op(draw(st.sampled_from(["and", "or"])), draw(conditions(depth - 1)), draw(conditions(depth - 1)))
    left = op("sub", Index("l"), op("mul", Index("i"), i64(draw(st.sampled_from([0, 1, 2])))))
    right = op("add", i64(draw(st.integers(-20, 40))), op("mul", Index("b"), i64(draw(st.sampled_from([0, 3])))))
    pair = (left, right) if draw(st.booleans()) else (right, left)
    return op(draw(st.sampled_from(["lt", "le", "gt", "ge", "eq"])), *pair)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(conditions(), st.sampled_from([4, 8]), st.sampled_from([4, 5]))
def test_ranges_hold(c, size, rows):
    """Outside the hull nothing is alive; inside the core everything is; segments are rounded outwards."""
    extents = {"i": 20, "l": 30, "b": 3, "i_block": -(-20 // rows)}
    analysis = Analysis("l", Rows("i", rows * atom(Index("i_block")), rows), extents)
    found = analysis.range(c)
    rows_of, columns = np.arange(rows)[:, None], np.arange(30)[None, :]
    for b in range(3):
        for block in range(extents["i_block"]):
            at = {"b": b, "i_block": block}

            def bound(e, otherwise, at=at):
                return otherwise if e is None else value(e, at)

            low, high = bound(found.low, -10**6), bound(found.high, 10**6)
            core = (bound(found.core_low, -10**6), bound(found.core_high, 10**6)) if found.exact else (0, 0)
            alive = np.broadcast_to(value(c, {"i": block * rows + rows_of, "l": columns, "b": b}), (rows, 30)).astype(bool)
            assert not np.any(alive & ((columns < low) | (columns >= high)))
            assert not np.any(~alive & (columns >= core[0]) & (columns < core[1]))
            if found.high is not None:
                steps = value(analysis.segment_of(found.high, size, up=True), at)
                assert steps == -(-high // size)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.integers(2, 6), min_size=1, max_size=3), st.lists(st.sampled_from([0, 1, 2, 3, 6, 12, 24]), min_size=3, max_size=3),
       st.integers(0, 9), st.integers(0, 3))
def test_what_leaves_a_tensor_leaves_its_view(sizes, factors, first, more):
    """Padding is taken for 0 where it is read past the end of the declared shape (MaskTail), and is read through a view, which
    has more ends: whatever lies past one of the first lies past one of the second."""
    extents = {f"a{k}": n for k, n in enumerate(sizes)}
    form = sum((k * atom(Index(a)) for a, k in zip(extents, factors)), Affine((), first))
    total = 1 + more + first + sum(k * (n - 1) for n, k in zip(sizes, factors))
    total += -total % max(1, *factors)
    v = view((total,), [(form,)], extents)
    dims = v.index((form,), extents)
    assert dims is not None
    for axis in extents:
        if not zero_filled((form,), (total,), axis, extents):
            continue
        for point in np.ndindex(*(3 if a == axis else n for a, n in extents.items())):
            at = {a: x + n * (a == axis) for (a, n), x in zip(extents.items(), point)}
            assert any(value(d.expr(), at) >= size for d, size in zip(dims, v.shape)), (axis, at)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 2))
def test_views_keep_elements(sizes, extra):
    """A mixed-radix index read through its view is the same element."""
    axes = [f"a{k}" for k in range(len(sizes))]
    strides = [int(np.prod(sizes[k + 1:])) for k in range(len(sizes))]
    extents = dict(zip(axes, sizes, strict=True))
    total = int(np.prod(sizes)) * (1 + extra)
    e: Expr = i64(extra * int(np.prod(sizes)))
    for a, s in zip(axes, strides, strict=True):
        e = op("add", e, op("mul", Index(a), i64(s)))
    form = Indices(extents).linear(e)
    v = view((total,), [(form,)], extents)
    assert int(np.prod(v.shape)) == total
    dims = v.index((form,), extents)
    data = np.arange(total).reshape(v.shape)
    for point in np.ndindex(*sizes):
        at = dict(zip(axes, point, strict=True))
        assert data[tuple(value(p.expr(), at) for p in dims)] == value(e, at)


def test_quotients_of_groups_are_affine():
    e = op("floordiv", op("add", op("mul", Index("g"), i64(4)), Index("r")), i64(4))
    assert Indices({"g": 3, "r": 4}).of_axes(e) == atom(Index("g"))
    assert Indices({"g": 3, "r": 5}).of_axes(e) is None


@pytest.mark.parametrize("make_cascade", [lambda: cascades.attention(1, 2, 1, 32, 64, 16, "f16"),
                                          lambda: cascades.softmax(4, 64, "f16")])
def test_a_planted_wrong_correction_is_seen(make_cascade):
    good = make_cascade()
    config = TileConfig(16, 16, 32, 1, warp_specialized=False)
    values = examples.inputs(good)
    expected = examples.reference(good, values)["y"]
    results = [interpret.run(tensorize(realise(f, "single"), config, target("sm_80")), values)["y"].astype(np.float64)
               for f in (good, cascades.planted(good))]
    right, wrong = (float(np.abs(y - expected).max()) for y in results)
    assert right < 5e-3 and not wrong < 5e-2


def test_fully_masked_rows_are_nan_as_in_the_source():
    shape = examples.Shape(i=20, n=20, d=16)
    f = examples.attention(shape, mask=examples.masks(shape)["data"])
    values = examples.inputs(f)
    values["mask"][:, 3] = False
    y = interpret.run(tensorize(realise(f, "single"), TileConfig(16, 16, 32, 1), target("sm_80")), values)["y"]
    expected = examples.reference(f, values)["y"]
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    assert np.isnan(y[:, 3]).all()
