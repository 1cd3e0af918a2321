"""What drafts are as cascades, and what the algebra makes of those: each distinct one once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from redfuser.acrf.cascade import Cascade, Let, Reduce
from redfuser.acrf.derive.derivation import Row
from redfuser.acrf.expr import Cast, Op, Ref
from redfuser.acrf.state import Fused, NotFusable
from redfuser.dtypes import NARROW, UNIT
from redfuser.partition import loops
from redfuser.partition.about import defective, keys_of, trimmed
from redfuser.partition.across import Priced
from redfuser.partition.canonical import Outlined, outline
from redfuser.partition.drafted import Draft
from redfuser.partition.flat import flattened, one_matrix, rows_joined
from redfuser.partition.graph import Graph
from redfuser.partition.region import key_of
from redfuser.partition.work import CASCADES, DERIVED, Work

log = logging.getLogger("redfuser.partition")


class Forming:
    """The cascades and states of one graph's drafts. holds: is the row of a state held on chip, so that what does not merge
    can be reduced of it? priced: what a state's kernel takes, on a GPU."""

    def __init__(self, graph: Graph, casts: str, work: Work, holds: Callable[[Fused], bool] | None,
                 priced: Priced | None = None) -> None:
        self.casts, self.work, self.holds, self.priced = casts, work, holds, priced
        self.fused: dict[str, Fused | NotFusable] = {}
        self.slices = loops.Slices(graph)
        self.repeated: frozenset[str] = frozenset()

    def formed(self, drafts: list[Draft], maps: bool = False, others: Iterable[Draft] = ()
               ) -> tuple[list[tuple[Draft, Outlined | NotFusable]], list[Draft]]:
        """The cascades of drafts, those that differ in nothing but places with slices for what they read; and apart the steps
        of unrolled loops, which stay with torch. others: drafts that stand beside them."""
        plain = [(d, self.form(d, maps)) for d in trimmed(drafts, others)]
        keys = keys_of(plain)
        self.repeated |= loops.alike(keys)
        known = [(d, self.form(d, maps, self.slices) if loops.template(key) in self.repeated else out)
                 for (d, out), key in zip(plain, keys, strict=True)]
        keys = [key if now is before else keys_of([(d, now)])[0]
                for (d, now), (_, before), key in zip(known, plain, keys, strict=True)]
        some = loops.unrolled(keys)
        steps = [loops.template(key) in some for key in keys]
        if any(steps):
            log.info("%d steps of unrolled loops were left to torch: RF308", sum(steps))
        return ([x for x, step in zip(known, steps, strict=True) if not step],
                [d for (d, _), step in zip(known, steps, strict=True) if step])

    def form(self, d: Draft, maps: bool, slices: loops.Slices | None = None) -> Outlined | NotFusable:
        """The cascade of a draft. It is of our own making: one that cannot be formed is a refusal."""
        try:
            out = outline(d, "cascade", slices)
            products = any(i.contraction for i in (*d.inner, *d.rows))
            joined = flattened if maps else one_matrix if products else rows_joined
            return replace(out, cascade=joined(out.cascade))
        except Exception as e:
            return defective(e)

    def derived(self, out: Outlined | NotFusable, how: Callable[[Cascade], Fused | NotFusable]) -> Fused | NotFusable:
        """What the algebra says of a cascade. One that is not well formed is a refusal too."""
        if isinstance(out, NotFusable):
            return out
        try:
            return how(out.cascade)
        except Exception as e:
            return defective(e, out.cascade.name)

    def fuse(self, cascade: Cascade) -> Fused | NotFusable:
        from redfuser.acrf import fuse

        key = key_of(cascade)
        if key not in self.fused:
            if len(self.fused) >= CASCADES:
                return NotFusable("RF308", "", "the model has a bounded number of distinct cascades",
                                  f"it has more than {CASCADES}", "a loop that was unrolled is better compiled as one step")
            self.work.left -= DERIVED
            self.fused[key] = fuse(cascade, self.casts)
            self.fused[key] = self._of_the_row(cascade, self.fused[key])
        return self.fused[key]

    def settled(self, cascade: Cascade) -> bool:
        """After a check found its state wrong: is there another, of a row that is held, whose reductions read results as the
        program does? It is this cascade's from now on, so there is one such answer for each."""
        from redfuser.acrf import fuse

        wrong = self.fuse(cascade)
        if self.holds is None or not isinstance(wrong, Fused):
            return False
        try:
            row = fuse(cascade, self.casts, "final")
        except Exception as e:
            row = defective(e, cascade.name)
        if not isinstance(row, Fused) or (row.state, row.post) == (wrong.state, wrong.post) or not self.holds(row):
            return False
        self.fused[key_of(cascade)] = row
        return True

    def _of_the_row(self, cascade: Cascade, merged: Fused | NotFusable) -> Fused | NotFusable:
        """What is reduced of a row that is held, where nothing merges, or where merging takes what the program has not
        and a kernel more time."""
        from redfuser.acrf import fuse

        if self.holds is None:
            return merged
        if isinstance(merged, Fused) and (_keeps_digits(merged) or not (self.priced and _bounded(merged))):
            return merged
        ways: tuple[Row, ...] = ("direct", "final") if isinstance(merged, Fused) else ("held", "final")
        rows = [r for w in ways if isinstance(r := fuse(cascade, self.casts, w), Fused) and self.holds(r)]
        states = [merged, *rows] if isinstance(merged, Fused) else rows
        if self.priced is None or len(states) < 2:
            return states[0] if states else merged
        times = [(t, n) for n, s in enumerate(states) if isinstance(t := self.priced(s), float)]
        return states[min(times)[1]] if times else states[0]


def _keeps_digits(fused: Fused) -> bool:
    """Is a mean corrected by what its sum loses, of data whose sums of equal elements are not exact?

    What is about such a mean and divided by a deviation from it is 0 for equal elements, and would be a last digit over a root
    of eps. Of halves, ``n`` times one is a float32 number while n has no more digits than are left."""
    bodies = {s.name: s.expr for s in fused.producers if isinstance(s, Let)}
    sums = {a.names[0]: a.contribution for a in fused.state.accumulators}
    n = fused.cascade.extent(fused.cascade.raxis)
    for f in fused.state.finalize:
        match f.expr:
            case Op(name="add", args=(Ref(name=total), Ref(name=rest))) if {total, rest} <= sums.keys():
                e = sums[total]
                while isinstance(e, Ref) and e.name in bodies:
                    e = bodies[e.name]
                halves = isinstance(e, Cast) and e.arg.dtype in NARROW and isinstance(n, int) and \
                    n * UNIT["f32"] <= UNIT[e.arg.dtype]
                if not halves:
                    return True
    return False


def _bounded(fused: Fused) -> bool:
    """Is a sum kept about what the program does not have: are there more accumulators than reductions?"""
    c = fused.cascade
    return len(fused.state.accumulators) > sum(isinstance(s, Reduce) and s.over == c.raxis for s in c.stmts)
