"""One sample in one number system: does the state keep every obligation on it? Part of :mod:`redfuser.acrf.check.verify`."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from redfuser.acrf.cascade import Reduce, Stmt, stmt_dtype
from redfuser.acrf.check.cuts import Cuts, all_cuts, some_cuts
from redfuser.acrf.check.domains import NUMPY, Array, Domain
from redfuser.acrf.check.evaluate import FusedMachine
from redfuser.acrf.check.labelled import Labelled
from redfuser.acrf.check.machine import Machine, State
from redfuser.acrf.check.ranked import decided, ranked, tied
from redfuser.acrf.check.samples import Sample, filled
from redfuser.acrf.expr import FLOATS, refs_of
from redfuser.acrf.state import Accumulator, Fused

RELATIVE = 1e-30
"""Two 50-digit values agree when they differ by at most this, relative to the larger and to the inputs' scale."""
INF = float("inf")
INFINITE = frozenset({"posinf", "neginf", "firstneginf", "firstposinf", "fewneginf", "allneginf", "allposinf"})
"""Kinds of elements with infinities (samples.py)."""
PLACES = " (places)"


@dataclass
class Trial:
    """One sample in one number system."""

    fused: Fused
    sample: Sample
    numbers: Any
    spans: dict[tuple[int, int], State] = field(default_factory=dict)
    scale: float = 1.0
    masked: bool = False
    """Is the row masked altogether? Then the program's NaN is promised."""
    reached: frozenset[str] = frozenset()
    """Statements that an infinite element makes infinite or NaN, and what is computed from them: a NaN may come out of these,
    but no other number. Where there are any, states are compared by what is made of them."""
    compared: bool = False
    """Was some element of an output defined, so that the comparison said something?"""

    def violations(self, cuts: Cuts) -> Iterator[str]:
        f = self.machine = FusedMachine.on(self.fused, self.sample.machine(self.fused.cascade, self.numbers))
        n, init = f.length, f.init()
        reference = self.sample.machine(self.fused.cascade, self.numbers)
        for stmt in self.fused.cascade.stmts:
            reference.statement(stmt)
        kinds = set(self.sample.kinds.values())
        self.masked = "allneginf" in kinds and not self._infinite(reference)
        if not self.masked and kinds & INFINITE:
            self.reached = self._reached(reference)
        self.scale = self._scale()
        whole = self.span(0, n)
        if cuts is all_cuts:  # about no element of the sample
            yield from self._neutrals()
        if self.reached:  # states may differ by NaN; what is made of them must be the program's, or NaN
            for state in (whole, *self._states(cuts(n))):
                yield from self._results(reference, f.finish(state))
            return
        yield from self._same("neutral: an empty segment changes the state", f.step(whole, n, n), whole)
        yield from self._same("neutral: an empty segment is not init", _unless_lost(self.span(0, 0), whole, init), init)
        tried = cuts(n)
        if cuts is some_cuts:  # that an empty segment changes no state, and is init by itself, is asked above
            tried = [c for c in tried if all(c)] or tried
        for what, got in self._segments(whole, init, tried):
            yield from self._same(what, got, whole)
            if n and self._excuses(got, whole):  # a NaN for an infinity in a state is a NaN in a result, or none
                yield from self._results(reference, f.finish(got))
        if n:  # the certificate's condition: the whole row has an element
            yield from self._results(reference, f.finish(whole))

    def span(self, start: int, stop: int) -> State:
        if (start, stop) not in self.spans:
            self.spans[start, stop] = self.machine.step(self.machine.init(), start, stop)
        return self.spans[start, stop]

    def _states(self, cuts: list[tuple[int, ...]]) -> Iterator[State]:
        """The whole row's state, by every segmentation: absorbed, and merged from the left."""
        steps: dict[tuple[int, ...], State] = {(): self.machine.init()}
        for cut in cuts:
            spans = list(pairwise(np.cumsum([0, *cut]).tolist()))
            yield self._absorbed(steps, cut)
            if len(cut) in (2, 3):
                yield reduce(self.machine.merge, [self.span(*span) for span in spans])

    def _segments(self, whole: State, init: State, cuts: list[tuple[int, ...]]) -> Iterator[tuple[str, State]]:
        """The whole row's state by every way that must give it, and what each asks."""
        steps: dict[tuple[int, ...], State] = {(): init}
        for cut in cuts:
            yield f"segmentation: steps over {list(cut)}", self._absorbed(steps, cut)
        for what, got in self._merges(whole, init, cuts):
            yield f"merge: {what}", got

    def _absorbed(self, steps: dict[tuple[int, ...], State], cut: tuple[int, ...]) -> State:
        """The state after segments of these lengths, from the longest prefix that is known."""
        for i, (start, stop) in enumerate(pairwise(np.cumsum([0, *cut]).tolist())):
            if cut[:i + 1] not in steps:
                steps[cut[:i + 1]] = self.machine.step(steps[cut[:i]], start, stop) if i else self.span(start, stop)
        return steps[cut]

    def _merges(self, whole: State, init: State, cuts: list[tuple[int, ...]]) -> Iterator[tuple[str, State]]:
        """Every way to merge the states of two and of three segments, which must all give the state of the whole."""
        parts = {cut: [self.span(*ends) for ends in pairwise(np.cumsum([0, *cut]).tolist())] for cut in cuts
                 if len(cut) in (2, 3)}
        two = [("init is no identity", whole, init), ("init is no identity", init, whole)]
        two += [(f"of segments {list(c)}", p[0], p[1]) for c, p in parts.items() if len(c) == 2]
        two += [(f"not commutative on {list(c)}", p[1], p[0]) for c, p in parts.items() if len(c) == 2]
        three = [(c, p[0], p[1], p[2]) for c, p in parts.items() if len(c) == 3]
        inner: list[tuple[State, State]] = [pair for _, a, b, c in three for pair in ((a, b), (b, c), (c, a))]
        merged = self.machine.merges([*[(a, b) for _, a, b in two], *inner])
        yield from zip([what for what, *_ in two], merged, strict=False)
        outer: list[tuple[State, State]] = []
        names = []
        for i, (cut, a, b, c) in enumerate(three):
            ab, bc, ca = merged[len(two) + 3 * i:len(two) + 3 * i + 3]
            outer += [(ab, c), (a, bc), (ca, b)]
            names += [f"not associative on {list(cut)}", f"not associative on {list(cut)}", f"out of order on {list(cut)}"]
        yield from zip(names, self.machine.merges(outer), strict=True)

    def _neutrals(self) -> Iterator[str]:
        m = self.machine.whole
        for a in self.fused.state.accumulators:
            neutral = tuple(m.expr(c) for c in a.neutral)
            for probe in _probes(a, self.numbers):
                values = dict(zip(a.names, probe, strict=True))
                for left, right in ((neutral, probe), (probe, neutral)):
                    mixed = dict(zip(a.names, m.combine(a, left, right), strict=True))
                    yield from self._same(f"neutral: {', '.join(map(str, a.neutral))} is not neutral for {a.reducer} "
                                          f"of {a.name}", mixed, values)

    def _results(self, reference: Machine, fused: Machine) -> Iterator[str]:
        cascade = self.fused.cascade
        free: set[str] = set()  # places that may be others, and what is computed from them in integers
        for s in cascade.stmts:
            for name in s.names:
                if name not in fused.values or name not in reference.values:
                    continue
                shape = [len(reference.ranges[a]) for a in s.axes]
                want, got = (np.broadcast_to(m.values[name].aligned(s.axes), shape) for m in (reference, fused))
                if want.dtype == object:
                    got = np.where(self._excused(name in cascade.outputs, got, want, name in self.reached), want, got)
                    if "nan" in self.sample.kinds.values() and not self._close(got, want):
                        got = self._of_other_origin(name, shape, got, want)
                elif free & refs_of(s.expr) or (stmt_dtype(s, name) == "i64" and (
                        self._lost(reference) or not ranked(reference, s)  # several NaN or infinite elements are best
                        or tied(self.fused.cascade, reference, s, got, want))):  # or several that a rounding makes equal
                    some = self._decided(reference, s) if not free & refs_of(s.expr) else None
                    free.add(name)
                    if some is None or not some.any() or tied(self.fused.cascade, reference, s, got, want):
                        continue
                    got, want = got[some], want[some]
                self.compared |= name in cascade.outputs and (want.dtype != object or bool(np.any(np.abs(want) < INF)))
                if not self._close(got, want):
                    yield f"result: {name} differs from the unfused program ({self.sample.name}): " \
                          f"{_show(got)} instead of {_show(want)}" + ("" if want.dtype == object else PLACES)

    def _decided(self, reference: Machine, s: Stmt) -> Array | None:
        """Which places are compared where some are not: those of numbers, of data that are numbers."""
        if set(self.sample.kinds.values()) & {*INFINITE, "nan"} or not self._lost(reference) <= set(s.names):
            return None
        return decided(reference, s)

    def _excused(self, output: bool, got: Array, want: Array, reached: bool = False) -> Array:
        """Where the table of decisions (docs/algebra.md) lets the fused form differ: NaN and an infinity for one another, but
        never one infinity for the other; NaN where an infinite element reaches a result; and what stays inside the kernel
        counts where the program defines it. What is not finite never becomes a number."""
        undefined = want != want
        excused = (undefined & (np.abs(got) == INF)) | ((np.abs(want) == INF) & (got != got)) | (undefined & (got != got))
        if reached:
            excused |= got != got
        if output and (self.masked or "nan" in self.sample.kinds.values()):  # promised: NaN where the program is NaN
            excused &= ~undefined
        return np.asarray(excused if output else excused | undefined, np.bool_)

    def _of_other_origin(self, name: str, shape: list[int], got: Array, want: Array) -> Array:
        """``got`` with what is undefined in it excused where the program is undefined without any NaN in its inputs."""
        plain = self.sample.machine(self.fused.cascade, self.numbers)
        plain = replace(plain, tensors={n: filled(t) for n, t in self.sample.tensors.items()})
        for stmt in self.fused.cascade.stmts:
            plain.statement(stmt)
        clean = np.broadcast_to(plain.values[name].aligned(self.fused.cascade.stmt(name).axes), shape)
        defined = np.asarray(np.abs(clean) < INF, np.bool_) | np.asarray(np.abs(got) < INF, np.bool_)
        return np.where(defined, got, want)

    def _infinite(self, reference: Machine) -> bool:
        """Is a result infinite that is not the maximum of nothing? A row that is masked altogether is NaN otherwise."""
        extrema = {s.name for s in self.fused.cascade.stmts if isinstance(s, Reduce) and s.reducer.kind in ("max", "topk")}
        return any(bool(np.any(r == INF)) or (n not in extrema and bool(np.any(r == -INF)))
                   for n, r in self._float_results(reference).items())

    def _reached(self, reference: Machine) -> frozenset[str]:
        """Results of the r-axis that are not finite, and what is computed from them."""
        lost = self._lost(reference)
        for s in self.fused.cascade.stmts:
            if lost & {*s.names, *refs_of(s.expr)}:
                lost |= set(s.names)
        return frozenset(lost)

    def _lost(self, reference: Machine) -> set[str]:
        return {n for n, r in self._float_results(reference).items() if not bool(np.all(np.abs(r) < INF))}

    def _float_results(self, reference: Machine) -> dict[str, Array]:
        cascade = self.fused.cascade
        return {s.name: reference.values[s.name].data for s in cascade.stmts if isinstance(s, Reduce)
                and s.over == cascade.raxis and stmt_dtype(s, s.name) in FLOATS}

    def _same(self, what: str, got: Mapping[str, Labelled], want: Mapping[str, Labelled]) -> Iterator[str]:
        for name, value in want.items():
            if got[name].axes == value.axes and _identical(got[name].data, value.data):
                continue
            axes = tuple(dict.fromkeys((*value.axes, *got[name].axes)))
            x, y = np.broadcast_arrays(got[name].aligned(axes), value.aligned(axes))
            if y.dtype == object:
                x = np.where(self._excused(True, x, y), y, x)
            if not self._close(x, y):
                yield f"{what} ({self.sample.name}): {name} is {_show(x)} instead of {_show(y)}"

    def _excuses(self, got: Mapping[str, Labelled], want: Mapping[str, Labelled]) -> bool:
        """Is one of the two NaN where the other is infinite?"""
        pairs = [(got[n].data, w.data) for n, w in want.items() if got[n].axes == w.axes]
        return any(x.shape == y.shape and bool(np.any((x != x) ^ (y != y))) for x, y in pairs)

    def _close(self, got: Array, want: Array) -> bool:
        if got.dtype != object or want.dtype != object:
            return bool(np.array_equal(got, want))
        return all(near(a, b, self.scale) for a, b in zip(got.ravel(), want.ravel(), strict=True))

    def _scale(self) -> float:
        """The third power of the largest finite input: what cancellation may leave behind, in units of RELATIVE."""
        sizes = [abs(float(v)) for t in self.sample.tensors.values() if t.dtype in FLOATS for v in t.drawn.values()]
        return max([1.0, *(v for v in sizes if v < INF)]) ** 3


def _unless_lost(empty: State, whole: State, init: State) -> State:
    """What an empty segment gives, where a NaN of it that is given beside the row is not the whole row's as well."""
    out: State = {}
    for n, e in empty.items():
        axes = tuple(dict.fromkeys((*e.axes, *whole[n].axes, *init[n].axes)))
        x, y, z = np.broadcast_arrays(*(s[n].aligned(axes) for s in (empty, whole, init)))
        out[n] = Labelled(axes, np.where((x != x) & (y != y), z, x))
    return out


def _probes(a: Accumulator, numbers: Domain) -> Iterator[tuple[Labelled, ...]]:
    """Values that a neutral element must leave as they are, infinities included; for payloads best first."""
    if a.reducer.kind in ("argmax", "argmin", "topk"):
        sign, k = (-1 if a.reducer.kind == "argmin" else 1), a.reducer.k
        axes = a.axes[-1:] if a.reducer.kind == "topk" else ()
        for row in ([2.0, -1.0], []):
            best = [sign * v for v in [*row, *[-INF] * k][:k]] if a.dtype in FLOATS else [sign * (9 - i) for i in range(k)]
            values, places = _stored(best, a.dtype, numbers), np.arange(5, 5 + k)
            yield tuple(Labelled(axes, x if axes else x.reshape(())) for x in (values, places))
    elif a.dtype == "bool":
        yield from ((Labelled((), np.asarray(v)),) for v in (False, True))
    else:
        infinities = [-INF, INF] if a.dtype in FLOATS and a.reducer.kind != "prod" else []
        yield from ((Labelled((), _stored([v], a.dtype, numbers).reshape(())),) for v in [-3, 0, 2, *infinities])


def _stored(values: list[Any], dtype: str, numbers: Domain) -> Array:
    return numbers.enter(np.array(values, np.float64), dtype) \
        if dtype in FLOATS else np.array(values, np.int64).astype(NUMPY[dtype])  # -3 is 253 of an unsigned one


def _identical(got: Array, want: Array) -> bool:
    """Equal element by element: then no rule about what may differ needs to be asked. A NaN is equal to nothing."""
    if got.shape != want.shape or got.dtype != object:
        return False
    return all(map(operator.eq, got.ravel().tolist(), want.ravel().tolist()))


def near(a: Any, b: Any, scale: float) -> bool:
    if a != a or b != b:
        return a != a and b != b
    if a == b:
        return True
    if isinstance(a, float) or isinstance(b, float) or abs(a) == INF or abs(b) == INF:
        return False
    return bool(abs(a - b) <= RELATIVE * (max(abs(a), abs(b)) + scale)) and not (
        hasattr(a, "numerator") and hasattr(b, "numerator"))


def _show(x: Array) -> str:
    flat = [f"{float(v):.6g}" for v in x.ravel()[:4]]
    return ", ".join(flat) + (", ..." if x.size > 4 else "")


def of_places(violation: str) -> bool:
    return violation.endswith(PLACES)
