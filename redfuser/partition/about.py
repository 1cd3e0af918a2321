"""Questions about the drafts and cascades of a partition, answered by themselves: what of them is written, what they compute,
what they are called, whom a refusal is about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from redfuser.acrf.cascade import Provenance, Reduce
from redfuser.acrf.expr import Cast, Expr, Op, children, refs_of
from redfuser.acrf.state import NotFusable, defect
from redfuser.partition.canonical import Outlined
from redfuser.partition.drafted import Draft
from redfuser.partition.graph import Unit, provenance_of
from redfuser.partition.region import key_of
from redfuser.partition.sets import Units


def trimmed(drafts: list[Draft], others: Iterable[Draft]) -> Iterator[Draft]:
    """Drafts without the results that only drafts would read, and that these make of what lies in front (views of others, maps
    that are free to compute again). others: those that stand."""
    known = [*drafts, *others]
    outside, taken = {n.var for d in known for n in d.external}, {u for d in known for u in d.units}

    unread: dict[Unit, bool] = {}

    def settle(start: Unit) -> bool:
        todo, new = [start], set[Unit]()
        while todo:  # consumers first; no recursion, since a model is as deep as it is long
            if (u := todo.pop()) not in unread and u not in new:
                new.add(u)
                todo += () if read(u) else (c for c in u.consumers if c not in taken)
        for u in sorted(new, key=lambda u: -u.index):
            unread[u] = not read(u) and all(c in taken or unread[c] for c in u.consumers)
        return unread[start]

    def read(u: Unit) -> bool:
        return any(n.escapes or n.var in outside for n in u.results)

    for d in drafts:
        kept = [s for s in d.sinks if s.node.unit is None or not settle(s.node.unit)]
        yield replace(d, sinks=kept) if kept and len(kept) < len(d.sinks) else d


def evaluated(d: Draft) -> Units:
    """What a region computes: its own operations, and those that its reductions see through."""
    return d.units | {n.unit for i in d.rows for n, _ in i.body.sites if n.unit is not None and n not in d.external}


def keys_of(formed: list[tuple[Draft, Outlined | NotFusable]]) -> list[str]:
    return [key_of(out.cascade) if isinstance(out, Outlined) else "" for _, out in formed]


def defective(error: Exception, name: str = "") -> NotFusable:
    found = defect("forming a cascade", error)
    return NotFusable(found.code, name, found.condition, found.why, found.help)


def numbered(stem: str, counts: Counter[str]) -> str:
    counts[stem] += 1
    return f"{stem}.{counts[stem] - 1}"


def ops(units: Any) -> tuple[Provenance, ...]:
    return tuple(dict.fromkeys(provenance_of(u) for u in sorted(units, key=lambda u: u.index)))


def origin(out: Outlined | None, statement: str) -> Provenance:
    for s in out.cascade.stmts if out else ():
        if statement in s.names:
            return s.provenance
    return Provenance()


def refused_units(d: Draft, out: Outlined | None, statement: str) -> frozenset[Unit]:
    """The units of the refused reduction and of those it depends on; of the whole row, where it is about none."""
    if out is None:
        return frozenset(i.node.unit for i in d.rows if i.node.unit is not None)
    named, todo = set(), [statement]
    while todo:
        name = todo.pop()
        if name not in named:
            named.add(name)
            todo += [r for s in out.cascade.stmts if name in s.names for r in refs_of(s.expr)]
    nodes = [out.reductions[n] for n in sorted(named) if n in out.reductions] or [i.node for i in d.rows]
    return frozenset(n.unit for n in nodes if n.unit is not None)


def stem_of(d: Draft) -> str:
    """What a cascade is called, of what is there: read off reductions and maps, never off the model's names.

    ==============  ===================================================================================
    ``attn``        a softmax whose weights a contraction over the row consumes
    ``softmax``     exponentials and their sum, used along the row; ``logsumexp`` when only the sum is
    ``topk``        the largest elements and their places (a router, with or without its softmax)
    ``norm``        the row and a root of a sum over it
    ``rescale``     the row and another of its statistics (a quantisation, a share of the sum)
    ``statistics``  results of the row alone
    ==============  ===================================================================================

    A contraction that is part of the kernel is named where it stands: ``linear_softmax``, ``norm_linear``."""
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
