"""Where a row is cut into segments: the segmentations that a check tries, as functions of how many elements the row has."""

from __future__ import annotations

from collections.abc import Callable, Iterator

Cuts = Callable[[int], list[tuple[int, ...]]]
"""For a number of elements, the segmentations to try."""


def no_cuts(n: int) -> list[tuple[int, ...]]:
    return []


def first_cut(n: int) -> list[tuple[int, ...]]:
    return [(1, n - 1)]


def all_cuts(n: int) -> list[tuple[int, ...]]:
    return list(segmentations(n)) if n <= 4 else some_cuts(n)


def some_cuts(n: int) -> list[tuple[int, ...]]:
    half = n // 2
    cuts = {(n,), (0, n), (n, 0), (half, n - half), (1, n - 1), (half, 0, n - half), (1,) * n}
    if n >= 3:
        cuts |= {(1, n - 2, 1), (n - 2, 1, 1)}
    return sorted(c for c in cuts if sum(c) == n and min(c, default=0) >= 0)


def segmentations(n: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut n elements into consecutive non-empty segments, each also with one empty segment put at every
    place."""
    for cuts in range(1 << max(n - 1, 0)):
        parts, size = [], 1
        for i in range(n - 1):
            if cuts >> i & 1:
                parts.append(size)
                size = 0
            size += 1
        plain = (*parts, size) if n else ()
        yield plain
        for i in range(len(plain) + 1):
            yield (*plain[:i], 0, *plain[i:])
