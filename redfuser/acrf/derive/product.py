"""Products: ``prod G(x) H(D) = (prod G(x)) * H(D) ** n``, n the number of elements that count.

Where H is proved non-negative the product is kept at the running results and follows them by ``(H new / H old) ** n``,
so that it overflows only where the source program does; else ``H ** n`` is deferred.
"""

from __future__ import annotations

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.derive.bounds import bound_of
from redfuser.acrf.derive.cases import split_cases
from redfuser.acrf.derive.decomposition import Conds, Term, where
from redfuser.acrf.derive.derivation import Derivation, Value, own_name
from redfuser.acrf.derive.indicator import data_only
from redfuser.acrf.expr import Cast, Const, Expr, Op, Ref, op, refs_of
from redfuser.acrf.facts.algebra import accumulator_dtype
from redfuser.acrf.facts.normal import product
from redfuser.acrf.state import Refuse


def derive_product(work: Derivation, r: Reduce) -> None:
    """Accumulators and value of a product that reads results. Raises Refuse."""
    d = work.decomposer()
    cases = split_cases(d, r.expr)
    dtype = accumulator_dtype(r.expr.dtype)
    plain: list[Expr] = []
    rooted: list[Expr] = []
    guards: list[Expr] = []
    for i, (xs, ds, leaf) in enumerate(cases):
        data_only(d, xs)
        if ds:
            raise Refuse("RF209", f"{r.expr} has no condition on results", "a product over conditional factors",
                         "apply the condition to the result of the product")
        terms = d.expand(leaf)
        if len(terms) != 1 or terms[0].of("shift"):
            raise Refuse("RF201", f"{leaf} = G(data) * H(results)",
                         "a product over sums of data and results has no finite-rank decomposition",
                         "reduce a logarithm by sum if the factors are positive, or compute the results earlier")
        t = terms[0]
        if not t.parts and t.coefficient == 1:
            continue  # an arm that multiplies by 1
        if t.of("scaled"):
            raise Refuse("RF209", f"{leaf} has no exponential of data and results",
                         "a product of exponentials is the exponential of a sum", "reduce the exponent with sum")
        one = Const(1.0, dtype)
        name = own_name(r.name) if len(cases) == 1 else work.fresh(f"{r.name}_{i}")
        h = [(work.scope.resolve(p.base), p.power) for p in t.of("d")]
        if any(refs_of(b) & work.scope.late for b, _ in h):
            raise Refuse("RF214", f"{leaf} is available while the row is reduced",
                         "a factor is a contraction of results", "split the program before it")
        count: Expr = one
        if h or t.coefficient != 1:
            count = work.share(work.fresh(f"{r.name}_n", reserve=False), r.axes, dtype,
                               where(xs, one, Const(0.0, dtype)), lambda own: Ref(f"{own.name}@old", own.dtype))
        if h and bound_of(d, t) is None:
            raise Refuse("RF207", f"{leaf} is at most a constant in every segment", "a product of what no result bounds "
                         "overflows on a part of the row, or without its results, where that of the whole row does not",
                         "divide by a maximum of the factors' magnitudes, or reduce their logarithms with sum")
        if h and all(work.ranges.nonneg(b) or q % 2 == 0 for b, q in h):
            value, true = _rebased(work, r, t, name, dtype, xs, count, guards)
            plain.append(value)
            rooted.append(true)
            continue
        body = product([(p.base, p.power) for p in t.of("x")], dtype) if t.of("x") else one
        value = work.accumulate((name,), r.axes, r.reducer, dtype, where(xs, body, one), None)[0]
        if count is not one:
            factor = product(h, dtype, t.coefficient)
            value = op("mul", value, op("pow", factor, count))
            work.choices.append(f"{r.name}: {factor} deferred, to the power of the number of elements")
        plain.append(value)
        rooted.append(value)
    work.decomposition.append(f"{r.name} = prod[{r.over}] {r.expr}")
    value, true = (_multiplied(v, r.dtype) for v in (plain, rooted))
    work.set_value(r.name, Value(value, true, tuple(guards)), value)


def _rebased(work: Derivation, r: Reduce, t: Term, name: str, dtype: str, xs: Conds, count: Expr,
             guards: list[Expr]) -> tuple[Expr, Expr]:
    """One case's accumulator at the running results: (its value, its value at the true results)."""
    follows = tuple((p.base, p.power) for p in t.of("d"))
    change, back = work.refs.change(follows), work.refs.last_change(follows).product()
    assert back is not None
    up = [(p.base, p.power) for p in t.parts if p.kind != "d"]
    placed = [(work.refs.inverse_at(b, guards), q) for b, q in follows]
    body = where(xs, product([*up, *placed], dtype, t.coefficient), Const(1.0, dtype))

    def rebase(own: Ref) -> Expr:
        return op("mul", Ref(f"{own.name}@old", own.dtype), change.raised(work.refs.old(count)))

    main = work.share(name, r.axes, dtype, body, rebase, r.reducer)
    h = product([(b, q) for b, q in follows], dtype)
    work.choices.append(f"{r.name}: {h} rebased, to the power of the number of elements: it keeps the product in range")
    if not guards:
        return main, main
    root = op("mul", main, op("pow", back, count))
    if count.dtype == dtype and xs:
        root = Op("select", (Op("eq", (count, Const(0.0, dtype)), "bool"), main, root), dtype)
    return main, root


def _multiplied(values: list[Expr], dtype: str) -> Expr:
    out = values[0]
    for v in values[1:]:
        out = op("mul", out, v)
    return out if out.dtype == dtype else Cast(out, dtype)
