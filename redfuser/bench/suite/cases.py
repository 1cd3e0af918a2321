"""Problems of a folder as cases of the bench, at the largest sizes that one GPU can hold beside float64 and other processes.

Those are found on the meta device; inputs and weights are drawn where they are needed, both of a seed."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from redfuser import numerics
from redfuser.bench.baselines import is_built
from redfuser.bench.suite.run import problems
from redfuser.bench.suite.shrink import shrunk
from workloads.case import Case, Inputs

LIMITS = (1 << 62, 1 << 20, 1 << 18, 1 << 16, 1 << 15, 1 << 14, 1 << 13, 1 << 12, 1 << 11, 1 << 10, 512, 256, 128, 64, 32)
"""Of the whole numbers at the top of a problem, as published first."""
BATCHES = (None, 512, 64, 8)
"""Of its numbers with "batch" in their names; these are made smaller first. Where nothing else runs, one alone."""
ELEMENTS, FLOPS = 1 << 28, 1 << 38
"""Of one tensor, or of all inputs and results; multiplications and additions of a call's products."""


def cases(folder: Path, only: str, among: Path | None = None) -> list[Case]:
    """A case for each problem that runs without us at some size. among: a folder of artifacts, none that it lacks."""
    found = [p for p in problems(folder, only) if among is None or is_built(among, p.parent.name, p.stem)]
    return [c for p in found if (c := case(p)) is not None]


def case(path: Path) -> Case | None:
    """The problem at the largest of ``LIMITS`` that is within ``ELEMENTS`` and ``FLOPS``. None where no size runs."""
    source = path.read_text(encoding="utf-8")
    for limit, batch in (*product(LIMITS, BATCHES), (LIMITS[0], 1)):
        text = source if limit == LIMITS[0] and batch is None else shrunk(source, limit, batch)
        try:
            found = _sized(path, text)
        except Exception:  # sizes that do not fit one another; of a problem's own code, anything
            continue
        if found is not None:
            params = {"limit": limit if limit != LIMITS[0] else 0, "batch": batch or 0}
            return Case(path.parent.name, path.stem, "f32", params, partial(_module, path, text), _inputs(path, text),
                        flops=found[1], bytes=found[0], sets=("suite",), source=path)
    return None


def _sized(path: Path, source: str) -> tuple[int, int] | None:
    """Bytes of parameters, inputs and results, and operations; None where those are too many."""
    try:
        with torch.device("meta"):
            model = _module(path, source)
    except RuntimeError:  # a constructor that reads numbers
        model = _module(path, source).to("meta")
    with torch.no_grad(), torch.device("meta"):
        args = _namespace(path, source)["get_inputs"]()
        with FlopCounterMode(display=False) as counter, _Largest() as seen:
            out = model(*args)
    tensors = (*model.parameters(), *numerics.tensors((args, out)))
    within = max(sum(t.numel() for t in tensors), seen.elements) <= ELEMENTS and counter.get_total_flops() <= FLOPS
    return (sum(t.nbytes for t in tensors), counter.get_total_flops()) if within else None


class _Largest(TorchDispatchMode):
    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.elements = max(self.elements, 0, *(t.numel() for t in numerics.tensors(out)))
        return out


def _namespace(path: Path, source: str) -> dict[str, Any]:
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module.__dict__


def _module(path: Path, source: str) -> torch.nn.Module:
    space = _namespace(path, source)
    torch.manual_seed(0)
    made: torch.nn.Module = space["Model"](*space["get_init_inputs"]())
    return made.eval()


def _inputs(path: Path, source: str) -> Callable[[str, int], Inputs]:
    def draw(device: str, seed: int) -> Inputs:
        space = _namespace(path, source)
        torch.manual_seed(seed)
        with torch.device(device):
            return tuple(space["get_inputs"]())

    return draw
