"""Sets of units: reachability as bit masks, a set's structure as a value, sizes of what units produce; and
questions about a set, each answered once per structure.

Whether a set of units is one cascade depends on its structure alone, so verdicts are memoised by structure: the second of two
equal layers costs one evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from math import prod
from typing import Literal

from redfuser.acrf.affine import Indices, axes_of
from redfuser.acrf.cascade import Reduce
from redfuser.acrf.expr import Const, Expr, Load, walk
from redfuser.partition import judge
from redfuser.partition.draft import draft, escaping
from redfuser.partition.drafted import Draft, R, Reject, Step
from redfuser.partition.graph import Node, Unit
from redfuser.partition.positions import axes_in, by_data
from redfuser.partition.values import Site
from redfuser.partition.work import REGION, Work

Units = frozenset[Unit]


class Signatures:
    """A region's structure as a value: what its units compute and how they are wired, no names, no positions."""

    def __init__(self, held: frozenset[Node] = frozenset(), leaving: Callable[[Units], Iterable[Node]] = escaping) -> None:
        """held: what is read from memory, whatever made it. leaving: what a region writes."""
        self.held, self.leaving = held, leaving
        self.picked: dict[Unit, tuple[object, object] | None] = {}

    def of(self, units: Units, lead: Node, about: Unit | None) -> tuple[object, ...]:
        return self.numbered(units, lead, about)[0]

    def numbered(self, units: Units, lead: Node, about: Unit | None) -> tuple[tuple[object, ...], dict[object, int]]:
        """The structure, and which of its numbers the units and the tensors that they read have."""
        order = sorted(units, key=lambda u: u.index)
        number: dict[object, int] = {}
        lines: list[object] = []
        picks: dict[tuple[object, object], int] = {}
        leaving = {n.key for n in self.leaving(units)}

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


def place(n: Node, number: Mapping[object, int]) -> tuple[int, int]:
    """A tensor's number in a structure, or that of what makes it, and which of its results it is."""
    return (number[n], -1) if n in number else (number[n.unit], n.unit.nodes.index(n) if n.unit else 0)


def last(u: Unit) -> Node:
    """The last reduction of an operation whose result is read (an index of a maximum has the maximum beside it)."""
    read = {u.buffers.get(x.tensor) for n in u.nodes if n.stmt is not None for x in walk(n.stmt.expr) if isinstance(x, Load)}
    found = [n for n in u.nodes if isinstance(n.stmt, Reduce)]
    return next((n for n in reversed(found) if n in read or n in u.results), found[-1])


class Asking:
    """Verdicts and drafts of sets of units. Units of a ``banned`` pair must not share a cascade; what the ``held`` tensors'
    makers write is read as they write it. ``verdicts`` may be shared between those who ask about one module, and ``drafts``
    between those who ask about one graph."""

    def __init__(self, banned: frozenset[frozenset[int]], held: frozenset[Node], work: Work | None,
                 verdicts: dict[object, Reject | None] | None, drafts: dict[object, Draft | Reject] | None) -> None:
        self.banned = [sum(1 << i for i in pair) for pair in banned]
        self.held = held
        self.signatures = Signatures(held)
        self.work = work or Work()
        self.verdicts: dict[object, Reject | None] = {} if verdicts is None else verdicts
        self.drafts: dict[object, Draft | Reject] = {} if drafts is None else drafts
        self.reading: dict[object, tuple[tuple[tuple[int, int], str], ...]] = {}
        self.steps: list[Step] = []

    def drafted(self, units: Units, lead: Node) -> Draft | Reject:
        """A draft costs once, however often the graph is grown again."""
        if (key := (units, lead, self.held)) not in self.drafts:
            self.drafts[key] = draft(units, lead, self.work, frozenset(n for n in self.held if n.unit not in units))
        return self.drafts[key]

    def hold(self, nodes: frozenset[Node]) -> None:
        """Read these as they are written, from now on."""
        if nodes - self.held:
            self.held |= nodes
            self.signatures.held = self.held

    def step(self, kind: Literal["join", "follow", "lead"], grown: Units, units: Units) -> Units:
        self.steps.append(Step(kind, grown - units))
        return grown

    def verdict(self, question: judge.Question, units: Units, lead: Node, about: Unit | None = None) -> Reject | None:
        """The question asked about the draft of ``units``: None when it stands. Answered once per structure."""
        if len(units) > REGION:
            return Reject("RF308", None, f"a region of more than {REGION} operations")
        key = (question, self.signatures.of(units, lead, about), self.surroundings(units, about))
        if key not in self.verdicts:
            got = self.drafted(units, lead)
            if isinstance(got, Draft):
                self.verdicts[key] = question(got, about)
            else:
                common = question is judge.rows and len(got.rows) > 1 and any(n.unit is about for n in got.rows)
                self.verdicts[key] = None if common else got
        return self.verdicts[key]

    def surroundings(self, units: Units, about: Unit | None) -> object:
        """What verdicts read beyond the units themselves: whether the newcomer's results are read outside."""
        return about is not None and any(n in escaping(units) for n in about.results)

    def parted(self, units: Units) -> bool:
        """Does the set hold a pair that the algebra would not join?"""
        members = bits(units)
        return any(members & pair == pair for pair in self.banned)

    def reads(self, units: Units, lead: Node) -> list[tuple[Node, str]]:
        """What the region reads from memory, and whether that is read more than once for an element of the row: empty if not,
        ``row`` where a contraction reads it once for each row, ``scaled`` where a constant factor could leave a contraction,
        else ``everywhere``. Found once per structure."""
        key, number = self.signatures.numbered(units, lead, None)
        if key not in self.reading:
            d = self.drafted(units, lead)
            if isinstance(d, Reject):
                self.reading[key] = ()
            else:
                row = self.on_row(d)
                self.reading[key] = tuple((place(n, number), self.often(
                    d, sites, [at for at in sites if (n, at) in row])) for n, sites in d.external.items())
        made = {k: x for x, k in number.items() if isinstance(x, Unit)}
        given = {k: x for x, k in number.items() if isinstance(x, Node)}
        return [(given[k] if at < 0 else made[k].nodes[at], reused) for (k, at), reused in self.reading[key]]

    def often(self, d: Draft, sites: Iterable[tuple[Expr, ...]], row: Collection[tuple[Expr, ...]]) -> str:
        """How often an element is read; row: those of its places that are read for each element of the row."""
        if not any(self.reused(d, at, at in row) for at in sites):
            return ""
        if not d.inner:
            return "everywhere"
        return "scaled" if any(self.reused(d, at, False) for at in sites) else "row"

    def on_row(self, d: Draft) -> set[Site]:
        """What is read for each element of the row, or inside of another reduction: all but what results without a row read."""
        found = {s for i in d.ev.instances.values() for s in i.body.sites}
        return found | {s for k in d.sinks if k.value is not None and R in axes_in(k.at) for s in k.value.sites}

    def reused(self, d: Draft, at: tuple[Expr, ...], row: bool = True) -> bool:
        """Is an element at this place read more than once? A place that data say, once for each result, is one of its row."""
        return (row and by_data(at)) or not (set(d.p_axes) | ({R} if row else set())) <= {a for e in at for a in axes_of(e)}
