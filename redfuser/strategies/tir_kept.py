"""What a second visit of a held row would compute again, kept from the first: the CPU's schedule of exponentials.

The state's contribution guards its reference, since a segment may be empty; what is written does not, and is the same where the
reference is not -inf. That is asked once a row::

    reduce  t[i] = (t) sum sum[l] exp(x - select(m == -inf, 0.0, m))     post  y[i, l] = exp(x - m) / t
    -->
    producer  w[i, l] = exp(x - select(m == -inf, 0.0, m))
    reduce    t[i] = (t) sum sum[l] w
    post      y[i, l] = select(m == -inf, exp(x - m) / t, w / t)
"""

from __future__ import annotations

from dataclasses import replace

from redfuser.acrf.expr import Const, Expr, Op, Ref, map_children, walk
from redfuser.strategies.names import fresh
from redfuser.strategies.program import Block, Kernel

COSTLY = frozenset({"exp", "exp2", "tanh", "erf", "sigmoid"})
LOWEST = Const(float("-inf"), "f32")


def kept(kernel: Kernel) -> Kernel:
    """The kernel, where nothing of the sum changes; itself where there is nothing to keep."""
    if kernel.kind != "resident":
        return kernel
    body, tail = list(kernel.body), list(kernel.tail)
    used = {n for b in (*kernel.init, *body, *tail) for n in b.names} | {t.name for t in (*kernel.reads, *kernel.writes)}
    for at, b in reversed(list(enumerate(kernel.body))):
        term = set(b.axes) <= {*kernel.grid, kernel.raxis} and (b.role == "reduce" or b.reducer is None)
        for x in dict.fromkeys(walk(b.exprs[0])) if term else ():
            plain, condition = unguarded(x)
            again = [i for i, p in enumerate(tail) if p.role == "post" and p.reducer is None and plain in walk(p.exprs[0])]
            if condition is None or not again or not (isinstance(x, Op) and x.name in COSTLY and x.dtype == "f32"):
                continue
            held = Ref(b.name if b.exprs == (x,) and b.role == "producer" else fresh(f"{b.name}_row", used), x.dtype)
            if held.name != b.name:
                body[at:at + 1] = [Block("producer", (held.name,), (*kernel.grid, kernel.raxis), (x,), x.dtype),
                                   replace(b, exprs=tuple(_replaced(e, x, held) for e in b.exprs))]
            for i in again:
                e = tail[i].exprs[0]
                tail[i] = replace(tail[i], exprs=(Op("select", (condition, e, _replaced(e, plain, held)), e.dtype),))
            break
    return replace(kernel, body=tuple(body), tail=tuple(tail))


def unguarded(e: Expr) -> tuple[Expr, Expr | None]:
    """``e`` with a reduced reference for its guarded form, and when the two differ; None where there is none, or several."""
    found: set[Expr] = set()

    def go(x: Expr) -> Expr:
        match x:
            case Op(name="select", args=(Op(name="eq", args=(Ref() as m, lowest)) as c, Const(), Ref() as n)) \
                    if m == n and lowest == LOWEST:
                found.add(c)
                return m
        return map_children(x, go)

    plain = go(e)
    return plain, found.pop() if len(found) == 1 else None


def _replaced(e: Expr, old: Expr, new: Expr) -> Expr:
    return new if e == old else map_children(e, lambda x: _replaced(x, old, new))
