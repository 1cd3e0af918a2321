"""Maps without a reduction as a fusion: no state, nothing to merge, and so nothing to derive. Of a running reduction the state
is the plain monoid of its reducer, which is carried along the row as it stands: nothing is rebased, and nothing is deferred.

What is left to prove is that the statements are the program's, which is what the checker compares them with; the certificate
says that there is nothing else.
"""

from __future__ import annotations

from redfuser.acrf.cascade import Cascade, Reduce
from redfuser.acrf.derive.fuse import VERSION, check_form, key_of
from redfuser.acrf.expr import FLOATS
from redfuser.acrf.facts.classify import Scope
from redfuser.acrf.facts.ranges import Ranges
from redfuser.acrf.state import Certificate, Fused, NotFusable, State

STATELESS = "no state: every result is a map of the inputs, so there is nothing to merge"
SCANS = frozenset({"sum", "prod", "max", "min"})
"""Reducers that run along a row."""


def beyond_one(cascade: Cascade) -> Reduce | None:
    """A running product of floats that may leave their range on the way: of 1e-30, 1e20 and 1e20 the last two alone do. Of
    factors that are at most 1 every part is, and what underflows in a part underflows in the whole."""
    ranges = Ranges(Scope(cascade))
    for s in cascade.stmts:
        if isinstance(s, Reduce) and s.reducer.kind == "prod" and s.dtype in FLOATS:
            at = ranges.of(s.expr)
            if not -1 <= at.lo <= at.hi <= 1:
                return s
        ranges.declare(s)
    return None


def mapped(cascade: Cascade, casts: str = "preserve") -> Fused | NotFusable:
    """The fusion of a cascade that reduces nothing; its r-axis is that along which elements are taken together.

    Raises InputError RF200 for one that is not well formed. A statement that reduces is a refusal (RF211): then there may be a
    state, which :func:`redfuser.acrf.fuse` derives."""
    check_form(cascade)
    scans = tuple(s for s in cascade.stmts if isinstance(s, Reduce))
    if not cascade.stmts or not all(s.running and s.over == cascade.raxis and s.reducer.kind in SCANS for s in scans):
        return NotFusable("RF211", cascade.name, f"every statement of {cascade.name} is a map", "a statement reduces",
                          "derive a state for it")
    if any(a.extent == 0 for a in cascade.axes):
        return NotFusable("RF213", cascade.name, "every axis has at least one element", "an axis is empty",
                          "leave empty results to the framework")
    if (s := beyond_one(cascade)) is not None:
        return NotFusable("RF301", s.name, "the factors of a running product are known to be at most 1",
                          "factors beyond 1 overflow in one order and not in another, and a row is multiplied in parts",
                          "leave it to torch, or bound what is multiplied", s.provenance)
    choices = tuple(f"{s.name}: runs along {s.over}; what is carried is the {s.reducer} of the elements so far" for s in scans)
    certificate = Certificate(key_of(cascade, casts), choices=choices or (STATELESS,), casts=casts,
                              extra=(("version", VERSION),))
    return Fused(cascade, (), State((), ()), cascade.stmts, certificate)
