"""Questions about the drafts and cascades of a partition, answered by themselves: what of them is written, what they compute,
whom a refusal is about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from redfuser.acrf.cascade import Provenance
from redfuser.acrf.expr import refs_of
from redfuser.acrf.state import NotFusable, defect
from redfuser.partition.canonical import Outlined
from redfuser.partition.drafted import Draft
from redfuser.partition.graph import Unit, provenance_of
from redfuser.partition.region import key_of
from redfuser.partition.sets import Units


def trimmed(drafts: list[Draft]) -> Iterator[Draft]:
    """Drafts without the results that are views of others and that only drafts read: those read what they are views of."""
    outside, taken = {n.var for d in drafts for n in d.external}, {u for d in drafts for u in d.units}

    @cache
    def unread(u: Unit) -> bool:
        return u.is_view and not any(n.escapes or n.var in outside for n in u.results) and all(
            c in taken or unread(c) for c in u.consumers)

    for d in drafts:
        kept = [s for s in d.sinks if s.node.unit is None or not unread(s.node.unit)]
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
