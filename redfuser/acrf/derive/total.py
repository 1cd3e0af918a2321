"""Sums: per term of the decomposition its accumulators, and the finalized value over them.

Each factor has one of three fates: data stays in the contribution, results are deferred to ``finalize``, and what bounds
growth is rebased as its reference moves. A sum of data and results is carried as a family of its powers (family.py).
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import reduce

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.derive.bounding import in_range, in_units, within_data
from redfuser.acrf.derive.bounds import divisor, follows_maximum, may_be_undefined, only_counted
from redfuser.acrf.derive.centred import about_the_mean, of_one_mean
from redfuser.acrf.derive.decomposition import Decomposition, Part, Term, where
from redfuser.acrf.derive.derivation import (
    F1,
    Derivation,
    Value,
    explain,
    factor_text,
    own_name,
    spell_decomposition,
)
from redfuser.acrf.derive.faint import raised, refuse_rounded, with_it
from redfuser.acrf.derive.family import residuals, sum_up, translated
from redfuser.acrf.derive.indicator import moving
from redfuser.acrf.derive.members import members, where_counted
from redfuser.acrf.derive.peak import own_peak
from redfuser.acrf.derive.pull_out import finish_late
from redfuser.acrf.derive.quotients import in_pairs, in_quotients
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Op, Ref, op, refs_of, walk
from redfuser.acrf.facts.algebra import INF, accumulator_dtype
from redfuser.acrf.facts.normal import product
from redfuser.acrf.state import Refuse


def derive_sum(work: Derivation, r: Reduce) -> None:
    """Accumulators and value of a sum that reads results. Raises Refuse."""
    d = work.decomposer()
    terms = [_in_bounds(work, r, d, t) for t in d.terms(r.expr)] or [Term((), Fraction(0))]
    work.decomposition.append(spell_decomposition(r, terms))
    dtype = accumulator_dtype(r.expr.dtype)
    if dtype not in FLOATS and any(b.dtype in FLOATS for t in terms for p in t.of("scaled") for b, _ in p.follows):
        dtype = "f32"  # integers that follow a change of scale are integers no more
    plain: list[Expr] = []
    rooted: list[Expr] = []
    guards: list[Expr] = []
    covered = vanishes = True
    for i, t in enumerate(terms):
        name = own_name(r.name) if len(terms) == 1 else work.fresh(f"{r.name}_{i}")
        weights = [p for p in t.of("scaled") if not p.vanishes]
        empty = bool(weights) and all(follows_maximum(d, p, t.conds) for p in weights)
        refuse_rounded(d, t)
        results = [(p.base, p.power) for p in t.of("d")]
        higher, faint = raised(d, t) if empty else (t, None)
        if faint is not None and (faint.base, faint.power) not in in_quotients(work, results, dtype):
            faint = None  # it divides what is no more than itself
        t = t if faint is None else higher
        main, root, mine = _term_accumulators(work, r, t, name, dtype, single=len(terms) == 1, vanishes=empty)
        scaled = [x for p in t.of("d") for x in (with_it(d, p) if p is faint else [(p.base, p.power)])]
        resolved = [(of_one_mean(work, t, work.scope.resolve(b)), q) for b, q in in_quotients(work, scaled, dtype)]
        if any(refs_of(b) & (work.scope.late | work.late.keys()) for b, _ in resolved):
            if len(terms) > 1:
                raise Refuse("RF214", f"{r.name} is one product", "a sum of terms scaled by contractions of results",
                             "split the reduction into one per term")
            finish_late(work, r, root if mine else main, scaled, t.coefficient, dtype)
            return
        masked = bool(t.conds) and not t.everywhere and any(
            (q < 0 and not work.ranges.of(b).nonzero) or may_be_undefined(work, b) or not only_counted(work, b, t.conds)
            for b, q in results)
        for value, out in ((main, plain), (root, rooted)):
            v = product(in_pairs([(value, F1), *resolved], dtype), dtype, t.coefficient)
            if masked:
                v = where_counted(work, r, t, value, v, dtype)
            out.append(where([(work.scope.resolve(c), side) for c, side in reversed(t.dconds)], v, Const(0.0, dtype)))
        for g in mine:
            if g not in guards:
                guards.append(g)
        zero_over_zero = any(q < 0 and _is_zero_at(work, b, mine) for b, q in results)
        vanishes = vanishes and bool(mine) and empty
        covered = covered and (not mine or (zero_over_zero and empty and all(_of_nothing(work, g, mine) for g in mine)))
        if faint is not None:
            work.choices.append(f"{r.name}: weights and {factor_text(divisor(faint).base, F1)} raised by 2^16: of a row "
                                "nothing may be left but subnormal ones")
        for p in t.of("d"):
            work.choices.append(f"{r.name}: {factor_text(p.base, p.power)} deferred: it bounds nothing, so it is "
                                "applied once, in finalize")
    value = sum_up(plain, dtype)
    final = sum_up(rooted, dtype)
    if r.dtype != dtype:
        if dtype in FLOATS and r.dtype not in FLOATS:
            value, final = (Op("round", (v,), dtype) for v in (value, final))
        value, final = Cast(value, r.dtype), Cast(final, r.dtype)
        work.narrowed(r, dtype)
    work.set_value(r.name, Value(value, final, tuple(guards), covered and bool(guards), vanishes), value)


def _in_bounds(work: Derivation, r: Reduce, d: Decomposition, t: Term) -> Term:
    """The term with every factor kept beside what bounds it."""
    def squares(p: Part) -> Ref:
        square = Term((replace(p, power=Fraction(2)),), conds=t.conds)
        dtype = accumulator_dtype(r.expr.dtype)
        return members(work, r, square, work.fresh(f"{r.name}_squares", reserve=False), dtype, False, False).members[(2,)]

    t = own_peak(work, r, d, in_range(work, r, within_data(work, r, t)))
    return t if moving(work, t.conds) else in_units(work, r, d, t, squares)


def _an_edge(guard: Expr) -> bool:
    """Is it taken where an extremum is infinite?"""
    edge = guard.args[-1] if isinstance(guard, Op) and guard.name == "eq" else None
    return isinstance(edge, Const) and abs(edge.value) == INF


def _of_nothing(work: Derivation, guard: Expr, guards: list[Expr]) -> bool:
    """Is it taken where an extremum has no element yet, and not for what another result is? A sum that follows such extrema
    is 0 there too."""
    if not isinstance(guard, Op) or not isinstance(guard.args[-1], Const):
        return False
    below = work.rebased_on.get(guard.args[0].name, set()) if isinstance(guard.args[0], Ref) else set()
    return abs(guard.args[-1].value) == INF or (bool(below) and below <= set(map(str, guards)))


def _is_zero_at(work: Derivation, result: Expr, guards: list[Expr]) -> bool:
    """A denominator that is an accumulator under the same guard: 0 where the guard was taken, so 0/0 = NaN."""
    e = work.scope.resolve(result)
    if not isinstance(e, Ref) or e.name not in work.values:
        return False
    texts, value = {str(g) for g in guards}, work.values[e.name]
    v = value.plain
    return value.vanishes and isinstance(v, Ref) and bool(texts) and texts <= work.rebased_on.get(v.name, set())


def _term_accumulators(work: Derivation, r: Reduce, t: Term, name: str, dtype: str, single: bool,
                       vanishes: bool) -> tuple[Expr, Expr, list[Expr]]:
    """Accumulators of one term: (its sum at the reference, its sum at the true results, guards taken)."""
    made = members(work, r, t, name, dtype, single, vanishes)
    family, guards, powers, follows, shifts = made.members, made.guards, made.powers, made.follows, made.shifts
    explain(work, r, follows, shifts)
    guards = _to_undo(work, t, guards)
    residual = residuals(work, family, powers, dtype)
    if any(p.true is not None for p in shifts):
        residual = [work.refs.last_drift(p) if p.true is not None else c for p, c in zip(shifts, residual, strict=True)]
    value = None
    if powers == [2] and residual[0] is not None and not t.conds and not guards:
        value = about_the_mean(work, r, shifts[0], family, dtype)
        if shifts[0].b is not None:
            work.squares[r.name] = family[(2,)], family[(0,)], shifts[0].b
    if value is None:
        value = translated(family, powers, residual, dtype)
    read = [e for p in shifts for e in (p.true or p.b, p.unit, p.rest) if e is not None]
    if not all(only_counted(work, b, t.conds) for b in (*(b for b, _ in follows), *read)):
        value = where_counted(work, r, t, value, value, dtype)  # a NaN among what is not counted reaches the reference
    if not guards:
        return value, value, guards
    drift = [work.refs.last_drift(p) for p in shifts]
    scales = [work.refs.last_scale(p) for p in shifts]
    both: list[Expr | None] = [d if c is None or p.true is not None else op("add", d, c if s is None else op("mul", c, s))
                               for p, d, c, s in zip(shifts, drift, residual, scales, strict=True)]
    root = translated(family, powers, both, dtype, scales)
    theirs = tuple((b, q) for b, q in follows if not _own(work, b))
    back = work.refs.last_change(theirs).product() if theirs else None
    root = op("mul", root, back) if back is not None else root
    if shifts and all(_an_edge(g) for g in guards):  # elsewhere it is by 0, and an infinite element makes 0 * inf of it
        taken = reduce(lambda a, b: Op("or", (a, b), "bool"), guards)
        root = Op("select", (taken, root, value), dtype)
    return value, where_counted(work, r, t, value, root, dtype) if t.conds else root, guards


def _to_undo(work: Derivation, t: Term, guards: list[Expr]) -> list[Expr]:
    """The guards of a term that the root has to undo. Not those of what the derivation itself chose for this term: that cancels
    against the factor deferred with it, whereas the program's own results, be they equal, end as the program has them."""
    read = {x for p in t.parts if p.kind != "d" for e in (p.base, p.a, p.b, p.true, p.unit, p.rest, *(b for b, _ in p.follows))
            if e is not None for x in walk(e) if _own(work, x)}
    mine = {str(g) for x in read if isinstance(x, Ref) or (isinstance(x, Op) and x.name == "min")
            for g in work.refs.guards_of(x)}
    return [g for g in guards if str(g) not in mine]


def _own(work: Derivation, e: Expr) -> bool:
    """Is it made of nothing but what the derivation itself chose?"""
    return bool(refs_of(e)) and refs_of(e) <= work.own
