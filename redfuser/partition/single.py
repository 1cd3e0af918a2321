"""Reductions with no map around them that may be worth a kernel by themselves."""

from __future__ import annotations

from math import prod

from redfuser.partition.drafted import Draft, R

SHORT, MANY = 32, 1 << 20
"""Elements of a row that torch's kernels are slow to reduce, at most, and of all such rows, at least: on an H200 the maxima of
16 million halves in rows of 4 take 119 us (what they read: 8), the sums of as many float32 in rows of 16 take 175 (18).
Between 16 and 32 nothing was measured."""
LONG = 1024
"""Elements of a row across memory from which torch reads it slowly."""


def by_itself(d: Draft) -> bool:
    """May a reduction be worth a kernel by itself: of many rows that are short, or of long ones across memory
    (:mod:`redfuser.partition.across` says whether it is)?"""
    if d.across:
        return d.extents[R] >= LONG
    return d.extents[R] <= SHORT and prod(d.extents[a] for a in (*d.p_axes, R)) >= MANY
