"""Reductions that read no result: a plain monoid, accumulated as it is.

Also what a rule adds of its own accord, such as the extremum that an exponential is kept relative to.
"""

from __future__ import annotations

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.derive.derivation import Derivation, Value, own_name
from redfuser.acrf.expr import Cast, Expr
from redfuser.acrf.facts.algebra import PAYLOAD, accumulator_dtype


def derive_plain(work: Derivation, r: Reduce) -> None:
    """Accumulator and value of a reduction over data alone."""
    dtype = accumulator_dtype(r.dtype) if r.reducer.kind not in PAYLOAD else r.expr.dtype
    expr = r.expr
    if r.reducer.kind in ("sum", "prod") and expr.dtype != dtype:
        expr = Cast(expr, dtype)
    elif r.reducer.kind in ("max", "min"):
        dtype = expr.dtype
    names = tuple(map(own_name, r.names))
    if r.reducer.kind in ("argmax", "argmin"):
        names = (work.fresh(f"{r.name}_value"), own_name(r.name))
    own = work.accumulate(names, r.axes, r.reducer, dtype, expr, None)
    for n, acc in zip(r.names, own[-len(r.names):], strict=True):
        value: Expr = acc
        if acc.dtype != _dtype_of(r, n):
            value = Cast(acc, _dtype_of(r, n))
            work.narrowed(r, dtype)
        work.set_value(n, Value(value, value), value)
    work.decomposition.append(f"{', '.join(r.names)} = {r.reducer}[{r.over}] {r.expr}")
    work.choices.append(f"{r.name}: depends on no result; accumulated as it is")


def _dtype_of(r: Reduce, name: str) -> str:
    if r.reducer.kind in PAYLOAD:
        return r.expr.dtype if r.reducer.kind == "topk" and name == r.names[0] else "i64"
    return r.dtype
