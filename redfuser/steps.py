"""The model in the order it runs, as people see it: every operation with its module, its line and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, cast

from redfuser import outline
from redfuser.acrf.cascade import Provenance
from redfuser.outer.order import schedule
from redfuser.reported import Kind, Step
from redfuser.target import TARGETS, target
from redfuser.tvm_compat import bindings, bytes_of, op_name, relax, shape_of, variables

VIEWS = frozenset({"reshape", "expand_dims", "squeeze", "permute_dims", "broadcast_to", "strided_slice", ""})
"""What torch moves no bytes for."""
LIBRARY = ("matmul", "nn.conv")


@dataclass(slots=True)
class _Run:
    """Bindings in a row that are one operation of the user's."""

    where: Provenance
    kind: str
    of: str
    calls: list[Any] = field(default_factory=list)


def steps(imported: Any, regions: Sequence[Any], refused: Iterable[Any], kept: Mapping[str, str],
          arch: str) -> tuple[Step, ...]:
    """regions: all that the partition made kernels of. kept: by name of a region that has one, ``fused`` or ``map``. refused:
    what was found and not fused (``name``, ``ops``)."""
    owner = {var: r.name for r in regions if r.name in kept for var in (*r.covered, *r.outputs.values())}
    unfused = {(o.op, o.source, o.module): r.name for r in reversed(list(refused)) for o in r.ops}
    main = imported.mod["main"]
    outputs = set(variables(main.body.body))
    live = {v for s in schedule(bindings(main), [r for r in regions if r.name in kept], outputs) for v in s.defines}
    runs: list[_Run] = []
    readers: dict[str, int] = {}
    for b in bindings(main):
        if b.var.name_hint not in live and b.var.name_hint not in owner:
            continue  # what kernels make anew where they read it
        for name in variables(b.value):
            readers[name] = readers.get(name, 0) + 1
        where = imported.provenance.get(b.var.name_hint)
        if where is None or not where.op:
            continue
        of = owner.get(b.var.name_hint, "")
        kind = kept[of] if of else _kind(b.value)
        if kind == "view":
            kind = runs[-1].kind if runs and _same(runs[-1], where) and not runs[-1].of else kind
        last = runs[-1] if runs else None
        if last is None or not _same(last, where) or last.of != of:
            runs.append(last := _Run(where, kind, of))
        elif _RANK[kind] > _RANK[last.kind]:
            last.kind = kind
        last.calls.append(b)
    machine = target(arch) if arch in TARGETS else None
    found = []
    for run in runs:
        if run.kind == "view":
            continue
        w = run.where
        of = run.of or unfused.get((w.op, w.source, w.module), "")
        moved, flops = (0, 0) if run.of else _cost(run.calls, readers, outputs)
        seconds = None
        if machine is not None and not run.of:
            library = outline.library(machine, flops, moved) if flops else 0.0
            seconds = max(library, outline.passes(machine, moved, 1))
        found.append(Step(w.module, w.op, w.source, w.code, cast(Kind, run.kind), of, moved, seconds))
    return tuple(found)


_RANK = {"view": 0, "torch": 1, "library": 2, "opaque": 3, "map": 4, "fused": 4}


def _same(run: _Run, where: Provenance) -> bool:
    return run.where == where and run.where.module == where.module


def _kind(value: Any) -> str:
    name = op_name(value)
    if name.startswith(LIBRARY):
        return "library"
    if name == "call_dps_packed":
        return "opaque"
    return "view" if name in VIEWS else "torch"


def _cost(calls: list[Any], readers: Mapping[str, int], outputs: set[str]) -> tuple[int, int]:
    """Bytes that these bindings read from before and leave for later, and the operations of their products."""
    own = {b.var.name_hint: b for b in calls}
    inside: dict[str, int] = {}
    infos: dict[str, Any] = {}
    flops = 0
    for b in calls:
        for v in relax.analysis.free_vars(b.value):
            infos[v.name_hint] = v.struct_info
        for name in variables(b.value):
            inside[name] = inside.get(name, 0) + 1
        if op_name(b.value) == "matmul":
            flops += 2 * prod(shape_of(b.value)) * shape_of(b.value.args[0])[-1]
    read = sum(bytes_of(info) for name, info in infos.items() if name not in own)
    left = sum(bytes_of(b.var.struct_info) for name, b in own.items()
               if name in outputs or readers.get(name, 0) > inside.get(name, 0))
    return read + left, flops
