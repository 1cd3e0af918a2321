"""How far a compilation is, for whoever listens: ``certificates, 3 of 12``. Costs nothing when nobody does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_listeners: list[Callable[[str], None]] = []


@contextmanager
def heard(listener: Callable[[str], None]) -> Iterator[None]:
    """``listener`` gets every text told meanwhile, from whatever thread it comes."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(what: str, done: int, whole: int) -> None:
    for listener in list(_listeners):
        listener(f"{what}, {done} of {whole}")
