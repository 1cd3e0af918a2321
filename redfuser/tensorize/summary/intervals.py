"""What holds of a whole tile, from bounds of its rows and of its columns.

A condition on rows and columns is taken apart into its largest terms of one side, each of which has a least and a greatest
value over the rows, or over the columns, of a tile. From those bounds follows three-valued what the condition is there: true of
every element, false of every element, or not known::

    x[b, i] == x[b, l] and l <= i
    never where  high0 < low1 or high1 < low0  or  low3 > high2          (0: x[b, i], 1: x[b, l], 2: i, 3: l)

What is no number has both infinities for bounds, and whole numbers are cut off where sums of them leave 32 bits: both stay in
order, so that what lies apart does, but are equal to nothing and are computed with no further. Arithmetic of floats that joins
both sides is not followed further than one operation: a compiler may round a product and a sum together for an element and
apart for its bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from redfuser.acrf.affine import axes_of
from redfuser.acrf.expr import COMPARISONS, FLOATS, Cast, Const, Expr, Index, Load, Op, Ref, op, refs_of, walk
from redfuser.acrf.fold import FALSE, TRUE, every, some
from redfuser.acrf.index import i64, imul
from redfuser.dtypes import INTS

WIDE = 1 << 29
"""A whole number of a side is cut off here, and not known where it is this large."""
MOST = (1 << 31) - 1
"""What a sum or a product of bounds may reach."""
SINGLES = ("f32", "f16", "bf16", "e4m3", "e5m2")
"""Floats of which single precision has every one."""
ARITHMETIC = frozenset({"add", "sub", "mul"})
PLAIN = frozenset({"min", "max", "neg", "abs", "floor", "ceil", "round", "select", "isnan"})
"""Operations of floats that round nothing."""
_TURNED = {"gt": "lt", "ge": "le"}
_NOT = {"eq": "ne", "ne": "eq"}


@dataclass(frozen=True, slots=True)
class Leaf:
    """A term of one side: of the columns, or of the rows (or of neither). Its bounds are called ``lowK`` and ``highK``."""

    number: int
    term: Expr
    columns: bool

    @property
    def axis(self) -> bool:
        """Is it a position, whose bounds over a tile need no data?"""
        return isinstance(self.term, Index)

    @property
    def floats(self) -> bool:
        return self.term.dtype in FLOATS

    @property
    def dtype(self) -> str:
        """Of its bounds, where they are kept: a truth is 0 or 1."""
        return "f32" if self.floats else "i32"

    @property
    def span(self) -> tuple[int, int] | None:
        """What its bounds may be, where they are whole numbers."""
        return None if self.floats else (0, 1) if self.term.dtype == "bool" else (-WIDE, WIDE)

    @property
    def low(self) -> Expr:
        return Ref(f"low{self.number}", "f32" if self.floats else "i64")

    @property
    def high(self) -> Expr:
        return Ref(f"high{self.number}", "f32" if self.floats else "i64")


@dataclass(frozen=True, slots=True)
class Derived:
    """``never``: where a condition is false of every element of a tile, in the bounds of ``leaves``."""

    leaves: tuple[Leaf, ...]
    never: Expr


def derive(condition: Expr, rows: str, columns: str, others: frozenset[str]) -> Derived | None:
    """What tells that a condition holds nowhere on a tile of ``rows`` x ``columns``; None where nothing does. others: axes
    that are one number for a tile."""
    work = _Work(rows, columns, others)
    never = work.truth(condition)[1]
    used = {name for name in refs_of(never)}
    leaves = tuple(leaf for leaf in work.leaves.values() if {str(leaf.low), str(leaf.high)} & used)
    return Derived(leaves, never) if never != FALSE and any(_data(leaf.term) for leaf in leaves) else None


@dataclass(frozen=True, slots=True)
class _Interval:
    """known: what must hold of it for its bounds to be some. reach: of whole numbers, how large they are at most. apart: what
    must hold for it to be less than another where its greatest value is less than the other's least: nothing of a term by
    itself, since what is cut off stays in order, and an infinity is less than nothing."""

    low: Expr
    high: Expr
    known: Expr = TRUE
    reach: float = inf
    apart: Expr | None = None

    @property
    def ordered(self) -> Expr:
        return self.known if self.apart is None else self.apart


_Truth = tuple[Expr, Expr]
"""Where it is true of every element of a tile, and where it is false of every one."""
_UNKNOWN: _Truth = (FALSE, FALSE)


@dataclass(slots=True)
class _Work:
    rows: str
    columns: str
    others: frozenset[str]
    leaves: dict[Expr, Leaf] = field(default_factory=dict)

    def side(self, e: Expr) -> str | None:
        """The side that a term is of, where it is of one and what it is at an element is the same wherever it is computed."""
        axes = axes_of(e) - self.others
        if len(axes) > 1 or not axes <= {self.rows, self.columns} or any(isinstance(x, Ref) for x in walk(e)):
            return None
        return self.columns if self.columns in axes else self.rows

    def leaf(self, e: Expr) -> Leaf | None:
        where = self.side(e)
        if where is None or not (e.dtype in SINGLES or e.dtype in INTS or e.dtype == "bool") or not settled(e):
            return None
        return self.leaves.setdefault(e, Leaf(len(self.leaves), e, where == self.columns))

    # -- truths --------------------------------------------------------------------------------------------------------

    def truth(self, e: Expr) -> _Truth:
        match e:
            case Const(value=v):
                return (TRUE, FALSE) if v else (FALSE, TRUE)
            case Op(name="and" | "or" | "not") if self.side(e) is None:
                return self._joined(e)
        if e.dtype == "bool" and (leaf := self.leaf(e)) is not None:
            return op("gt", leaf.low, i64(0)), op("lt", leaf.high, i64(1))
        match e:
            case Op(name="and" | "or" | "not"):
                return self._joined(e)
            case Op(name=n, args=(x, y)) if n in COMPARISONS and settled(e):
                a, b = self.interval(x), self.interval(y)
                return _UNKNOWN if a is None or b is None else _compared(n, a, b)
        return _UNKNOWN

    def _joined(self, e: Op) -> _Truth:
        if e.name == "not":
            yes, no = self.truth(e.args[0])
            return no, yes
        (a, b), (c, d) = map(self.truth, e.args)
        return (every(a, c), some(b, d)) if e.name == "and" else (some(a, c), every(b, d))

    # -- numbers -------------------------------------------------------------------------------------------------------

    def interval(self, e: Expr) -> _Interval | None:
        if isinstance(e, Const) and e.dtype != "f64":
            return _constant(e)
        if self.side(e) is not None:
            leaf = self.leaf(e)
            return None if leaf is None else _Interval(leaf.low, leaf.high, _known(leaf), _reach(leaf), TRUE)
        match e:
            case Cast(arg=x, dtype=d):
                return self._cast(x, d)
            case Op(name="neg" | "abs", args=(x,)) if (a := self.interval(x)) is not None and _signed(e):
                return self._turned(e.name, a)
            case Op(name="select", args=(_, x, y)):
                a, b = self.interval(x), self.interval(y)
                if a is not None and b is not None:
                    known, reach = every(a.known, b.known), max(a.reach, b.reach)
                    return _Interval(_bound("min", a.low, b.low), _bound("max", a.high, b.high), known, reach)
            case Op(name="add" | "sub" | "min" | "max" | "mul" | "floordiv" as n, args=(x, y)) if _signed(e):
                a, b = self.interval(x), self.interval(y)
                return None if a is None or b is None else self._computed(n, a, b, y)
        return None

    def _cast(self, x: Expr, dtype: str) -> _Interval | None:
        """A conversion that never turns two numbers round."""
        a = self.interval(x)
        if a is None or (dtype in ("i32", "i64") and x.dtype in INTS):
            return a
        if dtype == "f32" and x.dtype in SINGLES:
            return a
        if dtype == "f32" and x.dtype in INTS:
            return _Interval(Cast(a.low, "f32"), Cast(a.high, "f32"), a.known)
        return None

    @staticmethod
    def _turned(name: str, a: _Interval) -> _Interval:
        low, high = op("neg", a.high), op("neg", a.low)
        if name == "neg":
            return _Interval(low, high, a.known, a.reach)
        zero = Const(0.0, "f32") if a.low.dtype == "f32" else i64(0)
        return _Interval(_bound("max", _bound("max", a.low, low), zero), _bound("max", a.high, high), a.known, a.reach)

    @staticmethod
    def _computed(name: str, a: _Interval, b: _Interval, y: Expr) -> _Interval | None:
        known, whole = every(a.known, b.known), a.low.dtype == "i64"
        match name:
            case "add":
                found = _Interval(_bound("add", a.low, b.low), _bound("add", a.high, b.high), known, a.reach + b.reach)
            case "sub":
                found = _Interval(_bound("sub", a.low, b.high), _bound("sub", a.high, b.low), known, a.reach + b.reach)
            case "min" | "max":
                found = _Interval(_bound(name, a.low, b.low), _bound(name, a.high, b.high), known, max(a.reach, b.reach))
            case "mul" if whole and isinstance(y, Const):
                k = int(y.value)
                ends = (a.low, a.high) if k >= 0 else (a.high, a.low)
                found = _Interval(imul(ends[0], k), imul(ends[1], k), known, a.reach * abs(k))
            case "floordiv" if whole and isinstance(y, Const) and int(y.value) > 0:
                found = _Interval(_bound("floordiv", a.low, y), _bound("floordiv", a.high, y), known, a.reach)
            case _:
                return None
        return None if whole and found.reach > MOST else found


def _bound(name: str, x: Expr, y: Expr) -> Expr:
    return x if name in ("min", "max") and x == y else op(name, x, y)


def settled(e: Expr) -> bool:
    """Is a term the same number wherever it is computed: one operation on floats that rounds, at most?"""
    rounds = 0
    for x in _outside_loads(e):
        touches = isinstance(x, Op) and (x.dtype in FLOATS or any(k.dtype in FLOATS for k in x.args))
        if not touches or x.name in COMPARISONS or x.name in PLAIN:  # type: ignore[union-attr]
            continue
        if x.name not in ARITHMETIC or x.dtype != "f32":  # type: ignore[union-attr]
            return False
        rounds += 1
    return rounds <= 1


def _outside_loads(e: Expr) -> list[Expr]:
    found, todo = [], [e]
    while todo:
        x = todo.pop()
        found.append(x)
        todo += x.args if isinstance(x, Op) else (x.arg,) if isinstance(x, Cast) else ()
    return found


def _signed(e: Expr) -> bool:
    """Arithmetic that overflows nowhere in range, and is of single precision where it is of floats."""
    return e.dtype in ("i32", "i64", "f32") or (e.dtype in SINGLES and isinstance(e, Op) and e.name in PLAIN)


def _constant(e: Const) -> _Interval | None:
    if e.dtype in FLOATS:
        return _Interval(Const(float(e.value), "f32"), Const(float(e.value), "f32")) if abs(float(e.value)) < inf else None
    return _Interval(i64(int(e.value)), i64(int(e.value)), TRUE, abs(int(e.value)))


def _data(e: Expr) -> bool:
    return any(isinstance(x, Load) for x in walk(e))


def _reach(leaf: Leaf) -> float:
    return inf if leaf.floats else 1 if leaf.term.dtype == "bool" else WIDE


def _known(leaf: Leaf) -> Expr:
    """Where its bounds are some. An axis is in range, and so are truths."""
    if leaf.term.dtype == "bool" or leaf.axis:
        return TRUE
    least, most = (Const(-inf, "f32"), Const(inf, "f32")) if leaf.floats else (i64(-WIDE), i64(WIDE))
    return every(op("gt", leaf.low, least), op("lt", leaf.high, most))


def _compared(name: str, a: _Interval, b: _Interval) -> _Truth:
    if name in _TURNED:
        return _compared(_TURNED[name], b, a)
    known, ordered = every(a.known, b.known), every(a.ordered, b.ordered)
    match name:
        case "lt":
            return every(ordered, op("lt", a.high, b.low)), every(known, op("ge", a.low, b.high))
        case "le":
            return every(known, op("le", a.high, b.low)), every(ordered, op("gt", a.low, b.high))
        case "eq":
            same = every(known, op("ge", a.low, b.high), op("le", a.high, b.low))
            return same, every(ordered, op("or", op("lt", a.high, b.low), op("lt", b.high, a.low)))
    return _compared(_NOT[name], a, b)[::-1]
