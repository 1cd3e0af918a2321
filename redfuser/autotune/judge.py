"""From measured times to a decision: a pure function, so that the same measurements give the same record.

What is not clearly faster is a tie. Among fused kernels ties go to the model's choice, between the fastest of them and the
unfused region to that region: what stays unfused is never slower than torch, and a record that fuses names a kernel that was.
"""

from __future__ import annotations

from collections.abc import Mapping

from redfuser.autotune.records import Sample
from redfuser.timing import Times

TIE = 0.01
"""Medians closer than this are a tie, whatever the spread."""
NOISY = 0.5
"""Where the 20th and 80th percentile lie further apart than this part of the median, somebody else was on the machine."""
FINALISTS = 3
"""Fused candidates that are measured again."""
UNFUSED = "unfused"


def ahead(a: Times, b: Times) -> bool:
    """Is ``a`` clearly less: its median by more than :data:`TIE`, and its 80th percentile below the other's 20th?"""
    return a.p50 < (1 - TIE) * b.p50 and a.p80 < b.p20


def faster(a: Sample, b: Sample) -> bool:
    """Is ``a`` clearly faster than ``b``? In a CUDA graph, where both could be captured; a tie there is decided by single
    calls, which include what a launch takes."""
    pairs = [(x, y) for x, y in ((a.graph, b.graph), (a.events, b.events)) if x is not None and y is not None]
    for x, y in pairs:
        if ahead(x, y):
            return True
        if ahead(y, x):
            return False
    return False


def steady(s: Sample) -> bool:
    """Do the samples that decide lie close enough together to decide by?"""
    found = s.graph or s.events
    return found is not None and found.spread <= NOISY


def best(samples: Mapping[str, Sample], first: str) -> str:
    """The fastest of the fused candidates (all but :data:`UNFUSED`): the least median, unless it ties with ``first``, the
    model's own."""
    fused = {name: s for name, s in samples.items() if name != UNFUSED}
    least = min(fused, key=lambda name: (fused[name].ms, name))
    return least if first not in fused or faster(fused[least], fused[first]) else first


def finalists(samples: Mapping[str, Sample], first: str) -> list[str]:
    """Who is measured again, longer: the unfused region, the model's choice and the fastest others."""
    fused = sorted((n for n in samples if n not in (UNFUSED, first)), key=lambda n: (samples[n].ms, n))
    return [n for n in (UNFUSED, first) if n in samples] + fused[:FINALISTS - (first in samples)]
