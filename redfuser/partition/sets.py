"""Sets of units: reachability as bit masks, a set's structure as a value, sizes of what units produce."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from redfuser.acrf.affine import Indices
from redfuser.acrf.expr import Const, Load
from redfuser.partition.draft import escaping
from redfuser.partition.graph import Node, Unit

Units = frozenset[Unit]


class Signatures:
    """A region's structure as a value: what its units compute and how they are wired, no names, no positions."""

    def __init__(self, held: frozenset[Node] = frozenset()) -> None:
        """held: what is read from memory, whatever made it."""
        self.held = held
        self.picked: dict[Unit, tuple[object, object] | None] = {}

    def of(self, units: Units, lead: Node, about: Unit | None) -> tuple[object, ...]:
        return self.numbered(units, lead, about)[0]

    def numbered(self, units: Units, lead: Node, about: Unit | None) -> tuple[tuple[object, ...], dict[object, int]]:
        """The structure, and which of its numbers the units and the tensors that they read have."""
        order = sorted(units, key=lambda u: u.index)
        number: dict[object, int] = {}
        lines: list[object] = []
        picks: dict[tuple[object, object], int] = {}
        leaving = {n.key for n in escaping(units)}

        def visit(u: Unit) -> int:
            if u in number:
                return number[u]
            args = tuple(ref(n) for n in u.args)
            number[u] = len(number)
            what: object = id(u.lifted) if u.lifted else constant(u)
            if u not in self.picked:
                self.picked[u] = selected(u)
            if (picked := self.picked[u]) is not None:  # of two layers' slices of one tensor, each is the first of its kind
                what = (picked[0], picks.setdefault(picked, sum(p[0] == picked[0] for p in picks)))
            lines.append((number[u], what, args, u in units, tuple(n.key in leaving for n in u.results)))
            return number[u]

        def ref(n: Node) -> tuple[object, ...]:
            if n.unit is not None and (n.unit in units or (
                    n.unit.is_cheap and not n.unit.gap and n not in self.held)):
                return ("unit", visit(n.unit), n.unit.nodes.index(n))
            if n not in number:
                number[n] = len(number)
            return ("tensor", number[n], n.dtype, n.shape)

        for u in order:
            visit(u)
        assert lead.unit is not None
        return (*lines, number[lead.unit], lead.unit.nodes.index(lead), number.get(about)), number


def selected(u: Unit) -> tuple[object, object] | None:
    """A tensor at one place of some axes, as what it is but for the place, and the place; None for anything else."""
    e = u.nodes[0].stmt.expr if len(u.nodes) == 1 and u.nodes[0].stmt is not None else None
    if not isinstance(e, Load) or prod(u.nodes[0].shape) >= prod(u.args[0].shape):
        return None
    ix = Indices(u.extents)
    at = tuple(map(ix.simplify, e.indices))
    kind = (u.args[0].shape, u.nodes[0].shape, u.nodes[0].dtype, tuple("" if isinstance(i, Const) else str(i) for i in at))
    places = tuple(i.value if isinstance(i, Const) else None for i in at)
    return None if set(places) == {None} else (kind, places)


def hiding(units: Units) -> frozenset[Node]:
    """Results of a region that a reader outside would look through, to what the region keeps to itself: a view of a value that
    nothing else reads."""
    results = frozenset(escaping(units))

    def hides(n: Node) -> bool:
        if n.unit is None or n.unit not in units:
            return False
        return any(m not in results and hides(m) for m in n.unit.args) if n.unit.is_cheap else True

    return frozenset(n for n in results if n.unit is not None and n.unit.is_cheap and hides(n))


def constant(u: Unit) -> object:
    stmt = u.nodes[0].stmt if u.nodes else None
    return str(stmt.expr) if stmt is not None else u.op


def widens(u: Unit, units: Units) -> bool:
    """Reads a result of the region that has fewer elements than its own."""
    size = max(prod(n.shape) for n in u.results)
    return any(n.unit in units and prod(n.shape) < size for n in u.args)


def free_to_read(u: Unit) -> bool:
    """A view larger than its operands: a widening cast, a broadcast."""
    return u.is_view and sum(n.bytes for n in u.results) > sum(n.bytes for n in u.args)


def small(u: Unit, lead: Node) -> bool:
    """No larger than the reduction's own result."""
    return max(prod(n.shape) for n in u.results) <= prod(lead.shape)


def bits(units: Iterable[Unit]) -> int:
    out = 0
    for u in units:
        out |= 1 << u.index
    return out


def mask(units: Iterable[Unit], what: str) -> int:
    out = 0
    for u in units:
        out |= getattr(u, what)
    return out
