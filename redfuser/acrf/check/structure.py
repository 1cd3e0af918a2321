"""The structural obligations of a fused state: what reads what, and that every result is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.expr import FLOATS, Expr, Index, Ref, refs_of, walk
from redfuser.acrf.state import UNREAD, Accumulator, Fused

_NARROW = frozenset({"f16", "bf16", "e4m3", "e5m2"})


def check_structure(fused: Fused) -> list[str]:
    """Violated obligations: reads before definition, r-axis where none is, missing results, narrow sums."""
    return list(_violations(fused))


def _violations(fused: Fused) -> Iterator[str]:
    cascade, state = fused.cascade, fused.state
    raxis = cascade.raxis
    axes: dict[str, tuple[str, ...]] = {}
    for p in fused.producers:
        yield from _reads(f"producer {p.name}", p.expr, axes)
        if isinstance(p, Reduce) and p.over == raxis:
            yield f"structure: producer {p.name} reduces over the r-axis"
        axes.update(dict.fromkeys(p.names, p.axes))
    accumulators = {n: a.axes for a in state.accumulators for n in a.names}
    versions = {f"{n}@old": x for n, x in accumulators.items()}
    for a in state.accumulators:
        yield from _shape(a)
        yield from _reads(f"contribution of {a.name}", a.contribution, axes)
        for e in a.rebase:
            yield from _reads(f"rebase of {a.name}", e, {**axes, **versions})
            yield from _free_of(f"rebase of {a.name}", e, raxis, axes)
        axes.update(dict.fromkeys(a.names, a.axes))
    results: dict[str, tuple[str, ...]] = {}
    for s in state.finalize:
        yield from _reads(f"finalize of {s.name}", s.expr, {**axes, **results})
        yield from _free_of(f"finalize of {s.name}", s.expr, raxis, axes)
        results[s.name] = s.axes
    for t in fused.post:
        yield from _reads(f"post {t.name}", t.expr, {**axes, **results})
        results.update(dict.fromkeys(t.names, t.axes))
    for name in cascade.outputs:
        if name not in results and name not in axes:
            yield f"structure: the output {name} is nowhere computed"
    left_out = {c.text.removesuffix(UNREAD) for c in fused.certificate.conditions if c.text.endswith(UNREAD)}
    for r in cascade.stmts:  # what is left out is no output and, since it is known to nothing above, read by nothing
        if isinstance(r, Reduce) and r.over == raxis:
            yield from (f"structure: the reduction {n} is nowhere computed" for n in r.names if n not in {*results, *left_out})


def _shape(a: Accumulator) -> Iterator[str]:
    if not len(a.names) == len(a.neutral) == len(a.rebase):
        yield f"structure: {a.name} has {len(a.names)} names, {len(a.neutral)} neutrals, {len(a.rebase)} rebases"
    if a.reducer.kind in ("sum", "prod") and a.dtype in _NARROW:
        yield f"structure: {a.name} accumulates in {a.dtype}"
    if a.dtype in FLOATS and a.contribution.dtype not in FLOATS:
        yield f"structure: {a.name} is {a.dtype}, its contribution {a.contribution.dtype}"


def _reads(what: str, e: Expr, known: Iterable[str]) -> Iterator[str]:
    for name in sorted(refs_of(e) - set(known)):
        yield f"structure: the {what} reads {name}, which it cannot know"


def _free_of(what: str, e: Expr, raxis: str, axes: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    over_axis = any(isinstance(x, Index) and x.axis == raxis for x in walk(e))
    if over_axis or any(isinstance(x, Ref) and raxis in axes.get(x.name, ()) for x in walk(e)):
        yield f"structure: the {what} depends on an element of the r-axis"
