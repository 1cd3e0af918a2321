"""The one door to sympy and z3: sign questions that intervals cannot answer.

Both are calculators. An expression is frozen node by node: arithmetic maps to arithmetic, everything else becomes a
variable with the interval that range analysis found for it. Nothing is ever read back into the expression IR, so what
sympy loses (``0*x`` for infinite x, ``exp(x)/exp(x)``) cannot reach a kernel. Answers are over the finite reals.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from redfuser.acrf.expr import Const, Expr, Op
from redfuser.acrf.facts.algebra import INF
from redfuser.acrf.facts.normal import key

Bounds = Callable[[Expr], tuple[float, float]]
_EFFORT = 400_000
"""z3's resource limit: a count of steps, so that an answer does not depend on the machine's speed."""
_ARITHMETIC = frozenset({"add", "sub", "mul", "div", "neg", "pow", "abs", "max", "min"})


class FreezeError(Exception):
    """A node that has no counterpart."""


def prove_nonnegative(e: Expr, bounds: Bounds) -> str | None:
    """``sympy`` or ``z3``, whichever shows that e >= 0 for all finite values within bounds; None when neither does."""
    try:
        if _refuted(e, bounds):
            return None
        if _by_sympy(e, bounds):
            return "sympy"
        if _by_z3(e, bounds):
            return "z3"
    except FreezeError:
        return None
    return None


def _refuted(e: Expr, bounds: Bounds) -> bool:
    """A point where e < 0: most questions end here, before either calculator is even imported."""
    rng = random.Random(0)
    functions: dict[str, Callable[..., Any]] = {"abs": abs, "max": max, "min": min}
    for _ in range(64):
        values: dict[str, float] = {}

        def variable(x: Expr, values: dict[str, float] = values) -> float:
            lo, hi = bounds(x)
            low, high = max(lo, min(-8.0, hi - 1)), min(hi, max(8.0, lo + 1))
            return values.setdefault(key(x), rng.uniform(low, high))

        try:
            if freeze(e, variable, lambda n, d: n / d, functions) < -1e-9:
                return True
        except (ZeroDivisionError, OverflowError):
            continue
    return False


def _by_sympy(e: Expr, bounds: Bounds) -> bool:
    import sympy

    symbols: dict[str, Any] = {}

    def variable(x: Expr) -> Any:
        lo, hi = bounds(x)
        facts = {"real": True} | ({"nonnegative": True} if lo >= 0 else {"nonpositive": True} if hi <= 0 else {})
        return symbols.setdefault(key(x), sympy.Symbol(f"v{len(symbols)}", **facts))

    frozen = freeze(e, variable, sympy.Rational, {"abs": sympy.Abs, "max": sympy.Max, "min": sympy.Min})
    return sympy.factor(frozen).is_nonnegative is True


def _by_z3(e: Expr, bounds: Bounds) -> bool:
    import z3

    variables: dict[str, Any] = {}
    solver = z3.Solver()
    solver.set("rlimit", _EFFORT)

    def variable(x: Expr) -> Any:
        name = key(x)
        if name not in variables:
            v = variables[name] = z3.Real(f"v{len(variables)}")
            lo, hi = bounds(x)
            if lo != -INF:
                solver.add(v >= z3.RealVal(repr(lo)))
            if hi != INF:
                solver.add(v <= z3.RealVal(repr(hi)))
        return variables[name]

    functions: dict[str, Callable[..., Any]] = {
        "abs": lambda x: z3.If(x >= 0, x, -x), "max": lambda x, y: z3.If(x >= y, x, y),
        "min": lambda x, y: z3.If(x <= y, x, y)}
    frozen = freeze(e, variable, lambda n, d: z3.RealVal(f"{n}/{d}"), functions)
    solver.add(frozen < 0)
    return bool(solver.check() == z3.unsat)


def freeze(e: Expr, variable: Callable[[Expr], Any], rational: Callable[[int, int], Any],
           functions: dict[str, Callable[..., Any]]) -> Any:
    """One value per node. Raises FreezeError for a constant that is not finite."""
    def go(x: Expr) -> Any:
        match x:
            case Const(value=v) if isinstance(v, bool) or v != v or abs(v) == INF:
                raise FreezeError(str(x))
            case Const(value=v):
                return rational(*float(v).as_integer_ratio())
            case Op(name="pow", args=(base, Const(value=v))) if float(v).is_integer() and 0 < v <= 8:
                return go(base) ** int(v)
            case Op(name="add", args=(a, b)):
                return go(a) + go(b)
            case Op(name="sub", args=(a, b)):
                return go(a) - go(b)
            case Op(name="mul", args=(a, b)):
                return go(a) * go(b)
            case Op(name="div", args=(a, b)):
                return go(a) / go(b)
            case Op(name="neg", args=(a,)):
                return -go(a)
            case Op(name=n, args=args) if n in functions:
                return functions[n](*map(go, args))
        return variable(x)

    return go(e)


def worth_asking(e: Expr) -> bool:
    """Arithmetic with a sum in it, of moderate size: what intervals lose is the correlation of its terms."""
    nodes = 0
    sums = False
    todo = [e]
    while todo:
        x = todo.pop()
        if isinstance(x, Op) and x.name in _ARITHMETIC:
            nodes += 1
            sums = sums or x.name in ("add", "sub")
            todo += x.args
    return sums and nodes <= 24
