"""Where along the segment a contribution matters: the conditions without which it is neutral."""

from __future__ import annotations

from redfuser.acrf.cascade import Reducer
from redfuser.acrf.expr import Cast, Expr, Op, Ref
from redfuser.strategies.program import Kernel
from redfuser.tensorize.algebra import is_const, is_positive
from redfuser.tensorize.masks import TRUE, both
from redfuser.tensorize.rewrite.facts import Facts


def alive(kernel: Kernel, facts: Facts) -> tuple[Expr, ...]:
    """Per reduction along the segment, a condition without which its contribution is neutral."""
    return tuple(TRUE if facts.counted(b) else _alive_where(facts, b.reducer, b.exprs[0])
                 for b in kernel.body if b.role == "reduce")


def _alive_where(facts: Facts, reducer: Reducer | None, e: Expr) -> Expr:
    """A condition without which a contribution is the reducer's neutral element."""
    kind = reducer.kind if reducer else ""
    if kind in ("max", "topk", "argmax"):
        return _lowest_without(facts, e)
    return _zero_without(facts, e) if kind == "sum" else TRUE


def _lowest_without(facts: Facts, e: Expr) -> Expr:
    """A condition without which ``e`` is -inf."""
    match e:
        case Op(name="select", args=(c, x, y)) if is_const(y, -float("inf")):
            return both(c, _lowest_without(facts, x))
        case Op(name="mul", args=(x, k)) if is_positive(k):
            return _lowest_without(facts, x)
        case Op(name="sub", args=(x, _)):
            return _lowest_without(facts, x)
        case Op(name="add", args=(x, y)):
            return both(_lowest_without(facts, x), _lowest_without(facts, y))
        case Ref(name=n) if n in facts.lets:
            return _lowest_without(facts, facts.lets[n])
    return TRUE


def _zero_without(facts: Facts, e: Expr) -> Expr:
    """A condition without which ``e`` is 0 (a masked value times a finite one)."""
    match e:
        case Op(name="exp" | "exp2", args=(x,)):
            return _lowest_without(facts, x)
        case Op(name="mul", args=(x, y)):
            return both(_zero_without(facts, x), _zero_without(facts, y))
        case Op(name="div", args=(x, _)) | Op(name="neg", args=(x,)):
            return _zero_without(facts, x)
        case Op(name="select", args=(c, x, y)) if is_const(y, 0.0):
            return both(c, _zero_without(facts, x))
        case Op(name="select", args=(_, y, x)) if is_const(y, 0.0):
            return _zero_without(facts, x)
        case Ref(name=n) if n in facts.lets:
            return _zero_without(facts, facts.lets[n])
        case Cast(arg=x):
            return _zero_without(facts, x)
    return TRUE
