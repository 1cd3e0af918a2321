"""Results that were to be reduced of the whole row and that nothing reads once every reduction has its rule.

    s = sum[l] abs(x - mean)    best = argmax[l] (x - mean) / s    return best    -->    best = argmax[l] x

A place is chosen before the map that keeps the order, and what the map alone read is no part of the fused form: to reduce it
would be a visit of the row for nobody. That it is left out is a line of the certificate, so that the check tells it from a
result that is missing (:mod:`redfuser.acrf.check.structure`). Whether the map may be left out at all, where its results are
0, infinite or NaN, is decided by the rule that did (ordered.py) and held against the program like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from redfuser.acrf.cascade import Cascade, Reduce, Stmt
from redfuser.acrf.derive.derivation import Derivation
from redfuser.acrf.state import UNREAD, Condition


def leave_out(work: Derivation, cascade: Cascade, post: Sequence[Stmt]) -> None:
    """Say in the certificate which late results of ``cascade`` are not in ``post``, in the place of how they are reduced."""
    kept = {n for s in post for n in s.names}
    gone = [n for s in cascade.stmts if isinstance(s, Reduce) and s.over == cascade.raxis
            for n in s.names if n in work.late and n not in kept]
    work.choices[:] = _without(work.choices, gone)
    work.conditions += [Condition(n + UNREAD, "table", "what read it keeps the order of elements, which are chosen before it")
                        for n in gone]


def _without(choices: Iterable[str], gone: Sequence[str]) -> list[str]:
    return [c for c in choices if not c.startswith(tuple(f"{n}: " for n in gone))]
