"""What a fusion produces: one mergeable state per cascade, with its certificate, or a refusal (algebra.md section 2).

Everything downstream is read off this one object: the incremental form (Single-Segment), the split form's combine
(Multi-Segment), warp and block levels. There is no second, hand-written combine anywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from redfuser.acrf.cascade import Cascade, Let, Provenance, Reduce, Reducer, Stmt
from redfuser.acrf.expr import COMPARISONS, Const, Expr, Op


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One component of the state.

    For a segment S of the r-axis, in the order the accumulators are listed::

        acc = rebase(old state, new references)  (reducer)  reduce over l in S of contribution(x[l], new references)

    ``contribution`` reads loads, producers and *earlier* accumulators by bare name: their new values, this segment
    included. ``rebase`` reads ``NAME@old`` for old accumulators (its own and others') and bare names for new ones; for
    a plain monoid it is ``Ref(name@old)``. A merge of two states a and b is
    ``rebase[@old := @a] (reducer) rebase[@old := @b]``, accumulators in order. Guards (empty segment, ``-inf``) are
    part of the expressions (``select``), never left to a backend.

    names: one name, or (values, indices) for topk/argmax payload reducers. axes: as in Reduce. dtype: of the
    accumulator (fp32 for half inputs). neutral: one constant per name, a true neutral element.
    """

    names: tuple[str, ...]
    axes: tuple[str, ...]
    reducer: Reducer
    dtype: str
    neutral: tuple[Const, ...]
    contribution: Expr
    rebase: tuple[Expr, ...]

    @property
    def name(self) -> str:
        return self.names[0]

    def __str__(self) -> str:
        left = ", ".join(f"{n}[{', '.join(self.axes)}]" if self.axes else n for n in self.names)
        return f"{left} = ({', '.join(map(str, self.rebase))}) {self.reducer} {self.reducer}[l] {self.contribution}"


@dataclass(frozen=True, slots=True)
class State:
    """``init`` = neutrals; ``step``/``merge`` = accumulators in order; ``finalize`` = per-point values of every
    cascade reduction, as Lets over accumulators (``o = o_acc / t``; ``mean = s / n``)."""

    accumulators: tuple[Accumulator, ...]
    finalize: tuple[Let, ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """A side condition and how it was discharged: ``table sympy z3 interval guard``."""

    text: str
    discharged: str
    detail: str = ""


UNREAD = " is read by nothing"
"""Behind the name of a reduction, the text of the condition under which a fused form may leave it out."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Why a fusion is right, as data. ``decomposition`` prints F = sum_k G_k (x) H_k per reduction; ``choices`` says what
    was deferred or rebased and why; ``roundings`` lists casts that moved, with an error bound; ``identities`` the
    symbolic obligations. :mod:`redfuser.acrf.check.verify` re-checks all of it and shares no code with the deriver."""

    key: str
    decomposition: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    identities: tuple[str, ...] = ()
    roundings: tuple[str, ...] = ()
    casts: str = "preserve"
    extra: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Fused:
    """A proved fusion. ``producers`` are evaluated per element of the r-axis before the accumulators (Lets and inner
    contractions); ``post`` runs once per point after ``finalize`` and may still carry the r-axis (softmax's own output,
    LayerNorm): then the row is visited a second time, or kept on chip."""

    cascade: Cascade
    producers: tuple[Stmt, ...]
    state: State
    post: tuple[Let | Reduce, ...]
    certificate: Certificate

    def exprs(self) -> Iterator[Expr]:
        """Every expression of the program and of its fused form."""
        yield from (s.expr for s in (*self.cascade.stmts, *self.producers, *self.state.finalize, *self.post))
        for a in self.state.accumulators:
            yield from (a.contribution, *a.rebase)

    def with_exprs(self, f: Callable[[Expr], Expr]) -> Fused:
        """The same with ``f`` of every expression in its place."""
        def stmts(some: Iterable[Any]) -> tuple[Any, ...]:
            return tuple(replace(s, expr=f(s.expr)) for s in some)

        accumulators = tuple(replace(a, contribution=f(a.contribution), rebase=tuple(map(f, a.rebase)))
                             for a in self.state.accumulators)
        return replace(self, cascade=replace(self.cascade, stmts=stmts(self.cascade.stmts)), producers=stmts(self.producers),
                       state=State(accumulators, stmts(self.state.finalize)), post=stmts(self.post))


@dataclass(frozen=True, slots=True)
class NotFusable:
    """A refusal, as a value: code, the statement it is about, the condition that failed, why, and what would help.
    ``prefix`` names the statements before it that do fuse (partial fusion of the longest prefix)."""

    code: str
    statement: str
    condition: str
    why: str
    help: str
    provenance: Provenance = field(default=Provenance(), compare=False)
    prefix: tuple[str, ...] = ()


log = logging.getLogger("redfuser.acrf")


class Refuse(Exception):
    """A condition failed. ``expression`` is the smallest sub-expression at fault."""

    def __init__(self, code: str, condition: str, why: str, help: str) -> None:
        self.code, self.condition, self.why, self.help = code, condition, why, help
        super().__init__(f"{code}: {condition}: {why}")


def defect(stage: str, e: Exception) -> Refuse:
    """An exception of our own code while a valid program is analysed: logged with its trace, and a refusal like any other,
    so that the program runs without the cascade."""
    log.error("RF902 %s failed: this is a defect of RedFuser, please report it", stage, exc_info=e)
    return Refuse("RF902", f"{stage} ends without an error", f"{type(e).__name__}: {e}",
                  "this is a defect of RedFuser: please report the program and the trace in the log")


def refuse_condition(cond: Expr) -> NoReturn:
    """A mask decided by comparing data with a result."""
    raise Refuse("RF204", f"the condition {cond} does not depend on results",
                 "which elements count is decided by comparing each with a result of the whole row; elements "
                 "already absorbed cannot be decided anew when the result changes",
                 "keep the selection outside the cascade (a second pass over the row)")


def no_rule(e: Expr) -> NoReturn:
    """Why the table has no row for this operation on data and results."""
    name = e.name if isinstance(e, Op) else "cast"
    if name in ("floor", "ceil", "round"):
        raise Refuse("RF205", f"the argument of {e} is data only",
                     "it rounds a value that depends on a result of the whole row: a rounding moves with the result "
                     "and does not commute with a change of it",
                     "round in a second pass, or allow it with casts=\"elide\" (its error bound is reported)")
    if name in COMPARISONS or name in ("and", "or", "not", "isnan"):
        refuse_condition(e)
    not_separable(e, f"{name} of data and results together is not a sum of products of both")


def not_separable(e: Expr, why: str) -> NoReturn:
    """``e`` is no finite sum of products of data and results."""
    raise Refuse("RF201", f"{e} = sum of G(data) * H(results)", why + ": it has no finite-rank decomposition",
                 "compute the result in an earlier pass, so that it is an input of the cascade")
