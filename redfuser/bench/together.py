"""Measure cases in processes of their own: many are loaded, compiled and checked at once, and one at a time is timed.

torch.compile takes longer over a model than all its measurements. Times are taken when every process of a batch is ready (or
gone), so that nothing else runs then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from redfuser.bench import rows, runner
from redfuser.child import Child, Died, environment
from workloads.case import Case

CHILD = "redfuser.bench.ready"
TIMING_S = 120.0
"""Seconds for the times of one case."""


def run(cases: Sequence[Case], options: runner.Options, jobs: int, limit_s: float,
        progress: Callable[[str], None] = lambda text: None) -> Iterator[list[rows.Row]]:
    """As :func:`redfuser.bench.runner.run`, with ``jobs`` processes at once, each of which has ``limit_s`` seconds to make its
    case ready."""
    for start in range(0, len(cases), jobs):
        yield from _batch(cases[start:start + jobs], options, limit_s, progress)


def _batch(cases: Sequence[Case], options: runner.Options, limit_s: float,
           progress: Callable[[str], None]) -> Iterator[list[rows.Row]]:
    children = [Child(CHILD) for _ in cases]
    try:
        for case, child in zip(cases, children, strict=True):
            child.start(environment())
            child.send({"case": str(case), "options": {
                "variants": options.variants, "device": options.device, "budget_s": options.budget_s,
                "artifacts": str(options.artifacts) if options.artifacts else None, "done": sorted(options.done)}})
        until = time.monotonic() + limit_s
        first = [_answer(child, until - time.monotonic()) for child in children]
        for case, child, answer in zip(cases, children, first, strict=True):
            if "ready" in answer:
                progress(f"timing {case}")
                child.send({"go": True})
                answer = _answer(child, TIMING_S)
            if "lost" in answer:
                yield from runner.failed(case, replace(options, done=frozenset()), answer["lost"])
            elif answer["rows"]:
                yield answer["rows"]
            child.stop()
    finally:
        for child in children:
            child.stop()


def _answer(child: Child, limit_s: float) -> dict[str, Any]:
    try:
        return child.receive(max(limit_s, 1.0))
    except TimeoutError:
        child.stop()
        return {"lost": f"it was not ready within {limit_s:.0f} s"}
    except (Died, ValueError) as e:
        lines = child.said().strip().splitlines()
        return {"lost": f"its process ended, {e}: {lines[-1] if lines else ''}"[:300]}
