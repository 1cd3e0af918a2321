"""What a mask hides: results that a NaN or an infinity of some tensor cannot reach, whatever number stood in its place.

Where a weight is exactly 0, eager code still has ``0 * NaN``, while a fused kernel may not read the element at all, or may
read some of what a mask hides (the tiles that it shares with what is visible) and not the rest (docs/algebra.md). Both are
right, element by element, and only there. What is hidden is found out, not assumed: with 0 and with two huge numbers in place
of the tensor's NaN and infinities, a hidden result is the same in float64 to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

Array = np.ndarray[Any, Any]
Key = TypeVar("Key")
HUGE = 1e150
"""Beyond every weight that is not 0, and its square is a number still."""


def unseen(run: Callable[[Key, float], Sequence[Array]], odd: Iterable[Key]) -> list[tuple[Key, list[Array], list[Array]]]:
    """Per tensor in ``odd``: where each result depends on none of its NaN and infinities, and all results without them.

    ``run(key, number)``: the exact (float64) results with ``number`` in place of what is not finite in that tensor alone."""
    found = []
    for key in odd:
        plain, *others = (run(key, number) for number in (0.0, HUGE, -HUGE))
        where = [np.isfinite(a) & np.logical_and.reduce([a == b for b in same]) if a.dtype.kind == "f" else
                 np.zeros(a.shape, np.bool_) for a, *same in zip(plain, *others, strict=True)]
        found.append((key, where, list(plain)))
    return found
