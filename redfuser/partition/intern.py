"""Expressions of which equal ones are one object, so that what is said of an object is said of the expression."""

from __future__ import annotations

from redfuser.acrf.expr import Cast, Expr, Op


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
