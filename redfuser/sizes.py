"""Symbols, and the sizes that are expressions of them: what a kernel of many shapes has in the place of numbers.

A symbol stands for a positive number in a range. A size is a sum of products of quotients, ``4 * ((n + 127) // 128) + 1``: the
extents of tensors and grids, the bounds of loops, the dimensions and strides of tensor maps. The form is closed and is data in
an artifact; nothing of it is ever executed.

A pass that has numbers in hand needs no other arithmetic for symbols: :mod:`redfuser.fitted` compares what it gives at some
samples of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Union

Binding = Mapping[str, int]
"""What number each symbol is."""

LIMIT = 1 << 30
"""No symbol is as large: kernels have them in 32 bits, and round them up to whole tiles."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A number from ``low`` (at least 1) to ``high`` that is known when a kernel is called."""

    name: str
    low: int
    high: int

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or not 1 <= self.low <= self.high < LIMIT:
            raise ValueError(f"{self} is no range of a symbol")

    def __str__(self) -> str:
        return f"{self.name} in {self.low} .. {self.high}"

    @property
    def usual(self) -> int:
        """The number for which choices are made that need one: how well tiles suit it, how many splits pay."""
        return min(self.high, max(self.low, 1024))


@dataclass(frozen=True, slots=True)
class Quotient:
    """``(symbol + plus) // over``"""

    symbol: str
    plus: int = 0
    over: int = 1

    def __str__(self) -> str:
        inner = f"{self.symbol} {'-' if self.plus < 0 else '+'} {abs(self.plus)}" if self.plus else self.symbol
        return inner if self.over == 1 else f"({inner}) // {self.over}" if self.plus else f"{inner} // {self.over}"


@dataclass(frozen=True, slots=True)
class Term:
    """``times`` times the product of ``factors``, at least one."""

    times: int
    factors: tuple[Quotient, ...]

    def __str__(self) -> str:
        alone = abs(self.times) == 1 and len(self.factors) == 1
        texts = [str(f) if alone or (f.over == 1 and not f.plus) else f"({f})" for f in self.factors]
        return ("-" if self.times == -1 else "") + " * ".join([*([str(self.times)] if abs(self.times) != 1 else []), *texts])


@dataclass(frozen=True, slots=True)
class Size:
    """The sum of ``terms``, at least one, and ``plus``."""

    terms: tuple[Term, ...]
    plus: int = 0

    def __str__(self) -> str:
        text = str(self.terms[0])
        for t in self.terms[1:]:
            text += f" - {replace(t, times=-t.times)}" if t.times < 0 else f" + {t}"
        return f"{text} {'-' if self.plus < 0 else '+'} {abs(self.plus)}" if self.plus else text

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset(f.symbol for t in self.terms for f in t.factors)

    @property
    def alone(self) -> tuple[str, int] | None:
        """The symbol and its factor, where the size is no more than that and a number."""
        if len(self.terms) == 1 and len(self.terms[0].factors) == 1 and self.terms[0].times > 0:
            (f,) = self.terms[0].factors
            if (f.plus, f.over) == (0, 1):
                return f.symbol, self.terms[0].times
        return None

    def at(self, binding: Binding) -> int:
        """The number where the symbols are numbers; KeyError for a symbol that is none."""
        return self.plus + sum(t.times * prod((binding[f.symbol] + f.plus) // f.over for f in t.factors) for t in self.terms)


if TYPE_CHECKING:
    Number = Any
else:
    Number = Union[int, Size]
"""A number, or the size that is one when the symbols are. Who has a static kernel in hand need not ask which."""


def number(x: Number, binding: Binding) -> int:
    return x.at(binding) if isinstance(x, Size) else x


def numbers(shape: Sequence[Number], binding: Binding) -> tuple[int, ...]:
    return tuple(number(n, binding) for n in shape)


def shape_text(shape: Sequence[Number]) -> str:
    return f"[{', '.join(map(str, shape))}]"


class Unfit(ValueError):
    """Shapes that no numbers for the symbols give."""


def solved(shapes: Sequence[tuple[str, Sequence[Number], Sequence[int]]], symbols: Sequence[Symbol]) -> dict[str, int]:
    """The symbols' numbers, from the declared and the actual shape of each tensor by name. Whether they are in their ranges is
    not asked. Raises Unfit for shapes that do not fit, and where a symbol is in no shape by itself."""
    found: dict[str, int] = {}
    for name, declared, actual in shapes:
        if len(declared) != len(actual):
            raise Unfit(f"{name} has shape {list(actual)}, expected {shape_text(declared)}")
        for size, n in zip(declared, actual, strict=True):
            if isinstance(size, Size) and (one := size.alone) is not None and one[0] not in found:
                value, left = divmod(n - size.plus, one[1])
                if left:
                    raise Unfit(f"{name} has shape {list(actual)}, expected {shape_text(declared)}")
                found[one[0]] = value
    if missing := [s.name for s in symbols if s.name not in found]:
        raise Unfit(f"no shape shows what {missing[0]} is")
    for name, declared, actual in shapes:
        if numbers(declared, found) != tuple(actual):
            told = ", ".join(f"{s} = {n}" for s, n in found.items())
            raise Unfit(f"{name} has shape {list(actual)}, expected {shape_text(declared)} where {told}")
    return found
