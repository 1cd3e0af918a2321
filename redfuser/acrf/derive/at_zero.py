"""Maxima of what was moved by its own maximum: 0, wherever they are finite.

Scores whose maximum ``u = max(max x, sink)`` was taken off by hand meet a softmax that takes off its own,
``max(max (x - u), sink - u)``. As a reference that is 0: following it would say the whole of it at every step.
"""

from __future__ import annotations

from collections.abc import Iterator

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.expr import Expr, Op, Ref, map_children, unwidened
from redfuser.acrf.facts.classify import Scope
from redfuser.acrf.facts.normal import Poly, add, spread, to_poly

Side = tuple[bool, frozenset[tuple[object, object]]]
"""What a maximum is of: whether of a row of it, and its sum."""


def maximum_is_zero(scope: Scope, e: Expr) -> bool:
    """Proved of a maximum, but for roundings and where it is NaN."""
    if not _is_maximum(scope, e):
        return False
    sides = list(_sides(scope, e))
    moved = {m for m, c in sides[0][1].items() if c == -1 and len(m) == 1 and m[0][1] == 1}
    for mono in moved:
        back: Poly = {mono: -1}  # type: ignore[dict-item]
        if _told([(row, add(p, back, -1)) for row, p in sides]) == _told(_sides(scope, mono[0][0])):
            return True
    return False


def _is_maximum(scope: Scope, e: Expr) -> bool:
    e = unwidened(e)
    if isinstance(e, Ref) and not e.indices and e.name in scope.definitions:
        return _is_maximum(scope, scope.definitions[e.name])
    return (isinstance(e, Op) and e.name == "max") or (isinstance(e, Ref) and _maximum(scope, e.name) is not None)


def _told(sides: Iterator[tuple[bool, Poly]] | list[tuple[bool, Poly]]) -> set[Side]:
    return {(row, frozenset(p.items())) for row, p in sides}


def _sides(scope: Scope, e: Expr) -> Iterator[tuple[bool, Poly]]:
    """What a nest of maxima is of; anything else is a maximum of itself."""
    e = unwidened(e)
    if isinstance(e, Op) and e.name == "max":
        for x in e.args:
            yield from _sides(scope, x)
    elif isinstance(e, Ref) and not e.indices and e.name in scope.definitions:
        yield from _sides(scope, scope.definitions[e.name])
    elif isinstance(e, Ref) and not e.indices and (r := _maximum(scope, e.name)) is not None:
        yield True, to_poly(_plain(spread(scope.inline(r.expr))))
    else:
        yield False, to_poly(_plain(spread(e)))


def _maximum(scope: Scope, name: str) -> Reduce | None:
    return next((s for s in scope.cascade.stmts if isinstance(s, Reduce) and name in s.names and s.reducer.kind == "max"
                 and s.over == scope.raxis), None)


def _plain(e: Expr) -> Expr:
    """Of sums, without casts that round nothing."""
    e = unwidened(e)
    return map_children(e, _plain) if isinstance(e, Op) and e.name in ("add", "sub", "neg") else e
