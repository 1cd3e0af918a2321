"""What each statement of a cascade is: producer, reduction, map of results, or map over the row after them.

An expression has one of four kinds, by dataflow alone:

====  ==========================================================================================
C     depends on neither the r-axis nor any result: a constant for the cascade
X     depends on the r-axis only: data
D     depends on results only
M     depends on both: this is what a decomposition has to take apart
====  ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from redfuser.acrf.cascade import Cascade, Let, Reduce, Stmt
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Index, Op, Ref, children, map_children, refs_of
from redfuser.acrf.facts.algebra import accumulator_dtype
from redfuser.acrf.state import Refuse

_JOIN = {("C", "C"): "C", ("C", "X"): "X", ("C", "D"): "D", ("X", "X"): "X", ("D", "D"): "D"}


def join(a: str, b: str) -> str:
    return "M" if "M" in (a, b) else _JOIN.get((a, b)) or _JOIN.get((b, a)) or "M"


@dataclass(slots=True)
class Scope:
    """What is known while statements are taken in order: the kind of every name and the definitions of maps."""

    cascade: Cascade
    kinds: dict[str, str] = field(default_factory=dict)
    definitions: dict[str, Expr] = field(default_factory=dict)
    """Maps of results without the r-axis (``mean``), by name."""
    inlined: dict[str, Expr] = field(default_factory=dict)
    """Maps of both kinds, over the row (``p = exp(s - m) / t``), by name."""
    inner: dict[str, Reduce] = field(default_factory=dict)
    """Contractions over an inner axis that read results, per element of the row."""
    late: set[str] = field(default_factory=set)
    """Values only known once the row is complete: contractions of results over another axis."""
    axes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    memo: dict[Expr, str] = field(default_factory=dict)

    @property
    def raxis(self) -> str:
        return self.cascade.raxis

    def kind(self, e: Expr) -> str:
        if e in self.memo:
            return self.memo[e]
        out = self._kind(e)
        self.memo[e] = out
        return out

    def _kind(self, e: Expr) -> str:
        match e:
            case Const():
                return "C"
            case Index(axis=a):
                return "X" if a == self.raxis else "C"
            case Ref(name=n, indices=ix) if ix:
                own = self.kinds.get(n, "C")
                inside = "C"
                for i in ix:
                    inside = join(inside, self.kind(i))
                if own == "X":
                    return inside  # the producer's own r-axis is replaced by the index expression
                return join(own, inside)
            case Ref(name=n):
                return self.kinds[n]
        out = "C"
        for kid in children(e):
            out = join(out, self.kind(kid))
        return out

    def inline(self, e: Expr) -> Expr:
        """Replace maps over the row by their bodies."""
        return self.replaced(e, self.inlined) if refs_of(e) & self.inlined.keys() else e

    def resolve(self, e: Expr) -> Expr:
        """Replace maps of results by their bodies, down to names of reductions."""
        return self.replaced(e, self.definitions) if refs_of(e) & self.definitions.keys() else e

    def replaced(self, e: Expr, bodies: Mapping[str, Expr]) -> Expr:
        """Replace names by bodies, and by bodies of what those name; a name read at other axes reads its body there."""
        if isinstance(e, Ref) and e.name in bodies:
            body = bodies[e.name]
            if e.indices:
                body = self.elsewhere(body, dict(zip(self.axes[e.name], e.indices, strict=True)))
            return body if isinstance(body, Ref) and body.name == e.name else self.replaced(body, bodies)
        return map_children(e, lambda k: self.replaced(k, bodies))

    def elsewhere(self, e: Expr, places: Mapping[str, Expr]) -> Expr:
        """The expression at other points of some axes."""
        match e:
            case Index(axis=a):
                return places.get(a, e)
            case Ref(name=n, indices=()) if set(self.axes.get(n, ())) & places.keys():
                return Ref(n, e.dtype, tuple(places.get(a, Index(a)) for a in self.axes[n]))
        return map_children(e, lambda k: self.elsewhere(k, places))

    def axes_of(self, e: Expr) -> frozenset[str]:
        """Every axis a value depends on."""
        match e:
            case Index(axis=a):
                return frozenset({a})
            case Ref(name=n, indices=()):
                return frozenset(self.axes.get(n.split("@")[0], ()))
        out: frozenset[str] = frozenset()
        for kid in children(e):
            out |= self.axes_of(kid)
        return out


def separate_axes(cascade: Cascade) -> Cascade:
    """``mean[e]`` of a result ``mean[d]`` becomes a result of its own, ``mean_e[e]``: every read is pointwise.

    Reads at anything but plain axes stay as they are."""
    scope = Scope(cascade)
    done: dict[str, Stmt] = {}
    results: set[str] = set()

    def at(n: str, axes: tuple[str, ...]) -> str:
        s = done[n]
        alias = f"{n}_{'_'.join(axes)}"
        if alias not in done:
            places: dict[str, Expr] = {a: Index(b) for a, b in zip(s.axes, axes, strict=True) if a != b}
            body = pointwise(scope.elsewhere(s.expr, places))
            done[alias] = replace(s, name=alias, axes=axes, expr=body) if isinstance(s, Let) else replace(
                s, names=(alias,), axes=axes, expr=body)
            results.add(alias)
            scope.axes[alias] = axes
        return alias

    def pointwise(e: Expr) -> Expr:
        if isinstance(e, Ref) and e.indices and e.name in done and all(isinstance(i, Index) for i in e.indices):
            axes = tuple(i.axis for i in e.indices if isinstance(i, Index))
            s = done[e.name]
            if axes == s.axes:
                return Ref(e.name, e.dtype)
            plain = len(s.names) == 1 and not (isinstance(s, Reduce) and s.over in axes)
            if e.name in results and cascade.raxis not in axes and len(set(axes)) == len(axes) and plain:
                return Ref(at(e.name, axes), e.dtype)
        return map_children(e, pointwise)

    for s in cascade.stmts:
        s = replace(s, expr=pointwise(s.expr))
        for n in s.names:
            done[n] = s
            scope.axes[n] = s.axes
            if refs_of(s.expr) & results or (isinstance(s, Reduce) and s.over == cascade.raxis):
                results.add(n)
    return replace(cascade, stmts=tuple(dict.fromkeys(done.values())))


@dataclass(frozen=True, slots=True)
class Outline:
    """A cascade, sorted: what runs per element before the accumulators, the reductions, and what follows them."""

    scope: Scope
    producers: tuple[Stmt, ...]
    reductions: tuple[Reduce, ...]
    post: tuple[Stmt, ...]


def outline(cascade: Cascade) -> Outline:
    """Sort the statements of a cascade by what they depend on. Raises Refuse."""
    scope = Scope(cascade)
    producers: list[Stmt] = []
    reductions: list[Reduce] = []
    maps: list[Stmt] = []
    for s in cascade.stmts:
        for n in s.names:
            scope.axes[n] = s.axes
        kind = scope.kind(s.expr)
        if isinstance(s, Reduce) and s.over == cascade.raxis:
            if cascade.raxis in s.axes:
                raise Refuse("RF211", f"{s.name} still carries the r-axis {s.over} that it reduces",
                             "a running reduction (scan) has one result per element, not one per row",
                             "keep the scan outside the cascade")
            reductions.append(replace(s, expr=scope.inline(s.expr) if s.name not in scope.late else s.expr))
            scope.kinds.update(dict.fromkeys(s.names, "D"))
            continue
        for n in s.names:
            scope.kinds[n] = kind
        if kind in ("C", "X"):
            producers.append(s)
            continue
        maps.append(s)
        if isinstance(s, Reduce):
            if kind == "D":
                scope.late.update(s.names)
            else:
                scope.inner[s.name] = replace(s, expr=scope.inline(s.expr))
        elif kind == "D":
            scope.definitions[s.name] = s.expr
            if refs_of(s.expr) & scope.late:
                scope.late.add(s.name)
        else:
            scope.inlined[s.name] = s.expr
    return Outline(scope, tuple(producers), tuple(reductions), live(maps, cascade.outputs))


def live(stmts: Sequence[Stmt], names: Iterable[str]) -> tuple[Stmt, ...]:
    """The statements that ``names`` need, in order."""
    wanted = set(names)
    kept: list[Stmt] = []
    for s in reversed(stmts):
        if wanted & set(s.names):
            kept.append(s)
            wanted |= refs_of(s.expr)
    return tuple(reversed(kept))


def promote(e: Expr, scope: Scope) -> Expr:
    """Half-precision arithmetic on mixed values, carried in fp32: only what the program spells as a cast rounds."""
    def go(x: Expr) -> Expr:
        if not isinstance(x, (Op, Cast)) or scope.kind(x) != "M":
            return _as_wide(x) if x.dtype in ("f16", "bf16") else x
        if isinstance(x, Cast):
            arg = go(x.arg)
            return arg if arg.dtype == x.dtype else Cast(arg, x.dtype)
        args = tuple(go(a) for a in x.args)
        args = tuple(_as_wide(a) for a in args)
        return Op(x.name, args, accumulator_dtype(x.dtype) if x.dtype in FLOATS else x.dtype)

    return go(e) if needs_promotion(e, scope) else e


def needs_promotion(e: Expr, scope: Scope) -> bool:
    from redfuser.acrf.expr import walk

    return any(isinstance(x, Op) and x.dtype in ("f16", "bf16") and scope.kind(x) == "M" for x in walk(e))


def _as_wide(x: Expr) -> Expr:
    if x.dtype not in ("f16", "bf16"):
        return x
    return Const(x.value, "f32") if isinstance(x, Const) else Cast(x, "f32")


def rename(e: Expr, names: Mapping[str, str]) -> Expr:
    """Refs renamed (pointwise and gathered)."""
    if isinstance(e, Ref) and e.name in names:
        return Ref(names[e.name], e.dtype, tuple(rename(i, names) for i in e.indices))
    return map_children(e, lambda k: rename(k, names))
