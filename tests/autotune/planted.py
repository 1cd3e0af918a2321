"""Records and measurements that nobody measured, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from redfuser.autotune import records
from redfuser.autotune.records import Choice, Record, Sample
from redfuser.timing import Times

H200 = "NVIDIA H200"


def sample(ms: float, spread: float = 0.0, events: float | None = None) -> Sample:
    """p50 ``ms`` in a graph, with half of ``spread`` (relative) on either side; single calls take ``events``, or 5 us more."""
    def times(p50: float) -> Times:
        return Times(p50, p50 * (1 - spread / 2), p50 * (1 + spread / 2), 50)

    return Sample(times(ms), times(ms + 5e-3 if events is None else events))


def record(fused: Any, choice: Choice, *, fuse: bool = True, arch: str = "sm_90a", part: str = "H200", **changes: Any) -> Record:
    times = {"choice": sample(0.04), "model": sample(0.05), "unfused": sample(0.08 if fuse else 0.03)}
    made = Record(records.key(fused, arch), "m softmax.0", records.takes(fused), arch, part, H200, fuse, choice, choice, times, 5,
                  date="2026-11-23T04:00:00+00:00", versions={"torch": "2.13.0"})
    return replace(made, **changes)
