"""Realise a fused cascade as a segment program: Single-Segment, resident row, or Multi-Segment.

Everything is read off the algebra's state (:class:`redfuser.acrf.state.State`); no form has a combine of its own::

    single     for each segment of l:  producers; per accumulator: store old, correct by rebase, reduce    (Neptune's
               rolling update); then finalize, epilogue; post again along the row, with its producers evaluated anew
    resident   the row is one segment, held on chip: contributions are relative to the final references, so nothing is
               rebased; post runs over the same held row
    multi      split kernel: ``single`` on each contiguous r-range, storing partial accumulators; combine kernel:
               merge(a, b) = rebase[@old := @a] (reducer) rebase[@old := @b] along the splits, or, of a state of a few
               numbers, all partials of a row at once; then finalize and epilogue; map kernel: post over the row, where
               outputs carry the r-axis                                                          (split-k update)
    map        what has no state: post alone, element by element
"""

from __future__ import annotations

from dataclasses import replace

from redfuser.acrf.cascade import Axis, Tensor
from redfuser.acrf.expr import Expr, Index, Load, Ref, map_children, refs_of
from redfuser.acrf.state import Fused
from redfuser.errors import InputError
from redfuser.strategies.names import fresh
from redfuser.strategies.parts import Parts
from redfuser.strategies.program import Block, Program, Strategy

SEGMENT = 64
"""Elements of the r-axis per segment of the scalar realisation, when the caller does not say."""


def realise(fused: Fused, strategy: Strategy, splits: int = 1, segment: int | None = None) -> Program:
    """The segment program of ``fused``.

    splits: r-ranges of the Multi-Segment form, at least 1; more than elements leaves the last ones empty.
    segment: elements per segment; the extent itself for a resident row.
    Raises InputError (RF350) for a strategy, split count or segment that means nothing."""
    if strategy not in ("single", "resident", "multi", "map"):
        raise InputError("RF350", f"no strategy is called {strategy!r}", help="single, resident, multi or map")
    if (strategy == "map") != (not fused.state.accumulators):
        raise InputError("RF350", f"the strategy {strategy} for {'no state' if strategy != 'map' else 'a state'}",
                         help="map where nothing is reduced, and only there")
    if splits < 1 or (splits > 1 and strategy != "multi"):
        raise InputError("RF350", f"{splits} splits for the strategy {strategy}",
                         help="splits >= 1, and 1 unless multi")
    if segment is not None and segment < 1:
        raise InputError("RF350", f"a segment of {segment} elements", help="at least 1 element per segment")
    parts = Parts(fused, resident=strategy == "resident")
    cascade = parts.fused.cascade
    extent = cascade.extent(cascade.raxis)
    if strategy == "resident":
        segment = extent if isinstance(extent, int) else None
    elif isinstance(extent, int):
        segment = max(1, min(segment or SEGMENT, extent))
    if strategy == "multi":
        return _multi(parts, splits, segment)
    if strategy == "map":
        maps = parts.row_free(parts.needed_for_post() | set(cascade.outputs)) + parts.over_row(again=False)
        alone = parts.kernel(cascade.name, "map", maps, parts.outputs(cascade.outputs), init=(), body=(), tail=maps)
        return Program(fused, strategy, 1, (alone,), cascade.axes, (), segment)
    body = parts.body()
    tail = parts.row_free(parts.needed_for_post() | set(cascade.outputs), body) + parts.over_row(again=strategy == "single")
    kernel = parts.kernel(cascade.name, strategy, (*body, *tail), parts.outputs(cascade.outputs),
                          init=parts.init(), body=body, tail=tail)
    return Program(fused, strategy, 1, (kernel,), cascade.axes, (), segment)


def _multi(parts: Parts, splits: int, segment: int | None) -> Program:
    cascade = parts.fused.cascade
    split = fresh("split", {a.name for a in cascade.axes})
    accumulators = parts.accumulators
    few = parts.few()  # partials of a row lie side by side where one tile has them
    partials = tuple(Tensor(f"{n}_part", parts.dtypes[n], (*own, splits) if few else (splits, *own))
                     for a in accumulators for n in a.names for own in [tuple(map(parts.extent, a.axes))])

    # split kernel: the Single-Segment walk on one range, then its accumulators as partials
    body = parts.body()
    stores = tuple(Block("store", (f"{n}_part",), (*a.axes, split) if few else (split, *a.axes),
                         (Ref(n, parts.dtypes[n]),), parts.dtypes[n]) for a in accumulators for n in a.names)
    produced = [o for o in cascade.outputs if any(o in p.names for p in parts.producers)]
    kernels = [parts.kernel(f"{cascade.name}_split", "split", (*body, *stores), (*parts.outputs(produced), *partials),
                            init=parts.init(), body=body, tail=stores, split=split)]

    # fold the partials with the state's merge, or merge those of a row at once; then everything without the r-axis
    later, row_values = parts.over_row(again=True), []
    crossing = _read_by(later) & (parts.row_free_names() | set(parts.axes_of_accumulators()))
    tail = parts.row_free(crossing | set(cascade.outputs))
    for name in sorted(crossing - set(cascade.outputs)):
        axes, dtype = parts.axes[name], parts.dtypes[name]
        row_values.append(Tensor(f"{name}_row", dtype, tuple(map(parts.extent, axes))))
        tail += (Block("store", (f"{name}_row",), axes, (Ref(name, dtype),), dtype),)
    merges = parts.merged(split) if few else parts.merges(split)
    written = [o for o in cascade.outputs if o in parts.row_free_names()]
    kernels.append(parts.kernel(f"{cascade.name}_combine", "merge" if few else "combine", (*merges, *tail),
                                (*parts.outputs(written), *row_values), init=parts.init(), body=merges, tail=tail,
                                split=None if few else split, extra=partials, raxis=split if few else None))

    # map kernel: outputs that carry the r-axis
    if later:
        source = {n: n if n in cascade.outputs else f"{n}_row" for n in crossing}
        later = tuple(_load_refs(b, source, parts) for b in later)
        mapped = [o for o in cascade.outputs if any(o in b.names for b in later) and o not in produced]
        whole = any(b.role == "post" and b.reducer is not None and b.over == cascade.raxis for b in later)
        crossing_tensors = (*row_values, *(t for t in parts.outputs(written) if t.name in crossing))
        kernels.append(parts.kernel(f"{cascade.name}_map", "map", later, parts.outputs(mapped), init=(), body=(),
                                    tail=later, split=None if whole else split, extra=crossing_tensors))
    return Program(parts.fused, "multi", splits, tuple(kernels), (*cascade.axes, Axis(split, splits)),
                   (*partials, *row_values), segment)


def _read_by(blocks: tuple[Block, ...]) -> set[str]:
    defined: set[str] = set()
    read: set[str] = set()
    for b in blocks:
        read |= {r for e in b.exprs for r in refs_of(e)} - defined
        defined |= set(b.names)
    return read


def _load_refs(b: Block, source: dict[str, str], parts: Parts) -> Block:
    """Read values of an earlier kernel from the buffers it left them in."""

    def go(e: Expr) -> Expr:
        if isinstance(e, Ref) and e.name in source:
            indices = e.indices or tuple(Index(a) for a in parts.axes[e.name])
            return Load(source[e.name], tuple(go(i) for i in indices), e.dtype)
        return map_children(e, go)

    return replace(b, exprs=tuple(go(e) for e in b.exprs))
