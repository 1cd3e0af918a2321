"""The process that measures: it loads candidates, holds each against the torch code, and times them in turns. It may die or
never come back; who asked (:mod:`redfuser.autotune.measure`) hears before every step what it is about to do.

    {"region": text, "candidates": {id: folder}, "first": id, "device": "cuda", "seconds": 0.1}
        --> {"begin": id} ... {"begin": "timing"} --> {"done": {"samples": ..., "wrong": ..., "why": ...}}

Needs torch and tvm-ffi, no compiler. A kernel that does not end, or faults, takes the device with it: the process says so and
ends.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch

from redfuser import finish, timing
from redfuser.artifact import ArgSpec, KernelSpec, load_kernel
from redfuser.autotune.judge import UNFUSED, finalists
from redfuser.autotune.records import Sample
from redfuser.child import private_stdout
from redfuser.runtime import patience, trial
from redfuser.runtime.check import TORCH_DTYPE, inputs_of
from redfuser.runtime.extents import extents
from redfuser.runtime.launcher import launcher
from redfuser.sizes import numbers

L2_BYTES = 64 << 20
MOST_SETS = 32
"""Sets of inputs, at most: with four, a tensor of 4 MB was read from the second cache, and its best kernel was another."""
SETS_BYTES = 8 << 30
"""Most memory that sets of inputs take."""
LONGER = 3.0
"""Finalists are measured so many times as long as the first round."""
LOST_STATUS = 86

Say = Callable[[Mapping[str, Any]], None]


class Ruined(Exception):
    """What a kernel did, after which this process can use the device no more."""


def measure(request: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """One kernel. Raises Hang for a candidate that does not end, Ruined for one that faults."""
    device = torch.device(request["device"])
    unfused = trial.function(request["region"])
    ready: dict[str, Callable[..., Any]] = {}
    wrong: dict[str, str] = {}
    spec: KernelSpec | None = None
    for name, folder in request["candidates"].items():
        say({"begin": name})
        try:
            spec = finish.kernel(load_kernel(folder))
            kernel = launcher(spec)
            kernel.prepare(device)
            found = trial.outcome(spec, kernel.tolerant, unfused, device)
        except patience.Hang:
            raise
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}"[:300]
            usable(device, wrong[name])
            continue
        if found.verdict == "not tried":
            return {"samples": {}, "wrong": wrong, "why": found.why}
        if found.verdict == "wrong":
            wrong[name] = found.why[:300]
            usable(device, wrong[name])
        else:
            ready[name] = kernel.call
    if not ready or spec is None:
        return {"samples": {}, "wrong": wrong, "why": "no candidate is right"}
    say({"begin": "timing"})
    inputs = draw(spec, unfused, device)
    with torch.no_grad():
        samples = timed(ready, lambda *args: unfused(device, *args), inputs, request["device"], request["seconds"],
                        request["first"])
    return {"samples": {n: asdict(s) for n, s in samples.items()}, "wrong": wrong, "why": ""}


def usable(device: torch.device, why: str) -> None:
    """Raises Ruined where the device answers this process no more."""
    try:
        torch.ones(1, device=device).item()
    except RuntimeError:
        raise Ruined(why) from None


def timed(kernels: Mapping[str, Callable[..., Any]], unfused: Callable[..., Any], inputs: list[tuple[Any, ...]], device: str,
          seconds: float, first: str) -> dict[str, Sample]:
    """Everyone in turns, then the best, the model's and the unfused region again, longer. seconds: per variant and method."""
    calls = {UNFUSED: unfused, **kernels}
    samples = _round(calls, inputs, device, seconds)
    last = finalists(samples, first)
    return samples | _round({n: calls[n] for n in last}, inputs, device, LONGER * seconds)


def _round(calls: Mapping[str, Callable[..., Any]], inputs: list[tuple[Any, ...]], device: str,
           seconds: float) -> dict[str, Sample]:
    events = timing.cold(calls, inputs, device, seconds)
    graphs, _ = timing.replayed(calls, inputs, seconds) if device.startswith("cuda") else ({}, {})
    gc.collect()
    return {name: Sample(graphs.get(name), events[name]) for name in calls}


def draw(spec: KernelSpec, unfused: Callable[..., Any], device: torch.device) -> list[tuple[torch.Tensor, ...]]:
    """Sets of random inputs, together larger than the second cache: floats are normal, conditions true in seven of ten, places
    below what they index."""
    args = inputs_of(spec)
    counts = extents(unfused, [(TORCH_DTYPE[a.dtype], _numbers(a)) for a in args])
    whole = sum(torch.Size(_numbers(a)).numel() * TORCH_DTYPE[a.dtype].itemsize for a in args) or 1
    sets = 1 + min(MOST_SETS - 1, 2 * L2_BYTES // whole, SETS_BYTES // whole) if device.type == "cuda" else 2
    found = []
    for seed in range(sets):
        g = torch.Generator(device).manual_seed(seed)
        found.append(tuple(_drawn(TORCH_DTYPE[a.dtype], _numbers(a), n, g, device) for a, n in zip(args, counts, strict=True)))
    return found


def _numbers(a: ArgSpec) -> tuple[int, ...]:
    return numbers(a.shape, {})


def _drawn(dtype: torch.dtype, shape: tuple[int, ...], count: int, g: torch.Generator, device: torch.device) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape, generator=g, device=device) < 0.7
    if not dtype.is_floating_point:
        return torch.randint(min(count, torch.iinfo(dtype).max), shape, generator=g, device=device).to(dtype)
    return torch.randn(shape, generator=g, device=device).to(dtype)


def main() -> int:
    channel = private_stdout()
    parent = os.getppid()

    def say(what: Mapping[str, Any]) -> None:
        channel.write(json.dumps(what) + "\n")

    say({"ready": True})
    for line in sys.stdin:
        if os.getppid() != parent:
            return 1
        try:
            say({"done": measure(json.loads(line), say)})
        except (patience.Hang, Ruined) as end:
            say({"lost": str(end)})
            channel.flush()
            os._exit(LOST_STATUS)  # an orderly end would wait for the device
        except Exception as error:  # out of memory while timing, say: the next kernel may fit
            say({"done": {"samples": {}, "wrong": {}, "why": f"{type(error).__name__}: {error}"[:300]}})
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
