"""Products: ``prod G(x) H(D) = (prod G(x)) * H(D) ** n``, n the number of elements that count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redfuser.acrf.algebra import accumulator_dtype
from redfuser.acrf.cases import split_cases
from redfuser.acrf.expr import Cast, Const, Expr, Op, Reduce, Ref, op, refs_of
from redfuser.acrf.normal import product
from redfuser.acrf.refuse import Refuse
from redfuser.acrf.values import Value, own_name

if TYPE_CHECKING:
    from redfuser.acrf.derive import Deriver


def derive_product(work: Deriver, r: Reduce) -> None:
    """Accumulators and value of a product that reads results. Raises Refuse."""
    d = work.decomposer()
    cases = split_cases(d, r.expr)
    dtype = accumulator_dtype(r.expr.dtype)
    out: list[Expr] = []
    for i, (xs, ds, leaf) in enumerate(cases):
        if ds:
            raise Refuse("RF209", f"{r.expr} has no condition on results", "a product over conditional factors",
                         "apply the condition to the result of the product")
        terms = d.expand(leaf)
        if len(terms) != 1 or terms[0].of("shift"):
            raise Refuse("RF201", f"{leaf} = G(data) * H(results)",
                         "a product over sums of data and results has no finite-rank decomposition",
                         "reduce a logarithm by sum if the factors are positive, or compute the results earlier")
        t = terms[0]
        if t.of("scaled"):
            raise Refuse("RF209", f"{leaf} has no exponential of data and results",
                         "a product of exponentials is the exponential of a sum", "reduce the exponent with sum")
        one = Const(1.0, dtype)

        def masked(body: Expr, other: Expr, xs: tuple[tuple[Expr, bool], ...] = xs) -> Expr:
            for cond, side in reversed(xs):
                body = Op("select", (cond, body, other) if side else (cond, other, body), body.dtype)
            return body

        body = product([(p.base, p.power) for p in t.of("x")], dtype) if t.of("x") else one
        name = own_name(r.name) if len(cases) == 1 else work.fresh(f"{r.name}_{i}")
        acc = work.accumulate((name,), r.axes, r.reducer, dtype, masked(body, one), None)[0]
        h = [(work.scope.resolve(p.base), p.power) for p in t.of("d")]
        if any(refs_of(b) & work.scope.late for b, _ in h):
            raise Refuse("RF214", f"{leaf} is available while the row is reduced",
                         "a factor is a contraction of results", "split the program before it")
        out.append(acc)
        if h or t.coefficient != 1:
            count = work.share(work.fresh(f"{r.name}_n", reserve=False), r.axes, dtype,
                               masked(one, Const(0.0, dtype)), lambda own: Ref(f"{own.name}@old", own.dtype))
            out.append(op("pow", product(h, dtype, t.coefficient), count))
            work.choices.append(f"{r.name}: {product(h, dtype, t.coefficient)} deferred, to the power of the number of "
                                "elements")
    value = out[0]
    for o in out[1:]:
        value = op("mul", value, o)
    work.decomposition.append(f"{r.name} = prod[{r.over}] {r.expr}")
    if r.dtype != dtype:
        value = Cast(value, r.dtype)
    work.set_value(r.name, Value(value, value), value)
