"""The pieces of a fused cascade as blocks: what a segment does, how partials merge, what follows the row.

Which of them a kernel has, and in which order, is :mod:`redfuser.strategies.realise`'s."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from redfuser.acrf.cascade import Let, Reduce, Stmt, Tensor
from redfuser.acrf.expr import Expr, Index, Load, Ref, loads_of, map_children, refs_of, substitute
from redfuser.acrf.state import Accumulator, Fused
from redfuser.strategies import factors
from redfuser.strategies.names import named_apart
from redfuser.strategies.program import Block, Kernel, Role

FEW = 4
"""Numbers of an accumulator at a point of the grid, at most, of which a tile holds those of all splits."""
TERMS = 16
"""Terms of a sum within an element that is written out, at most: no tile of a product."""


class Parts:
    """Blocks with unambiguous names: a result never has an accumulator's name."""

    def __init__(self, fused: Fused, resident: bool) -> None:
        self.fused, self.resident = fused, resident
        cascade, self.raxis = fused.cascade, fused.cascade.raxis
        self.producers = fused.producers
        self.accumulators, self.finalize, self.post = named_apart(fused)
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
        across = {s.over for s in (*self.finalize, *self.post) if isinstance(s, Reduce)}  # of which a point has to have all
        self.grid = tuple(a for a in order if all(a in s for s in shared) and a not in across)
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

        terms = [self.extent(p.over) for p in self.producers if isinstance(p, Reduce)]
        return all(isinstance(n, int) and n <= TERMS for n in terms) and all(
            a.reducer.kind in ("sum", "max", "min", "argmax", "argmin") and numbers(a.axes) <= FEW for a in self.accumulators)

    def merged(self, split: str) -> tuple[Block, ...]:
        """Merge the partials of a row at once: accumulators in order, each the reduction along the splits of its partials about
        the references that are merged before it, places beside their values. An n-fold :meth:`merges`, whose neutral start
        gives nothing."""
        read = {f"{n}@b": Load(f"{n}_part", (*map(Index, a.axes), Index(split)), self.dtypes[n])
                for a in self.accumulators for n in a.names}
        uses = tuple(factors.Use(a.name, "scale", substitute(_version(a.rebase[0], "b"), read), (*a.axes, split))
                     for a in self.accumulators)
        order = (*(x.name for x in self.fused.cascade.axes), split)
        named, exprs = factors.share(uses, split, dict(self.axes), order)
        shared, blocks = self._factor_blocks(named), []  # type: dict[str, list[Block]], list[Block]
        for a, e in zip(self.accumulators, exprs, strict=True):
            blocks += shared.get(a.name, ())
            places = tuple(read[f"{n}@b"] for n in a.names[1:])
            blocks.append(Block("reduce", a.names, a.axes, (e, *places), a.dtype, a.reducer, split))
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

    def row_free(self, needed: set[str], body: tuple[Block, ...] = ()) -> tuple[Block, ...]:
        """Finalize and epilogue blocks, without those that nothing needs, behind what they read of producers without the r-axis
        that ``body`` does not have."""
        late, made = self._late(), {n for b in body for n in b.names}
        again = [p for p in self.producers if not self._on_row(p) and not set(p.names) & made]
        stmts: list[tuple[Role, Stmt]] = [*(("epilogue", p) for p in again), *(("finalize", f) for f in self.finalize)]
        stmts += [("epilogue", p) for p in self.post if not set(p.names) & late]
        live, read, keep = set(needed), set[str](), []
        for role, s in reversed(stmts):
            if set(s.names) & (read if s in again else live):
                live |= refs_of(s.expr)
                read |= refs_of(s.expr)
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
