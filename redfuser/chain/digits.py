"""Axes as numbers with digits: what index expressions read of them, and the same axes with smaller ones.

    x[l // 450560, l // 1024 % 440, l % 1024]   -->   x[l // 8192, l // 1024 % 8, l % 1024]

Here for tiles of 4096: every digit keeps what it is modulo the steps that a tile takes of it, so that tiles cross it as they
did. What an index is compared with near the end of a digit (``l % 1024 + 1 < 1024``, a clamp) stays as near to it, what is near
its beginning stays; a digit that is compared with something between keeps that between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from redfuser.acrf.affine import Affine, Indices
from redfuser.acrf.expr import COMPARISONS, Const, Expr, Index, Load, Op, Ref, children, map_children, walk
from redfuser.dtypes import INTS

KEEP = 48
"""Digits up to this stay as they are."""
LEAST = 3
"""Of any other, at least."""
NEAR = 1024
"""What an index is compared with keeps its meaning up to this: the digit stays longer."""
CLAMPS = ("min", "max")

Cuts = tuple[int, ...]
"""Where the digits of an axis begin, each a divisor of the next, the extent last: 1, 1024, 450560, 7208960."""


@dataclass(frozen=True)
class Digit:
    """``axis // low % (high // low)``; high 0: up to the end of the axis."""

    axis: str
    low: int = 1
    high: int = 0


@dataclass(frozen=True)
class Mark:
    """What one digit is compared with: ``coefficient * digit + constant`` and 0. firm: by a comparison, and no clamp."""

    digit: Digit
    coefficient: int
    constant: int
    firm: bool

    def near(self, long: int, short: int) -> str:
        """Where 0 is crossed, for a digit of ``long`` values that is to have ``short``."""
        reach = abs(self.coefficient) * max(1, short // 2)
        if long == short or abs(self.constant) <= reach:
            return "begin"
        return "end" if abs(self.coefficient * (long - 1) + self.constant) <= reach else "between"

    @property
    def place(self) -> int:
        return abs(self.constant) // abs(self.coefficient)


def digit(e: Expr) -> Digit | None:
    match e:
        case Index(axis=a):
            return Digit(a)
        case Op(name="floordiv" | "mod" as name, args=(x, Const(value=int(c)))) if c > 0 and (d := digit(x)) is not None:
            cut = d.low * c
            if d.high and d.high % cut:
                return None
            return Digit(d.axis, cut, d.high) if name == "floordiv" else Digit(d.axis, d.low, cut)
    return None


def cuts_of(nodes: Iterable[Expr], extents: Mapping[str, int]) -> dict[str, Cuts]:
    """By axis; not of those that are divided in any other way."""
    found = {a: {1, n} for a, n in extents.items()}
    for x in nodes:
        if isinstance(x, Op) and x.name in ("floordiv", "mod"):
            d = digit(x)
            if d is not None and d.axis in found:
                found[d.axis] |= {d.low, d.high or d.low}
            elif d is None:
                for a in moving(x):
                    found.pop(a, None)
    cuts = {a: tuple(sorted(c)) for a, c in found.items()}
    return {a: c for a, c in cuts.items() if c[-1] == extents[a] and not any(y % x for x, y in zip(c, c[1:], strict=False))}


def shortened(cuts: Cuts, wanted: int, tile: int, least: Mapping[int, int]) -> Cuts:
    """The digits of an axis of about ``wanted`` elements, two of the highest at least. least: by where a digit begins, how many
    values it has in any case."""
    if wanted >= cuts[-1]:
        return cuts
    now = [1]
    for low, high in zip(cuts[:-2], cuts[1:-1], strict=True):
        ratio, base = high // low, now[-1]
        cover = -(-tile // base)
        few = max(LEAST, 2 * cover + ratio % cover, least.get(low, 0))
        now.append(base * (ratio if ratio <= max(KEEP, few) else few))
    whole, base = cuts[-1] // cuts[-2], now[-1]
    if len(cuts) > 2 and wanted > 1:
        wanted = max(wanted, 2 * base)
    return *now, base * min(whole, max(-(-wanted // base), least.get(cuts[-2], 0))) if wanted > 1 else 1


class Digits:
    """The digits of a program's axes as they are (``cuts``, of the axes whose indices have them) and as they are to be
    (``now``), and what they are compared with."""

    def __init__(self, parts: Iterable[Expr], extents: Mapping[str, int]) -> None:
        self.nodes = list(dict.fromkeys(x for part in parts for x in walk(part)))
        self.extents = extents
        self.indices = Indices(extents)
        self.cuts = cuts_of(self.nodes, extents)
        self.now: dict[str, Cuts] = dict(self.cuts)
        self.marks: list[Mark] = []
        self.begins: list[Mark] = []
        """Where reads begin that are behind something else (``x[i - 1024]`` of a concatenation): what guards them moves with
        them."""
        self.least: dict[str, dict[int, int]] = {a: {} for a in self.cuts}
        self.together: set[str] = set()
        """Axes of which an index is compared with another's."""
        for x in self.nodes:
            if isinstance(x, Op) and x.name in (*COMPARISONS, *CLAMPS):
                self._mark(x)
            elif isinstance(x, Load):
                self.begins += [mark for i in x.indices if (mark := self._begin(i)) is not None]

    def _mark(self, x: Op) -> None:
        difference = self._difference(x)
        if difference is None:
            return
        if (mark := self._one(x, difference)) is not None:
            self.marks.append(mark)
            return
        for d in (digit(a) for a, _ in difference.terms):
            if d is not None and d.axis in self.cuts:
                self.together.add(d.axis)
                if x.name in COMPARISONS:
                    self._hold(d)
        self.together |= moving(x)

    def _difference(self, x: Op) -> Affine | None:
        a, b = x.args
        if a.dtype not in INTS or any(isinstance(y, (Load, Ref)) for y in walk(x)):
            return None
        difference = self.indices.linear(a) - self.indices.linear(b)
        return difference if difference.terms else None

    def _one(self, x: Op, difference: Affine) -> Mark | None:
        """Of a comparison of one digit with a number."""
        if len(difference.terms) == 1 and any(isinstance(y, Const) for y in x.args):
            (atom, c), = difference.terms
            if (d := digit(atom)) is not None and d.axis in self.cuts:
                return Mark(d, c, difference.constant, x.name in COMPARISONS)
        return None

    def _begin(self, i: Expr) -> Mark | None:
        """Of a place that is a digit less a number; or steps of one, ``8 * h + l - 32``, of which the rest takes none."""
        if any(isinstance(y, (Load, Ref)) for y in walk(i)) or (place := self.indices.linear(i)).constant >= 0:
            return None
        atom, c = max(place.terms, key=lambda term: abs(term[1]), default=(None, 0))
        if atom is None or (d := digit(atom)) is None or d.axis not in self.cuts:
            return None
        low, high = self.indices.range(place - c * self.indices.linear(atom) - place.constant)
        return Mark(d, c, place.constant, True) if low >= 0 and high < abs(c) else None

    def _hold(self, d: Digit, values: int = 0) -> None:
        """A digit stays as it is, or (``values``) has so many values at least; how long an axis is as a whole others say."""
        cuts, least = self.cuts[d.axis], self.least[d.axis]
        own = [(x, y) for x, y in zip(cuts, cuts[1:], strict=False) if d.low <= x and y <= (d.high or cuts[-1])]
        for low, end in own:
            few = values if values and len(own) == 1 else end // low if end < cuts[-1] else 0
            least[low] = max(least.get(low, 0), min(end // low, few))

    def shorten(self, wanted: Mapping[str, int], tiles: Mapping[str, int], whole: set[str]) -> dict[str, int]:
        """The extents of the axes that have digits, as near to ``wanted`` as these allow."""
        while True:
            self.now = {a: c if a in whole else shortened(c, wanted[a], tiles.get(a, 1), self.least[a])
                        for a, c in self.cuts.items()}
            before = {a: dict(n) for a, n in self.least.items()}
            for m in (*self.marks, *self.begins):
                if m.firm and m.near(*self.ratio(m.digit)) == "between":
                    self._hold(m.digit, m.place + m.place // 4 + 2 if m.place <= NEAR else 0)
            if before == self.least:
                return {a: c[-1] for a, c in self.now.items()}

    def ratio(self, d: Digit) -> tuple[int, int]:
        """How many values a digit has, and how many it is to have."""
        cuts, now = self.cuts[d.axis], self.now[d.axis]
        high = cuts.index(d.high) if d.high else -1
        return cuts[high] // d.low, max(1, now[high] // now[cuts.index(d.low)])

    def guarded(self, axis: str) -> bool:
        """Is an index of the axis compared with numbers, and every such number near where a digit begins or ends?"""
        own = [m for m in self.marks if m.digit.axis == axis]
        return bool(own) and axis not in self.together and all(m.near(*self.ratio(m.digit)) != "between" for m in own)

    def moved(self, e: Expr) -> Expr:
        """An expression, of the digits as they are now."""
        out = map_children(e, self.moved)
        if isinstance(e, Load) and isinstance(out, Load):
            return replace(out, indices=tuple(map(self._read, e.indices, out.indices)))
        if not isinstance(e, Op) or len(e.args) != 2:
            return out
        assert isinstance(out, Op)
        if e.name in ("floordiv", "mod") and (d := digit(e)) is not None and d.axis in self.cuts:
            cuts, now = self.cuts[d.axis], self.now[d.axis]
            inner, by = digit(e.args[0]), e.args[1]
            assert inner is not None and isinstance(by, Const)
            cut = d.low if e.name == "floordiv" else d.high
            by = replace(by, value=max(1, now[cuts.index(cut)] // now[cuts.index(inner.low)]))
            return replace(out, args=(out.args[0], by))
        difference = self._difference(e) if e.name in (*COMPARISONS, *CLAMPS) else None
        mark = self._one(e, difference) if difference is not None else None
        if mark is None:
            return out
        long, short = self.ratio(mark.digit)
        if mark.near(long, short) != "end":
            return out
        far = mark.coefficient * (long - short)
        x, y = out.args
        if e.name in CLAMPS and isinstance(y, Const) and self.indices.linear(e.args[0]).constant < 0:
            return replace(out, args=((Indices({}).linear(x) + far).expr(), y))  # it begins there, as what it reads does
        if isinstance(y, Const):
            return replace(out, args=(x, replace(y, value=int(y.value) - far)))
        assert isinstance(x, Const)
        return replace(out, args=(replace(x, value=int(x.value) + far), y))

    def _read(self, was: Expr, now: Expr) -> Expr:
        """A place, of the digits as they are now, moved with what guards it."""
        mark = self._begin(was)
        if mark is None:
            return now
        long, short = self.ratio(mark.digit)
        if mark.near(long, short) != "end":
            return now
        return (Indices({}).linear(now) + mark.coefficient * (long - short)).expr()


def moving(e: Expr) -> frozenset[str]:
    """Axes along which a position moves by itself. Those that only say which element of another tensor it is are none:
    a label is a label in whichever row."""
    if isinstance(e, Index):
        return frozenset({e.axis})
    return frozenset() if isinstance(e, (Load, Ref)) else frozenset().union(*map(moving, children(e)))
