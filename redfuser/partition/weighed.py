"""Which expressions of a cascade have a name: those that are used several times and are worth a statement of their own, so that
what is shared is printed once and what is small stays in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from redfuser.acrf.expr import Cast, Expr, Index, Load, Op, Ref, walk
from redfuser.dtypes import BYTES, FLOATS


class Interner:
    """One object per distinct expression: equal sub-expressions become identical, at linear cost."""

    def __init__(self) -> None:
        self.table: dict[tuple[object, ...], Expr] = {}
        self.done: dict[int, Expr] = {}
        self.keep: list[Expr] = []

    def __call__(self, e: Expr) -> Expr:
        if id(e) not in self.done:
            self.keep.append(e)
            self.done[id(e)] = self.intern(e)
        return self.done[id(e)]

    def intern(self, e: Expr) -> Expr:
        match e:
            case Op(name=n, args=args, dtype=d):
                kids = tuple(self(a) for a in args)
                return self.table.setdefault(("op", n, d, *map(id, kids)), Op(n, kids, d))
            case Cast(arg=arg, dtype=d):
                kid = self(arg)
                return self.table.setdefault(("cast", d, id(kid)), Cast(kid, d))
        return self.table.setdefault(("leaf", e), e)


def operands(e: Expr) -> tuple[Expr, ...]:
    """Value operands (index positions excluded)."""
    return e.args if isinstance(e, Op) else (e.arg,) if isinstance(e, Cast) else ()


INLINE = 16
"""Largest expression that is repeated rather than named when it depends on a reduction."""


class Weighed:
    """How often each distinct expression below ``roots`` would be printed, and what it depends on; named ones are printed
    once. By identity, since expressions are interned: uses; size: of the text in nodes; free: axes; refs: statements.

    forced: expressions that have a name in any case. axes_of: of a statement. rows: the statements that reduce the row. points:
    the p-axes."""

    def __init__(self, roots: list[Expr], forced: frozenset[int], axes_of: Callable[[str], Iterable[str]],
                 rows: Callable[[], set[str]], points: frozenset[str]) -> None:
        self.forced, self.axes_of, self.rows, self.points = forced, axes_of, rows, points
        self.chosen: frozenset[int] = frozenset()
        for _ in range(3):  # what is named shrinks what refers to it, which may then stay in place
            self.uses: dict[int, int] = {}
            self.size: dict[int, int] = {}
            self.free: dict[int, frozenset[str]] = {}
            self.refs: dict[int, frozenset[str]] = {}
            self.post: list[Expr] = []
            for r in roots:
                self.measure(r)
                self.uses[id(r)] = self.uses.get(id(r), 0) + 1
            for e in reversed(self.post):
                times = 1 if self.worth_naming(e) else self.uses[id(e)]
                for k in operands(e):
                    self.uses[id(k)] = self.uses.get(id(k), 0) + times
            chosen = frozenset(id(e) for e in self.post if self.worth_naming(e))
            if chosen == self.chosen:
                return
            self.chosen = chosen

    def measure(self, e: Expr) -> None:
        if id(e) in self.size:
            return
        free: frozenset[str] = frozenset({e.axis}) if isinstance(e, Index) else frozenset()
        refs: frozenset[str] = frozenset()
        size = 1
        if isinstance(e, Load):
            read = [x for i in e.indices for x in walk(i)]
            refs = frozenset(x.name for x in read if isinstance(x, Ref))
            free = frozenset(x.axis for x in read if isinstance(x, Index))
        if isinstance(e, Ref):
            refs = frozenset({e.name})
        for name in refs:
            free |= frozenset(self.axes_of(name))
        for k in operands(e):
            self.measure(k)
            size += 1 if id(k) in self.chosen else self.size[id(k)]
            free |= self.free[id(k)]
            refs |= self.refs[id(k)]
        self.size[id(e)], self.free[id(e)], self.refs[id(e)] = size, free, refs
        self.post.append(e)

    def worth_naming(self, e: Expr) -> bool:
        if not isinstance(e, (Op, Cast)) or self.uses[id(e)] < 2:
            return id(e) in self.forced
        if id(e) in self.forced:
            return True
        if not self.refs[id(e)] and not _has_load(e):
            return self.size[id(e)] > 24
        if self.refs[id(e)] & self.rows():
            return self.size[id(e)] >= 3 if "l" not in self.free[id(e)] else self.size[id(e)] > INLINE
        if self.free[id(e)] <= self.points:
            return self.size[id(e)] > INLINE  # no producer, nothing of it runs along the row: named where it is long
        rounding = isinstance(e, Cast) and {e.dtype, e.arg.dtype} <= FLOATS and BYTES[e.dtype] < BYTES[e.arg.dtype]
        return (isinstance(e, Op) or rounding) and self.size[id(e)] >= 3 and e.dtype != "bool"


def _has_load(e: Expr) -> bool:
    return isinstance(e, Load) or any(_has_load(k) for k in operands(e))
