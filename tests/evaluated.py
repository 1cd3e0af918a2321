"""A cascade evaluated, unfused and fused, in any arithmetic that the checker has: what tests hold everything else to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from redfuser.acrf.cascade import Cascade
from redfuser.acrf.check.domains import Array
from redfuser.acrf.check.evaluate import FusedMachine, machine, materialise
from redfuser.acrf.check.systems import domain
from redfuser.acrf.state import Fused


def run(cascade: Cascade, inputs: Mapping[str, Any], precision: str = "f64", *, round_casts: bool = True,
        everything: bool = False) -> dict[str, Array]:
    """The unfused program: statement after statement over the whole r-axis.

    inputs: an array per input tensor, in the declared dtype (others are rounded to it). precision: ``f64`` (the oracle:
    fp64, only narrowing casts round), ``program`` (every operation rounds to its dtype), ``exact`` (object arrays of
    Fractions; raises Inexact) or ``digits`` (50-digit mpmath numbers). everything: also the statements that are no
    outputs. Returns an array per output, dimensions in the order of the statement's axes; fp64 arrays for ``f64``,
    arrays of the statement's own dtype for ``program``.
    """
    m = machine(cascade, inputs, domain(precision, round_casts))
    with np.errstate(all="ignore"):
        for s in cascade.stmts:
            m.statement(s)
    names = tuple(n for s in cascade.stmts for n in s.names) if everything else cascade.outputs
    return {n: materialise(m, cascade, n, m.values[n]) for n in names}


def run_fused(fused: Fused, inputs: Mapping[str, Any], segments: Sequence[int] | None = None, how: str = "step",
              precision: str = "f64", *, round_casts: bool = True) -> dict[str, Array]:
    """The fused form under one segmentation: as :func:`run`, with ``segments`` (lengths, zeros allowed; default: one
    segment) and ``how`` in ``step``, ``merge``, ``tree``."""
    f = FusedMachine.bind(fused, inputs, domain(precision, round_casts))
    with np.errstate(all="ignore"):
        m = f.finish(f.segments([f.length] if segments is None else segments, how))
    return {n: materialise(m, fused.cascade, n, m.values[n]) for n in fused.cascade.outputs}
