"""``redfuser algebra`` on input as people get it wrong: a coded error with line, column and what would help, never a trace;
valid data in every case; what is right in the same file is still told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from redfuser.acrf.check import verify
from redfuser.acrf.cursor import HEIGHT, NESTING
from redfuser.cli.main import cli
from redfuser.codes import CODES

HEAD = "cascade a(x: f32[I, L], y: f32[L], n: i64[L], h: f16[L], w: f32[L, E]) over l\n"
GOOD = "cascade good(x: f32[L]) over l\n  s = sum[l] x[l]\n"


def body(*lines: str) -> str:
    return HEAD + "".join(f"  {line}\n" for line in lines)


def one(declaration: str, statement: str, over: str = "l") -> str:
    return f"cascade a({declaration}) over {over}\n  {statement}\n"


def invoke(*args: str, text: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli, ["algebra", *args], input=text)


def data_of(result: Result) -> list[dict[str, Any]]:
    def finite(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    found: list[dict[str, Any]] = json.loads(result.stdout, parse_constant=finite)
    return found


# name: (text, code, line:column, part of what, part of what would help)
UNREADABLE: dict[str, tuple[str, str, str, str, str]] = {
    # words
    "accented name": (one("xé: f32[L]", "s = sum[l] 1.0"), "RF180", "1:12", "'é'", "ASCII"),
    "times sign": (body("s = sum[l] y[l] × 2"), "RF180", "2:19", "'×'", "write '*'"),
    "minus sign": (body("s = sum[l] y[l] − 2"), "RF180", "2:19", "'−'", "write '-'"),
    "less or equal sign": (body("s = any[l] y[l] ≤ 2"), "RF180", "2:19", "'≤'", "write '<='"),
    "hard space": (body("s\u00a0= sum[l] y[l]"), "RF180", "2:4", r"'\xa0'", "a plain space"),
    "wide digit": (body("s = sum[l] y[l] * １"), "RF180", "2:21", "'１'", "write '1'"),
    "emoji": ("🙂\n", "RF180", "1:1", "'🙂'", "ASCII"),
    "control character": (body("s = sum[l] y[l]\x00"), "RF180", "2:18", r"'\x00'", "ASCII"),
    "curly brackets": (body("s = sum[l] {y[l]}"), "RF180", "2:14", "'{'", "( ) and [ ]"),
    "semicolon": (body("s = sum[l] y[l]; t = max[l] y[l]"), "RF180", "2:18", "';'", "one statement per line"),
    "backslash": (body("s = sum[l] y[l] \\", "  + y[l]"), "RF180", "2:19", r"'\\'", "inside brackets"),
    "caret": (body("s = sum[l] y[l] ^ 2"), "RF180", "2:19", "'^'", "pow(x, 2.0)"),
    "two stars": (body("s = sum[l] y[l] ** 2"), "RF180", "2:19", "'**'", "pow(x, 2.0)"),
    "number and name": (body("s = sum[l] y[l] * 2x"), "RF180", "2:21", "'2x'", "written with *"),
    "hexadecimal": (body("s = sum[l] y[l] * 0x10"), "RF180", "2:21", "'0x10'", "decimal"),
    "half an exponent": (body("s = sum[l] y[l] * 1e-"), "RF180", "2:21", "'1e'", "1e-3"),
    "lone point": (body("s = sum[l] y[l] * ."), "RF180", "2:21", "'.'", "0.5"),
    "another language": ("def f(x):\n    return x.sum()\n", "RF180", "2:13", "'.'", "0.5"),
    "data": ('{"a": 1}', "RF180", "1:1", "'{'", "brackets"),
    "tab before the place": ("cascade a(x: f32[L]) over l\n\tm = max[l] q[l]\n", "RF181", "2:13", "'q'", "earlier statements"),
    "windows line ends": (body("s = sum[l] foo(y[l])").replace("\n", "\r\n"), "RF180", "2:14", "'foo'", "functions: abs"),
    "old line ends": (body("s = sum[l] foo(y[l])").replace("\n", "\r"), "RF180", "2:14", "'foo'", "functions: abs"),
    "byte order mark": ("\ufeff" + body("s = sum[l] foo(y[l])"), "RF180", "2:14", "'foo'", "functions: abs"),
    # the head
    "no cascade": ("softmax(x: f32[L]) over l\n", "RF180", "1:1", "'cascade'", "cascade NAME(x: f32[L]) over l"),
    "no statements": (HEAD, "RF180", "1:1", "no statements", "sum[l] expression"),
    "no over": ("cascade a(x: f32[L])\n  s = sum[l] x[l]\n", "RF180", "1:21", "'over'", "over l"),
    "two r-axes": (one("x: f32[I, L]", "s = sum[l] x[i, l]", "l, i"), "RF180", "1:31", "','", "one axis"),
    "open head": ("cascade a(x: f32[L] over l\n  s = sum[l] x[l]\n", "RF180", "1:21", "')'", "'(' at 1:10"),
    "comma at the end": (one("x: f32[L],", "s = sum[l] x[l]"), "RF180", "1:21", "an input tensor's name", "NAME: DTYPE"),
    "unknown dtype": (one("x: float[L]", "s = sum[l] x[l]"), "RF180", "1:14", "a dtype (f64 f32", "x: f32[I, L]"),
    "no dtype": (one("x[L]", "s = sum[l] x[l]"), "RF180", "1:12", "':'", "NAME: DTYPE"),
    "no shape": (one("x: f32", "s = sum[l] x[l]"), "RF180", "1:17", "'['", "c: f32[]"),
    "negative extent": (one("x: f32[-3]", "s = sum[l] x[l]"), "RF180", "1:18", "an extent", "768"),
    "real extent": (one("x: f32[3.0]", "s = sum[l] x[l]"), "RF180", "1:18", "'3.0'", "a whole number"),
    "extent expression": (one("x: f32[2*L]", "s = sum[l] x[l]"), "RF180", "1:19", "']'", "'[' at 1:17"),
    "huge extent": (one("x: f32[100000000000000000000000]", "s = sum[l] x[l]"), "RF183", "1:18", "too large", "at most"),
    "absurd extent": (one(f"x: f32[{'9' * 6000}]", "s = sum[l] x[l]"), "RF183", "1:18", "9999...99999 is too", "at most"),
    "same input twice": (one("x: f32[L], x: f32[L]", "s = sum[l] x[l]"), "RF181", "1:22", "already input x", "name of its own"),
    "input called sum": (one("sum: f32[L]", "s = sum[l] sum[l]"), "RF181", "1:11", "'sum'", "another name"),
    "input called as the axis": (one("l: f32[L]", "s = sum[l] l[l]"), "RF181", "1:27", "both an axis and a value", "rename"),
    "dimensions disagree": (one("x: f32[8], y: f32[9]", "s = sum[l] x[l] * y[l]"), "RF183", "1:38", "different", "where l"),
    "r-axis nowhere": (one("x: f32[I, L]", "s = sum[l] x[i, l]", "q"), "RF183", "1:30", "axis q", "where q = 64"),
    "r-axis in no load": (one("x: f32[I]", "s = sum[l] x[i]"), "RF183", "1:27", "axis l", "where l = 64"),
    # where
    "empty where": (one("x: f32[L]", "s = sum[l] x[l]", "l where"), "RF180", "1:34", "an axis", "AXIS = EXTENT"),
    "where an expression": (one("x: f32[L]", "s = sum[l] x[l]", "l where l = 2 * 3"), "RF180", "1:41", "'*'", "operator"),
    "where a negative": (one("x: f32[L]", "s = sum[l] x[l]", "l where l = -4"), "RF180", "1:39", "an extent", "768"),
    "where an axis nobody has": (one("x: f32[L]", "s = sum[l] x[l]", "l where i = 4"), "RF183", "1:35", "axis i", "are l"),
    "where a symbol": (one("x: f32[L]", "s = sum[l] x[l]", "l where L = 4"), "RF183", "1:35", "axis L", "input's shape"),
    "where twice": (one("x: f32[L]", "s = sum[l] x[l]", "l where l = 4, l = 5"), "RF183", "1:42", "stated twice", "once"),
    "where a tensor": (one("x: f32[L]", "s = sum[l] x[l]", "l where x = 4"), "RF181", "1:35", "both an axis", "rename"),
    # reductions
    "no axis": (body("s = sum y[l]"), "RF180", "2:11", "'sum' names no axis", "sum[l]"),
    "sum as a function": (body("s = sum(y[l])"), "RF180", "2:10", "'sum' names no axis", "sum[l]"),
    "unknown reduction": (body("s = logsumexp[l] y[l]"), "RF180", "2:7", "no reduction is called 'logsumexp'", "argmin topk(k)"),
    "mean": (body("s = mean[l] y[l]"), "RF180", "2:7", "'mean'", "divided by the axis's extent"),
    "capitals": (body("s = SUM[l] y[l]"), "RF180", "2:7", "'SUM'", "did you mean 'sum'?"),
    "inside an expression": (body("s = sum[l] y[l] / sum[l] y[l]"), "RF180", "2:21", "inside an expression", "statement of its own"),
    "two axes": (body("s = sum[i, l] x[i, l]"), "RF180", "2:7", "one axis", "reductions:"),
    "unknown axis": (body("s = sum[q] y[l]"), "RF183", "2:11", "axis q", "where q = 64"),
    "a tensor for an axis": (body("s = sum[y] y[l]"), "RF181", "2:11", "both an axis", "rename"),
    "topk(0)": (body("v, p = topk(0)[l] y[l]"), "RF183", "2:3", "k >= 1", "topk(8)[l]"),
    "topk(-1)": (body("v, p = topk(-1)[l] y[l]"), "RF180", "2:15", "topk's k", "a whole number"),
    "topk(2.5)": (body("v, p = topk(2.5)[l] y[l]"), "RF180", "2:15", "'2.5'", "a whole number"),
    "topk beyond the row": (one("x: f32[4]", "v, p = topk(9)[l] x[l]"), "RF183", "2:3", "topk(9) of a row of 4", "extent of l"),
    "topk beyond any row": (body("v, p = topk(100000000000)[l] y[l]"), "RF183", "2:15", "too large", "at most"),
    "topk of absurd digits": (body(f"v, p = topk({'9' * 6000})[l] y[l]"), "RF183", "2:15", "too large", "at most"),
    "topk with one result": (body("v = topk(2)[l] y[l]"), "RF180", "2:3", "values and indices", "values, places"),
    "topk without k": (body("v, p = topk[l] y[l]"), "RF180", "2:14", "topk(k)", "topk(8)[l]"),
    "argmax with two results": (body("v, p = argmax[l] y[l]"), "RF180", "2:3", "one result", "the place"),
    "three results": (body("a, b, q = topk(2)[l] y[l]"), "RF180", "2:3", "values and indices", "values, places"),
    "sum of bool": (body("s = sum[l] y[l] > 0.0"), "RF182", "2:19", "cannot reduce bool", "cast"),
    "any of floats": (body("s = any[l] y[l]"), "RF182", "2:14", "cannot reduce f32", "bool"),
    # names
    "unknown name": (body("s = sum[l] q[l]"), "RF181", "2:14", "'q'", "earlier statements"),
    "misspelt name": (body("row_max = max[l] y[l]", "t = sum[l] y[l] - row_mx"), "RF181", "3:21", "'row_mx'", "mean 'row_max'?"),
    "reads itself": (body("s = sum[l] y[l] * s"), "RF181", "2:21", "'s'", "what this statement defines"),
    "reads a later one": (body("s = sum[l] y[l] - m", "m = max[l] y[l]"), "RF181", "2:21", "'m'", "later, in line 3"),
    "statement twice": (body("s = sum[l] y[l]", "s = max[l] y[l]"), "RF181", "3:3", "already statement s", "its own"),
    "statement called as an input": (body("y = sum[l] y[l]"), "RF181", "2:3", "already input y", "its own"),
    "statement called as the axis": (body("l = sum[l] y[l]"), "RF181", "1:77", "both an axis", "rename"),
    "keyword": (body("inf = sum[l] y[l]"), "RF180", "2:3", "'inf'", "keyword"),
    "state version": (body("s@old = sum[l] y[l]"), "RF181", "2:3", "state version", "without @"),
    "extent as a value": (body("s = sum[l] x[i, l] / I"), "RF181", "2:24", "extent of a dimension", "sum[axis] 1.0"),
    "result not there": (body("s = sum[l] y[l]", "return q"), "RF181", "3:10", "'q'", "statements: s"),
    "result twice": (body("s = sum[l] y[l]", "return s, s"), "RF181", "3:13", "twice", "once"),
    "returns nothing": (body("s = sum[l] y[l]", "return"), "RF180", "3:9", "a result's name", "return NAME"),
    "returns an expression": (body("s = sum[l] y[l]", "return s + 1"), "RF180", "3:12", "'+'", "a statement of its own"),
    # axes and shapes
    "too few indices": (body("s = sum[l] x[l]"), "RF183", "2:14", "2 dimensions, 1 index given", "x: f32[I, L]"),
    "too many indices": (body("s = sum[l] y[i, l]"), "RF183", "2:14", "1 dimension, 2 indices given", "y: f32[L]"),
    "no indices": (body("s = sum[l] y"), "RF183", "2:14", "without indices", "y[...]"),
    "result along the r-axis": (body("s[l] = sum[l] y[l]"), "RF183", "2:5", "is reduced", "write s"),
    "result axis twice": (body("s[i, i] = sum[l] x[i, l]"), "RF183", "2:5", "repeated", "once"),
    "free axis": (body("s[j] = sum[l] x[i, l]"), "RF183", "2:5", "axis i is free", "s[j, i]"),
    "axis of no extent": (body("s[i, j] = sum[l] x[i, l]"), "RF183", "2:8", "axis j", "where j = 64"),
    "real index": (body("s = sum[l] y[1.5]"), "RF182", "2:16", "1.5 is not a value of i64", "cast"),
    "index of floats": (body("s = sum[l] y[y[l]]"), "RF182", "2:16", "an integer", "i64(...)"),
    # dtypes and numbers
    "f16 + f32": (body("s = sum[l] h[l] + y[l]"), "RF182", "2:19", "'+' of f16 and f32", "f32(...)"),
    "i64 + f32": (body("s = sum[l] n[l] + y[l]"), "RF182", "2:19", "'+' of i64 and f32", "f32(...)"),
    "axis * f32": (body("s = sum[l] y[l] * l"), "RF182", "2:19", "f32 and i64", "f32(...)"),
    "bool * f32": (body("s = sum[l] (y[l] > 0.0) * y[l]"), "RF182", "2:27", "bool and f32", "select(condition"),
    "i64 * 1.5": (body("s = sum[l] n[l] * 1.5"), "RF182", "2:21", "1.5 is not a value of i64", "f32(...)"),
    "i64 / 2": (body("s = sum[l] n[l] / 2"), "RF182", "2:19", "takes a float", "//"),
    "float for a condition": (body("s = sum[l] select(y[l], y[l], 0.0)"), "RF182", "2:21", "must be bool", "x != 0"),
    "arms of two dtypes": (body("s = sum[l] select(y[l] > 0, y[l], h[l])"), "RF182", "2:14", "f32 and f16", "f32(...)"),
    "chain": (body("s = any[l] 0.0 < y[l] < 1.0"), "RF180", "2:25", "do not chain", "a < b and b < c"),
    "equality with one sign": (body("s = any[l] y[l] = 1"), "RF180", "2:19", "'='", "=="),
    "beyond floats": (body("s = sum[l] y[l] * 1e999"), "RF182", "2:21", "1e999 is beyond", "write inf"),
    "many digits": (body(f"s = sum[l] y[l] * {'9' * 6000}"), "RF182", "2:21", "9999...99999 is beyond", "write inf"),
    "beyond i64": (body("s = sum[l] n[l] * 9223372036854775808"), "RF182", "2:21", "9223372036854775808", "wider"),
    "beyond i8": (one("x: i8[L]", "s = sum[l] x[l] * 300"), "RF182", "2:21", "300 is not a value of i8", "wider"),
    "beyond u8": (one("x: u8[L]", "s = sum[l] x[l] * -1"), "RF182", "2:21", "-1 is not a value of u8", "wider"),
    "infinite e4m3": (one("x: e4m3[L]", "s = max[l] select(x[l] > 0, x[l], -inf)"), "RF182", "2:37", "no infinity", "f32(...)"),
    # expressions
    "unknown function": (body("s = sum[l] foo(y[l])"), "RF180", "2:14", "'foo'", "functions: abs"),
    "misspelt function": (body("s = sum[l] expp(y[l])"), "RF180", "2:14", "'expp'", "did you mean 'exp'?"),
    "foreign function": (body("s = sum[l] relu(y[l])"), "RF180", "2:14", "'relu'", "max(x, 0.0)"),
    "where as a function": (body("s = sum[l] where(y[l] > 0, y[l], 0)"), "RF180", "2:14", "'where'", "select(condition, x, y)"),
    "two for one": (body("s = sum[l] exp(y[l], y[l])"), "RF180", "2:14", "1 operand, 2 given", "exp(x)"),
    "one for two": (body("s = sum[l] max(y[l])"), "RF180", "2:14", "2 operands, 1 given", "max[axis] x"),
    "two for three": (body("s = sum[l] select(y[l] > 0, y[l])"), "RF180", "2:14", "3 operands, 2 given", "condition"),
    "none for one": (body("s = sum[l] exp()"), "RF180", "2:14", "1 operand, 0 given", "exp(x)"),
    "open parenthesis": (body("s = sum[l] exp(y[l]", "t = max[l] y[l]"), "RF180", "3:3", "')'", "'(' at 2:17"),
    "open bracket": (body("s = sum[l] y[l", "t = max[l] y[l]"), "RF180", "3:3", "']'", "'[' at 2:15"),
    "stray parenthesis": (body("s = sum[l] exp(y[l]))"), "RF180", "2:23", "')'", "no '(' is open"),
    "no operator": (body("s = sum[l] y[l] y[l]"), "RF180", "2:19", "'y'", "operator between"),
    "no operand": (body("s = sum[l] y[l] +"), "RF180", "2:20", "the end of the line", "an operand is"),
    "two operators": (body("s = sum[l] y[l] * / 2"), "RF180", "2:21", "'/'", "an operand is"),
    "two equals": (body("s = t = sum[l] y[l]"), "RF180", "2:9", "'='", "=="),
    "in-place": (body("s += sum[l] y[l]"), "RF180", "2:5", "'+'", "NAME = expression"),
    "dtype of a value": (body("z[l]: f32 = y[l]"), "RF180", "2:3", "a dtype of its own", "f16(...)"),
    "parentheses without end": (body("s = sum[l] " + "(" * 10**4 + "y[l]" + ")" * 10**4), "RF180", f"2:{14 + NESTING}",
                                "nests too deeply", "statements of their own"),
    "functions without end": (body("s = sum[l] " + "exp(" * 800 + "y[l]" + ")" * 800), "RF180", f"2:{17 + 4 * NESTING}",
                              "nests too deeply", "statements of their own"),
    "signs without end": (body("s = sum[l] " + "-" * 5000 + "y[l]"), "RF180", f"2:{14 + NESTING}", "too deeply", "statements"),
    "terms without end": (body("s = sum[l] " + " + ".join(["y[l]"] * 5000)), "RF180", f"2:{14 + 7 * HEIGHT - 2}", "too long", "split it"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_is_an_error_at_its_place(case: str) -> None:
    text, code, place, what, help = UNREADABLE[case]
    told, asked = invoke("-", text=text), invoke("-", "--json", text=text)
    assert told.exit_code == asked.exit_code == 2, told.output
    assert told.stdout == "" and told.stderr.startswith(code) and "Traceback" not in told.output
    assert f"(<stdin>:{place})" in told.stderr and "\n  next: " in told.stderr, told.stderr
    assert max(map(len, told.stderr.splitlines())) < 200, "an error fits a terminal"
    (error,) = data_of(asked)
    assert error["status"] == "error" and error["code"] == code and code in CODES
    assert f"{error['line']}:{error['column']}" == place
    assert what in error["what"] and help in error["help"], error
    assert invoke("-", text=text).output == told.output


def test_the_caret_stands_under_the_place() -> None:
    """Whatever the line holds: tabs, control characters, thousands of characters before the place."""
    for text in ("cascade a(x: f32[L]) over l\n\tm = max[l]\t\x1b[31m", body("s = sum[l] " + "y[l] * " * 100 + "foo(y[l])")):
        _, line, caret, *_ = invoke("-", text=text).stderr.splitlines()
        assert line.isprintable() and len(line) < 125
        assert ("\x1b" in text and line[caret.index("^")] == " ") or line[caret.index("^"):].startswith("foo(")


@pytest.mark.parametrize(("text", "status"), [
    (one("x: f32[0]", "s = sum[l] x[l]"), "RF213"),
    (body("z[l] = exp(y[l])"), "RF211"),
    (body("s = sum[l] y[l] / 0.0"), "RF215"),
    (body("s = sum[l] y[l] * nan"), "RF215"),
    (body("m = max[l] y[l]", "s = sum[l] floor(y[l] - m)"), "RF205"),
])
def test_what_means_nothing_to_fuse_is_refused(text: str, status: str) -> None:
    told, asked = invoke("-", text=text), invoke("-", "--json", text=text)
    assert told.exit_code == asked.exit_code == 3, told.output
    (refusal,) = data_of(asked)
    assert (refusal["status"], refusal["code"]) == ("refused", status) and status in told.stdout
    assert refusal["why"] and refusal["help"]


@pytest.mark.parametrize("text", [
    GOOD.replace("\n", "\r\n"), GOOD.replace("\n", "\r"), "\ufeff" + GOOD, GOOD.replace("  ", "\t"), "# Σ ✓\n\n" + GOOD,
    GOOD.replace("\n  s", " # over the row\n\n# more\n      s"), GOOD.rstrip("\n"),
    GOOD.replace("good", "cascade"), GOOD.replace("f32[L]", "f32[1]"), GOOD.replace("f32[L]", "f32[200000000000000]"),
    GOOD.replace("x[l]", "(x[l]\n   - 1)"), GOOD.replace("x[l]", "(" * (NESTING - 1) + "x[l]" + ")" * (NESTING - 1)),
    GOOD.replace("sum[l] x[l]", "max[l] select(x[l] > 0.0, x[l], -inf)"), GOOD.replace("s =", "sum ="),
])
def test_odd_but_right_is_read(text: str) -> None:
    out = invoke("-", "--json", text=text)
    assert out.exit_code == 0, out.output
    assert [r["status"] for r in data_of(out)] == ["fused"]


def test_a_sum_of_two_hundred_terms_and_a_cascade_of_forty_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the reader, the deriver nor the checker's recursion ends before the reader's own limit does."""
    long = body("s = sum[l] " + " + ".join(f"y[l] * {i}.0" for i in range(200)))
    deep = "cascade deep(x: f32[L]) over l\n  r0 = max[l] x[l]\n" + "".join(
        f"  r{i} = sum[l] exp(x[l] - r0) * {i}.0\n" for i in range(1, 40)) + "  return r39\n"
    samples = verify.samples
    monkeypatch.setattr(verify, "samples", lambda *args: list(samples(*args))[:1])
    monkeypatch.setattr(verify, "LEAST", 0)
    monkeypatch.setattr(verify, "check_stability", lambda *_: [])
    out = invoke("-", "--json", text=long + deep)
    assert [r["status"] for r in data_of(out)] == ["fused", "fused"], out.output[:2000]


# -- several cascades --------------------------------------------------------------------------------------------------

MIXED = (GOOD + "\ncascade bad(x: f32[L]) over l\n  s = sum[l] foo(x[l])\n\n" + GOOD.replace("good", "second")
         + "  return s\nstray words\n" + one("x: f32[L]", "z[l] = x[l]") + one("x $", "s = sum[l] x[l]"))


def test_the_others_are_still_told() -> None:
    told, asked = invoke("-", text=MIXED), invoke("-", "--json", text=MIXED)
    assert told.exit_code == asked.exit_code == 2
    rows = data_of(asked)
    assert [(r["status"], r["name"]) for r in rows] == [
        ("fused", "good"), ("error", None), ("fused", "second"), ("error", None), ("refused", "a"), ("error", None)]
    assert [r.get("line") for r in rows if r["status"] == "error"] == [5, 10, 13]
    assert rows[4]["source"] == "<stdin>:12"
    assert told.stdout.count("checked  holds") == 2 and "RF211" in told.stdout
    assert [w for w in told.stderr.split() if w.startswith("RF")] == ["RF180"] * 3


def test_our_own_bug_is_told_apart_and_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    check = verify.check

    def broken(fused: Any) -> list[str]:
        if fused.cascade.name == "second":
            raise ZeroDivisionError("division by zero")
        return check(fused) if fused.cascade.name == "good" else ["result: s differs"]

    monkeypatch.setattr(verify, "check", broken)
    text = GOOD.replace("good", "second") + GOOD + GOOD.replace("good", "third")
    told, asked = invoke("-", text=text), invoke("-", "--json", text=text)
    assert told.exit_code == asked.exit_code == 1
    assert [r["status"] for r in data_of(asked)] == ["error", "fused", "violated"]
    assert data_of(asked)[0]["code"] == "RF900" and data_of(asked)[2]["violations"] == ["result: s differs"]
    assert "checked  VIOLATED" in told.stdout and "RF900" in told.stderr and "Traceback" not in told.output


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", " \n\t\n", "# only\n# comments\n", "\ufeff", b"\xff\xfe\x00", b"\x89PNG\r\n\x1a\n\x00",
                                     GOOD.encode("utf-16"), None, "folder"])
def test_a_file_without_cascades_is_an_error(tmp_path: Path, content: str | bytes | None) -> None:
    file = tmp_path / "cascades.txt"
    if content == "folder":
        file.mkdir()
    elif content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    told, asked = invoke(str(file)), invoke(str(file), "--json")
    assert told.exit_code == asked.exit_code == 2 and told.stdout == ""
    assert told.stderr.startswith("RF184") and "\n  next: " in told.stderr and "Traceback" not in told.output
    (error,) = data_of(asked)
    assert (error["status"], error["code"], error["line"]) == ("error", "RF184", None)


def test_an_unreadable_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cascades.txt"
    file.write_text(GOOD)

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    out = invoke(str(file))
    assert out.exit_code == 2 and "RF184" in out.stderr and "Permission denied" in out.stderr


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    """In another process with another hash seed; timings go to stderr."""
    corpus = Path(__file__).parents[2] / "corpus"
    file = tmp_path / "cascades.txt"
    file.write_text((corpus / "accept" / "softmax_value.txt").read_text() + (corpus / "refuse" / "top_p.txt").read_text() + MIXED)
    outs = [subprocess.run([sys.executable, "-m", "redfuser", "algebra", str(file)], capture_output=True,
                           env={**os.environ, "PYTHONHASHSEED": seed}) for seed in ("1", "2")]
    assert {out.returncode for out in outs} == {2}
    assert outs[0].stdout == outs[1].stdout != b"" and b"derived in" in outs[0].stderr
    assert b"derived in" not in invoke(str(file), "--quiet").stderr_bytes
