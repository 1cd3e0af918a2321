"""A fusion whose roundings moved, restated without them: the identity that the bound of each move is about.

With ``casts="elide"`` a rounding is taken at running results, so program and fused form differ by roundings, which
:mod:`redfuser.acrf.check.moved` bounds. Everything else must still be exact: both sides are evaluated with float casts as
identities (the number systems do that) and with ``round``, ``floor``, ``ceil`` and conversions to integers of values that
mix data and results left out here. Part of :mod:`redfuser.acrf.check.verify`; shares no code with the deriver.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from redfuser.acrf.cascade import Let, Stmt
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Load, Op, Ref, map_children, walk
from redfuser.acrf.state import Accumulator, Fused, State

STEPS = frozenset({"round", "floor", "ceil"})
REAL = "f32"
"""The dtype of what was an integer: the number systems that evaluate it compute exactly whatever the label says."""


def unrounded(fused: Fused) -> Fused:
    """The fusion without the roundings to integers that its certificate lists as moved; itself where there is none."""
    if not fused.certificate.roundings:
        return fused
    program = _Side(fused, results={n for s in fused.cascade.stmts for n in s.names} - _names(fused.producers))
    stmts = tuple(program.statement(s) for s in fused.cascade.stmts)
    if not program.found:
        return fused
    producers = tuple(s for s in stmts if s.names in {p.names for p in fused.producers})
    state = _Side(fused, results={n for a in fused.state.accumulators for n in a.names})
    accumulators = tuple(map(state.accumulator, fused.state.accumulators))
    finalize = tuple(replace(s, expr=_bare(state.expr(s.expr)) if s.name in program.real else state.expr(s.expr))
                     for s in fused.state.finalize)
    after = _Side(fused, results=program.results | _names(finalize), real=dict(program.real))
    post = tuple(after.statement(s) for s in fused.post)
    return replace(fused, cascade=replace(fused.cascade, stmts=stmts), producers=producers,
                   state=State(accumulators, finalize), post=post)  # type: ignore[arg-type]


def without_steps(fused: Fused, e: Expr) -> Expr:
    """An expression of the program's, as :func:`unrounded` has it."""
    if not fused.certificate.roundings:
        return e
    return _Side(fused, results={n for s in fused.cascade.stmts for n in s.names} - _names(fused.producers)).expr(e)


def moved_steps(fused: Fused, e: Expr) -> Iterator[Expr]:
    """The outermost roundings to integers, in one of the program's expressions, of values that mix data and results."""
    side = _Side(fused, results={n for s in fused.cascade.stmts for n in s.names} - _names(fused.producers))
    yield from side.steps(e)


def _names(stmts: tuple[Stmt, ...]) -> set[str]:
    return {n for s in stmts for n in s.names}


def _bare(e: Expr) -> Expr:
    while (isinstance(e, Cast) and e.dtype not in FLOATS) or (isinstance(e, Op) and e.name in STEPS):
        e = e.arg if isinstance(e, Cast) else e.args[0]
    return e


@dataclass
class _Side:
    """The program, or the fused form: which names are results, and which integers became reals."""

    fused: Fused
    results: set[str]
    real: dict[str, str] = field(default_factory=dict)
    found: bool = False

    def statement(self, s: Stmt) -> Stmt:
        e = self.expr(s.expr)
        if e.dtype in FLOATS and s.expr.dtype not in FLOATS:
            self.real |= dict.fromkeys(s.names, REAL)
            return replace(s, expr=e) if isinstance(s, Let) else replace(s, expr=e, dtype=REAL)
        return replace(s, expr=e)

    def accumulator(self, a: Accumulator) -> Accumulator:
        body = self.expr(a.contribution)
        if body.dtype not in FLOATS or a.dtype in FLOATS:
            return replace(a, contribution=body, rebase=tuple(map(self.expr, a.rebase)))
        self.real |= dict.fromkeys(a.names, REAL)
        return replace(a, dtype=REAL, contribution=body, rebase=tuple(map(self.expr, a.rebase)),
                       neutral=tuple(Const(float(c.value), REAL) for c in a.neutral))

    def expr(self, e: Expr) -> Expr:
        if isinstance(e, Load):
            return e
        if isinstance(e, Ref):
            return replace(e, dtype=self.real.get(e.name.split("@")[0], e.dtype))
        if self._is_step(e):
            self.found = True
            return self.expr(e.arg if isinstance(e, Cast) else e.args[0])  # type: ignore[union-attr]
        if isinstance(e, Cast):
            arg = self.expr(e.arg)
            became = arg.dtype in FLOATS and e.arg.dtype not in FLOATS
            return arg if became and e.dtype not in FLOATS else replace(e, arg=arg)
        if not isinstance(e, Op):
            return e
        args = tuple(map(self.expr, e.args))
        if not any(a.dtype in FLOATS and b.dtype not in FLOATS for a, b in zip(args, e.args, strict=True)):
            return replace(e, args=args)
        args = tuple(Cast(a, REAL) if a.dtype not in FLOATS and a.dtype != "bool" else a for a in args)
        return replace(e, args=args, dtype=e.dtype if e.dtype in FLOATS or e.dtype == "bool" else REAL)

    def steps(self, e: Expr) -> Iterator[Expr]:
        if self._is_step(e):
            yield e
        elif isinstance(e, (Op, Cast)):
            for kid in (e.arg,) if isinstance(e, Cast) else e.args:
                yield from self.steps(kid)

    def _is_step(self, e: Expr) -> bool:
        to_integer = isinstance(e, Cast) and e.arg.dtype in FLOATS and e.dtype not in FLOATS and e.dtype != "bool"
        return (to_integer or (isinstance(e, Op) and e.name in STEPS and e.dtype in FLOATS)) and self._mixes(e)

    def _mixes(self, e: Expr) -> bool:
        found = list(walk(e))
        reads = any(isinstance(x, Ref) and x.name.split("@")[0] in self.results for x in found)
        return reads and any(isinstance(x, Load) or (isinstance(x, Ref) and x.name in _names(self.fused.producers))
                             for x in found)


def with_step(e: Expr, steps: list[Expr]) -> Expr:
    """The expression with the moved roundings replaced by the number of steps that each may be off: what multiplies
    them bounds the move."""
    if e in steps:
        inner = e.arg if isinstance(e, Cast) else e
        off = 1 if isinstance(inner, Op) and inner.name == "round" else 2
        return Const(float(off), e.dtype) if e.dtype in FLOATS else Const(off, e.dtype)
    return map_children(e, lambda kid: with_step(kid, steps)) if not isinstance(e, Load) else e

