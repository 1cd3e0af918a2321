"""Sums: per term of the decomposition its accumulators, and the finalized value over them.

Each factor has one of three fates: data stays in the contribution, results are deferred to ``finalize``, and what bounds
growth is rebased as its reference moves. A sum of data and results is carried as a family of its powers (family.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product as cartesian

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.derive.bounding import in_range, in_units, own_peak, within_data
from redfuser.acrf.derive.bounds import follows_maximum, may_be_undefined, only_counted
from redfuser.acrf.derive.centred import about_the_mean, of_one_mean
from redfuser.acrf.derive.decomposition import Decomposition, Part, Term, where
from redfuser.acrf.derive.derivation import (
    F1,
    SUM,
    Derivation,
    Value,
    explain,
    factor_text,
    own_name,
    spell_decomposition,
)
from redfuser.acrf.derive.faint import by, raised, refuse_rounded
from redfuser.acrf.derive.family import rebased, residuals, sum_up, translated
from redfuser.acrf.derive.indicator import kept, moving, needs_opposite, placed
from redfuser.acrf.derive.pull_out import finish_late
from redfuser.acrf.derive.quotients import in_quotients
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Op, Ref, children, op, refs_of, walk
from redfuser.acrf.facts.algebra import INF, accumulator_dtype, neutral
from redfuser.acrf.facts.normal import product
from redfuser.acrf.state import Accumulator, Refuse

EXPONENT = 64.0
"""Exponents up to this are taken to stay in range (fp32 ends at 88)."""


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
        t, faint = raised(d, t) if empty else (t, None)
        main, root, mine = _term_accumulators(work, r, t, name, dtype, single=len(terms) == 1, vanishes=empty)
        results = [(p.base, p.power) for p in t.of("d")]
        scaled = [(by(p.base) if p is faint else p.base, p.power) for p in t.of("d")]
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
            v = product([(value, F1), *resolved], dtype, t.coefficient)
            if masked:
                v = _where_counted(work, r, t, value, v, dtype)
            out.append(where([(work.scope.resolve(c), side) for c, side in reversed(t.dconds)], v, Const(0.0, dtype)))
        for g in mine:
            if g not in guards:
                guards.append(g)
        zero_over_zero = any(q < 0 and _is_zero_at(work, b, mine) for b, q in results)
        vanishes = vanishes and bool(mine) and empty
        covered = covered and (not mine or (zero_over_zero and empty and all(_of_nothing(work, g, mine) for g in mine)))
        if faint is not None:
            work.choices.append(f"{r.name}: weights and {factor_text(faint.base, F1)} raised by 2^16: of a row nothing "
                                "may be left but subnormal ones")
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
        return _family(work, r, square, work.fresh(f"{r.name}_squares", reserve=False), dtype, False, False).members[(2,)]

    t = own_peak(work, r, d, in_range(work, r, within_data(work, r, t)))
    return t if moving(work, t.conds) else in_units(work, r, d, t, squares)


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


Family = dict[tuple[int, ...], Ref]
"""The accumulators of one term, by the powers of its shifted sums."""


@dataclass
class _Made:
    """The accumulators of one term, the guards that their reference may take, and how the reference moves."""

    members: Family
    guards: list[Expr]
    powers: list[int]
    follows: tuple[tuple[Expr, Fraction], ...]
    shifts: tuple[Part, ...]


def _family(work: Derivation, r: Reduce, t: Term, name: str, dtype: str, single: bool, vanishes: bool) -> _Made:
    """Make (or find) the accumulators of one term."""
    guards: list[Expr] = []
    shifts = t.of("shift")
    follows = tuple(f for p in t.of("scaled") for f in p.follows)
    bounded = [b for p in t.of("scaled") if p.vanishes for b, _ in p.follows]
    sums = [s for p in t.of("scaled") for s in work.refs.sums(p.base)]
    ratio = work.refs.ratio(follows, vanishes, bounded, sums) if follows else None
    if ratio is not None and t.elsewhere is not None and not moving(work, t.conds) and \
            not all(only_counted(work, b, t.conds) for b, _ in follows):
        # the reference of what is not counted may be infinite: what stands in its place does not follow it
        none = Op("eq", (Ref(f"{_count(work, r, t, dtype).name}@old", dtype), Const(0.0, dtype)), "bool")
        ratio = Op("select", (none, Const(1.0, ratio.dtype), ratio), ratio.dtype)
    drifts = [work.refs.drift(p) for p in shifts]
    scales = [work.refs.scale(p) for p in shifts]
    beside = t.beside if r.expr.dtype in FLOATS else ()
    weight = [(work.refs.consistent(p, guards), p.power) for p in t.parts if p.kind in ("x", "scaled") and p not in beside]
    data = [(work.refs.consistent(p, guards), p.power) for p in beside]
    of_weight = set(map(str, guards))
    centred = [work.refs.consistent(p, guards) for p in shifts]
    powers = [int(p.power) for p in shifts]
    family: dict[tuple[int, ...], Ref] = {}
    reverse = needs_opposite(work, t.conds)
    opposite: Family | None = None
    if reverse is not None:
        opposite = _family(work, r, replace(t, conds=reverse, elsewhere=None), work.fresh(f"{r.name}_at"), dtype, False,
                           vanishes).members
    for p in shifts:
        if _may_overflow(work, p):
            raise Refuse("RF207", f"{p.b} stays within the range of its final value while the row is reduced",
                         f"{p.base} is kept at its running value, and that follows an exponential which its own results "
                         "do not bound: it may overflow although the final one does not",
                         "bound the exponential by subtracting the maximum of its argument")
    context = frozenset().union(*(work.scope.axes_of(x) for x in drifts), frozenset()) if drifts else frozenset()
    def moves(members: Family) -> list[Expr]:
        """How the shifts move. Of no element it does not matter, but a power of it might be infinite, or a reference NaN: 0."""
        first = members.get(tuple(0 for _ in powers))
        if first is None or weight or data:
            return drifts
        none = Op("eq", (Ref(f"{first.name}@old", dtype), Const(0.0, dtype)), "bool")
        return [x if s is None and not _may_be_nan(work, x) else Op("select", (none, Const(0.0, dtype), x), dtype)
                for x, s in zip(drifts, scales, strict=True)]

    for k in sorted(cartesian(*(range(n + 1) for n in powers)), key=lambda k: (sum(k), k)):
        # a weight of 0 before the power of what it hides, which might be infinite
        last = k == tuple(powers)
        factors = [*weight, *(() if last else data), *((u, F1) for u, j in zip(centred, k, strict=True) for _ in range(j))]
        narrow = r.expr.dtype if r.expr.dtype not in FLOATS else dtype
        body = product(factors, narrow) if factors else Const(1.0, dtype)
        if body.dtype != dtype:
            body = Cast(body, dtype)
        zero: Expr = Const(0.0, dtype) if not last or t.elsewhere is None or data else t.elsewhere
        zero = zero if zero.dtype == dtype else Cast(zero, dtype)
        for cond, side in reversed(t.conds):
            cond = placed(work, cond)
            body = Op("select", (cond, body, zero) if side else (cond, zero, body), dtype)
            zero = Const(0.0, dtype)
        if last and data:  # a weight that a mask makes 0, times data: 0 * v elsewhere, and a contraction of the two
            body = product([(body, F1), *data], dtype)
        label = name if last else work.fresh(f"{r.name}_{''.join(map(str, k))}", reserve=False)
        axes = work.axes(r, body, context, full=last and single)
        below = {a for j, m in family.items() if all(x <= y for x, y in zip(j, k, strict=True))
                 for a in work.refs.accumulators[m.name].axes}
        axes = tuple(a for a in r.axes if a in below or a in axes)

        def rebase(own: Ref, k: tuple[int, ...] = k) -> Expr:
            value = rebased(own, k, family, moves(family), scales, ratio, dtype)
            other = rebased(opposite[k], k, opposite, moves(opposite), scales, ratio, dtype) if opposite else None
            return kept(work, t.conds, value, other, Const(0.0, dtype), "add")

        family[k] = work.share(label, axes, dtype, body, rebase, within=r.axes)
        if guards:
            work.rebased_on.setdefault(family[k].name, set()).update(map(str, guards) if any(k) else of_weight)
    return _Made(family, guards, powers, follows, shifts)


def _term_accumulators(work: Derivation, r: Reduce, t: Term, name: str, dtype: str, single: bool,
                       vanishes: bool) -> tuple[Expr, Expr, list[Expr]]:
    """Accumulators of one term: (its sum at the reference, its sum at the true results, guards taken)."""
    made = _family(work, r, t, name, dtype, single, vanishes)
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
        value = _where_counted(work, r, t, value, value, dtype)  # a NaN among what is not counted reaches the reference
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
    return value, _where_counted(work, r, t, value, root, dtype) if t.conds else root, guards


def _to_undo(work: Derivation, t: Term, guards: list[Expr]) -> list[Expr]:
    """The guards of a term that the root has to undo. Not those of what the derivation itself chose for this term: that cancels
    against the factor deferred with it, whereas the program's own results, be they equal, end as the program has them."""
    read = {x for p in t.parts if p.kind != "d" for e in (p.base, p.a, p.b, p.true, p.unit, p.rest, *(b for b, _ in p.follows))
            if e is not None for x in walk(e) if _own(work, x)}
    mine = {str(g) for x in read if isinstance(x, Ref) or (isinstance(x, Op) and x.name == "min")
            for g in work.refs.guards_of(x)}
    return [g for g in guards if str(g) not in mine]


def _may_be_nan(work: Derivation, e: Expr) -> bool:
    """Is it NaN by its own words where a running result is still 0, or infinite or NaN for some inputs of the row, whatever the
    running results are (a root of a negative input, a division by one that is 0)?"""
    def undefined(x: Expr) -> bool:
        if not isinstance(x, Op) or x.name not in ("div", "rsqrt", "sqrt", "log", "log2", "pow"):
            return isinstance(x, Const) and bool(x.value != x.value)
        y = x.args[1 if x.name == "div" else 0]
        r = work.ranges.of(y)
        return not refs_of(y) and not (r.nonneg if x.name in ("sqrt", "pow") else r.nonzero and (x.name == "div" or r.nonneg))

    return any(map(undefined, walk(e)))


def _own(work: Derivation, e: Expr) -> bool:
    """Is it made of nothing but what the derivation itself chose?"""
    return bool(refs_of(e)) and refs_of(e) <= work.own


def _may_overflow(work: Derivation, p: Part) -> bool:
    """Does the running value of a shifted sum's reference hold an exponential that nothing bounds?"""
    def unbounded(e: Expr, inverted: bool) -> bool:
        if isinstance(e, Op) and e.name in ("exp", "exp2"):
            r = work.refs.ranges.of(e.args[0])
            return r.lo < -EXPONENT if inverted else r.hi > EXPONENT
        if isinstance(e, Op) and e.name == "div":
            return unbounded(e.args[0], inverted) or unbounded(e.args[1], not inverted)
        return any(unbounded(k, inverted) for k in children(e))

    return p.b is not None and unbounded(work.refs.running(p.b), False)


def _where_counted(work: Derivation, r: Reduce, t: Term, bare: Expr, whole: Expr, dtype: str) -> Expr:
    """Results that may be NaN or infinite change a sum only if it has an element: one that a mask leaves empty is 0 (the
    ``bare`` sum) in the program too. The count is added to the state only if the value is used."""
    nothing = Const(0.0, dtype)
    if moving(work, t.conds):
        bare = nothing if t.elsewhere is None else bare
        count = _family(work, r, Term((), conds=t.conds), work.fresh(f"{r.name}_counted"), dtype, False, True).members[()]
        return Op("select", (Op("eq", (count, nothing), "bool"), bare, whole), dtype)
    empty = Op("eq", (_count(work, r, t, dtype), nothing), "bool")
    return Op("select", (empty, nothing if t.elsewhere is None else bare, whole), dtype)


def _count(work: Derivation, r: Reduce, t: Term, dtype: str) -> Ref:
    """How many elements hold a term's conditions, all of data: an accumulator, one for every sum under them."""
    one = where(t.conds, Const(1.0, dtype), Const(0.0, dtype))
    axes = tuple(a for a in r.axes if a in work.scope.axes_of(one))
    same = work.equal(one, SUM, dtype, axes, r.axes) or next(
        (a for a in work.refs.pending.values() if a.contribution == one and a.axes == axes and a.dtype == dtype), None)
    if same is None:
        name = work.fresh(f"{r.name}_counted")
        work.scope.axes[name] = axes
        same = Accumulator((name,), axes, SUM, dtype, neutral(SUM, dtype), one, (Ref(f"{name}@old", dtype),))
        work.refs.pending[name] = same
    return Ref(same.name, dtype)
