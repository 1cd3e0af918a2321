"""The verifier of segment programs: what every consumer may rely on. On in tests, by setting elsewhere.

Each finding is one line; an empty list means the program is well formed. It shares nothing with
:mod:`redfuser.strategies.realise`.
"""

from __future__ import annotations

from collections.abc import Mapping

from redfuser.acrf.cascade import Extent, Tensor
from redfuser.acrf.expr import Const, Expr, Index, Load, Ref, walk
from redfuser.strategies.program import Block, Kernel, Program

_BODY = {"single": {"producer", "store", "correct", "reduce"}, "split": {"producer", "store", "correct", "reduce"},
         "resident": {"producer", "reduce"}, "combine": {"producer", "store", "merge"},
         "merge": {"producer", "reduce"}, "map": set()}
_TAIL = {"single": {"finalize", "epilogue", "producer", "post"}, "split": {"store"},
         "resident": {"finalize", "epilogue", "producer", "post"}, "combine": {"finalize", "epilogue", "store", "producer"},
         "merge": {"finalize", "epilogue", "store", "producer"},
         "map": {"producer", "post", "epilogue"}}


def check(program: Program) -> list[str]:
    """Every reference defined before its use, axes in scope, roles in their places, every output written once, every
    workspace written before the kernel that reads it."""
    found: list[str] = []
    cascade = program.fused.cascade
    declared = {t.name for t in cascade.inputs}
    extents = {a.name: a.extent for a in program.axes}
    written: list[str] = []
    for kernel in program.kernels:
        where = f"kernel {kernel.name}"
        for t in kernel.reads:
            if t.name not in declared and t.name not in written:
                found.append(f"{where}: reads {t.name}, which no input declares and no earlier kernel writes")
        found += [f"{where}{m}" for m in check_kernel(kernel, extents)]
        written += [t.name for t in kernel.writes]
    for name in dict.fromkeys((*cascade.outputs, *(w.name for w in program.workspaces))):
        if written.count(name) != 1:
            found.append(f"{name} is written by {written.count(name)} kernels")
    extra = set(written) - set(cascade.outputs) - {w.name for w in program.workspaces}
    found += [f"{name} is written but neither an output nor a workspace" for name in sorted(extra)]
    if program.strategy != "multi" and (program.splits != 1 or len(program.kernels) != 1):
        found.append(f"{program.strategy}: {program.splits} splits in {len(program.kernels)} kernels")
    return found


def check_kernel(kernel: Kernel, extents: Mapping[str, Extent], results: tuple[str, ...] | None = None) -> list[str]:
    """The same of one kernel. results: the names that are written, where they are no longer those of the buffers."""
    found: list[str] = []
    accumulators = set(kernel.accumulators)
    known: dict[str, tuple[str, ...]] = {}
    tensors = {t.name: t for t in kernel.reads}
    outputs = {t.name: t for t in kernel.writes}
    ambient = set(kernel.grid) | ({kernel.split} if kernel.split else set())
    changed: set[str] = set()
    stored: dict[str, int] = {}
    for part, blocks in (("init", kernel.init), ("body", kernel.body), ("tail", kernel.tail)):
        for b in blocks:
            at = f", {part}, {'/'.join(b.names)}"
            allowed = {"init": {"init"}, "body": _BODY[kernel.kind], "tail": _TAIL[kernel.kind]}[part]
            if b.role not in allowed:
                found.append(f"{at}: role {b.role} has no place in the {part} of a {kernel.kind} kernel")
            found += [f"{at}: {m}" for m in _block(b, known, tensors, extents, ambient)]
            if b.role in ("correct", "reduce", "merge"):
                found += [f"{at}: {b.role} of {n}, which init does not set" for n in b.names if n not in accumulators]
            if b.role in ("reduce", "merge"):
                found += [f"{at}: {n} is reduced twice" for n in b.names if n in changed]
                changed.update(b.names)
            if b.role == "correct":
                found += [f"{at}: {n} is corrected after it was reduced" for n in b.names if n in changed]
            if b.role == "store" and part == "body":
                kept = [e.name for e in b.exprs if isinstance(e, Ref)]
                found += [f"{at}: keeps {n} after it changed" for n in kept if n in changed]
            for n in b.names:
                if n in accumulators and b.role not in ("init", "correct", "reduce", "merge"):
                    found.append(f"{at}: {b.role} overwrites the accumulator {n}")
                if n in (outputs if results is None else results) and part != "init":
                    stored[n] = stored.get(n, 0) + (b.role != "producer" or part == "body")
                    if results is None and len(outputs[n].shape) != len(b.axes):
                        found.append(f"{at}: {len(b.axes)} axes stored in {outputs[n]}")
                known[n] = b.axes
    if kernel.kind != "map":
        found += [f": {n} is never reduced" for n in sorted(accumulators - changed)]
    found += [f": {n} is stored {stored.get(n, 0)} times" for n in (outputs if results is None else results)
              if stored.get(n, 0) != 1]
    return found


def _block(b: Block, known: dict[str, tuple[str, ...]], tensors: dict[str, Tensor], extents: Mapping[str, Extent],
           ambient: set[str]) -> list[str]:
    found: list[str] = []
    scope = set(b.points) | ambient
    if b.role != "merge" and b.reducer is None and len(b.exprs) != len(b.names):
        found.append("one expression per name")
    if b.role == "merge" and len(b.exprs) != 2 * len(b.names):
        found.append("a merge has both sides of every name")
    if b.role == "init" and not all(isinstance(e, Const) for e in b.exprs):
        found.append("a neutral element is a constant")
    found += [f"axis {a} has no extent" for a in b.points if a not in extents]
    for e in b.exprs:
        for x in walk(e):
            found += _node(x, known, tensors, scope, extents)
    return found


def _node(x: Expr, known: dict[str, tuple[str, ...]], tensors: dict[str, Tensor], scope: set[str],
          extents: Mapping[str, Extent]) -> list[str]:
    match x:
        case Ref(name=n, indices=indices):
            if n not in known:
                return [f"{n} is read before it is defined"]
            if indices and len(indices) != len(known[n]):
                return [f"{n} has {len(known[n])} axes, indexed by {len(indices)}"]
            lost = {a for a in known[n] if a not in scope and extents.get(a) != 1} if not indices else set()
            return [f"{n} varies along {a}, which this block does not" for a in sorted(lost)]
        case Load(tensor=n, indices=indices):
            if n not in tensors:
                return [f"{n} is loaded but not among the buffers read"]
            if len(indices) != len(tensors[n].shape):
                return [f"{tensors[n]} indexed by {len(indices)}"]
        case Index(axis=a):
            return [] if a in scope else [f"axis {a} is out of scope"]
    return []
