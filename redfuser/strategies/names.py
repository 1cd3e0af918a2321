"""Names that are not taken yet, and a fused cascade in which no two values share one."""

from __future__ import annotations

from dataclasses import replace

from redfuser.acrf.cascade import Let, Reduce
from redfuser.acrf.expr import Expr, Ref, map_children, substitute
from redfuser.acrf.state import Accumulator, Fused


def fresh(stem: str, taken: set[str]) -> str:
    """``stem``, numbered until it is free; taken from now on."""
    name, k = stem, 2
    while name in taken:
        name, k = f"{stem}{k}", k + 1
    taken.add(name)
    return name


def named_apart(fused: Fused) -> tuple[tuple[Accumulator, ...], tuple[Let, ...], tuple[Let | Reduce, ...]]:
    """The accumulators of ``fused``, what finalizes them, and what follows: one that shares a result's name is renamed
    (``m`` -> ``m_acc``), a result that repeats one is dropped."""
    state, outputs = fused.state, set(fused.cascade.outputs)
    names = {n for a in state.accumulators for n in a.names}
    results = {f.name: f for f in state.finalize}
    used = names | set(results) | {n for s in (*fused.post, *fused.producers) for n in s.names}
    missing = [Let(n, a.axes, Ref(n, c.dtype)) for a in state.accumulators
               for n, c in zip(a.names, a.neutral, strict=True) if n in outputs and n not in results]
    finalize = (*missing, *state.finalize)
    clash = {f.name for f in finalize if f.name in names
             and (f.name in outputs or f.expr != Ref(f.name, f.expr.dtype))}
    new = {}
    for n in sorted(clash):
        new[n] = fresh(f"{n}_acc", used)
    accumulators = tuple(
        replace(a, names=tuple(new.get(n, n) for n in a.names), contribution=_rename(a.contribution, new),
                rebase=tuple(_rename(e, new) for e in a.rebase)) for a in state.accumulators)
    # a finalize statement reads accumulators, or results finalized before it
    done: set[str] = set()
    kept: list[Let] = []
    same: dict[str, Expr] = {}
    for f in finalize:
        expr = substitute(_rename(f.expr, {k: v for k, v in new.items() if k not in done}), same)
        done.add(f.name)
        repeats = isinstance(expr, Ref) and not expr.indices and expr.name in {new.get(n, n) for n in names}
        if repeats:
            same[f.name] = expr
        if f.name in outputs or not repeats:
            kept.append(replace(f, expr=expr))
    return accumulators, tuple(kept), tuple(replace(s, expr=substitute(s.expr, same)) for s in fused.post)


def _rename(e: Expr, names: dict[str, str]) -> Expr:
    """Rename references, versions included (``m@old`` with ``m``)."""
    if isinstance(e, Ref):
        base, _, suffix = e.name.partition("@")
        if base in names:
            e = replace(e, name=names[base] + (f"@{suffix}" if suffix else ""))
    return map_children(e, lambda kid: _rename(kid, names))
