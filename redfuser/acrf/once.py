"""Hash and text of a node, found once: a tree shares parts, and is looked up in tables and printed often."""

from __future__ import annotations

from typing import TypeVar


class Once:
    """A node that keeps its hash and its text."""

    __slots__ = ("_hash", "_text")
    _hash: int
    _text: str

    def text(self) -> str:
        """Its text, found anew."""
        raise NotImplementedError

    def __str__(self) -> str:
        try:
            return self._text
        except AttributeError:
            object.__setattr__(self, "_text", found := self.text())
            return found


N = TypeVar("N", bound=Once)


def hashed_once(cls: type[N]) -> type[N]:
    """The dataclass with its own hash, found once a node."""
    found_anew = cls.__hash__

    def found(self: N) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", new := found_anew(self))
            return new

    cls.__hash__ = found  # type: ignore[assignment]  # of nodes of this class, where object's is of any object
    return cls
