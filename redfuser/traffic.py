"""Bytes of device memory a cascade moves, predicted from shapes: unfused (every statement a kernel of its own) and fused.

A model, not a measurement, and reported as such: caches are not modelled, and pointwise statements without a
reduction's help (a cast, a mask) are taken as part of whoever reads them, as any eager runtime's views and epilogues are.
"""

from __future__ import annotations

from math import prod

from redfuser.acrf.cascade import Cascade, Let, Reduce
from redfuser.acrf.expr import BYTES, Expr, loads_of, refs_of
from redfuser.reported import Traffic


def traffic(cascade: Cascade) -> Traffic | None:
    """Predicted bytes per call, or None while an extent is symbolic."""
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
