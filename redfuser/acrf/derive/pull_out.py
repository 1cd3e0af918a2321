"""Contractions over an inner axis change places with the cascade: sum_l w * (sum_e f) = sum_e (sum_l w * f).

What is only known after such a contraction is finished in ``post``.
"""

from __future__ import annotations

from fractions import Fraction

from redfuser.acrf.cascade import Let, Reduce
from redfuser.acrf.derive.derivation import F1, SUM, Derivation
from redfuser.acrf.expr import Cast, Const, Expr, Op, Ref, op, walk
from redfuser.acrf.facts.algebra import accumulator_dtype
from redfuser.acrf.facts.normal import product, to_poly
from redfuser.acrf.state import Refuse


def pull_out(work: Derivation, r: Reduce, name: str) -> None:
    """sum_l w * (sum_e f) = sum_e (sum_l w * f): the inner contraction moves behind the cascade."""
    inner = work.scope.inner[name]
    if r.reducer.kind != "sum" or inner.reducer.kind != "sum":
        raise Refuse("RF211", f"{name} and {r.name} are sums",
                     f"{name} contracts results with data for every element of the row, and only nested sums change places",
                     "compute the results in an earlier pass, so that they are inputs of the cascade")
    ref = Ref(name, inner.dtype)
    body = inner.expr if inner.expr.dtype == inner.dtype else Cast(inner.expr, inner.dtype)
    linear: dict[bool, Expr] = {}
    for m, c in to_poly(r.expr).items():
        degree = sum((q for b, q in m if b == ref), Fraction(0))
        inside = any(reads_name(b, name) for b, _ in m if b != ref)
        if inside or degree not in (0, 1):
            raise Refuse("RF211", f"{r.expr} is linear in {name}",
                         f"{name} is a contraction of results and data; only where it enters linearly do the two sums "
                         "change places", "compute the results in an earlier pass, so that they are inputs")
        term = product([(b, q) for b, q in m if b != ref] or [(Const(1.0, r.expr.dtype), F1)], r.expr.dtype, c)
        hit = degree == 1
        linear[hit] = term if hit not in linear else op("add", linear[hit], term)
    only = set(linear) == {True}
    pieces: list[tuple[str, Expr, tuple[str, ...]]] = []
    nested: Expr = op("mul", linear[True], body)
    if only and isinstance(r.expr, Op) and r.expr.name == "mul" and ref in r.expr.args:
        nested = Op("mul", tuple(body if a == ref else a for a in r.expr.args), r.expr.dtype)
    elif r.expr == ref:
        nested = body
    pieces.append((work.fresh(f"{r.name}_{inner.over}"), nested, (*r.axes, inner.over)))
    if not only:
        pieces.append((work.fresh(f"{r.name}_rest"), linear[False], r.axes))
    total: Expr | None = None
    for piece, expr, axes in pieces:
        work.scope.axes[piece] = axes
        work.scope.kinds[piece] = "D"
        hidden = Reduce((piece,), axes, SUM, r.over, expr, accumulator_dtype(r.dtype), r.provenance)
        work.reduce(hidden)
    work.choices.append(f"{r.name}: the sum over {inner.over} moves behind the sum over {r.over}")
    first = pieces[0][0]
    dtype = accumulator_dtype(r.dtype)
    work.scope.late.add(r.name)
    if only and r.dtype == dtype:
        work.late[r.name] = Reduce(r.names, r.axes, SUM, inner.over, Ref(first, dtype), dtype, r.provenance)
        return
    part = work.fresh(f"{r.name}_sum")
    work.scope.late.add(part)
    work.late[part] = Reduce((part,), r.axes, SUM, inner.over, Ref(first, dtype), dtype, r.provenance)
    total = Ref(part, dtype)
    if not only:
        total = op("add", total, Ref(pieces[1][0], dtype))
    work.late[r.name] = Let(r.name, r.axes, total if r.dtype == dtype else Cast(total, r.dtype), r.provenance)


def finish_late(work: Derivation, r: Reduce, main: Expr, results: list[tuple[Expr, Fraction]], c: Fraction, dtype: str) -> None:
    """A factor is only known after another contraction: the sum is exposed, and finished in ``post``."""
    part = work.fresh(f"{r.name}_part")
    work.exposed.append(Let(part, r.axes, main, r.provenance))
    value = product([(Ref(part, dtype), F1), *results], dtype, c)
    work.scope.late.add(r.name)
    work.late[r.name] = Let(r.name, r.axes, value if r.dtype == dtype else Cast(value, r.dtype), r.provenance)


def reads_name(e: Expr, name: str) -> bool:
    return any(isinstance(x, Ref) and x.name == name for x in walk(e))
