"""Tile programs with symbols: the same program of several sizes as one, and that one where its symbols are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, Op, map_children
from redfuser.acrf.index import i64, iadd, ifloordiv, imul, value
from redfuser.fitted import Apart, Merge
from redfuser.sizes import Binding, Quotient, Size, Symbol, Term
from redfuser.tensorize.ir.nodes import Parallel, Role, TileKernel, TileProgram
from redfuser.tensorize.ir.parts import Barrier, Buffer, Dim

T = TypeVar("T")
_NOTES = ("comment", "notes")


def expr_of(size: Size) -> Expr:
    """A size as an index expression."""
    total: Expr = i64(0)
    for t in size.terms:
        product: Expr | None = None
        for f in t.factors:
            one = ifloordiv(iadd(Index(f.symbol), i64(f.plus)), f.over)
            product = one if product is None else Op("mul", (product, one), "i64")
        assert product is not None
        if t.times < 0 and total != i64(0):
            total = Op("sub", (total, imul(product, -t.times)), "i64")
        else:
            total = iadd(total, imul(product, t.times))
    return iadd(total, i64(size.plus))


def size_of(e: Expr) -> Size | None:
    """The inverse of :func:`expr_of`, and of a size's text; None for an expression that is no size."""
    match e:
        case Op(name="add" | "sub" as n, args=(x, Const(value=c))):
            return None if (left := size_of(x)) is None else replace(left, plus=left.plus + (int(c) if n == "add" else -int(c)))
        case Op(name="add" | "sub" as n, args=(x, y)):
            left, right = size_of(x), size_of(y)
            if left is None or right is None or right.plus or len(right.terms) != 1:
                return None
            times = right.terms[0].times * (1 if n == "add" else -1)
            return Size((*left.terms, replace(right.terms[0], times=times)), left.plus)
    term = _term(e)
    return None if term is None else Size((term,))


def _term(e: Expr) -> Term | None:
    match e:
        case Op(name="neg", args=(x,)):
            return None if (found := _term(x)) is None else replace(found, times=-found.times)
        case Op(name="mul", args=(Const(value=c), x)) | Op(name="mul", args=(x, Const(value=c))):
            return None if (found := _term(x)) is None else replace(found, times=int(c) * found.times)
        case Op(name="mul", args=(x, y)):
            left, right = _term(x), _term(y)
            return None if left is None or right is None else Term(left.times * right.times, left.factors + right.factors)
        case Op(name="floordiv", args=(x, Const(value=c))) if (q := _shifted(x)) is not None and int(c) > 0:
            return Term(1, (replace(q, over=int(c)),))
    return None if (q := _shifted(e)) is None else Term(1, (q,))


def _shifted(e: Expr) -> Quotient | None:
    match e:
        case Index(axis=s):
            return Quotient(s)
        case Op(name="add" | "sub" as n, args=(Index(axis=s), Const(value=c))):
            return Quotient(s, int(c) if n == "add" else -int(c))
    return None


def bound(x: T, binding: Binding) -> T:
    """A tile program (or a part of one) where its symbols are numbers: one without symbols."""
    done: Any = x
    if isinstance(x, Size):
        done = x.at(binding)
    elif isinstance(x, (Const, Index, Op, Load, Cast)):
        done = _bound_expr(x, binding)
    elif isinstance(x, tuple):
        done = tuple(bound(v, binding) for v in x)
    elif is_dataclass(x) and not isinstance(x, (type, Symbol)):
        done = replace(x, **{f.name: bound(getattr(x, f.name), binding) for f in fields(x)})
        done = replace(done, symbols=()) if isinstance(done, TileKernel) else done
    return done  # type: ignore[no-any-return]


def _bound_expr(e: Expr, binding: Binding) -> Expr:
    if isinstance(e, Index):
        return i64(binding[e.axis]) if e.axis in binding else e
    done = map_children(e, lambda x: _bound_expr(x, binding))
    if isinstance(done, Op) and done.dtype == "i64" and done != e and all(isinstance(a, Const) for a in done.args):
        return i64(value(done, {}))
    return done


class _Tiles(Merge):
    """Tile programs: a number of an expression, of a tensor's shape or of a grid may be a size, no other is."""

    def record(self, found: Sequence[Any], where: str) -> Any:
        first = found[0]
        if isinstance(first, Const):
            if all(x == first for x in found):
                return first
            if {x.dtype for x in found} != {"i64"}:
                raise Apart(f"{where} is {first}, or {next(x for x in found if x != first)}")
            return expr_of(self.size([int(x.value) for x in found], where))
        if isinstance(first, (Buffer, Barrier)) or (isinstance(first, Parallel) and len({x.extents for x in found}) > 1):
            if any(x != first for x in found):
                raise Apart(f"{first} is {next(x for x in found if x != first)} for another size")
            return first
        if isinstance(first, (Dim, Role)) and len({x.size if isinstance(x, Dim) else x.groups for x in found}) > 1:
            raise Apart(f"a tile of {where} has other sizes")
        parts = {}
        for f in fields(first):
            each = [getattr(x, f.name) for x in found]
            if f.name in _NOTES:
                parts[f.name] = each[0]
                with suppress(Apart):
                    parts[f.name] = self(each, f.name)
            else:
                parts[f.name] = self(each, f"{type(first).__name__}.{f.name}")
                if isinstance(parts[f.name], Size):
                    raise Apart(f"{f.name} of a {type(first).__name__} is {parts[f.name]}")
        return replace(first, **parts)


def merge(programs: Sequence[TileProgram], bindings: Sequence[Binding], symbols: tuple[Symbol, ...]) -> TileProgram:
    """The program that is each of ``programs`` at its binding. Raises Apart."""
    whole: TileProgram = _Tiles(bindings)(programs)
    for k in whole.kernels:
        beside = k.grid[0][1]
        if isinstance(beside, Size) and any(n % k.cluster for n in (beside.plus, *(t.times for t in beside.terms))):
            raise Apart(f"clusters of {k.cluster} of {beside} blocks")
    return replace(whole, kernels=tuple(replace(k, symbols=symbols) for k in whole.kernels))
