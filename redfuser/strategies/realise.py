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
from math import prod

from redfuser.acrf.cascade import Axis, Let, Reduce, Stmt, Tensor
from redfuser.acrf.expr import Expr, Index, Load, Ref, loads_of, map_children, refs_of, substitute
from redfuser.acrf.state import Accumulator, Fused
from redfuser.errors import InputError
from redfuser.strategies import factors
from redfuser.strategies.names import fresh
from redfuser.strategies.program import Block, Kernel, Program, Role, Strategy

FEW = 4
"""Numbers of an accumulator at a point of the grid, at most, of which a tile holds those of all splits."""
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
    parts = _Parts(fused, resident=strategy == "resident")
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
    tail = parts.row_free(parts.needed_for_post() | set(cascade.outputs)) + parts.over_row(again=strategy == "single")
    kernel = parts.kernel(cascade.name, strategy, (*body, *tail), parts.outputs(cascade.outputs),
                          init=parts.init(), body=body, tail=tail)
    return Program(fused, strategy, 1, (kernel,), cascade.axes, (), segment)


def _multi(parts: _Parts, splits: int, segment: int | None) -> Program:
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


class _Parts:
    """The pieces of a fused cascade as blocks, with unambiguous names: a result never has an accumulator's name."""

    def __init__(self, fused: Fused, resident: bool) -> None:
        self.fused, self.resident = fused, resident
        cascade, self.raxis = fused.cascade, fused.cascade.raxis
        self.producers = fused.producers
        self.post: tuple[Let | Reduce, ...] = fused.post
        self._separate_names()
        self.axes: dict[str, tuple[str, ...]] = {}
        self.dtypes: dict[str, str] = {}
        for p in self.producers:
            self._declare(p.names, p.axes, p.dtype if isinstance(p, Reduce) else p.expr.dtype)
        for a in self.accumulators:
            self._declare(a.names, a.axes, a.dtype)
            for n, c in zip(a.names, a.neutral, strict=True):
                self.dtypes[n] = c.dtype
        for s in (*self.finalize, *self.post):
            self._declare(s.names, s.axes, s.dtype if isinstance(s, Reduce) else s.expr.dtype)
            if isinstance(s, Reduce) and s.reducer.kind == "topk":
                self.dtypes[s.names[1]] = "i64"
        order = tuple(a.name for a in cascade.axes)
        shared = [set(a.axes[:-1] if a.reducer.kind == "topk" else a.axes) for a in self.accumulators]
        shared = shared or [{a for o in cascade.outputs for a in self.axes[o]} - {self.raxis}]
        self.grid = tuple(a for a in order if all(a in s for s in shared))
        self._share_step(order)

    def _share_step(self, order: tuple[str, ...]) -> None:
        """Name what the step evaluates more often than needed; a resident row shares it with ``post`` as well."""
        uses, seen = [], dict(self.axes)
        for a in self.accumulators:
            seen.update({f"{n}@old": a.axes for n in a.names})
        for a in self.accumulators:
            own = {f"{n}@old": Ref(n, self.dtypes[n]) for n in a.names}
            rebase = () if self.resident else tuple(substitute(e, own) for e in a.rebase)
            uses += [factors.Use(a.name, "scale", e, a.axes) for e in rebase]
            uses.append(factors.Use(a.name, "term", a.contribution, self._points(a)))
        if self.resident:
            uses += [factors.Use(s.name, "term", s.expr, (*s.axes, s.over) if isinstance(s, Reduce) else s.axes)
                     for s in self.post if self._on_row(s)]
        named, exprs = factors.share(tuple(uses), self.raxis, seen, order)
        self.factors = self._factor_blocks(named)
        result = iter(exprs)
        step = []
        for a in self.accumulators:
            rebase = a.rebase if self.resident else tuple(next(result) for _ in a.rebase)
            step.append(replace(a, rebase=rebase, contribution=next(result)))
        self.step = tuple(step)
        if self.resident:
            self.post = tuple(replace(s, expr=next(result)) if self._on_row(s) else s for s in self.post)

    def _factor_blocks(self, named: tuple[factors.Factor, ...]) -> dict[str, list[Block]]:
        out: dict[str, list[Block]] = {}
        for f in named:
            self._declare((f.name,), f.axes, f.expr.dtype)
            out.setdefault(f.first, []).append(Block("producer", (f.name,), f.axes, (f.expr,), f.expr.dtype))
        return out

    # -- names ---------------------------------------------------------------------------------------------------------

    def _separate_names(self) -> None:
        """Rename an accumulator that shares a result's name (``m`` -> ``m_acc``); drop results that repeat one."""
        state, outputs = self.fused.state, set(self.fused.cascade.outputs)
        names = {n for a in state.accumulators for n in a.names}
        results = {f.name: f for f in state.finalize}
        used = names | set(results) | {n for s in (*self.fused.post, *self.producers) for n in s.names}
        missing = [Let(n, a.axes, Ref(n, c.dtype)) for a in state.accumulators
                   for n, c in zip(a.names, a.neutral, strict=True) if n in outputs and n not in results]
        finalize = (*missing, *state.finalize)
        clash = {f.name for f in finalize if f.name in names
                 and (f.name in outputs or f.expr != Ref(f.name, f.expr.dtype))}
        new = {}
        for n in sorted(clash):
            new[n] = fresh(f"{n}_acc", used)
        self.accumulators = tuple(
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
        self.finalize = tuple(kept)
        self.post = tuple(replace(s, expr=substitute(s.expr, same)) for s in self.post)

    def _declare(self, names: tuple[str, ...], axes: tuple[str, ...], dtype: str) -> None:
        for n in names:
            self.axes[n], self.dtypes[n] = axes, dtype

    def axes_of_accumulators(self) -> dict[str, tuple[str, ...]]:
        return {n: a.axes for a in self.accumulators for n in a.names}

    def extent(self, axis: str) -> int | str:
        return self.fused.cascade.extent(axis)

    def _points(self, a: Accumulator) -> tuple[str, ...]:
        return (*(a.axes[:-1] if a.reducer.kind == "topk" else a.axes), self.raxis)

    def _on_row(self, s: Stmt) -> bool:
        return self.raxis in s.axes or (isinstance(s, Reduce) and s.over == self.raxis)

    # -- blocks --------------------------------------------------------------------------------------------------------

    def init(self) -> tuple[Block, ...]:
        return tuple(Block("init", a.names, a.axes, a.neutral, a.dtype) for a in self.accumulators)

    def body(self) -> tuple[Block, ...]:
        """One segment: producers, then per accumulator store, shared factors, correct, reduce."""
        blocks = [_stmt_block(p, "producer") for p in self._live_producers()]
        stores = {} if self.resident else self._stores("old")
        for a in self.step:
            blocks += stores.get(a.name, ())
            blocks += self.factors.get(a.name, ())
            if not self.resident and a.rebase != tuple(Ref(n, self.dtypes[n]) for n in a.names):
                blocks.append(Block("correct", a.names, a.axes, a.rebase, a.dtype))
            blocks.append(Block("reduce", a.names, a.axes, (a.contribution,), a.dtype, a.reducer, self.raxis))
        return tuple(blocks)

    def merges(self, split: str) -> tuple[Block, ...]:
        """Fold one partial: load it as ``@b``, keep the running state as ``@a``, merge accumulators in order."""
        loads = tuple(
            Block("producer", (f"{n}@b",), a.axes,
                  (Load(f"{n}_part", (Index(split), *map(Index, a.axes)), self.dtypes[n]),), self.dtypes[n])
            for a in self.accumulators for n in a.names)
        stores, seen, uses = self._stores("a"), dict(self.axes), []
        for a in self.accumulators:
            seen.update({f"{n}@{side}": a.axes for n in a.names for side in "ab"})
            own = {f"{n}@a": Ref(n, self.dtypes[n]) for n in a.names}
            sides = (*(substitute(_version(e, "a"), own) for e in a.rebase), *(_version(e, "b") for e in a.rebase))
            uses += [factors.Use(a.name, "scale", e, a.axes) for e in sides]
        order = tuple(x.name for x in self.fused.cascade.axes)
        named, exprs = factors.share(tuple(uses), self.raxis, seen, order)
        shared, result, blocks = self._factor_blocks(named), iter(exprs), list(loads)
        for a in self.accumulators:
            blocks += stores.get(a.name, ())
            blocks += shared.get(a.name, ())
            both = tuple(next(result) for _ in range(2 * len(a.rebase)))
            blocks.append(Block("merge", a.names, a.axes, both, a.dtype, a.reducer))
        return tuple(blocks)

    def few(self) -> bool:
        """Is the state a few numbers a row, each reduced by itself? Then a tile holds the partials of a row."""
        def numbers(axes: tuple[str, ...]) -> int:
            return prod(n if isinstance(n, int) else FEW + 1 for n in map(self.extent, set(axes) - set(self.grid)))

        return not any(isinstance(p, Reduce) for p in self.producers) and all(
            a.reducer.kind in ("sum", "max", "min") and numbers(a.axes) <= FEW for a in self.accumulators)

    def merged(self, split: str) -> tuple[Block, ...]:
        """Merge the partials of a row at once: accumulators in order, each the reduction along the splits of its partials about
        the references that are merged before it. An n-fold :meth:`merges`, whose neutral start gives nothing."""
        read = {f"{n}@b": Load(f"{n}_part", (*map(Index, a.axes), Index(split)), self.dtypes[n])
                for a in self.accumulators for n in a.names}
        uses = tuple(factors.Use(a.name, "scale", substitute(_version(a.rebase[0], "b"), read), (*a.axes, split))
                     for a in self.accumulators)
        order = (*(x.name for x in self.fused.cascade.axes), split)
        named, exprs = factors.share(uses, split, dict(self.axes), order)
        shared, blocks = self._factor_blocks(named), []  # type: dict[str, list[Block]], list[Block]
        for a, e in zip(self.accumulators, exprs, strict=True):
            blocks += shared.get(a.name, ())
            blocks.append(Block("reduce", a.names, a.axes, (e,), a.dtype, a.reducer, split))
        return tuple(blocks)

    def _stores(self, version: str) -> dict[str, list[Block]]:
        """Per accumulator, the ``NAME@version = NAME`` blocks to run before it: old values that another accumulator's
        rebase reads, kept before the name changes and before the first reader."""
        owner = {n: a.name for a in self.accumulators for n in a.names}
        position = {a.name: i for i, a in enumerate(self.accumulators)}
        first: dict[str, int] = {}
        for i, a in enumerate(self.accumulators):
            for e in a.rebase:
                for ref in refs_of(e):
                    name = ref.removesuffix("@old")
                    if ref != name and owner[name] != a.name:
                        first[name] = min(first.get(name, i), i, position[owner[name]])
        out: dict[str, list[Block]] = {}
        for name, at in first.items():
            block = Block("store", (f"{name}@{version}",), self.axes[name], (Ref(name, self.dtypes[name]),),
                          self.dtypes[name])
            out.setdefault(self.accumulators[at].name, []).append(block)
        return {k: sorted(v, key=lambda b: b.name) for k, v in out.items()}

    def row_free_names(self) -> set[str]:
        return {n for s in (*self.finalize, *(p for p in self.post if not self._on_row(p))) for n in s.names
                if self._row_free(s)}

    def _row_free(self, s: Stmt) -> bool:
        """Neither on the row nor reading (through others) a value that a visit of the row computes."""
        late = self._late()
        return not any(n in late for n in s.names)

    def _late(self) -> set[str]:
        late: set[str] = set()
        for s in self.post:
            if self._on_row(s) or refs_of(s.expr) & late:
                late.update(s.names)
        return late

    def needed_for_post(self) -> set[str]:
        factors = [e for s in self.post for b in self.factors.get(s.name, ()) for e in b.exprs]
        return {r for e in (*(s.expr for s in self.post), *factors) for r in refs_of(e)}

    def row_free(self, needed: set[str]) -> tuple[Block, ...]:
        """Finalize and epilogue blocks, without those that nothing needs."""
        late = self._late()
        stmts: list[tuple[Role, Stmt]] = [("finalize", f) for f in self.finalize]
        stmts += [("epilogue", p) for p in self.post if not set(p.names) & late]
        live, keep = set(needed), []
        for role, s in reversed(stmts):
            if set(s.names) & live:
                live |= refs_of(s.expr)
                keep.append(_stmt_block(s, role))
        return tuple(reversed(keep))

    def over_row(self, again: bool) -> tuple[Block, ...]:
        """Post blocks; with ``again``, after the producers they read, evaluated anew."""
        late = self._late()
        post = [s for s in self.post if set(s.names) & late]
        blocks: list[Block] = []
        if again:
            live = {r for s in post for r in refs_of(s.expr)}
            redo: list[Block] = []
            for p in reversed(self.producers):
                if set(p.names) & live:
                    live |= refs_of(p.expr)
                    redo.append(_stmt_block(p, "producer"))
            blocks += reversed(redo)
        for s in post:
            blocks += self.factors.get(s.name, ())
            blocks.append(_stmt_block(s, "post" if self._on_row(s) else "epilogue"))
        return tuple(blocks)

    def _live_producers(self) -> tuple[Stmt, ...]:
        live = set(self.fused.cascade.outputs)
        for e in (a.contribution for a in self.step):
            live |= refs_of(e)
        live |= {r for bs in self.factors.values() for b in bs for e in b.exprs for r in refs_of(e)}
        if self.resident:
            live |= self.needed_for_post()
        keep: list[Stmt] = []
        for p in reversed(self.producers):
            if set(p.names) & live:
                live |= refs_of(p.expr)
                keep.append(p)
        return tuple(reversed(keep))

    # -- kernels -------------------------------------------------------------------------------------------------------

    def outputs(self, names: tuple[str, ...] | list[str]) -> tuple[Tensor, ...]:
        return tuple(Tensor(n, self.dtypes[n], tuple(map(self.extent, self.axes[n]))) for n in names)

    def kernel(self, name: str, kind: str, blocks: tuple[Block, ...], writes: tuple[Tensor, ...], *,
               init: tuple[Block, ...], body: tuple[Block, ...], tail: tuple[Block, ...], split: str | None = None,
               extra: tuple[Tensor, ...] = (), raxis: str | None = None) -> Kernel:
        loaded = {x.tensor for b in blocks for e in b.exprs for x in loads_of(e)}
        reads = tuple(t for t in (*self.fused.cascade.inputs, *extra) if t.name in loaded)
        return Kernel(name, kind, self.grid, raxis or self.raxis, reads, writes, init, body, tail, split)  # type: ignore[arg-type]


def _stmt_block(s: Stmt, role: Role) -> Block:
    if isinstance(s, Let):
        return Block(role, s.names, s.axes, (s.expr,), s.expr.dtype)
    return Block(role, s.names, s.axes, (s.expr,), s.dtype, s.reducer, s.over)


def _version(e: Expr, side: str) -> Expr:
    """``NAME@old`` -> ``NAME@side``."""
    if isinstance(e, Ref) and e.name.endswith("@old"):
        return replace(e, name=f"{e.name.removesuffix('@old')}@{side}")
    return map_children(e, lambda kid: _version(kid, side))


def _rename(e: Expr, names: dict[str, str]) -> Expr:
    """Rename references, versions included (``m@old`` with ``m``)."""
    if isinstance(e, Ref):
        base, _, suffix = e.name.partition("@")
        if base in names:
            e = replace(e, name=names[base] + (f"@{suffix}" if suffix else ""))
    return map_children(e, lambda kid: _rename(kid, names))


def _read_by(blocks: tuple[Block, ...]) -> set[str]:
    defined: set[str] = set()
    read: set[str] = set()
    for b in blocks:
        read |= {r for e in b.exprs for r in refs_of(e)} - defined
        defined |= set(b.names)
    return read


def _load_refs(b: Block, source: dict[str, str], parts: _Parts) -> Block:
    """Read values of an earlier kernel from the buffers it left them in."""

    def go(e: Expr) -> Expr:
        if isinstance(e, Ref) and e.name in source:
            indices = e.indices or tuple(Index(a) for a in parts.axes[e.name])
            return Load(source[e.name], tuple(go(i) for i in indices), e.dtype)
        return map_children(e, go)

    return replace(b, exprs=tuple(go(e) for e in b.exprs))
