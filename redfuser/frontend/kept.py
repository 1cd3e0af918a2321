"""A module as it was before torch.export ran its forward, and what that forward would have changed.

torch.export runs a model's Python once, on tensors without elements. What forward assigns (``self.mask = ...``, ``self.calls +=
1``, ``self.cache[n] = ...``, a buffer that it registers) is there afterwards, made of such tensors, and every later call of
the model itself computes with them. Tensors that forward writes into are no part of this: torch.export tells of those.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

_OWN = ("_buffers", "_parameters", "_modules")
"""Where ``nn.Module`` keeps what is registered."""


@dataclass(slots=True)
class Changes:
    """By their paths, what forward assigned in modules other than torch's own, and the buffers among it that were new."""

    assigned: list[str] = field(default_factory=list)
    registered: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Held:
    """What one module holds: its attributes, and the containers in them (:func:`_contents`)."""

    path: str
    module: nn.Module
    attributes: dict[str, Any]
    contents: dict[tuple[Any, ...], tuple[Any, Any]]

    def changed(self) -> list[str]:
        """The attributes that are others now, or hold something else."""
        now = vars(self.module)
        inside = {at[0] for at, (container, copy) in self.contents.items() if not _alike(copy, container)}
        found = {*_differ(self.attributes, now), *inside}
        return [n for n in {**self.attributes, **now} if n in found and n not in (*_OWN, "forward")]

    def registered(self) -> list[str]:
        return [n for n in vars(self.module).get("_buffers", ()) if n not in self.contents[("_buffers",)][1]]

    def put_back(self) -> None:
        for container, copy in self.contents.values():
            if not _alike(copy, container):
                _fill(container, copy)
        if _differ(self.attributes, vars(self.module)):
            _fill(vars(self.module), self.attributes)


@contextlib.contextmanager
def kept(module: nn.Module) -> Iterator[Changes]:
    """Everything that ``module`` and those inside of it hold, in attributes and in the lists, dicts and sets there, is put back
    at the end. What its forward changes is looked at behind each call: torch.export puts a part of it back itself."""
    before = [_Held(f"{path}." if path else "", m, dict(vars(m)), _contents(vars(m))) for path, m in module.named_modules()]
    changes, own = Changes(), module.forward

    @functools.wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        result = own(*args, **kwargs)
        changes.registered = [held.path + n for held in before for n in held.registered()]
        changes.assigned = [held.path + n for held in before if not type(held.module).__module__.startswith("torch.")
                            for n in held.changed()] + changes.registered
        return result

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"The tensor attributes? .* assigned during export", UserWarning)
            vars(module)["forward"] = forward
            yield changes
    finally:
        for held in before:
            held.put_back()


def _contents(attributes: dict[str, Any]) -> dict[tuple[Any, ...], tuple[Any, Any]]:
    """The lists, dicts and sets that attributes hold, each by where it is held, with a copy."""
    found: dict[tuple[Any, ...], tuple[Any, Any]] = {}
    seen: set[int] = set()
    todo: list[tuple[tuple[Any, ...], Any]] = [((name,), value) for name, value in attributes.items()]
    while todo:
        at, value = todo.pop()
        if not isinstance(value, (list, dict, set)) or id(value) in seen:
            continue
        seen.add(id(value))
        found[at] = value, value.copy()
        items = value.items() if isinstance(value, dict) else enumerate(value)
        todo += [((*at, key), inner) for key, inner in items if isinstance(inner, (list, dict, set))]
    return found


def _fill(container: Any, copy: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(copy)
    else:
        container.update(copy)


def _alike(copy: Any, now: Any) -> bool:
    if isinstance(now, dict):
        return not _differ(copy, now) and list(copy) == list(now)
    return len(copy) == len(now) and (copy == now if isinstance(now, set) else all(map(_same, copy, now)))


def _differ(before: dict[Any, Any], now: dict[Any, Any]) -> list[Any]:
    """The keys with other values."""
    nothing = object()
    return [key for key in {**before, **now} if not _same(before.get(key, nothing), now.get(key, nothing))]


def _same(a: Any, b: Any) -> bool:
    if a is b or type(a) is not type(b):
        return a is b
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return isinstance(a, (bool, int, float, str)) and repr(a) == repr(b)
