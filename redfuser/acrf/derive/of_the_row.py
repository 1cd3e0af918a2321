"""Reductions that no state merges: taken of the whole row, once the results that they read are final.

``sum_l |x_l - mean(x)|`` has no decomposition of finite rank, and so no state that parts of a row could be merged by. Of a row
that is held nothing is merged: it is a second reduction of the elements that gave the mean, and nothing of it has to be proved
but that it is the one of the program (which every realisation is held to, :mod:`redfuser.chain`). It stands in ``post``.
"""

from __future__ import annotations

from redfuser.acrf.cascade import Let, Reduce
from redfuser.acrf.derive.derivation import Derivation
from redfuser.acrf.expr import Cast, Ref, refs_of
from redfuser.acrf.facts.algebra import accumulator_dtype
from redfuser.acrf.refuse import Refuse

KINDS = frozenset({"sum", "prod", "max", "min", "any", "all"})


def of_the_row(work: Derivation, r: Reduce, refusal: Refuse) -> None:
    """``r`` in ``post``, as it stands. Raises the refusal where nothing was reduced before it, and where an element is a
    contraction or the result has axes of its own: matrices would be multiplied outside the walk of the row."""
    grid = [set(a.axes) for a in work.refs.accumulators.values()]
    if not grid or r.reducer.kind not in KINDS or not set(r.axes) <= set.intersection(*grid) or _multiplies(work, r):
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
