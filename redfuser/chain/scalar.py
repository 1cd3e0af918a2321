"""A scalar segment program held against its cascade: run through LLVM, in float64 and in its own types.

Both realisations of a state start here, so what is wrong in the scalar program is wrong in every kernel. The independent
side is the cascade, evaluated statement by statement in NumPy (:mod:`redfuser.chain.truth`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from redfuser.acrf.cascade import Axis, Cascade, Let, Reduce, Stmt, Tensor
from redfuser.acrf.check.domains import NUMPY, Array
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Index, Load, Op, Ref
from redfuser.acrf.state import Accumulator, Fused, State
from redfuser.chain.samples import Case
from redfuser.sizes import Binding, Symbol
from redfuser.strategies import cpu, realise, tir
from redfuser.strategies.program import Program
from redfuser.strategies.symbols import at, entry_script


def violations(program: Program, cases: Iterable[Case], lanes: int = 1) -> Iterator[str]:
    """What is wrong with ``program`` in its own types on some case; lanes: the CPU schedule. Raises LoweringError where LLVM
    does not get such a program."""
    yield from rules(compiled(program, lanes), cases)


def rules(run: Any, cases: Iterable[Case]) -> Iterator[str]:
    """What is wrong with results in the program's own types."""
    for case in (c for c in cases if not c.exactly):
        if text := case.rule(run(case.inputs), run):
            yield f"scalar program, {case.name}: {text}"


def inexact(program: Program, cases: Iterable[Case]) -> Iterator[str]:
    """What is wrong with ``program`` in float64, where it has no roundings at all: every digit counts."""
    yield from digits(compiled(_widened(program)), cases)


def digits(run: Any, cases: Iterable[Case]) -> Iterator[str]:
    """What is wrong with results in float64."""
    for case in (c for c in cases if c.wide):
        if text := case.digits(run({n: _widen(x) for n, x in case.inputs.items()}), steps=False):
            yield f"scalar program in float64, {case.name}: {text}"


def _widened(program: Program) -> Program:
    return realise(widened(program.fused), program.strategy, program.splits, program.segment)


def compiled(program: Program, lanes: int = 1) -> Any:
    """A function from input arrays to output arrays, by name; with several lanes it is compiled as what runs is, but for the
    threads that share points of its grid. Raises as :func:`redfuser.strategies.tir.entry_script`."""
    return _running(_entry(tir.entry_script(program, CHECKED, lanes), lanes), program)


def of_sizes(program: Program, symbols: tuple[Symbol, ...], wide: bool, lanes: int = 1) -> Callable[[Binding], Any]:
    """The same of a program with symbols, compiled once: a function for each number of them. wide: in float64."""
    program = _widened(program) if wide else program
    entry = _entry(entry_script(program, symbols, CHECKED, lanes), lanes)
    return lambda binding: _running(entry, at(program, binding))


CHECKED = "checked"


def _entry(text: str, lanes: int) -> Any:
    from redfuser.tvm_compat import build_scalar, tvm

    return build_scalar(tvm.IRModule({CHECKED: tir.parse(text)}), cpu.cpu_level(), fast=lanes > 1).jit()[CHECKED]


def _running(entry: Any, program: Program) -> Any:
    from redfuser.tvm_compat import tvm

    tensors = tir.parameters(program)
    given = len(program.fused.cascade.inputs)

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        held = [tvm.runtime.tensor(np.ascontiguousarray(inputs[t.name], NUMPY[t.dtype])) for t in tensors[:given]]
        for t in tensors[given:]:
            poison = np.full([int(n) for n in t.shape], np.nan if t.dtype in FLOATS else 85)
            held.append(tvm.runtime.tensor(poison.astype(NUMPY[t.dtype])))
        entry(*held)
        return {t.name: held[i].numpy() for i, t in enumerate(tensors) if t.name in program.fused.cascade.outputs}

    return run


def _widen(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind in "fV" else x


# -- the same program in float64 ---------------------------------------------------------------------------------------


def widened(fused: Fused) -> Fused:
    """Every float of the program and its state as float64; casts between floats are gone."""

    def expr(e: Expr) -> Expr:
        match e:
            case Const(value=v, dtype=d):
                return Const(v, _wide(d))
            case Cast(arg=x, dtype=d):
                y = expr(x)
                return y if d in FLOATS and y.dtype == "f64" else Cast(y, _wide(d))
            case Load(tensor=t, indices=i, dtype=d):
                return Load(t, tuple(map(expr, i)), _wide(d))
            case Ref(name=n, dtype=d, indices=i):
                return Ref(n, _wide(d), tuple(map(expr, i)))
            case Op(name=n, args=args, dtype=d):
                return Op(n, tuple(map(expr, args)), _wide(d))
        assert isinstance(e, Index)
        return e

    def stmt(s: Stmt) -> Stmt:
        if isinstance(s, Let):
            return Let(s.name, s.axes, expr(s.expr), s.provenance)
        return Reduce(s.names, s.axes, s.reducer, s.over, expr(s.expr), _wide(s.dtype), s.provenance)

    def accumulator(a: Accumulator) -> Accumulator:
        neutral = tuple(Const(c.value, _wide(c.dtype)) for c in a.neutral)
        return Accumulator(a.names, a.axes, a.reducer, _wide(a.dtype), neutral, expr(a.contribution),
                           tuple(map(expr, a.rebase)))

    c = fused.cascade
    cascade = Cascade(c.name, tuple(Tensor(t.name, _wide(t.dtype), t.shape) for t in c.inputs),
                      tuple(Axis(a.name, a.extent) for a in c.axes), c.raxis, tuple(map(stmt, c.stmts)), c.outputs)
    state = State(tuple(map(accumulator, fused.state.accumulators)), tuple(map(stmt, fused.state.finalize)))  # type: ignore[arg-type]
    return Fused(cascade, tuple(map(stmt, fused.producers)), state, tuple(map(stmt, fused.post)), fused.certificate)


def _wide(dtype: str) -> str:
    return "f64" if dtype in FLOATS else dtype
