"""A deviation beside its own mean: ``(x - mean) / sd``, where both must be of one mean.

Sums of squares about a running mean are moved to the exact mean in ``finalize``, and so lose the rounding error that the
mean itself keeps. Alone that is what one wants. Where data less the mean is divided by such a deviation, a row of equal
elements would end as ``1 ulp / sqrt(0 + eps)`` instead of 0: there the sum is corrected by the first-order member, ``s + sum
(x - mean)``, and the squares are taken about the mean that the program computes of that. A mean of the two is made of each,
``s / n + sum (x - mean) / n``: rounded to one number, ``n`` equal elements have a sum that is not ``n`` times one of them.

A sum of such deviations (a layer norm's result times a matrix) is about the running mean, and so is the deviation that it is
divided by: of equal elements both are made of the same rounding errors. What moving from mean to mean leaves in the sum is one
too, so the deviation is not below what the mean's last digit is worth.
"""

from __future__ import annotations

from redfuser.acrf.cascade import Let, Reduce
from redfuser.acrf.derive.decomposition import Part, Term
from redfuser.acrf.derive.derivation import Derivation, Value, own_name
from redfuser.acrf.expr import Const, Expr, Load, Op, Ref, map_children, op, refs_of, substitute, walk
from redfuser.acrf.facts.classify import Scope
from redfuser.acrf.facts.normal import add, equal, to_poly
from redfuser.dtypes import UNIT


def about_the_mean(work: Derivation, r: Reduce, p: Part, family: dict[tuple[int, ...], Ref], dtype: str) -> Expr | None:
    """The sum of squares about the program's own mean, whose sum is corrected; None where nothing reads both."""
    scope = work.scope
    sums = [n for n in refs_of(scope.resolve(p.b)) if n in work.ranges.reductions] if p.b is not None else []
    totals = [n for n in sums if not _is_count(work, n)]
    if p.b is None or p.true or p.unit or p.follows or len(totals) != 1 or not work.refs.is_count(family[(0,)].name):
        return None
    total = Ref(own_name(totals[0]), dtype)
    first = family[(1,)]
    a = work.refs.accumulators.get(total.name)
    if a is None or work.values[totals[0]].plain != total or not _beside_each_other(work, r.name, totals[0]):
        return None
    rest = add(to_poly(work.refs.accumulators[first.name].contribution), to_poly(a.contribution), -1)
    if any(scope.raxis in scope.axes_of(base) for m in rest for base, _ in m):
        return None
    exact = op("add", total, first)
    work.values[totals[0]] = Value(exact, exact)
    if r.dtype == dtype and totals[0] not in work.parts:
        names = [work.fresh(f"{totals[0]}_{part}") for part in ("sum", "rest")]
        work.exposed += [Let(n, work.scope.axes[totals[0]], e, r.provenance) for n, e in zip(names, (total, first))]
        work.parts[totals[0]] = Ref(names[0], dtype), Ref(names[1], dtype)
    work.choices.append(f"{r.name}: about the mean of {totals[0]} + sum ({p.base}), which {totals[0]} takes too: data less "
                        "that mean is divided by the deviation from it")
    moved = work.refs.difference(p.b, lambda e: of_parts(scope, work.refs.running(e), total.name, (total, first), exact),
                                 lambda e, _: work.refs.at(e))
    there = op("add", first, op("mul", family[(0,)], moved))  # the first-order member about that mean
    return op("add", family[(2,)], op("mul", op("add", first, there), moved))


def of_one_mean(work: Derivation, t: Term, e: Expr) -> Expr:
    """What scales a sum of deviations, with sums of squares in it that are about the same mean as they are."""
    means = [p.b for p in t.of("shift") if p.power == 1 and p.b is not None and p.true is None and p.unit is None]
    for name, (squares, count, mean) in work.squares.items():
        if name in refs_of(e) and any(equal(mean, b) for b in means):
            digit = op("mul", work.refs.at(mean), Const(UNIT[squares.dtype], squares.dtype))
            e = substitute(e, {name: op("max", squares, op("mul", op("mul", count, digit), digit))})
    return e


def of_parts(scope: Scope, e: Expr, name: str, parts: tuple[Expr, Expr], whole: Expr) -> Expr:
    """``e`` of a sum that is two: quotients and multiples of each by what a row has one of, added; elsewhere the ``whole``,
    rounded to one number::

        (s / n) * w, s + 1    -->    (a / n + b / n) * w, s + 1"""
    match e:
        case Ref(name=n) if n == name:
            return whole
        case Op(name="div" | "mul", args=(Ref(name=n), by)) if n == name and name not in refs_of(by) \
                and scope.raxis not in scope.axes_of(by):
            return op("add", *(op(e.name, x, by) for x in parts))
    return map_children(e, lambda x: of_parts(scope, x, name, parts, whole))


def _is_count(work: Derivation, name: str) -> bool:
    value = work.values[name].plain
    return isinstance(value, Ref) and work.refs.is_count(value.name)


def _beside_each_other(work: Derivation, squares: str, total: str) -> bool:
    """Does every output that reads the sum itself, not only through reductions, read the squares too, and one of them an
    element or an extremum, from which a mean may be taken? Where elements are far from it, what rounding takes from
    ``x - mean`` is the same for many, and a mean that takes that sum is no better for it."""
    cascade = work.scope.cascade
    bodies = {n: s.expr for s in cascade.stmts for n in s.names if not (isinstance(s, Reduce) and s.over == cascade.raxis)}
    picked = {n for s in cascade.stmts if isinstance(s, Reduce) and s.reducer.kind != "sum" for n in s.names}

    def read(name: str) -> frozenset[str]:
        return frozenset({name}).union(*map(read, refs_of(bodies[name]))) if name in bodies else frozenset({name})

    found = [read(n) for n in cascade.outputs]
    reading = [names for names in found if total in names]
    return all(squares in names for names in reading) and any(
        names & picked or any(isinstance(x, Load) for n in names if n in bodies for x in walk(bodies[n])) for names in reading)
