"""Names that are not taken yet."""

from __future__ import annotations


def fresh(stem: str, taken: set[str]) -> str:
    """``stem``, numbered until it is free; taken from now on."""
    name, k = stem, 2
    while name in taken:
        name, k = f"{stem}{k}", k + 1
    taken.add(name)
    return name
