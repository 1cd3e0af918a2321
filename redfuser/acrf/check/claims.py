"""What a certificate says in words, held against the program it is about.

The state is proved by evaluating it (:mod:`redfuser.acrf.check.verify`); that alone would let a certificate give wrong
reasons. So its decompositions, identities and side conditions are read back from their text and evaluated on samples: a
decomposition must give every element's value, an identity must be 0, a condition must hold. What cannot be read back is a
violation. Part of :mod:`redfuser.acrf.check.verify`; shares no code with the deriver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np

from redfuser.acrf.cascade import Reduce, Reducer, stmt_dtype
from redfuser.acrf.check.domains import Array, Domain
from redfuser.acrf.check.evaluate import FusedMachine
from redfuser.acrf.check.labelled import Labelled
from redfuser.acrf.check.machine import Machine
from redfuser.acrf.check.samples import Sample
from redfuser.acrf.check.unrounded import without_steps
from redfuser.acrf.expr import Const, Expr, Op, refs_of
from redfuser.acrf.state import UNREAD, Condition, Fused
from redfuser.acrf.text import parse_expr
from redfuser.errors import InputError

DISCHARGED = frozenset({"table", "sympy", "z3", "interval", "guard"})
SOME = 1e6
"""What a constant that a condition leaves open may be."""
_REDUCTION = re.compile(r"(?P<names>\w+(?:, \w+)*) = (?P<kind>\w+)(?:\(\d+\))?\[(?P<over>\w+)\] (?P<body>.*)")
_TERM = re.compile(r"\[(?P<data>.*)\] \(\*\) \[(?P<results>.*)\]")
_COMPARED = re.compile(r"(?P<left>.*) (?P<sign><=|>=) (?P<right>[^<>]*?)(?: wherever (?P<where>.*) is defined)?")

Near = Callable[[Array, Array], Array]
"""Which elements of two arrays agree."""


@dataclass(frozen=True)
class Claims:
    """A certificate, with one sample of its program evaluated both ways: ``values`` holds every name that its text may read."""

    fused: Fused
    machine: Machine
    near: Near

    @classmethod
    def on(cls, fused: Fused, s: Sample, numbers: Domain, near: Near) -> Claims:
        reference = s.machine(fused.cascade, numbers)
        for stmt in fused.cascade.stmts:
            reference.statement(stmt)
        f = FusedMachine.on(fused, s.machine(fused.cascade, numbers))
        done = f.finish(f.step(f.init(), 0, f.length))
        return cls(fused, done.with_values(reference.values), near)

    def violations(self) -> Iterator[str]:
        c = self.fused.certificate
        claims: list[tuple[str, str, Callable[[], str]]] = [
            *(("decomposition", line, partial(self._decomposed, line)) for line in c.decomposition),
            *(("identity", line, partial(self._identical, line)) for line in c.identities),
            *(("condition", x.text, partial(self._met, x)) for x in c.conditions)]
        for kind, text, judge in claims:
            try:
                wrong = judge()
            except (ValueError, KeyError, InputError) as e:
                wrong = f"cannot be read back: {e}"
            if wrong:
                yield f"certificate: the {kind} {text} {wrong}"

    # -- one line each: what is wrong with it, or "" --

    def _decomposed(self, line: str) -> str:
        found = _REDUCTION.fullmatch(line)
        if found is None:
            raise ValueError("it is no reduction")
        name, body = found["names"].split(", ")[0], found["body"]
        if not body.startswith("["):
            got = self._parsed(body)
        else:
            terms = [self._term(t) for t in re.split(r"  \+  (?=\[)", body)]
            got = reduce(lambda x, y: Op("add", (x, y), y.dtype), terms)
        want = self._reduced(name)
        if want is not None:
            return "" if self._agree(self.machine.expr(self._plain(got)), self.machine.expr(want)) else (
                "does not give the elements that the program reduces")
        r = self.fused.cascade.raxis  # a reduction that only the fused form has: its total
        (total,) = self.machine.reduce(Reducer(found["kind"]), self._plain(got), r, got.dtype, ())
        return "" if self._agree(total, self.machine.values[name]) else "is not what the state gives"

    def _plain(self, e: Expr) -> Expr:
        return without_steps(self.fused, e)

    def _term(self, text: str) -> Expr:
        head, *conditions = text.split(" where ")
        found = _TERM.fullmatch(head)
        if found is None:
            raise ValueError("it is no product of data and results")
        product = self._parsed(f"({found['data']}) * ({found['results']})")
        for c in conditions:
            product = Op("select", (self._parsed(c), product, Const(0.0, product.dtype)), product.dtype)
        return product

    def _reduced(self, name: str) -> Expr | None:
        """What is reduced to this name in the program, if it is one of the program's."""
        return next((s.expr for s in self.fused.cascade.stmts if isinstance(s, Reduce) and name in s.names), None)

    def _identical(self, line: str) -> str:
        name, *sides = line.split(" = ")
        values = [*(self.machine.expr(self._parsed(t)).data for t in sides), self.machine.values[name].data]
        return "" if all(np.all(~self._finite(v) | self.near(v, v * 0)) for v in values) else "is not 0"

    def _met(self, c: Condition) -> str:
        if c.discharged not in DISCHARGED:
            return f"is discharged by {c.discharged}, which is nothing"
        raxis = self.fused.cascade.raxis
        if c.text == f"{raxis} has at least one element":
            return "" if len(self.machine.ranges[raxis]) else "does not hold"
        if " is not observed where " in c.text:
            name = c.text.split(" ")[0]
            return "is not kept: it is an output" if name in self.fused.cascade.outputs else ""
        if c.text.endswith(UNREAD):
            return self._left_out(c.text.removesuffix(UNREAD))
        if c.text.startswith("the sign of "):  # claims nothing
            return ""
        found = _COMPARED.fullmatch(c.text.replace("<= c * ", f"<= {SOME:.1f} * ").removesuffix(" for a constant c")
                                    if c.text.endswith(" for a constant c") else c.text)
        if found is None:
            raise ValueError("it is no comparison")
        left, right = (self.machine.expr(self._parsed(found[side])) for side in ("left", "right"))
        axes = tuple(dict.fromkeys((*left.axes, *right.axes)))
        x, y = left.aligned(axes), right.aligned(axes)
        if found["sign"] == "<=":
            x, y = y, x
        holds = np.asarray(x >= y, np.bool_) | np.asarray(x != x, np.bool_) | np.asarray(y != y, np.bool_)
        return "" if np.all(holds | self.near(*np.broadcast_arrays(x, y))) else f"does not hold ({self.fused.cascade.name})"

    def _left_out(self, name: str) -> str:
        f = self.fused
        if self._reduced(name) is None:
            return "is about no reduction of the program"
        made = {n for s in (*f.producers, *f.state.accumulators, *f.state.finalize, *f.post) for n in s.names}
        read = {n for e in (*(s.expr for s in (*f.producers, *f.state.finalize, *f.post)),
                            *(e for a in f.state.accumulators for e in (a.contribution, *a.rebase))) for n in refs_of(e)}
        return "does not hold" if name in {*f.cascade.outputs, *made, *read} else ""

    def _agree(self, a: Labelled, b: Labelled) -> bool:
        """Equal wherever both are finite: ``exp(x - p) * exp(p - m)`` says nothing where the peak p of a masked row is -inf."""
        axes = tuple(dict.fromkeys((*a.axes, *b.axes)))
        x, y = np.broadcast_arrays(a.aligned(axes), b.aligned(axes))
        if y.dtype != object:
            return bool(np.array_equal(x, y))
        return bool(np.all(~self._finite(y) | ~self._finite(x) | self.near(x, y)))

    def _finite(self, x: Array) -> Array:
        return np.asarray(np.abs(x) < np.inf, np.bool_)

    def _parsed(self, text: str) -> Expr:
        dtypes = self._dtypes()
        for s in self.fused.cascade.stmts:  # a statement at other axes of its own: mean_e is mean[e]
            for n in s.names:
                for alias in set(re.findall(rf"\b{n}_\w+", text)) - dtypes.keys():
                    text = re.sub(rf"\b{alias}\b", f"{n}[{', '.join(alias[len(n) + 1:].split('_'))}]", text)
        return parse_expr(text, dtypes, {t.name: t.dtype for t in self.fused.cascade.inputs})

    def _dtypes(self) -> Mapping[str, str]:
        out = {n: a.dtype if n == a.name else "i64" for a in self.fused.state.accumulators for n in a.names}
        for s in (*self.fused.state.finalize, *self.fused.post, *self.fused.producers, *self.fused.cascade.stmts):
            out |= {n: stmt_dtype(s, n) for n in s.names}
        return out

