"""Text form: what people write reads as they mean it, and what the printer prints reads back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redfuser.acrf.cascade import Axis, Reduce
from redfuser.acrf.expr import Cast, Const, Index, Load, Op, Ref, f32
from redfuser.acrf.text import parse_cascade, parse_cascades, parse_expr
from redfuser.codes import CODES
from redfuser.errors import InputError, RedFuserError
from tests.unit.acrf.cascades import TENSORS, cascade, expr

CORPUS = sorted((Path(__file__).parents[2] / "corpus").glob("*/*.txt"))
SOFTMAX = """
cascade softmax_denominator(x: f32[L]) over l   # as in the papers
  m = max[l] x[l]

  t = sum[l] exp(x[l] - m)
"""
KINDS = {t.name: t.dtype for t in TENSORS}


def test_reads_like_the_papers():
    c = parse_cascade(SOFTMAX)
    m, t = c.stmts
    assert c.axes == (Axis("l", "L"),) and c.outputs == ("t",) and (m.axes, t.axes) == ((), ())
    assert t.expr == Op("exp", (Op("sub", (Load("x", (Index("l"),), "f32"), Ref("m", "f32")), "f32"),), "f32")
    assert str(c) == "\n".join(["cascade softmax_denominator(x: f32[L]) over l", "  m = max[l] x[l]",
                                "  t = sum[l] exp(x[l] - m)", "  return t"])


@pytest.mark.parametrize("path", CORPUS, ids=lambda p: p.stem)
def test_corpus_reads_back(path: Path):
    c = parse_cascade(path.read_text(), path.name)
    assert parse_cascade(str(c)) == c
    assert str(parse_cascade(str(c))) == str(c)


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2**40))
def test_every_cascade_reads_back(seed):
    c = cascade(seed)
    assert parse_cascade(str(c)) == c, str(c)


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2**40))
def test_every_expression_reads_back(seed):
    refs = {"m": "f32", "m@old": "f32", "j": "i64"}
    e = expr(random.Random(seed), "f32", refs, 5)
    assert parse_expr(str(e), refs, KINDS) == e, str(e)


@pytest.mark.parametrize(("text", "expected"), [
    ("-1.0", f32(-1.0)), ("-(1.0)", Op("neg", (f32(1.0),), "f32")), ("f16(0.5)", Const(0.5, "f16")),
    ("f16(f32(0.5))", Cast(f32(0.5), "f16")), ("2 * m", Op("mul", (f32(2.0), Ref("m", "f32")), "f32")),
    ("l + 2", Op("add", (Index("l"), Const(2, "i64")), "i64")), ("i64(2)", Const(2, "i64")),
    ("y[l] * 2", Op("mul", (Load("y", (Index("l"),), "f16"), Const(2.0, "f16")), "f16")),
    ("-inf", f32(float("-inf"))), ("true", Const(True, "bool")),
])
def test_numbers_take_the_dtype_beside_them(text, expected):
    assert parse_expr(text, {"m": "f32"}, KINDS) == expected


def test_minus_and_precedence():
    assert str(parse_expr("a - (b - c) * -d < 2 and not (a < b or c == d)", dict.fromkeys("abcd", "f32"))) == \
        "a - (b - c) * (-d) < 2.0 and not (a < b or c == d)"


def test_extents_that_no_dimension_shows_are_stated():
    text = "cascade a(q: f16[12, 768]) over l where h = 12\n  s[h] = max[l] q[l, h * 64 + 1]\n  return s"
    assert str(parse_cascade(text)) == text
    assert parse_cascade(text).extent("h") == 12


def test_left_out_axes_are_inferred():
    c = parse_cascade("cascade a(x: f32[I, L], w: f32[L, N]) over l\n s = sum[l] x[i, l] * w[l, n]\n"
                      " v, at = topk(2)[l] s * x[i, l]\n p = s - x[i, l]")
    assert [s.axes for s in c.stmts] == [("i", "n"), ("i", "n", "k"), ("i", "n", "l")]
    assert c.extent("k") == 2 and c.outputs == ("v", "at", "p")


def test_the_extent_of_the_raxis_counts():
    c = parse_cascade("cascade mean(x: f32[L]) over l\n s = sum[l] x[l]\n y = s / L")
    assert isinstance(c.stmts[0], Reduce) and str(c.stmts[0]) == "count_L = sum[l] 1.0"
    assert str(c.stmts[2]) == "y = s / count_L"


def test_a_pointwise_reference_may_be_spelled_out():
    spelled = parse_cascade("cascade a(x: f32[I, L]) over l\n m[i] = max[l] x[i, l]\n t[i] = sum[l] x[i, l] - m[i]")
    assert spelled.stmts[1].expr == parse_cascade(
        "cascade a(x: f32[I, L]) over l\n m[i] = max[l] x[i, l]\n t[i] = sum[l] x[i, l] - m").stmts[1].expr


def test_several_cascades_and_places():
    first, second = parse_cascades(SOFTMAX + SOFTMAX.replace("denominator", "again"), "two.txt")
    assert (first.name, second.name) == ("softmax_denominator", "softmax_again")
    assert second.stmts[0].provenance.source == "two.txt:8"


HEAD = "cascade a(x: f32[L], y: f16[L], z: f32[M]) over l\n  "


@pytest.mark.parametrize(("text", "code", "place", "says"), [
    ("", "RF180", "1:1", "one cascade"),
    ("cascade", "RF180", "1:8", "the cascade's name"),
    ("fuse a(x: f32[L])", "RF180", "1:1", "'cascade'"),
    ("cascade a(x: f33[L]) over l\n s = sum[l] x[l]", "RF180", "1:14", "a dtype"),
    (HEAD + "s = sum[l] x[l] +", "RF180", "2:20", "the end of the text"),
    (HEAD + "s = sum[l] x[l] $", "RF180", "2:19", "'$'"),
    (HEAD + "s = exp(max[l] x[l])", "RF180", "2:11", "inside an expression"),
    (HEAD + "s = sum[l] foo(x[l])", "RF180", "2:14", "no function"),
    (HEAD + "s = sum[l] max(x[l])", "RF180", "2:14", "2 operands"),
    (HEAD + "s = sum[l] 0 < x[l] < 1", "RF180", "2:23", "chain"),
    (HEAD + "s = topk(2)[l] x[l]", "RF180", "2:3", "values and indices"),
    (HEAD + "s = topk[l] x[l]", "RF180", "2:11", "topk(k)"),
    (HEAD + "s, t = x[l]", "RF180", "2:3", "topk"),
    (HEAD, "RF180", "1:1", "no statements"),
    (HEAD + "s = sum[l] q[l]", "RF181", "2:14", "'q'"),
    (HEAD + "s = sum[l] t\n  t = sum[l] x[l]", "RF181", "2:14", "'t'"),
    (HEAD + "x = sum[l] x[l]", "RF181", "2:3", "already input x"),
    (HEAD + "s = sum[l] x[l] / M", "RF181", "2:21", "extent of a dimension"),
    (HEAD + "m@old = sum[l] x[l]", "RF181", "2:3", "state version"),
    (HEAD + "s = sum[l] x[l]\n  return r", "RF181", "3:10", "'r'"),
    (HEAD + "l = sum[l] x[l]", "RF181", "1:49", "both an axis and a value"),
    (HEAD + "s = sum[l] x[l] + y[l]", "RF182", "2:19", "f32 and f16"),
    (HEAD + "s = sum[l] x[l] + l", "RF182", "2:19", "f32 and i64"),
    (HEAD + "s = sum[l] x[0.5]", "RF182", "2:16", "not a value of i64"),
    (HEAD + "s = sum[l] x[x[l]]", "RF182", "2:16", "integer"),
    (HEAD + "s = any[l] x[l]", "RF182", "2:14", "cannot reduce f32"),
    (HEAD + "s = sum[l] select(x[l], 1, 0)", "RF182", "2:21", "bool"),
    (HEAD + "s = sum[l] l / 2", "RF182", "2:16", "takes a float"),
    (HEAD + "s = sum[l] x[l, l]", "RF183", "2:14", "1 dimension, 2 indices"),
    (HEAD + "s = sum[l] x", "RF183", "2:14", "without indices"),
    (HEAD + "s[i] = sum[l] x[l]", "RF183", "2:5", "axis i cannot be inferred"),
    (HEAD + "s[l] = sum[l] x[l]", "RF183", "2:5", "reduced"),
    (HEAD + "s[m] = sum[l] x[l] * z[m] * z[n]", "RF183", "2:5", "axis n is free"),
    (HEAD + "s = sum[l] x[l] * z[l]", "RF183", "1:49", "different extents"),
    (HEAD + "s = sum[l] " + "(" * 5000 + "x[l]" + ")" * 5000, "RF180", "2:78", "too deeply"),
])
def test_errors_point_at_the_place(text, code, place, says):
    with pytest.raises(InputError) as e:
        parse_cascade(text, "f.txt")
    assert e.value.code == code and code in CODES
    assert says in str(e.value) and f"(f.txt:{place})" in str(e.value), str(e.value)
    assert "^" in str(e.value)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**40))
def test_no_text_raises_anything_else(seed):
    rng = random.Random(seed)
    text = rng.choice([SOFTMAX, *(p.read_text() for p in CORPUS[:8])])
    at, cut = rng.randint(0, len(text)), rng.randint(0, 6)
    put = "".join(rng.choice("lmx[](),:=+-*/<>% \n.015eif@#$") for _ in range(rng.randint(0, 5)))
    try:
        parse_cascades(text[:at] + put + text[at + cut:])
    except RedFuserError as e:
        assert e.code.startswith("RF18")
