"""Evaluators: a cascade as written, and a fused state under any segmentation of the r-axis.

Both run over any number system of :mod:`redfuser.acrf.check.domains` and share nothing with the deriver.

    run(cascade, {"x": x})["t"]                                       # the program, in fp64
    run_fused(fused, {"x": x}, segments=[3, 0, 5], how="tree")["t"]   # the fused form, three segments, merged as a tree
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from redfuser.acrf.cascade import Cascade, stmt_dtype
from redfuser.acrf.check.domains import NUMPY, Array, Arrays, Domain
from redfuser.acrf.check.labelled import Labelled, union
from redfuser.acrf.check.machine import Machine, State
from redfuser.acrf.expr import FLOATS, Expr, Ref, children, map_children, walk
from redfuser.acrf.state import Fused
from redfuser.errors import InputError

# -- whole programs ----------------------------------------------------------------------------------------------------


def machine(cascade: Cascade, inputs: Mapping[str, Any], numbers: Domain) -> Machine:
    """Bind inputs to a cascade. Raises InputError RF183 when names or shapes do not fit its declarations."""
    symbols: dict[str, int] = {}
    tensors: dict[str, Array] = {}
    for t in cascade.inputs:
        if t.name not in inputs:
            raise InputError("RF183", f"input {t.name} is missing", where=f"cascade {cascade.name}")
        x = np.asarray(inputs[t.name])
        fits = len(x.shape) == len(t.shape)
        for have, want in zip(x.shape, t.shape, strict=False):
            fits &= have == (symbols.setdefault(want, have) if isinstance(want, str) else want)
        if not fits:
            raise InputError("RF183", f"input {t.name} has shape {list(x.shape)}, declared {t}",
                             where=f"cascade {cascade.name}")
        tensors[t.name] = numbers.enter(x, t.dtype) if t.dtype in FLOATS else x.astype(NUMPY[t.dtype])
    extents = {a.name: symbols[a.extent] if isinstance(a.extent, str) else a.extent for a in cascade.axes}
    return Machine(numbers, tensors, {t.name: t.dtype for t in cascade.inputs},
                   {a: np.arange(n) for a, n in extents.items()},
                   {n: s.axes for s in cascade.stmts for n in s.names})


def materialise(m: Machine, cascade: Cascade, name: str, value: Labelled) -> Array:
    """A statement's value as a plain array over the statement's axes, in its own dtype where the domain has it."""
    s = cascade.stmt(name)
    data = np.broadcast_to(value.aligned(s.axes), [len(m.ranges[a]) for a in s.axes])
    dtype = stmt_dtype(s, name)
    return np.array(data.astype(NUMPY[dtype]) if isinstance(m.numbers, Arrays) and m.numbers.program else data)


# -- fused states ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FusedMachine:
    """A fused cascade bound to inputs: the four operations of its state."""

    fused: Fused
    whole: Machine
    produced: State = field(default_factory=dict)
    """What the producers give over the whole row: a segment has the same values, to the last bit."""

    @classmethod
    def bind(cls, fused: Fused, inputs: Mapping[str, Any], numbers: Domain) -> FusedMachine:
        return cls.on(fused, machine(fused.cascade, inputs, numbers))

    @classmethod
    def on(cls, fused: Fused, m: Machine) -> FusedMachine:
        """The fused form on a machine that holds the cascade's tensors and points."""
        axes = {n: s.axes for s in (*fused.producers, *fused.state.finalize, *fused.post) for n in s.names}
        axes |= {n: a.axes for a in fused.state.accumulators for n in a.names}
        ranges = dict(m.ranges)
        for a in fused.state.accumulators:
            if a.reducer.kind == "topk":
                ranges[a.axes[-1]] = np.arange(a.reducer.k)
        return cls(fused, replace(m, stmt_axes={**m.stmt_axes, **axes}, ranges=ranges))

    @property
    def length(self) -> int:
        return len(self.whole.ranges[self.fused.cascade.raxis])

    def init(self) -> State:
        """The neutral state: of no elements at all."""
        return {n: self.whole.expr(c) for a in self.fused.state.accumulators
                for n, c in zip(a.names, a.neutral, strict=True)}

    def step(self, state: State, start: int, stop: int) -> State:
        """Absorb points number start .. stop-1 of the r-axis."""
        axis = self.fused.cascade.raxis
        m = self.whole.segment(axis, start, stop)
        m.values.update({n: v.cut(axis, slice(start, stop)) for n, v in self._producers().items()})
        m.values.update({f"{n}@old": v for n, v in state.items()})
        out: State = {}
        for a in self.fused.state.accumulators:
            local = m.reduce(a.reducer, a.contribution, axis, a.dtype, a.axes[-1:])
            if a.reducer.kind in ("max", "min") and a.dtype in FLOATS:  # rounded where the program's own extremum is
                local = (m.stored(local[0], "f32", a.dtype),)
            old = tuple(m.expr(r) for r in a.rebase)
            new = dict(zip(a.names, m.combine(a, old, local if len(a.names) == 2 else local[-1:]), strict=True))
            out.update(new)
            m.values.update(new)
        return out

    def _producers(self) -> State:
        if not self.produced and self.fused.producers:
            m = self.whole.with_values({})
            for p in self.fused.producers:
                self.produced.update(m.statement(p))
        return self.produced

    def merge(self, a: State, b: State) -> State:
        """The state of both sets of elements."""
        left, right = (self.whole.with_values({f"{n}@old": v for n, v in s.items()}) for s in (a, b))
        out: State = {}
        for acc in self.fused.state.accumulators:
            sides = [tuple(m.expr(r) for r in acc.rebase) for m in (left, right)]
            new = dict(zip(acc.names, left.combine(acc, sides[0], sides[1]), strict=True))
            for m in (left, right):
                m.values.update(new)
            out.update(new)
        return out

    def merges(self, pairs: Sequence[tuple[State, State]]) -> list[State]:
        """``merge`` of each pair; where no place of a row is named, of all pairs at once, along an axis of their own."""
        rebases = [r for a in self.fused.state.accumulators for r in a.rebase]
        if len(pairs) < 2 or any(isinstance(x, Ref) and x.indices for r in rebases for x in walk(r)):
            return [self.merge(a, b) for a, b in pairs]
        ranges = {**self.whole.ranges, _PAIR: np.arange(len(pairs))}
        every = replace(self, produced={}, whole=replace(self.whole, ranges=ranges, known={}))
        merged = every.merge(_stacked([a for a, _ in pairs]), _stacked([b for _, b in pairs]))
        return [{n: v.at(_PAIR, i) for n, v in merged.items()} for i in range(len(pairs))]

    def segments(self, lengths: Sequence[int], how: str = "step") -> State:
        """The state after segments of the given lengths (they must add up to the r-axis), taken one after another
        (``step``), or each alone and merged left to right (``merge``) or pairwise (``tree``)."""
        ends = np.cumsum([0, *lengths]).tolist()
        if ends[-1] != self.length:
            raise ValueError(f"segments {list(lengths)} do not cover an r-axis of {self.length}")
        spans = list(pairwise(ends))
        if how == "step":
            return reduce(lambda s, span: self.step(s, *span), spans, self.init())
        states = [self.step(self.init(), *span) for span in spans] or [self.init()]
        if how == "merge":
            return reduce(self.merge, states)
        while len(states) > 1:
            pairs = [self.merge(*states[i:i + 2]) if i + 1 < len(states) else states[i]
                     for i in range(0, len(states), 2)]
            states = pairs
        return states[0]

    def finish(self, state: State) -> Machine:
        """Finalize and run ``post`` over the whole row: a machine whose values hold every result."""
        m = self.whole.with_values({**self._producers(), **state})
        for s in (*self.fused.state.finalize, *self.fused.post):
            m.statement(s)
        return m


_PAIR = "@pair"
"""The axis along which pairs of states stand. No cascade has an axis of that name."""


def _stacked(states: Sequence[State]) -> State:
    """The states' values as one, along a first axis of their own."""
    out: State = {}
    for name in states[0]:
        values = [s[name] for s in states]
        axes = union(v.axes for v in values)
        out[name] = Labelled((_PAIR, *axes), np.stack(np.broadcast_arrays(*[v.aligned(axes) for v in values])))
    return out


def share(fused: Fused) -> Fused:
    """The same fusion with equal sub-expressions as one object, so that a machine computes each once."""
    table: dict[Any, Expr] = {}

    def one(e: Expr) -> Expr:
        e = map_children(e, one)
        kids = children(e)
        label = str(e) if not kids else (getattr(e, "name", "") or getattr(e, "tensor", ""))
        return table.setdefault((type(e), label, e.dtype, tuple(map(id, kids))), e)

    return fused.with_exprs(one)
