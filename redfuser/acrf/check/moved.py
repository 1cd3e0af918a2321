"""The bounds of moved roundings: how far a fused sum may be from the program's where its certificate lists moves.

Part of :mod:`redfuser.acrf.check.verify`; shares no code with the deriver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from redfuser.acrf.cascade import Cascade, Reduce
from redfuser.acrf.check.domains import Array
from redfuser.acrf.check.evaluate import FusedMachine
from redfuser.acrf.check.faint import GAPS, Rows, above, calm, far, sort
from redfuser.acrf.check.machine import Machine, Source
from redfuser.acrf.check.samples import Altered, Sample, sample
from redfuser.acrf.check.stability import cuts_of, evaluated, full, measured
from redfuser.acrf.check.stress import TRIAL, Strain, machine, strained
from redfuser.acrf.check.systems import domain
from redfuser.acrf.check.unrounded import moved_steps, with_step
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Op, map_children, walk
from redfuser.acrf.state import Fused
from redfuser.dtypes import SMALLEST_NORMAL, UNIT

EXACT = frozenset({"neg", "abs", "max", "min", "select"})
"""Arithmetic that gives one of its operands, or its opposite."""
FAINT = 4
"""Trials of such rows."""


def check_roundings(fused: Fused, seed: int = 0) -> Iterator[str]:
    """Where roundings moved: every sum over the r-axis stays within ``2u`` of its terms' absolute sum for each rounding that
    a term goes through, u the unit roundoff of the coarsest cast, plus the steps by which each moved rounding to integers may
    be off. Where no move is listed, the rounded results are compared exactly elsewhere."""
    if not fused.certificate.roundings:
        return
    fused, length = measured(fused, 24, True)  # the whole row, since a result may rest on its length
    cascade = fused.cascade
    narrow = {x.dtype for s in cascade.stmts for x in walk(s.expr) if _rounds(x)}
    narrow |= {s.dtype for s in cascade.stmts if isinstance(s, Reduce) and UNIT.get(s.dtype, 0) > UNIT["f32"]}
    steps = [e for s in cascade.stmts for e in moved_steps(fused, s.expr)]
    if not narrow and not steps:
        yield "rounding: the certificate lists moved roundings, the cascade rounds nowhere"
        return
    u = max((UNIT[d] for d in narrow), default=UNIT["f32"])
    s = sample(cascade, {}, "positive", length, seed, inner=4)
    for tensors, trials in _drawn(cascade, s, seed):
        plain = evaluated(cascade, machine(cascade, s, tensors, trials, domain("f64", True)))
        for lengths, how in cuts_of(len(s.points[cascade.raxis]), seed):
            f = FusedMachine.on(fused, machine(cascade, s, tensors, trials, domain("f64", True)))
            done = f.finish(f.segments(lengths, how))
            for stmt in cascade.stmts:
                if isinstance(stmt, Reduce) and stmt.over == cascade.raxis and stmt.reducer.kind == "sum":
                    yield from _bounded(cascade, stmt, plain, done, u, steps, how, trials)


def _drawn(cascade: Cascade, s: Sample, seed: int) -> Iterator[tuple[Mapping[str, Source], int]]:
    """Tensors, and how many trials they have: of a few kinds, then rows of which a mask leaves what is subnormal."""
    trials = [Strain(kind, kind) for kind in ("positive", "normal", *8 * ("low",)) for _ in range(2)]
    yield strained(cascade, s, trials, seed), len(trials)
    found = sort(cascade)
    if found is None:
        return
    trials = FAINT * [Strain("faint", "normal", tuple((n, "positive") for n in sorted(above(cascade, found))))]
    places = s.points[cascade.raxis]
    rows: Rows[Source] = Rows(
        cascade, found, lambda tensors: machine(cascade, s, tensors, FAINT, domain("f64", False)),
        lambda x, dim, place, size: Altered(x, lambda y, at, _: np.where(
            at[dim] == places[place], far(y, size) if size else np.zeros((), y.dtype), y)),
        lambda x: Altered(x, lambda y, *_: calm(y)))
    for gap in (GAPS[dtype][0] for dtype in found.types):  # float64 has numbers where the program's type has none
        for first in (False, True):
            yield rows.left(strained(cascade, s, trials, seed + first), gap, first), FAINT


def _bounded(cascade: Cascade, s: Reduce, plain: Machine, done: Machine, u: float, steps: list[Expr],
             how: str, trials: int) -> Iterator[str]:
    def size(e: Expr) -> Array:
        e = Op("abs", (e if e.dtype in FLOATS else Cast(e, "f64"),), e.dtype if e.dtype in FLOATS else "f64")
        total = Reduce(s.names, s.axes, s.reducer, s.over, e, e.dtype)
        return np.broadcast_to(plain.with_values({}).statement(total)[s.name].aligned((TRIAL, *s.axes)), difference.shape)

    ours, theirs = (full(m, cascade, s.name, trials) for m in (done, plain))
    with np.errstate(invalid="ignore"):
        difference = np.abs(ours - theirs)
    bound = 2.5 * u * (max(1.0, _roundings(s.expr)) * size(s.expr) + size(_least(s.expr))) + 1e-12
    stepped = with_step(s.expr, steps)
    if stepped != s.expr:
        bound = bound + size(stepped)
    beyond = np.where(np.isfinite(difference), difference - bound, np.inf)
    worst = float(np.max(beyond, initial=0.0, where=np.isfinite(theirs)))  # not of a row that a mask hides altogether
    if worst > 0:
        yield f"rounding: {s.name} moves by more than the certificate's bound ({how}): {worst:.2g} beyond"


def _roundings(e: Expr) -> float:
    """How many roundings to less than single precision a term goes through: those of a factor as often as it is one."""
    match e:
        case Cast(arg=x):
            return _roundings(x) + _rounds(e)
        case Op(name="mul" | "div", args=(x, y)):
            return _roundings(x) + _roundings(y) + _rounds(e)
        case Op(name="pow", args=(x, Const(value=n))):
            return abs(float(n)) * _roundings(x) + _rounds(e)
        case Op(args=args):
            return max(map(_roundings, args), default=0.0) + _rounds(e)
    return 0.0


def _least(e: Expr) -> Expr:
    """The smallest normal number in place of each outermost rounding: below it a rounding is off by as much as there."""
    if _rounds(e):
        return Const(SMALLEST_NORMAL[e.dtype], e.dtype)
    return map_children(e, _least) if isinstance(e, Op | Cast) else e


def _rounds(e: Expr) -> bool:
    """Is it a conversion to less than single precision, or arithmetic in it?"""
    if UNIT.get(e.dtype, 0) <= UNIT["f32"]:
        return False
    if isinstance(e, Cast):
        return e.arg.dtype in FLOATS and UNIT[e.dtype] > UNIT[e.arg.dtype]
    return isinstance(e, Op) and e.name not in EXACT
