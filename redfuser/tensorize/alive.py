"""Where along the segment a contribution matters: the conditions without which it is neutral, and masks for padding."""

from __future__ import annotations

from redfuser.acrf.cascade import Reducer
from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, Op, Ref, op
from redfuser.acrf.facts import algebra
from redfuser.strategies.program import Block
from redfuser.tensorize import rewrite
from redfuser.tensorize.facts import Facts
from redfuser.tensorize.indexing import zero_filled
from redfuser.tensorize.masks import TRUE, both, conjuncts


def alive_where(work: Facts, reducer: Reducer | None, e: Expr) -> Expr:
    """A condition without which a contribution is the reducer's neutral element."""
    kind = reducer.kind if reducer else ""
    return _lowest_without(work, e) if kind in ("max", "topk", "argmax") else _zero_without(work, e) if kind == "sum" else TRUE


def _lowest_without(work: Facts, e: Expr) -> Expr:
    """A condition without which ``e`` is -inf."""
    match e:
        case Op(name="select", args=(c, x, y)) if rewrite.is_const(y, -float("inf")):
            return both(c, _lowest_without(work, x))
        case Op(name="mul", args=(x, k)) if rewrite.is_positive(k):
            return _lowest_without(work, x)
        case Op(name="sub", args=(x, _)):
            return _lowest_without(work, x)
        case Op(name="add", args=(x, y)):
            return both(_lowest_without(work, x), _lowest_without(work, y))
        case Ref(name=n) if n in work.lets:
            return _lowest_without(work, work.lets[n])
    return TRUE


def _zero_without(work: Facts, e: Expr) -> Expr:
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
        case Cast(arg=x):
            return _zero_without(work, x)
    return TRUE


def _inside(work: Facts) -> Expr:
    assert work.roles.segment is not None
    return op("lt", Index(work.roles.segment), Const(work.roles.extents[work.roles.segment], "i64"))


def _padding(work: Facts, e: Expr) -> str:
    """What a value certainly is in the padding past the row's end, whatever the data: ``zero``, ``lowest`` (-inf),
    ``finite``, or nothing known. A weight of 0 does not settle a product: the other factor may be infinite there."""
    match e:
        case Const(value=v):
            return "zero" if v == 0 else "finite" if abs(v) < float("inf") else "lowest" if v < 0 else ""
        case Load(tensor=t, indices=indices):
            shape = next(x.shape for x in (*work.kernel.reads, *work.kernel.writes) if x.name == t)
            filled = zero_filled(indices, map(int, shape), work.roles.segment or "", work.roles.extents)
            return "zero" if filled else ""
        case Ref(name=n) if n in work.lets:
            return _padding(work, work.lets[n])
        case Cast(arg=x) | Op(name="abs", args=(x,)):
            return _padding(work, x)
        case Op(name="select", args=(c, x, y)):
            first = "zero" if _inside(work) in conjuncts(c) else _padding(work, x)
            return _padding(work, y) if _inside(work) in conjuncts(c) or first == _padding(work, y) else ""
        case Op(name="neg", args=(x,)):
            return {"lowest": ""}.get(found := _padding(work, x), found)
        case Op(name="exp" | "exp2", args=(x,)):
            return {"lowest": "zero", "zero": "finite"}.get(_padding(work, x), "")
        case Op(name="mul" | "div", args=(x, k)) if rewrite.is_positive(k):
            return _padding(work, x)
        case Op(name="sub", args=(x, y)) if _padding(work, x) == "lowest" and work.per_row(y):
            return "lowest"  # a reference of the row is -inf or NaN only where every element of it is
        case Op(name="add" | "sub" | "mul" as name, args=(x, y)):
            pair = {_padding(work, x), _padding(work, y)}
            if not pair <= {"zero", "finite"}:
                return "lowest" if name == "add" and pair == {"lowest", "zero"} else ""
            return "zero" if pair == {"zero"} or (name == "mul" and "zero" in pair) else "finite"
    return ""


def masked_operand(e: Expr, inside: Expr) -> Expr:
    """``e``, and 0 elsewhere, in the type that a matrix unit reads."""
    if isinstance(e, Cast):
        return Cast(masked_operand(e.arg, inside), e.dtype)
    return rewrite.fold(Op("select", (inside, e, Const(0.0, e.dtype)), e.dtype))


def mask_tail(work: Facts, b: Block, e: Expr) -> tuple[Expr, list[Block]]:
    """Give the padding of a ragged last segment the reducer's neutral element, unless it certainly has it already."""
    n = work.roles.segment
    if not work.ragged or n is None or b.role != "reduce":
        return e, []
    kind = b.reducer.kind if b.reducer else ""
    if _padding(work, e) == {"max": "lowest", "topk": "lowest", "argmax": "lowest", "sum": "zero"}.get(kind):
        return e, []
    assert b.reducer is not None
    neutral = algebra.neutral(b.reducer, e.dtype)[0]
    inside = _inside(work)
    masked = rewrite.fold(Op("select", (inside, e, neutral), e.dtype))
    if kind == "sum" and work.roles.column_of(b.axes):  # a product: the factor that is not masked may be NaN there
        return rewrite.product(tuple(p if not work.along(p) or _padding(work, p) == "zero" else masked_operand(p, inside)
                                     for p in rewrite.factors(e))), []
    if kind != "max" or work.level(e) - work.row != {n}:
        return masked, []
    # Later contributions read the same masked value, and are neutral with it.
    if isinstance(e, Ref) and e.name in work.lets:
        name = e.name
        old = work.lets[name]
        work.lets[name] = rewrite.fold(Op("select", (inside, old, neutral), e.dtype))
        work.patched[name] = work.lets[name]
        return e, []
    name = work.fresh(f"{b.name}_term")
    work.levels[name] = work.level(e) | (work.row if work.one_for_all_rows(e) else frozenset())
    work.lets[name] = masked
    axes = (*b.axes, n)
    if isinstance(e, Ref):
        work.rename(e, Ref(name, e.dtype))
        if e.name in work.contractions:
            work.contractions[name] = work.contractions[e.name]
    else:
        work.shared[e] = Ref(name, e.dtype)
    return Ref(name, e.dtype), [Block("producer", (name,), axes, (masked,), e.dtype)]
