"""Timing several variants of one computation so that the comparison is fair.

Variants are interleaved sample by sample, in alternating order, so that clocks and temperature hit all alike. Two figures
each, on a GPU:

* events: around one call, after the L2 cache was overwritten (outside the timed window), as ``triton.testing.do_bench``
  does it; includes the launch gaps a user sees.
* graph: per call of a CUDA graph that holds many calls over rotating inputs and results, together larger than the L2; no
  launch gaps.

On a CPU the wall clock is read around each call. All times are milliseconds.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[..., Any]
Arguments = Sequence[tuple[Any, ...]]
FLUSH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds: median and the 20th and 80th percentile over ``samples``."""

    p50: float
    p20: float
    p80: float
    samples: int

    @property
    def spread(self) -> float:
        """(p80 - p20) / median."""
        return (self.p80 - self.p20) / self.p50 if self.p50 else 0.0


def summarise(samples: Sequence[float]) -> Times:
    ordered = sorted(samples)
    at = lambda q: ordered[min(len(ordered) - 1, int(q * len(ordered)))]  # noqa: E731
    return Times(statistics.median(ordered), at(0.2), at(0.8), len(ordered))


def cold(variants: Mapping[str, Call], arguments: Arguments, device: str, budget_s: float = 0.3) -> dict[str, Times]:
    """One call at a time with a cold L2 (events on a GPU, wall clock on a CPU); ``budget_s`` per variant."""
    return _events(variants, arguments, budget_s) if device.startswith("cuda") else _wall(variants, arguments, budget_s)


def _rounds(n: int, names: Sequence[str]) -> list[tuple[int, str]]:
    """Sample index and variant, alternating the order of the variants."""
    return [(i, name) for i in range(n) for name in (names if i % 2 == 0 else list(reversed(names)))]


def _wall(variants: Mapping[str, Call], arguments: Arguments, budget_s: float) -> dict[str, Times]:
    samples: dict[str, list[float]] = {name: [] for name in variants}
    slowest = 0.0
    for fn in variants.values():
        fn(*arguments[0])
        start = time.perf_counter()
        fn(*arguments[0])
        slowest = max(slowest, time.perf_counter() - start)
    n = max(5, min(200, int(budget_s / max(slowest, 1e-6))))
    for i, name in _rounds(n, list(variants)):
        start = time.perf_counter()
        variants[name](*arguments[i % len(arguments)])
        samples[name].append(1e3 * (time.perf_counter() - start))
    return {name: summarise(s) for name, s in samples.items()}


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)


def _estimate(fn: Call, arguments: Arguments, calls: int = 5) -> float:
    """Milliseconds per call, roughly; also the warm-up."""
    for i in range(3):
        fn(*arguments[i % len(arguments)])
    torch.cuda.synchronize()
    start, end = _event(), _event()
    start.record()
    for i in range(calls):
        fn(*arguments[i % len(arguments)])
    end.record()
    torch.cuda.synchronize()
    return max(float(start.elapsed_time(end)) / calls, 1e-3)


def _events(variants: Mapping[str, Call], arguments: Arguments, budget_s: float) -> dict[str, Times]:
    flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    slowest = max(_estimate(fn, arguments) for fn in variants.values())
    n = max(10, min(300, int(1e3 * budget_s / (slowest + 0.1))))
    pairs: dict[str, list[tuple[Any, Any]]] = {name: [] for name in variants}
    for i, name in _rounds(n, list(variants)):
        start, end = _event(), _event()
        flush.zero_()
        start.record()
        variants[name](*arguments[i % len(arguments)])
        end.record()
        pairs[name].append((start, end))
    torch.cuda.synchronize()
    return {name: summarise([s.elapsed_time(e) for s, e in p]) for name, p in pairs.items()}


def replayed(variants: Mapping[str, Call], arguments: Arguments,
             budget_s: float = 0.3) -> tuple[dict[str, Times], dict[str, str]]:
    """Per call of a CUDA graph; and, for variants that cannot be captured, why."""
    graphs: dict[str, tuple[Any, int]] = {}
    failed: dict[str, str] = {}
    for name, fn in variants.items():
        calls = max(len(arguments), min(20, int(2.0 / _estimate(fn, arguments))))
        try:
            graphs[name] = (_capture(fn, arguments, calls), calls)
        except Exception as e:
            torch.cuda.synchronize()
            failed[name] = f"{type(e).__name__}: {e}".splitlines()[0][:200]
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    if not graphs:
        return {}, failed
    for graph, _ in graphs.values():
        graph.replay()
    torch.cuda.synchronize()
    per = max(_replay(graph) for graph, _ in graphs.values())
    n = max(5, min(100, int(1e3 * budget_s / max(per, 1e-3))))
    for _, name in _rounds(n, list(graphs)):
        graph, calls = graphs[name]
        samples[name].append(_replay(graph) / calls)
    return {name: summarise(s) for name, s in samples.items()}, failed


def _replay(graph: Any) -> float:
    start, end = _event(), _event()
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def _capture(fn: Call, arguments: Arguments, calls: int) -> Any:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for a in arguments:
            fn(*a)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    held: deque[Any] = deque(maxlen=len(arguments))
    with torch.cuda.graph(graph):
        for i in range(calls):
            held.append(fn(*arguments[i % len(arguments)]))
    return graph


def host_us(fn: Call, arguments: Arguments, calls: int = 40) -> float:
    """Microseconds of host time per call: the best of five bursts issued without waiting for the GPU. Meaningful while a
    burst fits the launch queue; the kernels run behind it."""
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for i in range(calls):
            fn(*arguments[i % len(arguments)])
        best = min(best, time.perf_counter() - start)
    torch.cuda.synchronize()
    return 1e6 * best / calls
