"""Exponentials to base two, which is what the hardware has."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from redfuser.acrf.expr import Const, Expr, Load, Op, Ref, children, f32, op, walk
from redfuser.strategies.program import Kernel
from redfuser.tensorize.algebra import FACTORS, fold, linear, rewrite_bottom_up, simplify
from redfuser.tensorize.rewrite.facts import Facts, Setting, each_value, is_copy, is_value, learn

LOG2E = math.log2(math.e)
SMALL = 1.0
"""An argument up to which the change of base costs no more than a rounding or two."""


@dataclass(frozen=True, slots=True)
class BaseTwo:
    """Scales and the change of base are one factor behind the difference::

        w = exp(p * 0.125 - m * 0.125)    -->    w = exp2((p - m) * 0.18)      (0.18 = 0.125 * log2 e)

    One rounding of the factor, relative, in the place of two. The rounding is of the argument, so it grows with it: an
    exponential of data, which nothing bounds, stays what it is, as do those of a map with float32 results, which have digits
    however small they are (``log1p(exp(-|x|))`` of x = 12, 6 units), and one of a row that is a float32 result by itself, or
    a factor of one (the least probability of a row, 90 below the greatest: 5e-6 of it). In a sum the greatest
    term's argument is near 0, unless what was taken is the logarithm of a sum (log n of n equal elements, 3 units of 1025):
    where results are float32, such an exponential stays too. Or unless that term is hidden and what is left of the sum is made
    large again: no exponential of such a program that has float32 results changes its base
    (:attr:`~redfuser.tensorize.rewrite.facts.Setting.natural`)."""

    def __call__(self, kernel: Kernel, at: Setting) -> Kernel:
        facts = learn(kernel, at)
        alone, logs = _alone(kernel, facts) | _subtracted(kernel, facts), _logarithms(kernel, facts)

        mapped = kernel.kind == "map" and any(b.dtype == "f32" for b in kernel.tail if b.name in at.written)

        def kept(x: Expr) -> bool:
            return x in alone or (logs is not None and _holds_log(x, logs)) or (
                _data(facts, x) and (mapped or not _bounded(facts, x)))

        return each_value(kernel, lambda e: simplify(exponentials(e, kept, at.natural)))


def _alone(kernel: Kernel, facts: Facts) -> set[Expr]:
    """Arguments of exponentials of a row that are float32 results by themselves, or factors of one."""
    ends = {b.name: b for b in kernel.tail
            if b.role in ("finalize", "epilogue") and is_value(b) and facts.per_row(Ref(b.name, b.dtype))}
    found: set[Expr] = set()
    ahead = [b.exprs[0] for n, b in ends.items() if n in facts.at.written and b.dtype == "f32"]
    while ahead:
        match ahead.pop():
            case Ref(name=n) if n in ends:
                ahead.append(ends[n].exprs[0])
            case Op(name="exp", args=(x,)):
                found.add(x)
            case Op(name="mul" | "div" | "neg" | "min" | "max", args=args) | Op(name="select", args=(_, *args)):
                ahead.extend(args)
    return found


def _subtracted(kernel: Kernel, facts: Facts) -> set[Expr]:
    """Arguments of exponentials on both sides of a difference of elements, in a kernel with float32 results."""
    blocks = [b for b in kernel.body + kernel.tail if not is_copy(b)]
    if not any(b.dtype == "f32" for b in blocks if b.name in facts.at.written):
        return set()
    found: set[Expr] = set()
    known: dict[Expr, frozenset[Expr]] = {}
    for x in (x for b in blocks for e in b.exprs for x in walk(e) if isinstance(x, Op) and x.name in ("add", "sub")):
        sides = [_exponents(facts, y, known) for y in x.args]
        if all(sides) and (x.name == "sub" or _negated(x.args[0]) != _negated(x.args[1])):
            found |= sides[0] | sides[1]
    return found


def _negated(e: Expr) -> bool:
    match e:
        case Op(name="neg"):
            return True
        case Op(name="mul", args=args):
            return any(isinstance(x, Const) and x.value < 0 for x in args)
    return False


def _exponents(facts: Facts, e: Expr, known: dict[Expr, frozenset[Expr]]) -> frozenset[Expr]:
    """Arguments of exponentials that an element is made of, in this statement or in those that it names."""
    if e not in known:
        named = isinstance(e, Ref) and e.name in facts.lets and not facts.per_row(e)
        parts = (facts.lets[e.name],) if isinstance(e, Ref) and named else children(e)
        own = e.args if isinstance(e, Op) and e.name == "exp" else ()
        known[e] = frozenset(own).union(*(_exponents(facts, x, known) for x in parts))
    return known[e]


def _logarithms(kernel: Kernel, facts: Facts) -> set[str] | None:
    """Values of the row that are logarithms, or sums with one; None in a kernel whose results are not float32."""
    blocks = kernel.body + kernel.tail
    if {b.dtype for b in blocks if b.name in facts.at.written} != {"f32"}:
        return None
    found: set[str] = set()
    for b in blocks:
        if is_value(b) and facts.per_row(Ref(b.name, b.dtype)) and _holds_log(b.exprs[0], found):
            found.add(b.name)
    return found


def _holds_log(e: Expr, logs: set[str]) -> bool:
    match e:
        case Ref(name=n):
            return n in logs
        case Op(name="log" | "log2"):
            return True
        case Op(name="neg" | "add" | "sub" | "mul", args=args):
            return any(_holds_log(x, logs) for x in args)
    return False


def _data(facts: Facts, e: Expr) -> bool:
    """Is it made of what is read alone, of no reduction, in this kernel or in one before it?"""
    return all(x.name in facts.lets and _data(facts, facts.lets[x.name]) for x in walk(e) if isinstance(x, Ref)) and not any(
        x.tensor in facts.at.reduced for x in walk(e) if isinstance(x, Load))


def _bounded(facts: Facts, e: Expr) -> bool:
    """Is it below a small number, whatever is read?"""
    match facts.resolve(e):
        case Const(value=v):
            return v <= SMALL
        case Op(name="neg", args=(x,)) | Op(name="mul", args=(Const(value=-1.0), x)):
            return _no_less_than_zero(facts, x)
        case Op(name="mul", args=(Const(value=k), x) | (x, Const(value=k))):
            return (k < 0 and _no_less_than_zero(facts, x)) or (0 <= k <= 1 and _bounded(facts, x))
        case Op(name="min", args=(x, y)):
            return _bounded(facts, x) or _bounded(facts, y)
        case Op(name="max" | "select", args=(*_, x, y)):
            return _bounded(facts, x) and _bounded(facts, y)
    return False


def _no_less_than_zero(facts: Facts, e: Expr) -> bool:
    match facts.resolve(e):
        case Const(value=v):
            return v >= 0
        case Op(name="abs" | "exp" | "sqrt"):
            return True
        case Op(name="mul", args=(x, y)) if x == y:
            return True
        case Op(name="mul" | "add" | "div" | "min", args=(x, y)):
            return _no_less_than_zero(facts, x) and _no_less_than_zero(facts, y)
        case Op(name="max", args=(x, y)):
            return _no_less_than_zero(facts, x) or _no_less_than_zero(facts, y)
    return False


def exponentials(e: Expr, kept: Callable[[Expr], bool] = lambda x: False, natural: bool = False) -> Expr:
    """``exp(k*x - k*y) --> exp2((x - y) * (k log2 e))``; any other argument is scaled by log2 e as it stands. kept: of which
    arguments the exponential stays what it is; natural: the base is kept everywhere, the difference comes first all the same.

    The difference always comes first. Scaling both sides folds the factor into one multiply-add per element, and makes
    ``exp(x - max x)`` of the maximum itself ``1 + |x| 2^-24``: another number in every segment, rounded anew wherever a
    weight is stored in half precision, and 2^(2^76) where nothing bounds x. The subtraction is hidden behind the
    exponential, whose unit is eight times slower.
    """

    name, change = ("exp", 1.0) if natural else ("exp2", LOG2E)

    def rule(x: Expr) -> Expr:
        if not (isinstance(x, Op) and x.name == "exp" and x.dtype == "f32"):
            return fold(x)
        (arg,) = x.args
        if kept(arg):
            return fold(x)
        terms = linear(arg)
        if len(terms) == 1 and FACTORS[0] <= abs(terms[0][0]) <= FACTORS[1]:
            ((k, a),) = terms
            return op(name, op("mul", a, f32(k * change)))
        if len(terms) == 2:
            (k, a), (j, b) = sorted(terms, key=lambda t: -t[0])
            if k == -j and k <= FACTORS[1]:
                return op(name, op("mul", op("sub", a, b), f32(k * change)))
        return op(name, op("mul", arg, f32(change)))

    return rewrite_bottom_up(e, rule)
