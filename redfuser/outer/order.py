"""Which bindings and fused regions the outer graph runs, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from redfuser.errors import InternalError
from redfuser.tvm_compat import variables


@dataclass(frozen=True, slots=True)
class Step:
    """One step: a binding of main (``var`` = ``expr``), or the call of region number ``region``."""

    defines: tuple[str, ...]
    reads: tuple[str, ...]
    expr: Any = None
    region: int = -1


def schedule(bindings: Sequence[Any], regions: Sequence[Any], outputs: Iterable[str]) -> list[Step]:
    """Live steps in a topological order that stays as close to main's own as the regions allow.

    A region runs where the first of its results is needed. Raises InternalError (RF470) when a region cannot run at any one
    place: something outside it lies on a path between two of its bindings."""
    steps: list[Step] = []
    makes: dict[str, int] = {}
    for i, region in enumerate(regions):
        step = Step(tuple(region.outputs.values()), tuple(dict.fromkeys(region.inputs.values())), region=i)
        makes.update({v: len(steps) for v in step.defines})
        steps.append(step)
    for b in bindings:
        name = b.var.name_hint
        if name not in makes:
            makes[name] = len(steps)
            steps.append(Step((name,), tuple(dict.fromkeys(variables(b.value))), b.value))
    position = {b.var.name_hint: i for i, b in enumerate(bindings)}
    done: dict[int, bool] = {}
    ordered: list[Step] = []
    for output in outputs:
        if output not in makes:
            continue
        stack = [(makes[output], False)]
        while stack:
            at, leaving = stack.pop()
            if leaving:
                done[at] = True
                ordered.append(steps[at])
                continue
            if at in done:
                if not done[at]:
                    raise InternalError("RF470", f"the region {_title(steps[at], regions)} depends on its own result",
                                        why="something outside it lies between two of its operations")
                continue
            done[at] = False
            stack.append((at, True))
            needs = [makes[r] for r in steps[at].reads if r in makes]
            for need in sorted(set(needs), key=lambda n: -max(position.get(d, -1) for d in steps[n].defines)):
                if not done.get(need, False):
                    stack.append((need, False))
    return _close_to(ordered, position)


def _title(step: Step, regions: Sequence[Any]) -> str:
    return str(getattr(regions[step.region], "name", step.defines[0])) if step.region >= 0 else step.defines[0]


def _close_to(steps: list[Step], position: dict[str, int]) -> list[Step]:
    """The same steps, each as early as main's order puts it among those that are ready."""
    import heapq

    makes = {d: i for i, s in enumerate(steps) for d in s.defines}
    waits = [len({makes[r] for r in s.reads if r in makes}) for s in steps]
    readers: list[list[int]] = [[] for _ in steps]
    for i, s in enumerate(steps):
        for m in {makes[r] for r in s.reads if r in makes}:
            readers[m].append(i)
    rank = [min((position.get(d, -1) for d in s.defines), default=-1) for s in steps]
    ready = [(rank[i], i) for i, n in enumerate(waits) if n == 0]
    heapq.heapify(ready)
    out: list[Step] = []
    while ready:
        _, i = heapq.heappop(ready)
        out.append(steps[i])
        for r in readers[i]:
            waits[r] -= 1
            if waits[r] == 0:
                heapq.heappush(ready, (rank[r], r))
    return out
