"""Rows of which nothing is left but faint weights (:mod:`redfuser.acrf.check.faint`), as arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from redfuser.acrf.cascade import Cascade
from redfuser.acrf.check.domains import Array
from redfuser.acrf.check.evaluate import machine
from redfuser.acrf.check.faint import Rows, Sort, calm, far
from redfuser.chain.truth import Wide


def left(cascade: Cascade, of: Sort, given: Mapping[str, Array], gap: float, first: bool) -> dict[str, Array]:
    """See :meth:`redfuser.acrf.check.faint.Rows.left`."""
    return Rows(cascade, of, lambda tensors: machine(cascade, tensors, Wide()), _put, _near).left(given, gap, first)


def _put(x: Array, dim: int, place: int, size: float) -> Array:
    at, out = (*[slice(None)] * dim, place), x.copy()
    with np.errstate(all="ignore"):
        out[at] = far(x[at], size).astype(x.dtype) if size else 0
    return out


def _near(x: Array) -> Array:
    return calm(x).astype(x.dtype)
