"""Questions about a set of units, each answered once per structure.

Whether a set of units is one cascade depends on its structure alone, so verdicts are memoised by structure: the second of two
equal layers costs one evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from redfuser.acrf.affine import axes_of
from redfuser.acrf.cascade import Reduce
from redfuser.acrf.expr import Expr, Load, walk
from redfuser.partition import judge
from redfuser.partition.draft import draft, escaping
from redfuser.partition.drafted import Draft, R, Reject, Step
from redfuser.partition.graph import Node, Unit
from redfuser.partition.positions import axes_in
from redfuser.partition.sets import Signatures, Units, bits
from redfuser.partition.values import Site
from redfuser.partition.work import REGION, Work


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
                 verdicts: dict[object, Reject | None] | None, drafts: dict[tuple[Units, Node], Draft | Reject] | None) -> None:
        self.banned = [sum(1 << i for i in pair) for pair in banned]
        self.held = held
        self.signatures = Signatures(held)
        self.work = work or Work()
        self.verdicts: dict[object, Reject | None] = {} if verdicts is None else verdicts
        self.drafts: dict[tuple[Units, Node], Draft | Reject] = {} if drafts is None else drafts
        self.reading: dict[object, tuple[tuple[tuple[int, int], str], ...]] = {}
        self.steps: list[Step] = []

    def drafted(self, units: Units, lead: Node) -> Draft | Reject:
        """A draft costs once, however often the graph is grown again."""
        if (key := (units, lead)) not in self.drafts:
            self.drafts[key] = draft(units, lead, self.work, self.held)
        return self.drafts[key]

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
        ``scaled`` where a constant factor could leave a contraction, else ``everywhere``. Found once per structure."""
        key, number = self.signatures.numbered(units, lead, None)
        if key not in self.reading:
            d = self.drafted(units, lead)
            if isinstance(d, Reject):
                self.reading[key] = ()
            else:
                often, row = "scaled" if d.inner else "everywhere", self.on_row(d)
                self.reading[key] = tuple((place(n, number), often if any(
                    self.reused(d, at, (n, at) in row) for at in sites) else "") for n, sites in d.external.items())
        made = {k: x for x, k in number.items() if isinstance(x, Unit)}
        given = {k: x for x, k in number.items() if isinstance(x, Node)}
        return [(given[k] if at < 0 else made[k].nodes[at], reused) for (k, at), reused in self.reading[key]]

    def on_row(self, d: Draft) -> set[Site]:
        """What is read for each element of the row, or inside of another reduction: all but what results without a row read."""
        found = {s for i in d.ev.instances.values() for s in i.body.sites}
        return found | {s for k in d.sinks if k.value is not None and R in axes_in(k.at) for s in k.value.sites}

    def reused(self, d: Draft, at: tuple[Expr, ...], row: bool = True) -> bool:
        return not (set(d.p_axes) | ({R} if row else set())) <= {a for e in at for a in axes_of(e)}
