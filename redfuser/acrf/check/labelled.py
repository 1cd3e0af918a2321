"""Arrays labelled with the axes they depend on: the values of :mod:`redfuser.acrf.check.machine`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np

from redfuser.acrf.check.domains import Array


@dataclass(slots=True)
class Labelled:
    """An array and the axes of its dimensions. Axes the value does not depend on are absent. Never changed (and not frozen:
    hundreds of thousands are made by one check)."""

    axes: tuple[str, ...]
    data: Array

    def aligned(self, axes: tuple[str, ...]) -> Array:
        """The array transposed to ``axes`` (a superset of its own), extent 1 where it has none."""
        if axes == self.axes:
            return self.data
        present = [a for a in axes if a in self.axes]
        data = self.data.transpose([self.axes.index(a) for a in present])
        shape = iter(data.shape)
        return data.reshape([next(shape) if a in self.axes else 1 for a in axes])

    def cut(self, axis: str, points: slice) -> Labelled:
        """Only the points number ``points`` of an axis."""
        if axis not in self.axes:
            return self
        return Labelled(self.axes, self.data[(slice(None),) * self.axes.index(axis) + (points,)])

    def at(self, axis: str, point: int) -> Labelled:
        """The values at point number ``point`` of an axis."""
        if axis not in self.axes:
            return self
        place = self.axes.index(axis)
        axes, data = (*self.axes[:place], *self.axes[place + 1:]), self.data[(slice(None),) * place + (point,)]
        return Labelled(axes, np.asarray(data, self.data.dtype))


@cache
def common(groups: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], bool]:
    """The union of the axes, and whether every operand has exactly these."""
    axes = union(groups)
    return axes, all(g == axes for g in groups)


def union(groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    distinct = dict.fromkeys(groups)
    return next(iter(distinct)) if len(distinct) == 1 else tuple(dict.fromkeys(a for g in distinct for a in g))
