"""Measure cases in processes of their own: many are loaded, compiled and checked at once, and one at a time is timed.

torch.compile takes longer over a model than all its measurements. Times are taken when every process of a batch is ready (or
gone), so that nothing else runs then. A process takes a case of each batch: torch and the device are made ready once.
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
OUT_OF_MEMORY = "out of memory"


def run(cases: Sequence[Case], options: runner.Options, jobs: int, limit_s: float,
        progress: Callable[[str], None] = lambda text: None) -> Iterator[list[rows.Row]]:
    """As :func:`redfuser.bench.runner.run`, with ``jobs`` processes at once, each of which has ``limit_s`` seconds to make its
    case ready. A case that memory does not hold beside others is measured alone, behind them."""
    children = [Child(CHILD) for _ in range(min(jobs, len(cases)))]
    crowded: list[Case] = []
    try:
        for start in range(0, len(cases), jobs):
            batch = cases[start:start + jobs]
            for case, block in zip(batch, _batch(batch, children, options, limit_s, progress), strict=True):
                if jobs > 1 and any(OUT_OF_MEMORY in r["why"] for r in block):
                    crowded.append(case)
                elif block:
                    yield block
    finally:
        for child in children:
            child.stop()
    for case in crowded:
        progress(f"alone: {case}")
        yield from run([case], options, 1, limit_s, progress)


def _batch(cases: Sequence[Case], children: Sequence[Child], options: runner.Options, limit_s: float,
           progress: Callable[[str], None]) -> Iterator[list[rows.Row]]:
    """The rows of each case, in order; none for one whose rows exist already."""
    for case, child in zip(cases, children, strict=False):
        if not child.running():
            child.start(environment())
        child.send({"case": str(case), "source": str(case.source or ""), "options": {
            "variants": options.variants, "device": options.device, "budget_s": options.budget_s,
            "artifacts": str(options.artifacts) if options.artifacts else None, "done": sorted(options.done)}})
    until = time.monotonic() + limit_s
    first = [_answer(child, until - time.monotonic()) for _, child in zip(cases, children, strict=False)]
    for case, child, answer in zip(cases, children, first, strict=False):
        if "ready" in answer:
            progress(f"timing {case}")
            child.send({"go": True})
            answer = _answer(child, TIMING_S)
        if "lost" in answer:
            lost, = runner.failed(case, replace(options, done=frozenset()), answer["lost"])
            yield lost
        else:
            if any(r["status"] == "lost" for r in answer["rows"]):
                child.stop()
            yield answer["rows"]


def _answer(child: Child, limit_s: float) -> dict[str, Any]:
    try:
        return child.receive(max(limit_s, 1.0))
    except TimeoutError:
        child.stop()
        return {"lost": f"it was not ready within {limit_s:.0f} s"}
    except (Died, ValueError) as e:
        lines = child.said().strip().splitlines()
        return {"lost": f"its process ended, {e}: {lines[-1] if lines else ''}"[:300]}
