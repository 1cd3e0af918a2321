"""Plain data from a file, read into frozen dataclasses by their annotations: a value of another type is a ValueError.

``read(LaunchSpec, {"entry": "k", "grid": [1, 2, 3], ...})`` looks at every field's type, so that no wrong type gets past the
reader: an int is not a bool and fits in 64 bits, a tuple of three has three, a ``Literal`` is one of its words. A field
with a default may be absent; a key that is no field is ignored, so that a description can grow.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_MAX_DEPTH = 64


def read(kind: type[T], data: Any) -> T:
    """``data`` (from JSON) as a ``kind``. Raises ValueError, which names the field."""
    found = _value(kind, data, kind.__name__, 0)
    assert isinstance(found, kind)
    return found


def text(value: Any) -> str:
    """A string; ValueError for anything else."""
    return str(_value(str, value, "a name", 0))


def texts(value: Any) -> dict[str, str]:
    """Strings by name; ValueError for anything else."""
    found: dict[str, str] = _value(dict[str, str], value, "a table of names", 0)
    return found


def whole(value: Any, low: int, high: int) -> int:
    """An integer from ``low`` to ``high``; ValueError for anything else."""
    found: int = _value(int, value, "a number", 0)
    if not low <= found <= high:
        raise ValueError(f"{found} is not between {low} and {high}")
    return found


def items(value: Any) -> list[Any]:
    """A list; ValueError for anything else."""
    if not isinstance(value, list):
        raise ValueError(f"a list is {_short(value)}")
    return value


@functools.cache
def _fields(kind: type) -> dict[str, tuple[Any, bool]]:
    """Annotation of every field, and whether it must be there."""
    hints = get_type_hints(kind)
    return {f.name: (hints[f.name], f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING)
            for f in dataclasses.fields(kind)}


def _value(kind: Any, data: Any, where: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError(f"{where} is nested too deeply")
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return data
    if dataclasses.is_dataclass(kind):
        return _record(kind, data, where, depth)
    if origin in (Union, types.UnionType):
        if data is None and type(None) in inner:
            return None
        kinds = [k for k in inner if k is not type(None)]  # a record, or what is none
        kinds = kinds if len(kinds) == 1 else [k for k in kinds if dataclasses.is_dataclass(k) == isinstance(data, dict)]
        if len(kinds) == 1:
            return _value(kinds[0], data, where, depth)
        raise ValueError(f"{where} is {_short(data)}")
    if origin is Literal and isinstance(data, str) and data in inner:
        return data
    if origin is tuple and isinstance(data, (list, tuple)):
        kinds = inner[:1] * len(data) if inner[-1] is Ellipsis else inner
        if len(kinds) == len(data):
            return tuple(_value(k, v, where, depth + 1) for k, v in zip(kinds, data, strict=True))
    if origin is dict and isinstance(data, dict) and all(isinstance(k, str) for k in data):
        return {k: _value(inner[1], v, where, depth + 1) for k, v in data.items()}
    if kind in (str, bool) and isinstance(data, kind):
        return data
    if kind is int and isinstance(data, int) and not isinstance(data, bool) and abs(data) < 1 << 63:
        return data
    if kind is float and isinstance(data, (int, float)) and not isinstance(data, bool) and _is_double(data):
        return data
    raise ValueError(f"{where} is {_short(data)}")


def _record(kind: Any, data: Any, where: str, depth: int) -> Any:
    fields = _fields(kind)
    if not isinstance(data, dict):
        raise ValueError(f"{where} is {_short(data)}")
    missing = [name for name, (_, must) in fields.items() if must and name not in data]
    if missing:
        raise ValueError(f"{where} has no {', '.join(missing)}")
    return kind(**{k: _value(fields[k][0], v, f"{kind.__name__}.{k}", depth + 1) for k, v in data.items() if k in fields})


def _is_double(value: float) -> bool:
    try:
        return math.isfinite(value) or isinstance(value, float)
    except OverflowError:
        return False


def _short(value: Any) -> str:
    return repr(value)[:60] if isinstance(value, (str, int, float, bool, type(None))) and not (
        isinstance(value, int) and abs(value) >= 1 << 64) else f"a {type(value).__name__}"
