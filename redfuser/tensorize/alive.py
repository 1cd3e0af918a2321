"""Where along the segment a contribution matters: the conditions without which it is neutral, and masks for padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, Op, Reducer, Ref, f32, op, substitute
from redfuser.strategies.program import Block
from redfuser.tensorize import rewrite
from redfuser.tensorize.masks import TRUE, both, conjuncts

if TYPE_CHECKING:
    from redfuser.tensorize.prepare import Preparation


def alive_where(work: Preparation, reducer: Reducer | None, e: Expr) -> Expr:
    """A condition without which a contribution is the reducer's neutral element."""
    kind = reducer.kind if reducer else ""
    return _lowest_without(work, e) if kind in ("max", "topk", "argmax") else _zero_without(work, e) if kind == "sum" else TRUE


def _lowest_without(work: Preparation, e: Expr) -> Expr:
    """A condition without which ``e`` is -inf."""
    match e:
        case Op(name="select", args=(c, x, y)) if rewrite.is_const(y, -float("inf")):
            return both(c, _lowest_without(work, x))
        case Op(name="mul", args=(x, Const(value=k))) if k > 0:
            return _lowest_without(work, x)
        case Op(name="sub", args=(x, _)):
            return _lowest_without(work, x)
        case Op(name="add", args=(x, y)):
            return both(_lowest_without(work, x), _lowest_without(work, y))
        case Ref(name=n) if n in work.lets:
            return _lowest_without(work, work.lets[n])
    return TRUE


def _zero_without(work: Preparation, e: Expr) -> Expr:
    """A condition without which ``e`` is 0 (a masked value times a finite one)."""
    match e:
        case Op(name="exp" | "exp2", args=(x,)):
            return _lowest_without(work, x)
        case Op(name="mul", args=(x, y)):
            return both(_zero_without(work, x), _zero_without(work, y))
        case Op(name="div", args=(x, _)) | Op(name="neg", args=(x,)):
            return _zero_without(work, x)
        case Op(name="select", args=(c, x, y)) if rewrite.is_const(y, 0.0):
            return both(c, _zero_without(work, x))
        case Op(name="select", args=(_, y, x)) if rewrite.is_const(y, 0.0):
            return _zero_without(work, x)
        case Ref(name=n) if n in work.lets:
            return _zero_without(work, work.lets[n])
        case Load() if work.ragged and "n" in work.level(e) and work.roles.segment:
            n = work.roles.segment
            return op("lt", Index(n), Const(work.roles.extents[n], "i64"))
        case Cast(arg=x):
            return _zero_without(work, x)
    return TRUE


def mask_tail(work: Preparation, b: Block, e: Expr) -> tuple[Expr, list[Block]]:
    """Give the padding of a ragged last segment the reducer's neutral element, unless it has it already."""
    n = work.roles.segment
    if not work.ragged or n is None or b.role != "reduce":
        return e, []
    inside = op("lt", Index(n), Const(work.roles.extents[n], "i64"))
    if inside in conjuncts(alive_where(work, b.reducer, e)):
        return e, []
    kind = b.reducer.kind if b.reducer else ""
    neutral = {"max": rewrite.NEG_INF, "topk": rewrite.NEG_INF, "argmax": rewrite.NEG_INF, "sum": rewrite.ZERO,
               "min": f32(float("inf")), "argmin": f32(float("inf")), "prod": f32(1.0)}.get(kind)
    if neutral is None:
        neutral = Const(kind == "all", "bool")
    masked = rewrite.fold(Op("select", (inside, e, neutral), e.dtype))
    if kind != "max" or work.level(e) != {"m", "n"}:
        return masked, []
    # Later contributions read the same masked value, and are neutral with it.
    if isinstance(e, Ref) and e.name in work.lets:
        name = e.name
        old = work.lets[name]
        work.lets[name] = rewrite.fold(Op("select", (inside, old, neutral), e.dtype))
        work.patched[name] = work.lets[name]
        return e, []
    name = work.fresh(f"{b.name}_term")
    work.levels[name] = work.level(e)
    work.lets[name] = masked
    axes = (*b.axes, n)
    if isinstance(e, Ref):
        new = {e.name: Ref(name, e.dtype)}
        work.subs = {e.name: e, **work.subs}
        work.subs = {k: substitute(v, new) for k, v in work.subs.items()}
        if e.name in work.contractions:
            work.contractions.add(name)
    return Ref(name, e.dtype), [Block("producer", (name,), axes, (masked,), e.dtype)]
