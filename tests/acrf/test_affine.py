"""Index simplification is exact: the normal form takes the same value at every point (checked by enumeration)."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redfuser.acrf.affine import Indices
from redfuser.acrf.expr import Const, Expr, Index, Op
from redfuser.acrf.index import i64

EXTENTS = {"a": 3, "b": 4, "c": 6, "u": 1}


def value(e: Expr, point: dict[str, int]) -> int:
    match e:
        case Const(value=v):
            return int(v)
        case Index(axis=a):
            return point[a]
        case Op(name=n, args=args):
            v = [value(x, point) for x in args]
            return {"add": lambda: v[0] + v[1], "sub": lambda: v[0] - v[1], "mul": lambda: v[0] * v[1],
                    "neg": lambda: -v[0], "floordiv": lambda: v[0] // v[1], "mod": lambda: v[0] % v[1],
                    "min": lambda: min(v), "max": lambda: max(v), "lt": lambda: int(v[0] < v[1]),
                    "select": lambda: v[1] if v[0] else v[2], "le": lambda: int(v[0] <= v[1]), "eq": lambda: int(v[0] == v[1]),
                    "ne": lambda: int(v[0] != v[1])}[n]()
    raise TypeError(e)


def points():
    names = list(EXTENTS)
    for p in product(*(range(EXTENTS[n]) for n in names)):
        yield dict(zip(names, p, strict=True))


leaves = st.sampled_from([Index(a) for a in EXTENTS]) | st.integers(-5, 30).map(i64)
divisors = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]).map(i64)


def sided(name, e, first, side):
    """One of a number and its negative, by the sign of either."""
    both = e, Op("neg", (e,), "i64")
    cond = Op(name, (i64(0), e) if side else (e, i64(0)), "bool")
    return Op("select", (cond, *(both if first else both[::-1])), "i64")


def grow(inner):
    both = st.tuples(inner, inner)
    return st.one_of(
        st.tuples(st.sampled_from(["le", "lt"]), inner, st.booleans(), st.booleans()).map(lambda t: sided(*t)),
        st.tuples(st.sampled_from(["add", "sub", "min", "max"]), both).map(lambda t: Op(t[0], t[1], "i64")),
        st.tuples(inner, st.sampled_from([2, 3, 4, 6, 12]).map(i64)).map(lambda t: Op("mul", t, "i64")),
        st.tuples(st.sampled_from(["floordiv", "mod"]), st.tuples(inner, divisors)).map(
            lambda t: Op(t[0], t[1], "i64")))


@settings(max_examples=300, deadline=None)
@given(st.recursive(leaves, grow, max_leaves=10))
def test_the_normal_form_is_the_same_function(e):
    ix = Indices(EXTENTS)
    got = ix.simplify(e)
    lo, hi = ix.range_of(e)
    for p in points():
        want = value(e, p)
        assert value(got, p) == want
        assert lo <= want <= hi
    assert ix.simplify(got) == got


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]), st.recursive(leaves, grow, max_leaves=5),
       st.recursive(leaves, grow, max_leaves=5))
def test_comparisons_are_decided_only_when_they_are_decided(name, x, y):
    got = Indices(EXTENTS).compare(name, x, y)
    truth = {"lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__, "eq": int.__eq__,
             "ne": int.__ne__}[name]
    for p in points():
        assert bool(value(got, p)) == truth(value(x, p), value(y, p))


@pytest.mark.parametrize(("text", "want"), [
    ("(h * 64 + c) // 64", "h"), ("(h * 64 + c) % 64", "c"), ("(h * 64 + c) // 32", "h * 2 + c // 32"),
    ("(h * 64 + c) // 128", "h // 2"), ("(b * 12 + h) // 12", "b"), ("((x // 4) * 4) + x % 4", "x"),
    ("(x % 24) // 4", "x // 4 % 6"), ("(x // 4) // 3", "x // 12"), ("((h * 64 + c) // 768 + i) % 512", "i"),
    ("min(max(c, 0), 63)", "c"),
    # a padded view moved by half a line (relative positions): digits of one number
    ("((i * 1023 + c) // 512 + 1) // 2", "(i * 1023 + c + 512) // 1024"),
    ("((i * 1023 + c) // 512 + 1) % 2 * 512 + (i * 511 + c) % 512", "(i * 1023 + c + 512) % 1024"),
    ("(i * 41 + c) % 40", "(c + i) % 40"),
])
def test_reshapes_reduce(text, want):
    extents = {"h": 12, "c": 64, "b": 2, "x": 100, "i": 512}
    env = {n: Index(n) for n in extents}
    assert str(Indices(extents).simplify(_parse(text, env))) == want


@pytest.mark.parametrize(("order", "want"), [((0, 1), "max(i - 2, -i + 2)"), ((1, 0), "min(i - 2, -i + 2)")])
def test_a_magnitude_is_no_branch(order, want):
    """A reflected edge: |i - 2|, whose range is known from below."""
    x, ix = Op("sub", (Index("i"), i64(2)), "i64"), Indices({"i": 9})
    minus, sides = Op("neg", (x,), "i64"), (i64(0), x)
    e = Op("select", (Op("le", tuple(sides[k] for k in order), "bool"), x, minus), "i64")
    assert str(ix.simplify(e)) == want and ix.range_of(Op("max", (x, minus), "i64")) == (0, 6)


def _parse(text, env):
    """Python's own operators over a tiny wrapper: enough to write index expressions in a test."""
    class W:
        def __init__(self, e): self.e = e
        def _bin(name):
            return lambda s, o: W(Op(name, (s.e, o.e if isinstance(o, W) else i64(o)), "i64"))
        __add__, __mul__, __floordiv__, __mod__ = _bin("add"), _bin("mul"), _bin("floordiv"), _bin("mod")
    def extremum(name):
        return lambda x, y: W(Op(name, (x.e, i64(y)), "i64"))
    return eval(text, {"min": extremum("min"), "max": extremum("max")} | {n: W(e) for n, e in env.items()}).e
