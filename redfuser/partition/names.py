"""Names of cascades, of what is there: read off reductions and maps, never off the model's names.

==============  ===================================================================================
``attn``        a softmax whose weights a contraction over the row consumes
``softmax``     exponentials and their sum, used along the row; ``logsumexp`` when only the sum is
``topk``        the largest elements and their places (a router, with or without its softmax)
``norm``        the row and a root of a sum over it
``rescale``     the row and another of its statistics (a quantisation, a share of the sum)
``statistics``  results of the row alone
==============  ===================================================================================

A contraction that is part of the kernel is named where it stands: ``linear_softmax``, ``norm_linear``.
"""

from __future__ import annotations

from collections.abc import Iterable

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.expr import Cast, Expr, Op, children
from redfuser.partition.drafted import Draft


def stem(d: Draft) -> str:
    kinds = {i.node.stmt.reducer.kind for i in d.rows if isinstance(i.node.stmt, Reduce)}
    before, after = any(i.contraction for i in d.inner), any(i.contraction for i in d.rows)
    weights = any(exponential(i.body.expr) for i in d.rows if isinstance(i.node.stmt, Reduce)
                  and i.node.stmt.reducer.kind == "sum" and not i.contraction)
    if weights and after and "topk" not in kinds:
        return "attn"
    along = d.row_map or after
    if "topk" in kinds:
        core = "topk"
    elif weights:
        core = "softmax" if along else "logsumexp"
    elif along and "sum" in kinds and rooted([*(i.body.expr for i in d.rows), *(s.value.expr for s in d.sinks if s.value)]):
        core = "norm"
    elif d.row_map or (after and not kinds <= {"sum"}):
        core = "rescale"
    else:
        core = "statistics"
    return ("linear_" if before else "") + core + ("_linear" if after and core != "statistics" else "")


def exponential(e: Expr) -> bool:
    """``exp(x)``, also masked, rounded or times something."""
    match e:
        case Cast(arg=x):
            return exponential(x)
        case Op(name="exp" | "exp2"):
            return True
        case Op(name="select", args=(_, *branches)):
            return any(map(exponential, branches))
        case Op(name="mul" | "div", args=(x, y)):
            return exponential(x) or (e.name == "mul" and exponential(y))
    return False


def rooted(exprs: Iterable[Expr]) -> bool:
    """A square root somewhere."""
    seen: set[int] = set()
    todo = list(exprs)
    while todo:
        e = todo.pop()
        if id(e) not in seen:
            seen.add(id(e))
            if isinstance(e, Op) and e.name in ("sqrt", "rsqrt"):
                return True
            todo += children(e)
    return False
