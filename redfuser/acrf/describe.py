"""A fusion or a refusal as text for people: what ``redfuser algebra`` prints and the documentation quotes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from redfuser.acrf.expr import Expr, Ref, print_expr, substitute, walk
from redfuser.acrf.state import Accumulator, Fused, NotFusable

_INFIX = {"sum": "+", "prod": "*", "any": "or", "all": "and"}


def describe(result: Fused | NotFusable, name: str) -> str:
    """The whole story of one cascade: fused or refused, decomposition, state, choices, conditions."""
    return "\n".join(_fused(result) if isinstance(result, Fused) else _refused(result, name))


def _refused(r: NotFusable, name: str) -> Iterator[str]:
    place = f"  ({r.provenance.source})" if r.provenance.source else ""
    yield f"{name}: refused  {r.code} at {r.statement}{place}"
    yield f"  condition  {r.condition}"
    yield f"  why        {r.why}"
    yield f"  next       {r.help}"
    if r.prefix:
        yield f"  prefix     {', '.join(r.prefix)} fuse by themselves"


def _fused(f: Fused) -> Iterator[str]:
    c, raxis = f.certificate, f.cascade.raxis
    yield f"{f.cascade.name}: fused  over {raxis}, casts={c.casts}"
    yield from _block("cascade", str(f.cascade).splitlines())
    yield from _block("decomposition", c.decomposition)
    yield from _block(f"producers, per element of {raxis}", map(str, f.producers))
    yield from _block("init", (f"{n} = {v}" for a in f.state.accumulators
                               for n, v in zip(a.names, a.neutral, strict=True)))
    yield from _block(f"step over a segment of {raxis}", (_step(a, raxis) for a in f.state.accumulators))
    yield from _block("merge of a and b", (_merge(a) for a in f.state.accumulators))
    yield from _block("finalize", map(str, f.state.finalize))
    yield from _block("post, per point of its axes", map(str, f.post))
    yield from _block("deferred and rebased", c.choices)
    yield from _block("side conditions", (f"{x.text}  [{x.discharged}{': ' + x.detail if x.detail else ''}]"
                                          for x in c.conditions))
    yield from _block("identities", c.identities)
    yield from _block("roundings that moved", c.roundings)


def _block(title: str, lines: Iterable[str]) -> list[str]:
    lines = list(lines)
    return [f"  {title}", *(f"    {line}" for line in lines)] if lines else []


def _names(a: Accumulator) -> str:
    return ", ".join(f"{n}[{', '.join(a.axes)}]" if a.axes else n for n in a.names)


def _combined(a: Accumulator, left: str, right: str) -> str:
    kind = a.reducer.kind
    if kind in _INFIX:
        return f"{left} {_INFIX[kind]} {right}"
    return f"{kind}({left}, {right})" if kind in ("max", "min") else f"{a.reducer} of {left} and {right}"


def _step(a: Accumulator, raxis: str) -> str:
    level = 6 if a.reducer.kind == "prod" else 0
    old = ", ".join(print_expr(r, level) for r in a.rebase)
    return f"{_names(a)} = {_combined(a, f'({old})' if len(a.rebase) > 1 else old, _reduction(a, raxis))}"


def _reduction(a: Accumulator, raxis: str) -> str:
    return f"{a.reducer}[{raxis}] {a.contribution}"


def _merge(a: Accumulator) -> str:
    sides = []
    for side in "ab":
        texts = [print_expr(_version(r, side), 6 if a.reducer.kind == "prod" else 0) for r in a.rebase]
        sides.append(f"({', '.join(texts)})" if len(texts) > 1 else texts[0])
    return f"{_names(a)} = {_combined(a, *sides)}"


def _version(e: Expr, side: str) -> Expr:
    """The rebase as read on one side of a merge: NAME@old becomes NAME@a or NAME@b."""
    old = {x.name: Ref(x.name.removesuffix("@old") + f"@{side}", x.dtype) for x in walk(e)
           if isinstance(x, Ref) and x.name.endswith("@old")}
    return substitute(e, dict(old))
