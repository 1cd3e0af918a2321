"""Strength reduction over a kernel's blocks: the rules of :mod:`rewrite`, applied along the dataflow of one segment.

Before, as the segment program has it, and after::

    producer p = select(l <= i, s * 0.125, -inf)          producer p = select(l <= i, s, -inf)
    reduce   m = m max max[l] p                           reduce   m = m max max[l] p         (in units of s)
    producer w = select(m == -inf, 0, exp(p - m))         producer m_shift = select(m == -inf, 0, m) * 0.18
    ...                                                   producer w = exp2(p * 0.18 - m_shift)
    finalize o = acc / t                                  producer t_inverse = 1 / t;  finalize o = acc * t_inverse
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from redfuser.acrf.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Op,
    Reducer,
    Ref,
    f32,
    map_children,
    op,
    refs_of,
    substitute,
    walk,
)
from redfuser.strategies.program import Block, Kernel
from redfuser.tensorize import rewrite
from redfuser.tensorize.axes import Roles, constants
from redfuser.tensorize.masks import TRUE, both, conjuncts


@dataclass(frozen=True, slots=True)
class Prepared:
    """The blocks after rewriting.

    unit: names whose values lie in [0, 1] by construction. alive: per accumulator, where along the segment its
    contribution can matter. lifted: maxima that start from :data:`LEAST` instead of -inf, which no guard has to look
    for. levels: the tile letters each name varies along."""

    body: tuple[Block, ...]
    tail: tuple[Block, ...]
    unit: frozenset[str]
    alive: tuple[Expr, ...]
    lifted: frozenset[str]
    levels: dict[str, frozenset[str]]


LEAST = f32(-1e30)
"""Below every finite score of half-precision operands, and finite after any scale a score is given."""

COSTLY = frozenset({"exp", "exp2", "log", "log2", "sqrt", "rsqrt", "div", "tanh", "sigmoid", "erf", "pow", "select",
                    "sin", "cos"})


class _Prepare:
    def __init__(self, kernel: Kernel, roles: Roles, ragged: bool, resident: bool) -> None:
        self.kernel, self.roles, self.ragged, self.resident = kernel, roles, ragged, resident
        self.subs: dict[str, Expr] = {}
        self.lets: dict[str, Expr] = {}
        self.levels: dict[str, frozenset[str]] = {}
        self.maxima: dict[str, Expr] = {}
        self.contractions: set[str] = set()
        self.unit: set[str] = set()
        self.alive: list[Expr] = []
        self.done: set[str] = set()
        self.lifted: set[str] = set()
        self.started_low: frozenset[str] = frozenset()
        self.shared: dict[Expr, Expr] = {}
        self.row_values: dict[Expr, str] = {}
        self.taken = {n for b in (*kernel.init, *kernel.body, *kernel.tail) for n in b.names}
        self.corrected = {n for b in kernel.body if b.role in ("correct", "merge") for n in b.names}
        for b in kernel.init:
            for n in b.names:
                self.levels[n] = self._letters(b.axes) | {"m"}

    # -- facts ---------------------------------------------------------------------------------------------------------

    def _letters(self, axes: tuple[str, ...]) -> frozenset[str]:
        return frozenset(x for x in map(self.roles.letter, axes) if x)

    def level(self, e: Expr) -> frozenset[str]:
        found: set[str] = set()
        for x in walk(e):
            if isinstance(x, Ref):
                found |= self.levels[x.name]
            elif isinstance(x, Index):
                letter = self.roles.letter(x.axis)
                found |= {letter} if letter else set()
        return frozenset(found)

    def per_row(self, e: Expr) -> bool:
        return self.level(e) <= {"m"}

    def rounded(self, e: Expr) -> bool:
        """Carries the rounding of a contraction."""
        for x in walk(e):
            if not isinstance(x, Ref):
                continue
            name = x.name.partition("@")[0]
            source = self.lets.get(name, self.maxima.get(name))
            if name in self.contractions or (source is not None and self.rounded(source)):
                return True
        return False

    def dominated(self, x: Expr, maximum: str) -> bool:
        return self.maxima.get(maximum) == x

    # -- blocks --------------------------------------------------------------------------------------------------------

    def run(self) -> Prepared:
        body: list[Block] = []
        for b in self.kernel.body:
            if self.resident and b.role in ("store", "correct"):
                continue
            if b.role in ("correct", "reduce", "merge"):  # a value of the row from before the change is stale
                self.row_values = {e: n for e, n in self.row_values.items() if not refs_of(e) & set(b.names)}
            body += self.block(b)
        self.row_values = {}
        tail = self._restore()
        for b in self.kernel.tail:
            tail += self.block(b)
        return Prepared(tuple(body), tuple(tail), frozenset(self.unit), tuple(self.alive), self.started_low,
                        self.levels)

    def block(self, b: Block) -> list[Block]:
        if b.role == "producer" and b.reducer is not None:
            return [] if b.name in self.contractions and self.resident else self._contraction(b)
        if b.role == "producer" and self.resident and b.name in self.done:
            return []
        self.done.update(b.names)
        if b.role == "store" and b.name.partition("@")[2]:
            base = b.name.partition("@")[0]
            self.levels[b.name] = self.levels[base]
            if base in self.subs:
                self.subs[b.name] = substitute(self.subs[base], {base: Ref(b.name, b.dtype)})
            return [b]
        if b.role == "reduce":
            return self._reduce(b)
        exprs = tuple(self.rewrite(e) for e in b.exprs)
        if b.reducer is None and len(b.names) == 1 and b.role in ("producer", "finalize", "epilogue", "post"):
            return self._let(b, exprs[0])
        for n in b.names:
            self.levels.setdefault(n, self._letters(b.axes))
        out: list[Block] = []
        hoisted = tuple(self._hoist(e, b, out, frozenset(self._letters(b.points))) for e in exprs)
        return [*out, replace(b, exprs=hoisted)]

    def rewrite(self, e: Expr) -> Expr:
        e = rewrite.replace_exprs(rewrite.simplify(substitute(e, self.subs)), self.shared)
        e = rewrite.hoist_guards(e, self.dominated)
        if self.lifted:
            e = rewrite.simplify(rewrite.rewrite_bottom_up(e, self._unguard))
        e = rewrite.exponentials(e, self.rounded, self.per_row)
        return rewrite.simplify(rewrite.hyperbolic(e))

    def _unguard(self, e: Expr) -> Expr:
        """``select(m == -inf, 0, m) --> m`` for a maximum that is never -inf."""
        match e:
            case Op(name="select", args=(c, _, m)):
                found = rewrite.guard_of(c)
                if found and found[1] and self._never_empty(found[0]):
                    return m
        return e

    def _never_empty(self, m: Expr) -> bool:
        rest = rewrite.positive_scale(m)[1]
        return isinstance(rest, Ref) and rest.name.partition("@")[0] in self.lifted

    def _liftable(self, e: Expr) -> bool:
        """Made of half-precision contractions, constants, positions and -inf masks: finite and moderate, or -inf."""
        match e:
            case Const(value=v):
                return not v > 1e20
            case Ref(name=n):
                return n in self.contractions or (n in self.lets and self._liftable(self.lets[n]))
            case Op(name="select", args=(_, x, y)):
                return self._liftable(x) and self._liftable(y)
            case Op(name="exp2" | "exp" | "tanh"):
                return not any(isinstance(x, Load) for x in walk(e))
            case Op(name="add" | "sub" | "mul" | "div" | "neg" | "max" | "min", args=args):
                return all(self._liftable(x) for x in args)
            case Cast(arg=x):
                return x.dtype in ("f16", "bf16", "f32") and self._liftable(x)
        return False

    def _restore(self) -> list[Block]:
        """After the walk a lifted maximum is the real one again: -inf where nothing was seen."""
        out: list[Block] = []
        read = {r for b in self.kernel.tail for e in b.exprs for r in refs_of(e)}
        for name in sorted(self.lifted & read):
            real = self.fresh(f"{name}_seen")
            m = Ref(name, "f32")
            value = Op("select", (op("eq", m, LEAST), rewrite.NEG_INF, m), "f32")
            self.levels[real] = frozenset({"m"})
            self.lets[real] = value
            self.subs = {k: substitute(v, {name: Ref(real, "f32")}) for k, v in {name: m, **self.subs}.items()}
            out.append(Block("finalize", (real,), (), (value,), "f32"))
        self.started_low, self.lifted = frozenset(self.lifted), set()
        return out

    def _contraction(self, b: Block) -> list[Block]:
        """Constants leave the product, so that the operands are loads."""
        k, rest = constants(rewrite.factors(rewrite.simplify(substitute(b.exprs[0], self.subs))))
        self.levels[b.name] = self._letters(b.axes)
        self.contractions.add(b.name)
        if k != 1.0:
            self.subs[b.name] = op("mul", Ref(b.name, b.dtype), f32(k))
        return [replace(b, exprs=(rewrite.product(rest),))]

    def _let(self, b: Block, e: Expr) -> list[Block]:
        name, written = b.name, {t.name for t in self.kernel.writes}
        along = "n" in self.level(e)
        if name not in written and b.role == "producer" and along:
            k, e = rewrite.positive_scale(e)
            if k != 1.0:
                self.subs[name] = op("mul", Ref(name, b.dtype), f32(k))
        if name not in written and isinstance(e, (Ref, Const)) and b.dtype == e.dtype and not getattr(e, "indices", ()):
            self.subs[name] = substitute(self.subs.get(name, Ref(name, b.dtype)), {name: e})
            return []
        if name not in written and isinstance(e, Cast) and isinstance(_under_casts(e), Ref):
            if self._in_unit_interval(e):
                self.unit.add(name)
            self.subs[name] = e
            return []
        out: list[Block] = []
        self.levels[name] = self.level(e) | (self._letters(b.axes) if name in written else frozenset())
        if self._in_unit_interval(e):
            self.unit.add(name)
        e = self._hoist(e, b, out, self.levels[name])
        self.lets[name] = e
        return [*out, replace(b, exprs=(e,), axes=b.axes)]

    def _reduce(self, b: Block) -> list[Block]:
        e = self.rewrite(b.exprs[0])
        kind = b.reducer.kind if b.reducer else ""
        out: list[Block] = []
        if kind in ("max", "min") and b.name not in self.corrected:
            k, e = rewrite.positive_scale(e)
            if k != 1.0:
                self.subs[b.name] = op("mul", Ref(b.name, b.dtype), f32(k))
                self.subs[f"{b.name}@old"] = op("mul", Ref(f"{b.name}@old", b.dtype), f32(k))
        if kind == "sum" and "n" not in self.level(e) and self.roles.segment and self.roles.columns not in b.axes:
            return self._count(b, e)
        e, before = self._mask_tail(b, e)
        out += before
        if kind in ("max", "min") and self.level(e) == {"m", "n"} and isinstance(e, (Op, Cast)) \
                and not isinstance(_under_casts(e), Load):
            e = self._name_term(b, e, out)
        if kind == "max":
            self.maxima[b.name] = e
            if not self.resident and b.name not in self.corrected and self._liftable(e):
                self.lifted.add(b.name)
        e = self._hoist(e, b, out, frozenset(self._letters(b.points)) | {"n"})
        self.alive.append(self._alive(b.reducer, e))
        return [*out, replace(b, exprs=(e,))]

    def _name_term(self, b: Block, e: Expr, out: list[Block]) -> Expr:
        """Give a contribution that later ones contain a name, so that it is evaluated once."""
        name = self.fresh(f"{b.name}_term")
        self.levels[name] = self.level(e)
        value = self._hoist(e, b, out, self.levels[name])
        self.lets[name] = value
        out.append(Block("producer", (name,), (*b.axes, self.roles.segment or ""), (value,), e.dtype))
        self.shared[e] = Ref(name, e.dtype)
        return self.shared[e]

    def _count(self, b: Block, e: Expr) -> list[Block]:
        """A sum of something that does not vary along the segment: that, times the number of elements."""
        n = self.roles.segment
        assert n is not None
        if self.resident:
            self.subs[b.name] = rewrite.fold(op("mul", f32(float(self.roles.extents[n])), e))
            return []
        self.alive.append(TRUE)
        return [replace(b, exprs=(e,))]

    # -- tails ---------------------------------------------------------------------------------------------------------

    def _mask_tail(self, b: Block, e: Expr) -> tuple[Expr, list[Block]]:
        """Give the padding of a ragged last segment the reducer's neutral element, unless it has it already."""
        n = self.roles.segment
        if not self.ragged or n is None or b.role != "reduce":
            return e, []
        inside = op("lt", Index(n), Const(self.roles.extents[n], "i64"))
        if inside in conjuncts(self._alive(b.reducer, e)):
            return e, []
        kind = b.reducer.kind if b.reducer else ""
        neutral = {"max": rewrite.NEG_INF, "topk": rewrite.NEG_INF, "argmax": rewrite.NEG_INF, "sum": rewrite.ZERO,
                   "min": f32(float("inf")), "argmin": f32(float("inf")), "prod": f32(1.0)}.get(kind)
        if neutral is None:
            neutral = Const(kind == "all", "bool")
        masked = rewrite.fold(Op("select", (inside, e, neutral), e.dtype))
        if kind != "max" or self.level(e) != {"m", "n"}:
            return masked, []
        # Later contributions read the same masked value, and are neutral with it.
        if isinstance(e, Ref) and e.name in self.lets:
            name = e.name
            old = self.lets[name]
            self.lets[name] = rewrite.fold(Op("select", (inside, old, neutral), e.dtype))
            self.patched[name] = self.lets[name]
            return e, []
        name = self.fresh(f"{b.name}_term")
        self.levels[name] = self.level(e)
        self.lets[name] = masked
        axes = (*b.axes, n)
        if isinstance(e, Ref):
            new = {e.name: Ref(name, e.dtype)}
            self.subs = {e.name: e, **self.subs}
            self.subs = {k: substitute(v, new) for k, v in self.subs.items()}
            if e.name in self.contractions:
                self.contractions.add(name)
        return Ref(name, e.dtype), [Block("producer", (name,), axes, (masked,), e.dtype)]

    patched: dict[str, Expr]

    def _alive(self, reducer: Reducer | None, e: Expr) -> Expr:
        kind = reducer.kind if reducer else ""
        return self._lowest(e) if kind in ("max", "topk", "argmax") else self._zero(e) if kind == "sum" else TRUE

    def _lowest(self, e: Expr) -> Expr:
        """A condition without which ``e`` is -inf."""
        match e:
            case Op(name="select", args=(c, x, y)) if rewrite.is_const(y, -float("inf")):
                return both(c, self._lowest(x))
            case Op(name="mul", args=(x, Const(value=k))) if k > 0:
                return self._lowest(x)
            case Op(name="sub", args=(x, _)):
                return self._lowest(x)
            case Op(name="add", args=(x, y)):
                return both(self._lowest(x), self._lowest(y))
            case Ref(name=n) if n in self.lets:
                return self._lowest(self.lets[n])
        return TRUE

    def _zero(self, e: Expr) -> Expr:
        """A condition without which ``e`` is 0 (a masked value times a finite one)."""
        match e:
            case Op(name="exp" | "exp2", args=(x,)):
                return self._lowest(x)
            case Op(name="mul", args=(x, y)):
                return both(self._zero(x), self._zero(y))
            case Op(name="div", args=(x, _)) | Op(name="neg", args=(x,)):
                return self._zero(x)
            case Op(name="select", args=(c, x, y)) if rewrite.is_const(y, 0.0):
                return both(c, self._zero(x))
            case Op(name="select", args=(_, y, x)) if rewrite.is_const(y, 0.0):
                return self._zero(x)
            case Ref(name=n) if n in self.lets:
                return self._zero(self.lets[n])
            case Load() if self.ragged and "n" in self.level(e) and self.roles.segment:
                n = self.roles.segment
                return op("lt", Index(n), Const(self.roles.extents[n], "i64"))
            case Cast(arg=x):
                return self._zero(x)
        return TRUE

    # -- per-row parts -------------------------------------------------------------------------------------------------

    def fresh(self, stem: str) -> str:
        name, n = stem, 2
        while name in self.taken:
            name, n = f"{stem}{n}", n + 1
        self.taken.add(name)
        return name

    def _hoist(self, e: Expr, b: Block, out: list[Block], level: frozenset[str]) -> Expr:
        """Move costly parts that only depend on the row out of a tile's expression, into a row value of their own."""
        if level <= {"m"}:
            return rewrite.rewrite_bottom_up(e, lambda x: self._shifts(x, b, out))
        e = _reciprocals(e, self.level)

        def go(x: Expr) -> Expr:
            if isinstance(x, Op) and x.dtype == "f32" and self.per_row(x) and self._worth(x):
                return self._row_value(x, b, out)
            return map_children(x, go)

        return go(e)

    def _row_value(self, x: Expr, b: Block, out: list[Block]) -> Expr:
        if x not in self.row_values:
            name = self.fresh(_row_name(x, b))
            self.levels[name] = frozenset({"m"})
            self.lets[name] = x
            axes = tuple(a for a in b.axes if self.roles.letter(a) in ("", "m"))
            out.append(Block("producer", (name,), axes, (x,), "f32"))
            self.row_values[x] = name
        return Ref(self.row_values[x], "f32")

    def _shifts(self, x: Expr, b: Block, out: list[Block]) -> Expr:
        """A guarded reference, scaled, is a row value of its own: the tile's expression needs the same one."""
        match x:
            case Op(name="mul", args=(Op(name="select", args=(c, _, Ref())), Const())) if rewrite.guard_of(c):
                return self._row_value(x, b, out)
        return x

    def _worth(self, e: Expr) -> bool:
        ops = [x for x in walk(e) if isinstance(x, Op)]
        return bool(self.level(e)) and (len(ops) > 1 or any(x.name in COSTLY for x in ops))

    def _in_unit_interval(self, e: Expr) -> bool:
        """exp2(k x - k m) with x <= m, masked or not."""
        match e:
            case Op(name="select", args=(_, x, y)):
                return (rewrite.is_const(y, 0.0) or rewrite.is_const(y, 1.0) or self._in_unit_interval(y)) and (
                    rewrite.is_const(x, 0.0) or rewrite.is_const(x, 1.0) or self._in_unit_interval(x))
            case Op(name="mul", args=(x, y)):
                return self._in_unit_interval(x) and self._in_unit_interval(y)
            case Ref(name=n):
                return n in self.unit
            case Cast(arg=x):
                return self._in_unit_interval(x)
            case Op(name="exp" | "exp2", args=(arg,)):
                terms = [(a, k) for k, a in _unguarded(arg)]
                if len(terms) != 2 or not terms[0][1] * terms[1][1] < 0:
                    return False
                (x, k), (m, down) = sorted(terms, key=lambda t: -t[1])
                return self._below(x, k, m, -down)
        return False

    def _below(self, x: Expr, k: float, m: Expr, j: float) -> bool:
        """Is ``k * x <= j * m`` everywhere: m is the running maximum of x, or no less than it?"""
        match m:
            case Ref(name=n) if self.dominated(x, n):
                return abs(k - j) <= 1e-12 * abs(k)
            case Ref(name=n) if n in self.lets:
                return self._below(x, k, self.lets[n], j)
            case Op(name="max", args=(a, b)):
                return any(self._below(x, k, rest, j * scale) for scale, rest in map(rewrite.positive_scale, (a, b)))
            case Op(name="select", args=(c, _, a)) if rewrite.guard_of(c) == (a, True):
                return self._below(x, k, a, j)
        return False


def _under_casts(e: Expr) -> Expr:
    while isinstance(e, Cast):
        e = e.arg
    return e


def _unguarded(arg: Expr) -> list[tuple[float, Expr]]:
    def bare(e: Expr) -> Expr:
        match e:
            case Op(name="select", args=(c, _, m)) if rewrite.guard_of(c) == (m, True):
                return m
        return e

    return [(k, bare(a)) for k, a in rewrite.linear(arg)]


def _reciprocals(e: Expr, level: Callable[[Expr], frozenset[str]]) -> Expr:
    """``x / y --> x * (1 / y)`` where y varies along fewer axes: one division per row instead of one per element."""

    def rule(x: Expr) -> Expr:
        if isinstance(x, Op) and x.name == "div" and x.dtype == "f32" and not isinstance(x.args[1], Const) \
                and level(x.args[1]) <= {"m"} and not level(x.args[0]) <= {"m"}:
            return op("mul", x.args[0], op("div", f32(1.0), x.args[1]))
        return x

    return rewrite.rewrite_bottom_up(e, rule)


def _row_name(e: Expr, b: Block) -> str:
    match e:
        case Op(name="div", args=(one, Ref(name=n))) if rewrite.is_const(one, 1.0):
            return f"{n.partition('@')[0]}_inverse"
        case Op(name="mul", args=(Op(name="select", args=(c, _, Ref(name=n))), Const())) if rewrite.guard_of(c):
            return f"{n}_shift"
        case Op(name="select", args=(c, _, Ref(name=n))) if rewrite.guard_of(c):
            return f"{n}_finite"
    return f"{b.name.partition('@')[0]}_row"


def prepare(kernel: Kernel, roles: Roles, ragged: bool, resident: bool) -> Prepared:
    """Rewrite the blocks of ``kernel``. ragged: the last segment has padding that must not count. resident: the row is
    one segment, so that the old state is neutral, rebasing does nothing, and producers stay on chip."""
    work = _Prepare(kernel, roles, ragged, resident)
    work.patched = {}
    done = work.run()
    if not work.patched:
        return done
    body = tuple(replace(b, exprs=(work.patched[b.name],)) if b.role == "producer" and b.name in work.patched else b
                 for b in done.body)
    return replace(done, body=body)
