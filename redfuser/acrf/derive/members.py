"""The accumulators of one term of a sum: the powers of its shifted sums, each walked, rebased and counted; and how many
elements the term's conditions leave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product as cartesian

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.derive.bounds import only_counted
from redfuser.acrf.derive.decomposition import Part, Term, where
from redfuser.acrf.derive.derivation import F1, SUM, Derivation
from redfuser.acrf.derive.family import rebased
from redfuser.acrf.derive.indicator import kept, moving, needs_opposite, placed
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Op, Ref, children, refs_of, walk
from redfuser.acrf.facts.algebra import neutral
from redfuser.acrf.facts.normal import product
from redfuser.acrf.state import Accumulator, Refuse

EXPONENT = 64.0
"""Exponents up to this are taken to stay in range (fp32 ends at 88)."""
Family = dict[tuple[int, ...], Ref]
"""The accumulators of one term, by the powers of its shifted sums."""


@dataclass
class Made:
    """The accumulators of one term, the guards that their reference may take, and how the reference moves."""

    members: Family
    guards: list[Expr]
    powers: list[int]
    follows: tuple[tuple[Expr, Fraction], ...]
    shifts: tuple[Part, ...]


def members(work: Derivation, r: Reduce, t: Term, name: str, dtype: str, single: bool, vanishes: bool) -> Made:
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
        opposite = members(work, r, replace(t, conds=reverse, elsewhere=None), work.fresh(f"{r.name}_at"), dtype, False,
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
    return Made(family, guards, powers, follows, shifts)


def where_counted(work: Derivation, r: Reduce, t: Term, bare: Expr, whole: Expr, dtype: str) -> Expr:
    """Results that may be NaN or infinite change a sum only if it has an element: one that a mask leaves empty is 0 (the
    ``bare`` sum) in the program too. The count is added to the state only if the value is used."""
    nothing = Const(0.0, dtype)
    if moving(work, t.conds):
        bare = nothing if t.elsewhere is None else bare
        count = members(work, r, Term((), conds=t.conds), work.fresh(f"{r.name}_counted"), dtype, False, True).members[()]
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
