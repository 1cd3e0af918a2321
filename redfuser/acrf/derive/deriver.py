"""From decompositions to one mergeable state: which factor is deferred, which is rebased, and how values are finalized.

Reductions are taken in dependency order. Each adds the accumulators it needs (an equal one is shared) and one finalized
value. A factor that bounds growth is rebased: an exponential of data and results together, a power of data over the
result that bounds it, a rounding taken at running results. Everything else is deferred to ``finalize``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.acrf.cascade import Let, Reduce
from redfuser.acrf.derive.decompose import Decomposer
from redfuser.acrf.derive.derivation import Derivation
from redfuser.acrf.derive.given import derive_scaled
from redfuser.acrf.derive.ordered import derive_ordered
from redfuser.acrf.derive.plain import derive_plain
from redfuser.acrf.derive.product import derive_product
from redfuser.acrf.derive.pull_out import pull_out
from redfuser.acrf.derive.total import derive_sum
from redfuser.acrf.expr import FLOATS, Cast, Ref, refs_of, walk
from redfuser.acrf.facts.algebra import ORDERED, accumulator_dtype
from redfuser.acrf.facts.classify import promote
from redfuser.acrf.state import Refuse

KINDS = frozenset({"sum", "prod", "max", "min", "any", "all"})
"""Of the reductions that may be taken of a row that is held."""


@dataclass(slots=True)
class Deriver(Derivation):
    """A derivation with its rules: which one takes which reduction, and the table that takes expressions apart. What no rule
    takes is reduced of the row, where that is held."""

    def reduce(self, r: Reduce) -> None:
        if self.row == "final" and self.scope.kind(r.expr) not in ("C", "X"):
            try:
                return of_the_row(self, r, Refuse("RF901", "its state holds", "a check found its state wrong", ""))
            except Refuse:
                pass  # a state of its own, if that holds
        said = [(notes, len(notes)) for notes in (self.decomposition, self.choices, self.identities, self.conditions,
                                                  self.roundings)]
        try:
            self._by_rule(r)
        except Refuse as refusal:
            if self.row == "merged":
                raise
            for notes, before in said:  # of what was tried and is not done
                del notes[before:]
            of_the_row(self, r, refusal)

    def _by_rule(self, r: Reduce) -> None:
        kind = self.scope.kind(r.expr)
        if r.expr.dtype in FLOATS or r.reducer.kind in ("any", "all"):
            r = replace(r, expr=promote(r.expr, self.scope))
        inner = [n for n in sorted(refs_of(r.expr)) if n in self.scope.inner]
        _refuse_computed_places(self, r)
        if inner:
            pull_out(self, r, inner[0])
        elif kind in ("C", "X"):
            if r.reducer.kind != "sum" or not derive_scaled(self, r):
                derive_plain(self, r)
        elif r.reducer.kind == "sum":
            derive_sum(self, r)
        elif r.reducer.kind == "prod":
            derive_product(self, r)
        elif r.reducer.kind in ORDERED:
            derive_ordered(self, r)
        else:
            raise Refuse("RF209", f"{r.reducer} has a rule", f"{r.reducer} is not a known reduction operator", "")

    def decomposer(self) -> Decomposer:
        return Decomposer(self.scope, self.ranges, self.casts, True, self.conditions, self.roundings)


def _refuse_computed_places(work: Derivation, r: Reduce) -> None:
    raxis, along = work.scope.raxis, work.scope.axes
    bodies = {n: s.expr for s in work.scope.cascade.stmts if isinstance(s, Let) for n in s.names}
    waiting, seen = [r.expr], set[str]()
    while waiting:
        for x in walk(waiting.pop()):
            if not isinstance(x, Ref):
                continue
            if x.indices and raxis in along.get(x.name, ()) and raxis not in work.scope.axes_of(x):
                raise Refuse("RF208", f"{x} is an element of an input",
                             f"{x.name} is computed along the row: a segment that does not hold this element has none",
                             "compute this element by itself, beside the row")
            if x.name in bodies and x.name not in seen:
                seen.add(x.name)
                waiting.append(bodies[x.name])


def of_the_row(work: Derivation, r: Reduce, refusal: Refuse) -> None:
    """``r``, which no state merges, in ``post`` as it stands, once the results that it reads are final: of a row that is held
    nothing is merged, and nothing has to be proved but that it is the program's own, which every realisation is held to
    (:mod:`redfuser.chain`). Raises the refusal where nothing was reduced before it, and where an element is a contraction or
    the result has axes that no accumulator has: matrices would be multiplied outside the walk of the row."""
    grid = [set(a.axes) for a in work.refs.accumulators.values()]
    if r.reducer.kind not in KINDS or not any(set(r.axes) <= g for g in grid) or _multiplies(work, r):
        raise refusal
    dtype = accumulator_dtype(r.dtype)
    part = work.fresh(f"{r.name}_whole")
    work.scope.late |= {part, *r.names}
    work.scope.axes[part] = r.axes
    work.late[part] = Reduce((part,), r.axes, r.reducer, r.over, r.expr, dtype, r.provenance)
    value = Ref(part, dtype)
    work.late[r.name] = Let(r.name, r.axes, value if r.dtype == dtype else Cast(value, r.dtype), r.provenance)
    work.choices.append(f"{r.name}: reduced once the results that it reads are final, of a row that is held or read again "
                        f"({refusal.code}: {refusal.condition})")


def _multiplies(work: Derivation, r: Reduce) -> bool:
    """Does an element of ``r`` read a contraction?"""
    stmts = {n: s for s in work.scope.cascade.stmts for n in s.names}
    seen: set[str] = set()
    ahead = set(refs_of(r.expr))
    while ahead:
        name = ahead.pop()
        s = stmts.get(name)
        if s is None or name in seen:
            continue
        if isinstance(s, Reduce) and s.over != r.over:
            return True
        seen.add(name)
        ahead |= refs_of(s.expr)
    return False
