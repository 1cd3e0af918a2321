"""Maps without a reduction as a fusion: no state, nothing to merge, and so nothing to derive.

What is left to prove is that the statements are the program's, which is what the checker compares them with; the certificate
says that there is nothing else.
"""

from __future__ import annotations

from redfuser.acrf.cascade import Cascade, Let
from redfuser.acrf.derive.fuse import VERSION, check_form, key_of
from redfuser.acrf.state import Certificate, Fused, NotFusable, State

STATELESS = "no state: every result is a map of the inputs, so there is nothing to merge"


def mapped(cascade: Cascade, casts: str = "preserve") -> Fused | NotFusable:
    """The fusion of a cascade that reduces nothing; its r-axis is that along which elements are taken together.

    Raises InputError RF200 for one that is not well formed. A statement that reduces is a refusal (RF211): then there may be a
    state, which :func:`redfuser.acrf.fuse` derives."""
    check_form(cascade)
    lets = tuple(s for s in cascade.stmts if isinstance(s, Let))
    if len(lets) != len(cascade.stmts) or not lets:
        return NotFusable("RF211", cascade.name, f"every statement of {cascade.name} is a map", "a statement reduces",
                          "derive a state for it")
    if any(a.extent == 0 for a in cascade.axes):
        return NotFusable("RF213", cascade.name, "every axis has at least one element", "an axis is empty",
                          "leave empty results to the framework")
    certificate = Certificate(key_of(cascade, casts), choices=(STATELESS,), casts=casts, extra=(("version", VERSION),))
    return Fused(cascade, (), State((), ()), lets, certificate)
