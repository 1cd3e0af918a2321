"""What has numbers in it at several samples of some symbols, as one thing with sizes in it.

:func:`merged` compares what a pass gives at some :func:`samples` of the symbols. What is the same stays; a number that differs
is the size that has its value at each of them, so that it is a number again wherever the symbols are numbers. Two things that
differ in more than numbers have no common form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from itertools import pairwise, product
from math import isqrt, prod
from random import Random
from typing import Any

from redfuser.sizes import Binding, Quotient, Size, Symbol, Term

_TOKEN = re.compile(r"(?<![\w.])(\d+)(?![\w.])")
_TILES = tuple(sorted(odd << k for odd in (1, 3, 5, 7) for k in range(1, 15)))
"""What a number may be divided by."""


@lru_cache(maxsize=64)
def _generic(high: int, count: int) -> tuple[int, ...]:
    """Numbers from the end of a range on, so that what is decided for a row's length is decided for the longest: primes of
    several tiles of any size and a part of one more, which is less than half of it in some and more in others; nor are they
    whole rings of slots in all."""
    first = max(1100, high)
    step = max(4100, first * 3 // 5) // count
    halved = [t for t in _TILES if 16 <= t <= step * count // 8]
    draw = Random(first)
    while True:
        found = []
        for k in range(count):
            n = first + k * step + draw.randrange(step // 2)
            while n % 64 <= 16 or not all(n % d for d in range(2, isqrt(n) + 1)):
                n += 1
            found.append(n)
        if all(0 < sum(n % t * 2 < t for n in found) < count for t in halved) and \
                all(len({n // t % k for n in found}) > 1 for t in halved for k in (2, 3, 4)):
            return tuple(found)


FEW, MORE = 8, 12
"""Samples of each symbol, and so many further ones where they leave it unclear."""


def samples(symbols: Sequence[Symbol], beyond: int = 1, unclear: frozenset[str] = frozenset()) -> list[dict[str, int]]:
    """Bindings that tell apart what depends on one symbol, on another, and on several: the first is the base, from which all
    but the last few differ in one symbol. They are beyond the symbols' ranges: what is merged from them is held against its
    meaning at numbers of the ranges (:mod:`redfuser.chain`). beyond: how many times so large as their ends; unclear: symbols
    of which there are more, beside those that there are of all."""
    of = {s.name: _generic(s.high * beyond, FEW) for s in symbols}
    more = {s.name: _generic(s.high * beyond, MORE) if s.name in unclear else () for s in symbols}
    base = {n: x[k % 3] for k, (n, x) in enumerate(of.items())}
    single = [{**base, name: n} for name, x in of.items() for n in dict.fromkeys(x + more[name]) if n != base[name]]
    joint = [{name: x[(k + shift) % len(x)] for k, (name, x) in enumerate(of.items())} for shift in (3, 5)]
    return [base, *single, *(joint if len(symbols) > 1 else [])]


class Apart(ValueError):
    """Two programs that differ in more than numbers."""


class Unclear(Apart):
    """Several sizes of one ``symbol`` have these few values: more samples of it tell them apart."""

    def __init__(self, symbol: str, sizes: Sequence[Size]) -> None:
        super().__init__(f"{sizes[0]} or {sizes[1]}")
        self.symbol = symbol


class Merge:
    """How things of several samples become one: numbers as sizes. A subclass says what becomes of nodes of its own."""

    def __init__(self, bindings: Sequence[Binding]) -> None:
        self.bindings = bindings

    def __call__(self, found: Sequence[Any], where: str = "") -> Any:
        first = found[0]
        if len({type(x) for x in found}) > 1:
            other = next(x for x in found if type(x) is not type(first))
            raise Apart(f"{where or 'it'} is {_short(first)}, or {_short(other)}")
        if is_dataclass(first):
            return self.record(found, where)
        if isinstance(first, (tuple, list)):
            if len({len(x) for x in found}) > 1:
                raise Apart(f"{where} has {min(map(len, found))} parts, or {max(map(len, found))}")
            return type(first)(self(x, where) for x in zip(*found, strict=True))
        if isinstance(first, dict):
            if any(list(x) != list(first) for x in found):
                raise Apart(f"{where} has other parts")
            return {k: self([x[k] for x in found], f"{where} {k}") for k in first}
        if all(x == first for x in found):
            return first
        if isinstance(first, int) and not isinstance(first, bool):
            return self.size(found, where)
        if isinstance(first, str):
            return self.text(found, where)
        raise Apart(f"{where} is {_short(first)}, or {_short(next(x for x in found if x != first))}")

    def record(self, found: Sequence[Any], where: str) -> Any:
        first = found[0]
        parts = {f.name: self([getattr(x, f.name) for x in found], f"{type(first).__name__}.{f.name}") for f in fields(first)}
        return replace(first, **parts)

    def size(self, found: Sequence[int], where: str) -> Size:
        """The size that is each of these numbers at its sample."""
        size = _fitted(tuple(found), tuple(tuple(b.items()) for b in self.bindings))
        if size is None:
            raise Apart(f"{where} is {', '.join(map(str, sorted(set(found))[:4]))}, ...: no sum of quotients of "
                        f"{' and '.join(self.bindings[0])}")
        return size

    def text(self, found: Sequence[str], where: str) -> str:
        """Texts that differ in whole numbers alone."""
        parts = [_TOKEN.split(x) for x in found]
        if len({len(p) for p in parts}) > 1 or any(p[::2] != parts[0][::2] for p in parts):
            raise Apart(f"{where} is {_short(found[0])}, or {_short(next(x for x in found if x != found[0]))}")
        merged = list(parts[0])
        for k in range(1, len(merged), 2):
            if any(p[k] != merged[k] for p in parts):
                merged[k] = self.spelt(self.size([int(p[k]) for p in parts], where))
        return "".join(merged)

    def spelt(self, size: Size) -> str:
        text = str(size)
        return text if text.isidentifier() else f"({text})"


def merged(found: Sequence[Any], bindings: Sequence[Binding]) -> Any:
    """What all of ``found`` are, each at its binding. Raises Apart."""
    return Merge(bindings)(found)


@lru_cache(maxsize=4096)
def _fitted(found: tuple[int, ...], bindings: tuple[tuple[tuple[str, int], ...], ...]) -> Size | None:
    at = [dict(b) for b in bindings]
    base, names = at[0], list(at[0])
    own: dict[str, list[tuple[int, int]]] = {}
    for name in names:
        pairs = [(b[name], v) for b, v in zip(at, found, strict=True) if all(b[o] == base[o] for o in names if o != name)]
        if len({v for _, v in pairs}) > 1:
            own[name] = pairs
    shapes: dict[str, Size] = {}
    for name, pairs in own.items():
        size = _of_one(name, pairs)
        if size is None:
            return None
        shapes[name] = size
    for whole in _together(list(shapes.values()), found[0], base):
        if all(whole.at(b) == v for b, v in zip(at, found, strict=True)):
            return whole
    return None


def _of_one(name: str, pairs: Sequence[tuple[int, int]]) -> Size | None:
    """``times`` quotients, or what the last of them has, and more, with these values.

    No sample is a multiple of anything: all but the last tile of it are whole, and the last has a part. So it shall be of
    every number, where a part may be the whole: quotients are rounded up."""
    if (line := _line(pairs)) is not None:
        return Size((Term(line[0], (Quotient(name),)),), line[1])
    for over in _TILES:
        tiles = Quotient(name, over - 1, over)
        steps = [((n + over - 1) // over, v) for n, v in pairs]
        if (line := _line(steps)) is not None:
            return Size((Term(line[0], (tiles,)),), line[1])
        if (line := _line([(n - over * q, v) for (n, v), (q, _) in zip(pairs, steps, strict=True)])) is not None:
            return Size((Term(line[0], (Quotient(name),)), Term(-line[0] * over, (tiles,))), line[1])
    fits = []
    for over, times in product(_TILES, (2, 3, 4, 8, 16)):  # how many of these are in the last of those
        inner, outer = Quotient(name, over - 1, over), Quotient(name, over * times - 1, over * times)
        left = [((n + over - 1) // over - times * ((n + over * times - 1) // (over * times)), v) for n, v in pairs]
        if (line := _line(left)) is not None:
            fits.append(Size((Term(line[0], (inner,)), Term(-line[0] * times, (outer,))), line[1]))
    if len(fits) > 1:
        raise Unclear(name, fits)
    return fits[0] if fits else None


def _line(points: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """``(a, b)`` with ``y == a * x + b`` at every point, in whole numbers; None where x stands still."""
    slopes = [(p, q) for p, q in pairwise(points) if p[0] != q[0]]
    if not slopes:
        return None
    (x, y), (u, v) = slopes[0]
    a, left = divmod(v - y, u - x)
    b = y - a * x
    return (a, b) if not left and a and all(w == a * z + b for z, w in points) else None


def _together(parts: Sequence[Size], value: int, base: Binding) -> Iterator[Size]:
    """What depends on several symbols as these sizes say of one each: their sum, or their product."""
    if len(parts) == 1:
        yield parts[0]
    elif parts:
        terms = tuple(t for p in parts for t in p.terms)
        yield Size(terms, value - sum(p.at(base) - p.plus for p in parts))
        factors, plus = tuple(f for t in terms for f in t.factors), parts[0].plus
        times, left = divmod(value - plus, prod(Size((Term(1, (f,)),)).at(base) for f in factors))
        if not left and times:
            yield Size((Term(times, factors),), plus)


def _short(x: Any) -> str:
    return repr(x)[:80]
