"""Functions of exponentials that share a factor: f(h a, h b) = h f(a, b) for h > 0 and f made of sums, sizes and extrema.

    relu(exp(x - m) - exp(-m))   -->   exp(-m) * relu(exp(x) - 1)

A sum of data and results has a sign that changes with the results, and no decomposition. Here every addend has the same
exponential of results in it, which is positive: signs, and which of two is larger, are the data's. The whole is kept at running
results; where nothing bounds it, about a maximum of all the exponents (:func:`redfuser.acrf.derive.peak.own_peak`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from redfuser.acrf.derive.decomposition import F1, Decomposition, Part, Term, split_linear
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Op, Ref, children
from redfuser.acrf.facts.normal import Poly, from_poly

EXPONENTIALS = ("exp", "exp2")
KEPT = ("abs", "max", "min")
"""What is kept whole: a sum alone is taken apart into its addends."""


@dataclass(frozen=True, slots=True)
class Exponents:
    """whole: the first exponential. splits: the arguments of all as (data, results), all with the same results."""

    whole: Op
    splits: tuple[tuple[Poly, Poly], ...]


def homogeneous(d: Decomposition, e: Op) -> Term | None:
    """``e`` as one term that follows the exponential which all its addends have; None where they do not have one."""
    found = exponents(d, e)
    if found is None or not any(a for a, _ in found.splits):
        return None
    h = replace(found.whole, args=(from_poly(found.splits[0][1], e.dtype),))
    return Term((Part("scaled", e, follows=((h, F1),)),))


def exponents(d: Decomposition, e: Expr) -> Exponents | None:
    """What one exponential, or a function of several that is kept whole, is of."""
    leaves = _leaves(d, e) if e == _bare(e) or _kept(e) else None
    if not leaves or len({(x.name, x.dtype) for x in leaves}) > 1:
        return None
    splits = [split_linear(d.scope, x.args[0]) for x in leaves]
    known = tuple(s for s in splits if s is not None)
    if len(known) < len(splits) or not known[0][1] or any(b != known[0][1] for _, b in known):
        return None
    return Exponents(leaves[0], known)


def _bare(e: Expr) -> Op | None:
    return e if isinstance(e, Op) and e.name in EXPONENTIALS else None


def _kept(e: Expr) -> bool:
    return _bare(e) is None and ((isinstance(e, Op) and e.name in KEPT) or any(map(_kept, children(e))))


def about(d: Decomposition, e: Expr, top: Expr) -> Expr:
    """``e`` with every exponential ``exp(A + B)`` as ``exp(A - top)``."""

    def leaf(x: Op) -> Expr:
        split = split_linear(d.scope, x.args[0])
        assert split is not None
        return replace(x, args=(Op("sub", (from_poly(split[0], x.dtype), top), x.dtype),))

    return _rebuilt(d, e, leaf)


def _moving(d: Decomposition, e: Expr) -> bool:
    return d.scope.kind(e) not in ("C", "X")


def _leaves(d: Decomposition, e: Expr) -> list[Op] | None:
    """The exponentials of a sum, size or extremum of them; None where there is anything else with results in it."""
    found: list[Op] = []

    def leaf(x: Op) -> Expr:
        found.append(x)
        return x

    try:
        _rebuilt(d, e, leaf)
    except _Other:
        return None
    return found


class _Other(Exception):
    """No such function."""


def _rebuilt(d: Decomposition, e: Expr, leaf: Callable[[Op], Expr]) -> Expr:
    match e:
        case Const(value=v) if v == 0:
            return e
        case Op(name=n) if n in EXPONENTIALS:
            return leaf(e)
        case Ref(name=n, indices=()) if n in d.scope.definitions:
            return _rebuilt(d, d.scope.definitions[n], leaf)
        case Op(name="neg" | "abs" | "add" | "sub" | "max" | "min"):
            return replace(e, args=tuple(_rebuilt(d, x, leaf) for x in e.args))
        case Cast(arg=x) if x.dtype in FLOATS and e.dtype in FLOATS:
            return replace(e, arg=_rebuilt(d, x, leaf))
        case Op(name="mul", args=(x, y)) if _moving(d, x) != _moving(d, y):
            return replace(e, args=(_rebuilt(d, x, leaf), y) if _moving(d, x) else (x, _rebuilt(d, y, leaf)))
        case Op(name="div", args=(x, y)) if not _moving(d, y):
            return replace(e, args=(_rebuilt(d, x, leaf), y))
    raise _Other
