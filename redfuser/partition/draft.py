"""A candidate region, evaluated: find its common r-axis, its p-axes, and check that it is one cascade.

Two reductions share the r-axis exactly when they read a common tensor at the same position once one axis is renamed to
the other (``m[i] = max[r] s[i, r]`` and ``t[i] = sum[l] exp(s[i, l] - m[i])`` both read ``s``: ``r`` is ``l``). Extents
and names play no part. Rows of two tensors with statistics for the same places, and nothing else in common, are one row where
they are as long. The same test finds the output axis that runs along the row (softmax's own result).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from math import prod

from redfuser.acrf.affine import Indices, axes_of
from redfuser.acrf.cascade import Reduce
from redfuser.acrf.expr import Expr, Index, Op, substitute
from redfuser.acrf.index import i64
from redfuser.acrf.state import defect
from redfuser.partition.drafted import Draft, R, Reject, Sink, verdict
from redfuser.partition.evaluate import Evaluator
from redfuser.partition.graph import Node, Unit
from redfuser.partition.positions import axes_in, best_split, in_order, parts, solve
from redfuser.partition.values import Instance, Pick, Site, picks
from redfuser.partition.work import REFERENCE, Spent, Work

DEPTH = 3


def draft(units: frozenset[Unit], seed: Node, work: Work | None = None, held: frozenset[Node] = frozenset()) -> Draft | Reject:
    """Evaluate ``units`` as one cascade over the r-axis of the reduction ``seed``. Raises Spent when that takes more than
    ``work``. held: what is read from memory, whatever made it."""
    return guarded("finding a cascade", seed, lambda: Drafter(units, seed, work, held).run())


def guarded(doing: str, seed: Node | None, run: Callable[[], Draft | Reject]) -> Draft | Reject:
    """What ``run`` gives; an error of our own is a verdict too."""
    try:
        return run()
    except Spent:
        raise
    except Exception as e:
        found = defect(doing, e)
        return Reject(found.code, seed, found.condition, found.why, found.help)


def escaping(units: frozenset[Unit]) -> list[Node]:
    """Tensors of the region that something outside reads, in program order."""
    out = []
    for u in sorted(units, key=lambda u: u.index):
        for n in u.results:
            if n.escapes or any(c not in units and n in c.args for c in u.consumers):
                out.append(n)
    return out


def _lies(inst: Instance) -> bool:
    """Do all tensors that it reads along the row have its elements side by side?"""
    return all(inst.over in axes_of(at[-1]) for _, at in inst.body.sites if inst.over in axes_in(at))


class Drafter:
    def __init__(self, units: frozenset[Unit], seed: Node, work: Work | None, held: frozenset[Node]) -> None:
        self.units, self.seed, self.work, self.held = units, seed, work, held
        self.raxes: dict[Node, str] = {seed: R}
        self.picked: dict[Site, Pick] = {}
        assert isinstance(seed.stmt, Reduce) and seed.unit is not None
        self.extents: dict[str, int] = {R: seed.unit.extents[seed.stmt.over]}
        self.splits = 0
        self.ix = Indices(self.extents)

    def raxis(self, node: Node) -> str:
        if node not in self.raxes:
            assert isinstance(node.stmt, Reduce) and node.unit is not None
            self.raxes[node] = f"r{node.key}"
            self.extents[f"r{node.key}"] = node.unit.extents[node.stmt.over]
        return self.raxes[node]

    def evaluate(self, sinks: Collection[Sink]) -> Evaluator:
        """A tensor that a contraction reads from memory is read there by the other reductions too."""
        written = self.held
        while True:
            ev = Evaluator(self.units, self.raxis, self.ix, self.work, written, self.picked)
            for s in sinks:
                s.value = ev.value(s.node, tuple(ev.ix.simplify(e) for e in s.at))
            more = ev.twice(s.value for s in sinks if s.value)
            found = list(picks(ev.instances.values(), R))
            if not more and not found:
                return ev
            written |= more
            self.picked |= {(p.row, p.indices): p for p in found}
            self.raxes |= {p.node: R for p in found}

    def sink(self, node: Node) -> Sink:
        names = []
        for d, e in enumerate(node.shape):
            names.append(f"s{node.key}_{d}")
            self.extents[names[-1]] = e
        return Sink(node, names, tuple(Index(n) for n in names))

    def run(self) -> Draft | Reject:
        sinks = [self.sink(n) for n in escaping(self.units)]
        if not sinks:
            return Reject("RF303", None, "the region has no result")
        primary = next((s for s in sinks if self.reaches(s.node)), None)
        if primary is None:
            return Reject("RF302", self.seed, "no result of the region depends on the reduction")
        try:
            self.settle([primary])
            done = [primary]
            for s in sinks:
                if s is not primary:
                    self.align(s, done)
                    done.append(s)
            ev = self.settle(done)
        except RecursionError as e:
            return Reject("RF302", self.seed, str(e))
        got = verdict(self.units, ev, sinks, dict(self.extents), self.work.machine if self.work else REFERENCE)
        if isinstance(got, Draft):
            return got
        return replace(got, rows=frozenset(i.node for i in ev.instances.values() if i.over == R))

    def reaches(self, node: Node) -> bool:
        """Does ``node`` depend on the seed within the region?"""
        seen, todo = set(), [node.unit]
        while todo:
            u = todo.pop()
            if u is None or u in seen or u not in self.units:
                continue
            seen.add(u)
            todo += u.producers
        return self.seed.unit in seen

    # -- axes ----------------------------------------------------------------------------------------------------------

    def settle(self, sinks: list[Sink]) -> Evaluator:
        """Split, and unify axes, until nothing changes."""
        while True:
            ev = self.evaluate(sinks)
            if self.split(ev, sinks) or self.unify(ev, sinks) or self.row_axes(ev, sinks):
                continue
            return ev

    def row_sites(self, ev: Evaluator) -> set[Site]:
        return {s for i in ev.instances.values() if i.over == R for s in i.body.sites}

    def unify(self, ev: Evaluator, sinks: list[Sink]) -> bool:
        """Give every reduction that shares a site with the row the row's axis; so does one whose elements meet the row in a
        result along it (``softmax(x) * softmax(y)``), and one of as many elements for the same rows."""
        changed = False
        rows = self.row_sites(ev)
        rows |= {s for x in sinks if x.value is not None and R in axes_in(x.at) for s in x.value.sites}
        for inst in ev.instances.values():
            r = inst.over
            if r == R or self.raxes[inst.node] == R or self.extents[r] != self.extents[R]:
                continue
            if any(R in axes_of(e) for i in ev.instances.values() if i.node is inst.node for e in i.indices):
                continue
            if self.abreast(ev, inst) or self.meets(ev, inst.body.sites, r, rows):
                self.raxes[inst.node] = R
                changed = True
        return changed

    def abreast(self, ev: Evaluator, inst: Instance) -> bool:
        """Is it a reduction of a tensor of its own, with a result for each of the rows, where nothing is multiplied? Rows of
        both are walked together then (``w * norm(g) / norm(w)``), if they lie in memory alike."""
        mine, lies = axes_in(inst.indices), _lies(inst)
        return not any(i.contraction for i in ev.instances.values()) and any(
            i.over == R and axes_in(i.indices) == mine and _lies(i) == lies for i in ev.instances.values())

    def meets(self, ev: Evaluator, sites: Iterable[Site], axis: str, rows: set[Site]) -> bool:
        to: dict[str, Expr] = {axis: Index(R)}

        def moved(some: Iterable[Site]) -> set[Site]:
            return {(node, tuple(ev.ix.simplify(substitute(e, indices=to)) for e in at)) for node, at in some
                    if any(axis in axes_of(e) for e in at)}

        here = moved(sites)
        if not rows.isdisjoint(here):
            return True
        return not (rows | self.behind(rows)).isdisjoint(self.behind(here) | here)

    def behind(self, sites: Iterable[Site]) -> set[Site]:
        """Sites read by the maps, up to ``DEPTH`` of them, that make the tensors which the region only reads."""
        out: set[Site] = set()
        for node, at in sites:
            unit = node.unit
            if unit is None or unit in self.units or not unit.pointwise or unit.gathers or node.stmt is None:
                continue
            outside: set[Unit] = set()
            level = {unit}
            for _ in range(DEPTH):
                outside |= level
                level = {p for u in level for p in u.producers if p.pointwise and not p.gathers} - outside
            out |= Evaluator(frozenset(outside), self.raxis, self.ix, self.work).value(node, at).sites - {(node, at)}
        return out

    def row_axes(self, ev: Evaluator, sinks: list[Sink]) -> bool:
        """An axis of a result that runs along the row becomes the r-axis: the result reads a tensor of the row, or one that
        is a map of the same tensor as the row is."""
        rows = self.row_sites(ev)
        taken = {a for i in ev.instances.values() if i.over == R for e in i.indices for a in axes_of(e)}
        open_ = [(s, want) for s in sinks if R not in axes_in(s.at) and s.value is not None
                 and (want := {a for a in axes_in(s.at) if a not in taken})]
        return any(self.runs_along(sinks, s.value.sites, rows, want) for s, want in open_ if s.value) or any(
            self.runs_along(sinks, s.value.sites | self.behind(s.value.sites), rows | self.behind(rows), want)
            for s, want in open_ if s.value)

    def runs_along(self, sinks: list[Sink], sites: Iterable[Site], rows: Iterable[Site], want: set[str]) -> bool:
        known: dict[Node, list[tuple[Expr, ...]]] = {}
        for node, at in sorted(rows, key=str):
            known.setdefault(node, []).append(at)
        for node, at in sorted(sites, key=str):
            for other in known.get(node, ()):
                to = solve(self.ix, at, other, want)
                if to and all(axes_of(v) == {R} for v in to.values()) and prod(
                        self.extents[a] for a in to) == self.extents[R]:
                    self.substitute(sinks, to)
                    return True
        return False

    def substitute(self, sinks: list[Sink], to: dict[str, Expr]) -> None:
        for s in sinks:
            s.at = tuple(self.ix.simplify(substitute(e, indices=to)) for e in s.at)
            s.axes = list(dict.fromkeys(n for a in s.axes for n in ([a] if a not in to else in_order(to[a]))))

    def split(self, ev: Evaluator, sinks: list[Sink]) -> bool:
        """Split a result axis that is only read through quotient and remainder (``x // 12``, ``x % 12``)."""
        needed = {a for i in ev.instances.values() for e in i.indices for x in parts(ev.ix, e) if isinstance(x, Op)
                  for a in axes_of(x)}
        own = {(s.node, s.at) for s in sinks}
        positions = [e for s in sinks if s.value for n, at in s.value.sites if (n, at) not in own for e in at]
        positions += [e for i in ev.instances.values() for n, at in (*i.body.sites, (i.node, i.indices)) for e in at]
        for s in sinks:
            for a in list(s.axes):
                if a == R or a not in axes_in(s.at):
                    continue
                seen = {x for e in set(positions) for x in parts(ev.ix, e) if a in axes_of(x)}
                bare = Index(a) in seen
                if (bare and a not in needed) or not any(isinstance(x, Op) for x in seen):
                    continue
                if (k := best_split(self.extents, a, seen)) is not None:
                    self.part(a, k, sinks)
                    return True
        return False

    def part(self, a: str, k: int, sinks: list[Sink]) -> None:
        """An axis becomes two, the faster one with ``k`` places."""
        hi, lo = f"{a}q{self.splits}", f"{a}m{self.splits}"
        self.splits += 1
        self.extents[hi], self.extents[lo] = self.extents[a] // k, k
        self.substitute(sinks, {a: Op("add", (Op("mul", (Index(hi), i64(k)), "i64"), Index(lo)), "i64")})

    def align(self, sink: Sink, done: list[Sink]) -> None:
        """Express a further result in the axes of the first one, through a tensor that both read."""
        self.settle([sink] if self.reaches(sink.node) else [])
        own = self.evaluate([sink])
        assert sink.value is not None
        rows: set[Site] = {  # a reduction that does not reach the first one: over the row, if a tensor says so
            (n, tuple(own.ix.simplify(substitute(e, indices={i.over: Index(R)})) for e in at)) for i in own.instances.values()
            if R in self.extents and self.extents[i.over] == self.extents[R] for n, at in i.body.sites}
        mine: list[Site] = sorted(sink.value.sites | {s for i in own.instances.values() for s in i.body.sites} | rows,
                                  key=lambda s: (s[0] is not sink.node, not isinstance(s[0].stmt, Reduce), -s[0].key))
        ev = self.evaluate(done)
        known: dict[Node, list[tuple[Expr, ...]]] = {}
        for s in done:
            for node, at in s.value.sites if s.value else ():
                known.setdefault(node.lead or node, []).append(at)
        for inst in ev.instances.values():
            for node, at in (*inst.body.sites, (inst.node, inst.indices)):
                known.setdefault(node.lead or node, []).append(at)
        want = {a for a in axes_in(sink.at) if self.extents[a] > 1 and a != R}
        best: dict[str, Expr] = {}
        for node, at in mine:
            here = want & axes_in(at)  # a column of a contraction is this result's alone
            for other in sorted(known.get(node.lead or node, ()), key=str):
                to = solve(ev.ix, at, other, here) if here else None
                if to is not None and set(to) == here and len({str(v) for v in to.values()}) == len(to) > len(best):
                    best = to
            if len(best) == len(want):
                break
        if best:
            self.substitute([sink], best)
