"""Which divisors are at least 1: a sum of exponentials below their maximum has one that is 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from redfuser.acrf.derive.bounds import gaps, maximum_in, only_counted
from redfuser.acrf.derive.decomposition import Conds, Decomposition, monomial_kind, split_linear
from redfuser.acrf.expr import Cast, Const, Expr, Op, Ref, map_children, walk
from redfuser.acrf.facts.guards import unclamped, unguarded
from redfuser.acrf.facts.normal import Poly, add, spread

FAR = 1e20
"""Of a magnitude whose neighbours are so far off that an exponential of their difference is 0."""


def one_or_none(d: Decomposition, e: Expr) -> bool:
    """Proved to be 1 or more, of what is made of results: ``sum exp(A - m)`` has a term that is 1 where m is the maximum of A
    and attained, that is over no element that the sum leaves out. Where m is the largest of several (``max(max A, sink)``,
    ``max(max A, 0)`` beside ``exp(-m)``), the whole is asked for each. Or it is a sum of nothing, in a row of -inf alone, for
    which ``select(m == -inf, 0, m)`` is subtracted, or one below a clamp ``max(m, -1e30)``."""
    def larger(x: Expr) -> Iterator[Op]:
        for y in walk(d.scope.resolve(x)):
            if isinstance(y, Op) and y.name == "max":
                yield y

    def ask(e: Expr, which: Callable[[Expr], Expr]) -> bool:
        if d.ranges.of(e).lo >= 1.0:
            return True
        match e:
            case Ref(name=n) if n in d.scope.definitions:
                return ask(d.scope.definitions[n], which)
            case Ref(name=n) if n in d.ranges.reductions:
                r = d.ranges.reductions[n]
                return r.reducer.kind in ("sum", "max") and d.ranges.of(r.expr).nonneg and _attains_one(d, r.expr, (), which)
            case Cast(arg=x) | Op(name="sqrt", args=(x,)):
                return ask(x, which)
            case Op(name="exp" | "exp2"):
                return _attains_one(d, e, (), which)
            case Op(name="mul", args=(x, y)) | Op(name="select", args=(_, x, y)):
                return ask(x, which) and ask(y, which)
            case Op(name="max", args=(x, y)):
                return ask(x, which) or ask(y, which)
            case Op(name="add", args=(x, y)):
                return (ask(x, which) and d.ranges.nonneg(y)) or (ask(y, which) and d.ranges.nonneg(x))
        return False

    return any(all(ask(e, partial(_asked, chosen, side)) for side in _greatest_of(chosen))
               for chosen in dict.fromkeys((None, *larger(e))))


def _greatest_of(e: Expr | None) -> Iterator[Expr | None]:
    if isinstance(e, Op) and e.name == "max":
        for x in e.args:
            yield from _greatest_of(x)
    else:
        yield e


def _asked(chosen: Expr | None, side: Expr | None, e: Expr) -> Expr:
    return _in_place_of(chosen, side, _unguarded(e))


def _unguarded(e: Expr) -> Expr:
    match unguarded(e):
        case x if x is not e:
            return x
        case Op(name="max", args=(x, Const(value=v)) | (Const(value=v), x)) if v <= -FAR:
            return x
    return map_children(e, _unguarded)


def _in_place_of(chosen: Expr | None, side: Expr | None, e: Expr) -> Expr:
    return side if side is not None and e == chosen else map_children(e, partial(_in_place_of, chosen, side))


def _attains_one(d: Decomposition, e: Expr, conds: Conds, which: Callable[[Expr], Expr]) -> bool:
    """Is one of these elements 1, an exponential at the maximum of what it is of?"""
    match e:
        case Cast(arg=x):
            return _attains_one(d, x, conds, which)
        case Op(name="select", args=(k, x, Const(value=0.0))):
            return _attains_one(d, x, (*conds, (k, True)), which)
        case Op(name="select", args=(k, Const(value=0.0), x)):
            return _attains_one(d, x, (*conds, (k, False)), which)
        case Op(name="exp" | "exp2", args=(arg,)):
            arg = unclamped(which(d.scope.resolve(arg)))
            split, found = split_linear(d.scope, spread(arg)), maximum_in(d, arg, conds)
            if split is None:
                return False
            if found is not None and split[1] == {found[0]: found[1]}:
                return all(monomial_kind(d.scope, m) == "X" for m in split[0]) and only_counted(d, found[0][0][0], conds)
            whole = add(split[0], split[1])
            return not whole or any(_resolved(d, gap) == whole and only_counted(d, mono[0][0], conds)
                                    for mono, c in split[1].items() if len(mono) == 1 and isinstance(mono[0][0], Ref)
                                    for gap in gaps(d, mono, c, conds))
    return False


def _resolved(d: Decomposition, p: Poly) -> Poly:
    return {tuple((d.scope.resolve(base), q) for base, q in m): c for m, c in p.items()}
