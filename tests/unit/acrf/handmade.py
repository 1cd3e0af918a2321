"""Fused states written by hand, to test the verifier without a deriver."""

from __future__ import annotations

from math import inf

from redfuser.acrf.cascade import Cascade, Let, Reducer, Stmt
from redfuser.acrf.expr import Const, f32
from redfuser.acrf.state import Accumulator, Certificate, Fused, State
from redfuser.acrf.text import parse_cascade, parse_expr

NEG = Const(-inf, "f32")
NOWHERE = Const(2**63 - 1, "i64")


def acc(names: str, axes: str, kind: str, contribution: str, *rebase: str, neutral: tuple[Const, ...] = (),
        k: int = 1, dtypes: dict[str, str] | None = None, tensors: dict[str, str] | None = None) -> Accumulator:
    def read(text: str):
        return parse_expr(text, dtypes, tensors)

    split = tuple(names.split())
    rebases = tuple(map(read, rebase)) or tuple(read(f"{n}@old") for n in split)
    return Accumulator(split, tuple(axes.split()), Reducer(kind, k), "f32", neutral or (f32(0.0),), read(contribution),
                       rebases)


def fused(text: str, states: list[tuple], finalize: dict[str, str], post: dict[str, str] | None = None,
          producers: tuple[Stmt, ...] = (), roundings: tuple[str, ...] = ()) -> Fused:
    """``states``: (names, axes, reducer, contribution, rebase..., options)."""
    cascade: Cascade = parse_cascade(text)
    own = {n: "f32" for row in states for n in row[0].split()}
    own |= {n: "i64" for row in states for n in row[0].split()[1:]}
    own |= {n: "f32" for s in cascade.stmts for n in s.names if n not in own}
    dtypes = own | {f"{n}@old": d for n, d in own.items()}
    tensors = {t.name: t.dtype for t in cascade.inputs}
    rows = []
    for row in states:
        options = row[-1] if isinstance(row[-1], dict) else {}
        texts = row[:-1] if options else row
        rows.append(acc(*texts, dtypes=dtypes, tensors=tensors, **options))

    def lets(table: dict[str, str]) -> tuple[Let, ...]:
        return tuple(Let(n, cascade.stmt(n).axes, parse_expr(e, dtypes, tensors)) for n, e in table.items())

    return Fused(cascade, producers, State(tuple(rows), lets(finalize)), lets(post or {}),
                 Certificate("handmade", roundings=roundings))


SOFTMAX = """cascade attention(x: f32[L], v: f32[L, E]) over l
  m = max[l] x[l]
  t = sum[l] exp(x[l] - m)
  o[e] = sum[l] exp(x[l] - m) / t * v[l, e]
  return m, o"""


REFERENCE = "select(m == -inf, 0, m)"
"""What an empty or masked state is kept relative to: -inf would make NaN of it."""


def attention(rebase: str = f"exp(m@old - {REFERENCE})", weight: str = f"exp(x[l] - {REFERENCE})", final: str = "oa / t") -> Fused:
    return fused(SOFTMAX, [
        ("m", "", "max", "x[l]", {"neutral": (NEG,)}),
        ("t", "", "sum", weight, f"t@old * {rebase}"), ("oa", "e", "sum", f"{weight} * v[l, e]", f"oa@old * {rebase}")],
        {"m": "m", "t": f"t * exp({REFERENCE} - m)", "o": final})


VARIANCE = """cascade variance(x: f32[I, L]) over l
  n = sum[l] 1.0
  s = sum[l] x[i, l]
  v = sum[l] (x[i, l] - s / n) * (x[i, l] - s / n)
  return v"""


def variance() -> Fused:
    """Chan's merge: the sum of squares about the running mean."""
    return fused(VARIANCE, [
        ("n", "", "sum", "1.0"),
        ("s", "i", "sum", "x[i, l]"),
        ("q", "i", "sum", "pow(x[i, l] - s / n, 2)",
         "q@old + select(n@old == 0, 0, n@old * pow(s@old / n@old - s / n, 2))")],
        {"n": "n", "s": "s", "v": "q"})


def raw_variance() -> Fused:
    """The unstable form: E[x^2] - E[x]^2."""
    return fused(VARIANCE, [
        ("n", "", "sum", "1.0"), ("s", "i", "sum", "x[i, l]"), ("q", "i", "sum", "x[i, l] * x[i, l]")],
        {"n": "n", "s": "s", "v": "q - s * s / n"})
