"""What is derived of a whole tile holds of each of its elements, whatever the data are."""

from __future__ import annotations

import itertools
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, Op, Ref, op
from redfuser.acrf.index import i64
from redfuser.tensorize.ir.pointwise import ARRAY, NUMPY_DTYPES, converted
from redfuser.tensorize.summary.intervals import WIDE, Leaf, derive

ROWS, COLUMNS = 3, 4
"""Elements of a tile."""
TENSORS = {"a": ("i64", "i"), "b": ("i64", "l"), "f": ("f32", "i"), "g": ("f32", "l"), "h": ("f16", "l"), "r": ("bool", "i"),
           "m": ("bool", "l"), "n": ("i64", "")}


def load(name: str) -> Expr:
    dtype, axis = TENSORS[name]
    return Load(name, (Index(axis),) if axis else (Index("z"),), dtype)


def evaluated(e: Expr, env: dict[str, Any]) -> Any:
    """With NumPy: axes, tensors and bounds by name."""
    match e:
        case Const(value=v, dtype=d):
            return NUMPY_DTYPES[d].type(v)
        case Index(axis=a):
            return env[a]
        case Ref(name=n):
            return env[n]
        case Load(tensor=n):
            return env[n]
        case Cast(arg=x, dtype=d):
            return converted(np.asarray(evaluated(x, env)), NUMPY_DTYPES[d])
        case Op(name=n, args=args):
            return ARRAY[n](*(evaluated(x, env) for x in args))
    raise AssertionError(e)


def bounds(leaf: Leaf, env: dict[str, Any]) -> dict[str, Any]:
    """The least and the greatest of a term over its side of the tile, as the kernels of a summary keep them."""
    shape = (1, COLUMNS) if leaf.columns else (ROWS, 1)
    x = np.broadcast_to(evaluated(leaf.term, env), shape)
    if leaf.floats:
        low, high = (np.where(np.isnan(x), over, x).astype(np.float32) for over in (-inf, inf))
    elif leaf.term.dtype == "bool":
        low = high = x.astype(np.int64)
    else:
        low = high = np.clip(x.astype(np.int64), -WIDE, WIDE)
    return {str(leaf.low): low.min(), str(leaf.high): high.max()}


def holds(condition: Expr, env: dict[str, Any]) -> tuple[bool, bool]:
    """Is a condition said to hold nowhere, and does it?"""
    with np.errstate(all="ignore"):
        found = derive(condition, "i", "l", frozenset({"z"}))
        said = found is not None and bool(evaluated(found.never, {k: v for f in found.leaves for k, v in bounds(f, env).items()}))
        return said, not np.any(np.broadcast_to(evaluated(condition, env), (ROWS, COLUMNS)))


FLOATS = st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0, 3.0, inf, -inf, nan, 65504.0, 1e30, -1e30])
WHOLE = st.one_of(st.integers(-3, 3), st.sampled_from([WIDE, -WIDE, WIDE - 1, 1 << 40, -(1 << 62), (1 << 31) - 1]))


@st.composite
def tiles(draw: Any) -> dict[str, Any]:
    first = {"i": draw(st.integers(0, 9)), "l": draw(st.integers(0, 9))}
    env: dict[str, Any] = {"i": first["i"] + np.arange(ROWS)[:, None], "l": first["l"] + np.arange(COLUMNS)[None], "z": 0}
    kinds = {"i64": WHOLE, "f32": FLOATS, "f16": FLOATS, "bool": st.booleans()}
    for name, (dtype, axis) in TENSORS.items():
        shape = {"i": (ROWS, 1), "l": (1, COLUMNS), "": (1, 1)}[axis]
        one = draw(st.booleans()) and draw(st.lists(kinds[dtype], min_size=1, max_size=1))
        x = one * (ROWS * COLUMNS) if one else draw(st.lists(kinds[dtype], min_size=12, max_size=12))
        with np.errstate(all="ignore"):
            env[name] = np.resize(np.asarray(x, np.float64 if dtype[0] == "f" else None), shape).astype(NUMPY_DTYPES[dtype])
    return env


def whole() -> st.SearchStrategy[Expr]:
    leaves = st.sampled_from([load("a"), load("b"), load("n"), Index("i"), Index("l"), i64(2), i64(-1), i64(5)])
    return st.recursive(leaves, lambda x: st.one_of(
        st.builds(lambda n, a, b: op(n, a, b), st.sampled_from(["add", "sub", "min", "max"]), x, x),
        st.builds(lambda a, k: op("mul", a, i64(k)), x, st.integers(-3, 3)),
        st.builds(lambda a, k: op("floordiv", a, i64(k)), x, st.integers(1, 4)),
        st.builds(lambda n, a: op(n, a), st.sampled_from(["neg", "abs"]), x)), max_leaves=4)


def single() -> st.SearchStrategy[Expr]:
    leaves = st.sampled_from([load("f"), load("g"), Cast(load("h"), "f32"), Const(1.5, "f32"), Cast(load("a"), "f32"),
                              Cast(Op("sub", (Index("i"), Index("l")), "i64"), "f32")])
    return st.recursive(leaves, lambda x: st.one_of(
        st.builds(lambda n, a, b: op(n, a, b), st.sampled_from(["add", "sub", "min", "max", "mul"]), x, x),
        st.builds(lambda n, a: op(n, a), st.sampled_from(["neg", "abs"]), x)), max_leaves=3)


def compared() -> st.SearchStrategy[Expr]:
    names = st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"])
    return st.one_of(st.builds(op, names, whole(), whole()), st.builds(op, names, single(), single()),
                     st.sampled_from([load("r"), load("m"), op("eq", load("r"), load("m")), op("ne", load("m"), load("r"))]))


def conditions() -> st.SearchStrategy[Expr]:
    return st.recursive(compared(), lambda x: st.one_of(
        st.builds(op, st.sampled_from(["and", "or"]), x, x), st.builds(lambda a: op("not", a), x)), max_leaves=4)


@settings(max_examples=300, deadline=None)
@given(conditions(), tiles())
def test_what_is_said_to_hold_nowhere_does_not(condition: Expr, env: dict[str, Any]) -> None:
    said, true = holds(condition, env)
    assert true or not said, condition


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]), st.sampled_from([("a", "b"), ("f", "g"), ("n", "b"), ("r", "m")]), tiles())
def test_of_two_terms_all_is_said(name: str, pair: tuple[str, str], env: dict[str, Any]) -> None:
    """Of a comparison of what rows have with what columns have, bounds say as much as can be said, where all are known. (That
    two intervals meet and no two elements do, no bounds can tell.)"""
    x, y = (env[n] for n in pair)
    known = all(np.isfinite(v).all() if v.dtype.kind == "f" else (np.abs(v.astype(np.int64)) < WIDE).all() for v in (x, y))
    said, true = holds(op(name, *map(load, pair)), env)
    meet = name == "eq" and not (x.max() < y.min() or y.max() < x.min())
    assert said == true or not known or meet or (pair == ("r", "m") and name not in ("eq", "ne"))


HIDDEN = {
    "x[i] == x[l]": op("eq", load("a"), load("b")), "l < n": op("lt", Index("l"), load("n")), "m[l]": load("m"),
    "m[l] and x[i] == x[l]": op("and", load("m"), op("eq", load("a"), load("b"))),
    "l <= i and x[i] == x[l]": op("and", op("le", Index("l"), Index("i")), op("eq", load("a"), load("b"))),
    "i - l < x[l]": op("lt", op("sub", Index("i"), Index("l")), load("b")),
    "not x[i] != x[l]": op("not", op("ne", load("a"), load("b"))),
    "r[i] or m[l]": op("or", load("r"), load("m")), "f[i] > g[l]": op("gt", load("f"), load("g")),
}


@pytest.mark.parametrize("what", HIDDEN)
def test_conditions_of_either_side_are_followed(what: str) -> None:
    assert derive(HIDDEN[what], "i", "l", frozenset({"z"})) is not None


BOTH = Load("k", (Index("i"), Index("l")), "bool")


@pytest.mark.parametrize("condition", [
    BOTH, op("lt", Load("s", (Index("i"), Index("l")), "f32"), load("f")), op("le", Index("l"), Index("i")),
    op("lt", op("sub", op("mul", load("f"), Const(1.5, "f32")), load("g")), Const(1.0, "f32")),  # rounded once, or twice
    op("lt", op("exp", op("sub", load("f"), load("g"))), Const(1.0, "f32")), op("eq", Ref("m", "f32"), load("g")),
    op("lt", op("mod", op("add", load("a"), load("b")), i64(3)), i64(1)),
], ids=str)
def test_others_are_not(condition: Expr) -> None:
    """Data of both axes, positions alone (which loops know), sums of products of floats, what is reduced."""
    assert derive(condition, "i", "l", frozenset({"z"})) is None
    beside = derive(op("and", condition, load("m")), "i", "l", frozenset({"z"}))
    assert beside is not None and "high" in str(beside.never), "what is known of the rest stays"


FAR = {"whole": ("a", "b", (0, 5, WIDE - 1, WIDE, WIDE + 1, 1 << 40, -WIDE, 1 - WIDE, -(1 << 50))),
       "single": ("f", "g", (0.0, 1.0, inf, -inf, nan, 65504.0, -3.0, 3e38))}


@pytest.mark.parametrize("kind", FAR)
def test_at_the_ends_of_a_type(kind: str) -> None:
    """Each with each, alone in a tile and with a third beside it."""
    x, y, values = FAR[kind]
    joined = op("sub", load(x), load(y))
    zero = i64(0) if kind == "whole" else Const(0.0, "f32")
    asked = [op(n, *sides) for n in ("lt", "le", "gt", "ge", "eq", "ne") for sides in (
        (load(x), load(y)), (joined, zero), (op("min", load(x), load(y)), zero), (op("neg", load(x)), load(y)))]
    env: dict[str, Any] = {"i": np.arange(ROWS)[:, None], "l": np.arange(COLUMNS)[None], "z": 0}
    dtype = NUMPY_DTYPES[TENSORS[x][0]]
    for k, (v, w) in enumerate(itertools.product(values, values)):
        for beside in (w, values[k % len(values)]):
            env |= {x: np.full((ROWS, 1), v, dtype), y: np.array([[w, w, beside, w]], dtype)}
            for e in asked:
                for condition in (e, op("not", e)):
                    said, true = holds(condition, env)
                    assert true or not said, (str(condition), v, w, beside)


def test_what_lies_apart_is_known_to_whatever_it_is_cut_off() -> None:
    env = {"i": np.arange(ROWS)[:, None], "l": np.arange(COLUMNS)[None], "z": 0, "a": np.full((ROWS, 1), -3),
           "b": np.array([[1 << 40, 1 << 50, WIDE, 1 << 60]])}
    assert holds(op("eq", load("a"), load("b")), env) == (True, True)
    assert holds(op("ge", load("a"), load("b")), env) == (True, True)
    far = {**env, "a": np.full((ROWS, 1), 1 << 45)}
    assert not holds(op("eq", load("a"), load("b")), far)[0] and not holds(op("lt", load("a"), load("b")), far)[0]
    assert not holds(op("lt", op("add", load("a"), load("b")), i64(0)), env)[0], "a sum of what is cut off is no bound"


def test_what_is_no_number_hides_nothing() -> None:
    env = {"i": np.arange(ROWS)[:, None], "l": np.arange(COLUMNS)[None], "z": 0, "f": np.float32([[1], [2], [nan]]),
           "g": np.float32([[3, 4, 5, 6]])}
    condition = op("gt", load("f"), load("g"))
    assert holds(condition, env) == (False, True), "NaN is greater than nothing, but no bound says so"
    assert holds(condition, {**env, "f": np.float32([[1], [2], [3]])}) == (True, True)
    for g in ([[nan, 4, 5, 6]], [[inf, 4, 5, 6]]):
        assert not holds(condition, {**env, "f": np.float32([[1], [2], [3]]), "g": np.float32(g)})[0]
    assert not holds(op("not", op("le", load("f"), load("g"))), env)[0]


A, B = load("a"), load("b")
FORMS = {"sum": op("add", A, B), "difference": op("sub", A, B), "turned": op("add", op("neg", A), B), "times": op("add", op("mul", A, i64(-2)), B),
         "tripled": op("mul", op("sub", A, B), i64(-3)), "apart": op("abs", op("sub", A, B)), "halves": op("floordiv", op("sub", A, B), i64(2)),
         "less": op("min", A, B), "more": op("max", op("neg", A), B), "chosen": Op("select", (load("m"), A, B), "i64"),
         "single": Cast(op("sub", A, B), "f32")}


@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("form", FORMS)
@given(st.data())
def test_arithmetic_of_both_sides(form: str, data: Any) -> None:
    few = st.lists(st.integers(-4, 4), min_size=12, max_size=12)
    env = {"i": np.arange(ROWS)[:, None], "l": np.arange(COLUMNS)[None], "z": 0, "a": np.resize(data.draw(few), (ROWS, 1)),
           "b": np.resize(data.draw(few), (1, COLUMNS)), "m": np.resize(data.draw(st.lists(st.booleans(), min_size=4, max_size=4)), (1, 4))}
    limit = data.draw(st.integers(-9, 9))
    e = FORMS[form]
    bound = i64(limit) if e.dtype == "i64" else Const(float(limit), "f32")
    for name in ("lt", "ge", "eq"):
        said, true = holds(op(name, e, bound), env)
        assert true or not said, (name, limit, env)
        exact = form not in ("tripled", "apart", "halves", "chosen") and name != "eq"
        assert said == true or not exact, "the ends of an interval are reached"


def test_sums_beyond_32_bits_are_not_followed() -> None:
    """Bounds are numbers of 32 bits, and so is what a GPU makes of them."""
    within, beyond = op("add", op("sub", A, B), A), op("mul", op("sub", A, B), i64(3))
    assert derive(op("lt", within, i64(0)), "i", "l", frozenset()) is not None
    assert derive(op("lt", beyond, i64(0)), "i", "l", frozenset()) is None
