"""Reductions of more elements than are had at once: a point of one axis after another.

``sum[l] x[i // 3, l] * y[(i + l) % 5]`` over 512 x 512 x 64 points is 17 million terms, and as many for each expression in it.
What comes of it is the same to the bit: no sum runs along the axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from redfuser.acrf.check.domains import Array
from redfuser.acrf.check.labelled import Labelled
from redfuser.acrf.expr import Expr, Index, Load, Ref, walk

AT_ONCE = 1 << 23
"""Elements of which a reduction computes all before it adds any."""


def longest(body: Expr, over: str, ranges: Mapping[str, Array], tensors: Mapping[str, Any],
            values: Mapping[str, Labelled]) -> str | None:
    """The axis to go along, the longest but ``over``; None where the elements are few, or a name is read at points other than
    the element's own."""
    if any(isinstance(x, Ref) and x.indices for x in walk(body)):
        return None
    axes = axes_of(body, ranges, tensors, values) & ranges.keys()
    if prod(len(ranges[a]) for a in axes) <= AT_ONCE:
        return None
    drawn = {_drawn(t) for t in tensors.values()}  # all of it, wherever an element is
    return max((a for a in axes - drawn - {over} if len(ranges[a]) > 1), key=lambda a: (len(ranges[a]), a), default=None)


def joined(axis: str, parts: Sequence[tuple[Labelled, ...]]) -> tuple[Labelled, ...]:
    """What the points gave, along their axis."""
    axes = parts[0][0].axes
    return tuple(Labelled(axes, np.concatenate([p.aligned(axes) for p in same], axes.index(axis)))
                 for same in zip(*parts, strict=True))


def axes_of(e: Expr, ranges: Mapping[str, Array], tensors: Mapping[str, Any], values: Mapping[str, Labelled]) -> set[str]:
    """What a value may depend on."""
    found: set[str] = set()
    for x in walk(e):
        if isinstance(x, Index):
            found.add(x.axis)
        elif isinstance(x, Load):
            found |= {_drawn(tensors[x.tensor])} - {""}
        elif isinstance(x, Ref):
            found |= {a for a in values[x.name].axes if not x.indices or a not in ranges}
    return found


def _drawn(tensor: Any) -> str:
    """The axis that every element of a tensor that is drawn on demand has besides its place."""
    return str(getattr(tensor, "axis", ""))
