"""Tensors without elements: what is known of a value of an outer graph before anything is executed.

A rule (of :mod:`redfuser.runtime.computing` and its siblings) takes the arguments of one operator in this
form, refuses what the operator does not take, and returns the result. Refusal is :class:`Refused`; whoever reads the
graph adds the line. Everything is plain arithmetic on integers: no operator of torch runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Rule = Callable[..., Any]
"""What one operator takes and returns."""
MAX_RANK = 16
MAX_RESULTS = 1 << 16
"""Tensors that one operator may return."""


class Refused(Exception):
    """An operator does not take these arguments."""


@dataclass(frozen=True, slots=True)
class Shaped:
    """A tensor: its dtype and shape."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_float(self) -> bool:
        return self.dtype.is_floating_point

    def like(self, shape: Iterable[int] | None = None, dtype: torch.dtype | None = None) -> Shaped:
        return Shaped(dtype or self.dtype, self.shape if shape is None else tuple(shape))


@dataclass(frozen=True, slots=True)
class Pair:
    """What ``torch.topk`` returns."""

    values: Shaped
    indices: Shaped


@dataclass(frozen=True, slots=True)
class Ends:
    """Ends of ``groups`` groups of rows that cover ``rows`` of them once. No tensor to any rule but that of a grouped product:
    what a product is given is what :func:`redfuser.grouped.group_ends` made."""

    groups: int
    rows: int


def shaped(dtype: torch.dtype, shape: Sequence[int]) -> Shaped:
    """A tensor of a description; raises :class:`Refused` for a shape that no tensor has."""
    need(len(shape) <= MAX_RANK and all(n >= 0 for n in shape) and math.prod(max(n, 1) for n in shape) < 1 << 48,
         f"{list(shape)[:20]} is no shape")
    return Shaped(dtype, tuple(shape))


def need(condition: bool, why: str) -> None:
    if not condition:
        raise Refused(why)


def tensor(value: Any) -> Shaped:
    if not isinstance(value, Shaped):
        raise Refused(f"{_word(value)} where a tensor belongs")
    return value


def tensors(values: Any) -> list[Shaped]:
    if not isinstance(values, (tuple, list)) or not values:
        raise Refused(f"{_word(values)} where tensors belong")
    return [tensor(v) for v in values]


def floating(value: Any) -> Shaped:
    x = tensor(value)
    need(x.is_float, f"a tensor of {x.dtype} where a floating one belongs")
    return x


def index(value: Any) -> Shaped:
    x = tensor(value)
    need(x.dtype in (torch.int64, torch.int32), f"indices of {x.dtype}")
    return x


def long(value: Any) -> Shaped:
    x = tensor(value)
    need(x.dtype == torch.int64, f"indices of {x.dtype}")
    return x


def number(value: Any) -> float | int | bool:
    if not isinstance(value, (bool, int, float)):
        raise Refused(f"{_word(value)} where a number belongs")
    return value


def integer(value: Any, low: int = -(1 << 62), high: int = 1 << 62) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(f"{_word(value)} where an integer belongs")
    need(low <= value <= high, f"{value} is not between {low} and {high}")
    return value


def integers(values: Any, low: int = -(1 << 62), high: int = 1 << 62) -> tuple[int, ...]:
    if not isinstance(values, (tuple, list)) or len(values) > MAX_RANK * 2:
        raise Refused(f"{_word(values)} where integers belong")
    return tuple(integer(v, low, high) for v in values)


def extents(values: Any, rank: int | None = None) -> tuple[int, ...]:
    """A shape."""
    shape = integers(values, 0)
    need(len(shape) <= MAX_RANK and rank in (None, len(shape)), f"a shape of rank {len(shape)}")
    return shape


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Refused(f"{_word(value)} where True or False belongs")
    return value


def dtype_of(value: Any) -> torch.dtype:
    if not isinstance(value, torch.dtype) or value.is_complex:
        raise Refused(f"{_word(value)} where a dtype belongs")
    return value


def axis(value: Any, rank: int) -> int:
    """An axis of a tensor of ``rank``, counted from the front."""
    at = integer(value)
    need(-rank <= at < rank, f"axis {at} of a tensor of rank {rank}")
    return at % rank


def axes(values: Any, rank: int) -> tuple[int, ...]:
    """Distinct axes; one may stand alone."""
    found = tuple(axis(v, rank) for v in (values if isinstance(values, (tuple, list)) else (values,)))
    need(len(set(found)) == len(found), "an axis occurs twice")
    return found


def word(value: Any, *words: str) -> str:
    if value not in words or not isinstance(value, str):
        raise Refused(f"{_word(value)} is none of {', '.join(words)}")
    return value


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    rank = max(map(len, shapes), default=0)
    out = [1] * rank
    for shape in shapes:
        for i, n in enumerate(shape, rank - len(shape)):
            need(n == 1 or out[i] in (1, n), f"shapes {', '.join(str(list(s)) for s in shapes)} do not go together")
            out[i] = n if n != 1 else out[i]
    return tuple(out)


def fits(shape: Sequence[int], into: Sequence[int]) -> None:
    """``shape`` broadcasts to ``into`` as it is."""
    need(broadcast(shape, into) == tuple(into), f"shape {list(shape)} does not go into {list(into)}")


def promoted(*operands: Any) -> torch.dtype:
    """The dtype that torch gives a computation on tensors and numbers: tensors with axes decide, then tensors without,
    then numbers, where a later kind only counts when it is of a higher category."""
    found: list[torch.dtype | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, Shaped):
            place, kind = (0 if operand.shape else 1), operand.dtype
        else:
            value = number(operand)
            place = 2
            kind = torch.bool if isinstance(value, bool) else torch.int64 if isinstance(value, int) else torch.float32
        before = found[place]
        found[place] = kind if before is None else _promote(before, kind)
    result = _combine(found[0], _combine(found[1], found[2]))
    assert result is not None
    return result


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher or lower
    if higher.is_floating_point:
        return higher
    return _promote(higher, lower) if higher == torch.bool or lower.is_floating_point else higher


def _promote(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    if a == b:
        return a
    try:
        return torch.promote_types(a, b)
    except RuntimeError as error:  # eight-bit floats promote to nothing
        raise Refused(str(error)) from error


def _word(value: Any) -> str:
    if isinstance(value, Shaped):
        return "a tensor"
    return {tuple: "a tuple", list: "a list", Pair: "a pair"}.get(type(value)) or repr(value)[:40]
