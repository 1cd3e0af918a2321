"""From what the stages found to the report the user reads.

The bytes of device memory that a cascade moves are predicted from shapes: a model, not a measurement, and reported as such.
Caches are not modelled, and pointwise statements without a reduction's help (a cast, a mask) are taken as part of whoever
reads them, as any eager runtime's views and epilogues are.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from redfuser.acrf.cascade import Cascade, Let, Provenance, Reduce
from redfuser.acrf.expr import BYTES, Expr, loads_of, refs_of
from redfuser.plan import Produced, describe_state
from redfuser.recheck import Verdict
from redfuser.report import Report
from redfuser.reported import CascadeReport, Note, Opaque, OpRef, Reason, Traffic
from redfuser.steps import steps


def describe(name: str, arch: str, imported: Any, partition: Any, produced: dict[str, Produced],
             verdicts: Mapping[str, Verdict], seconds: dict[str, float], built: bool = True) -> Report:
    """Every cascade once: fused, or kept with its reason; the groups of maps that have kernels; then the opaque calls and the
    importer's notes. ``built``: there are binaries; otherwise fused means planned."""
    cascades = [_region(r, produced.get(r.name), verdicts.get(r.key)) for r in partition.regions]
    cascades += [_refusal(r, verdicts) for r in partition.refusals]
    maps = [_region(r, produced.get(r.name), verdicts.get(r.key)) for r in partition.maps]
    notes = [*(Note(text, code, "warning") for code, text in imported.remarks),
             *(Note(t) for t in imported.notes), *_unknown(imported, partition),
             *_once(imported), *_outside(partition), *_eager(partition, maps),
             *_unchecked(verdicts),
             *(n for made in {p.name: p for p in produced.values()}.values() for n in made.notes)]
    kept = {m.name: "fused" for m in cascades if m.fused} | {m.name: "map" for m in maps if m.fused}
    refused = [r for r in (*partition.regions, *partition.refusals) if r.name not in kept]
    return Report(name, arch, tuple(cascades), _opaque(_torch(imported, partition)), tuple(notes),
                  timings=dict(seconds), versions=versions(), built=built, maps=tuple(m for m in maps if m.fused),
                  steps=steps(imported, partition.parts, refused, kept, arch),
                  texts={p.name: p.stages for p in produced.values() if p.stages})


def _ops(ops: Any) -> tuple[OpRef, ...]:
    return tuple(OpRef(p.op, p.source) for p in ops)


def _region(region: Any, made: Produced | None, verdict: Verdict | None) -> CascadeReport:
    common: dict[str, Any] = {"cascade": str(region.cascade), "fused_form": describe_state(region.fused),
                              "certificate": verdict.words if verdict else ""}
    ops = _ops(region.ops)
    if made is None or made.reason is not None:
        first = ops[0] if ops else OpRef("")
        reason = made.reason if made and made.reason else Reason("RF390", condition="fusion is switched off")
        reason = Reason(reason.code, first.name, first.source, reason.condition, reason.why, reason.help)
        return CascadeReport(region.name, ops, False, reason, measured=made.measured if made else None, **common)
    return CascadeReport(region.name, ops, True, None, made.strategy, made.splits, made.name, made.config,
                         traffic(region.cascade) if region.fused.state.accumulators else None, checks=made.checks,
                         modelled=made.modelled, measured=made.measured,
                         roundings=tuple(dict.fromkeys((*region.fused.certificate.roundings, *made.roundings))), **common)


def _refusal(refused: Any, verdicts: Mapping[str, Verdict]) -> CascadeReport:
    refs, refusal = _ops(refused.ops), refused.reason
    where = refusal.provenance if refusal.provenance.op else (refs[0] if refs else refusal.provenance)
    name = where.op if isinstance(where, Provenance) else where.name
    reason = Reason(refusal.code, name or refusal.statement, where.source, refusal.condition, refusal.why, refusal.help)
    if refused.fused is None:
        return CascadeReport(refused.name, refs, False, reason, cascade=refusal.statement, prefix=refusal.prefix)
    verdict = verdicts.get(refused.key)
    return CascadeReport(refused.name, refs, False, reason, cascade=str(refused.fused.cascade),
                         fused_form=describe_state(refused.fused), certificate=verdict.words if verdict else "")


def _once(imported: Any) -> list[Note]:
    """Operations of the program that stand for others that compute the same."""
    return [Note(f"computed once for {more + 1} operations that compute the same: {OpRef(where.op, where.source)}")
            for where, more in imported.once]


def _outside(partition: Any) -> list[Note]:
    """What was left outside a cascade and is no loss, a line per reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for note in partition.notes:
        groups.setdefault((note.code, note.text), []).append(note.about)
    return [Note(f"{text}: {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else ""), code)
            for (code, text), names in groups.items()]


def _eager(partition: Any, maps: list[CascadeReport]) -> list[Note]:
    """Groups of maps that have no kernel, a line per reason."""
    left = [(m.reason.code, m.reason.why or m.reason.condition, m.ops) for m in maps if m.reason is not None]
    left += [(r.reason.code, r.reason.why or r.reason.condition, _ops(r.ops)) for r in partition.unmapped]
    groups: dict[tuple[str, str], list[str]] = {}
    for code, why, refs in left:
        groups.setdefault((code, why.strip().splitlines()[0][:160]), []).append(str(refs[0]) if refs else "")
    return [Note(f"maps left to torch: {why}: {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else ""), code)
            for (code, why), names in groups.items()]


def _unchecked(verdicts: Mapping[str, Verdict]) -> list[Note]:
    if not any(v.origin == "off" for v in verdicts.values()):
        return []
    return [Note("certificates not re-checked (REDFUSER_VERIFY=0): the fusions are as derived", level="warning")]


def _torch(imported: Any, partition: Any) -> list[Any]:
    """The torch calls that nobody can look into; of others the meaning is known (:mod:`redfuser.partition.calls`)."""
    return [call for symbol, call in imported.opaque.items() if symbol in partition.opaque]


def _unknown(imported: Any, partition: Any) -> list[Note]:
    calls = dict.fromkeys(call.target for call in _torch(imported, partition) if not call.why)
    return [Note(f"{target} has no converter: it runs as a torch call") for target in calls]


def _opaque(calls: list[Any]) -> tuple[Opaque, ...]:
    groups: dict[tuple[str, str, str], int] = {}
    for call in calls:
        key = (call.target, call.provenance.source, call.why)
        groups[key] = groups.get(key, 0) + 1
    return tuple(Opaque(op, source, count, why) for (op, source, why), count in sorted(groups.items()))


def versions() -> dict[str, str]:
    from importlib import metadata

    found = {}
    for package in ("redfuser", "torch", "apache-tvm", "tilelang", "apache-tvm-ffi"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def traffic(cascade: Cascade) -> Traffic | None:
    """Predicted bytes per call, fused and unfused (every statement a kernel of its own); None while an extent is symbolic."""
    extents = {a.name: a.extent for a in cascade.axes}
    if not all(isinstance(e, int) for e in (*extents.values(), *(d for t in cascade.inputs for d in t.shape))):
        return None
    tensor = {t.name: prod(int(d) for d in t.shape) * BYTES[t.dtype] for t in cascade.inputs}
    value: dict[str, int] = {}
    inline: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
    unfused = 0
    for s in cascade.stmts:
        dtype = s.dtype if isinstance(s, Reduce) else s.expr.dtype
        size = prod(int(extents[a]) for a in s.axes) * BYTES[dtype]
        loads, refs = _sources(s.expr, inline)
        if isinstance(s, Let) and s.name not in cascade.outputs:
            inline[s.name] = (loads, refs)
            continue
        unfused += sum(tensor[n] for n in loads) + sum(value[n] for n in refs if n in value) + size * len(s.names)
        value.update(dict.fromkeys(s.names, size))
    out = sum(value.get(n, 0) for n in cascade.outputs)
    return Traffic(unfused=unfused, fused=sum(tensor.values()) + out)


def _sources(e: Expr, inline: dict[str, tuple[frozenset[str], frozenset[str]]]) -> tuple[frozenset[str], frozenset[str]]:
    """Tensors and materialised statements that ``e`` reads, through the pointwise statements it folds in."""
    loads = frozenset(x.tensor for x in loads_of(e))
    refs = refs_of(e)
    for name in refs & inline.keys():
        more_loads, more_refs = inline[name]
        loads, refs = loads | more_loads, refs | more_refs
    return loads, frozenset(r for r in refs if r not in inline)
