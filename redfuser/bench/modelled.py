"""What the model of resources expects of workloads on parts that nobody has here: planned for the part's architecture, timed by
the same model that configurations are chosen by. Nothing is built or run, and every figure is marked as modelled."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from redfuser.bench.roof import Roof
from redfuser.errors import RedFuserError
from redfuser.target import PARTS
from redfuser.tensorize.ir.parse import parse
from redfuser.tensorize.model import time_of
from workloads.case import Case

MARK = "modelled"


@dataclass(frozen=True, slots=True)
class Expected:
    """A case on a part: modelled ms of its kernels in one call (None where some of it has none), what bounds the longest of
    them, and the floor of the part's data sheet, in ms. why: why there is no time, a code or a word first. A time below the
    floor is none: the model has left something out."""

    case: str
    part: str
    ms: float | None
    limit: str
    floor_ms: float
    kernels: int = 0
    why: str = ""

    def json(self) -> str:
        return json.dumps({"case": self.case, "part": self.part, "kind": MARK, "ms": self.ms, "limit": self.limit,
                           "floor_ms": self.floor_ms, "kernels": self.kernels, "why": self.why}, sort_keys=True)


def expect(cases: Sequence[Case], parts: Sequence[str], tell: Callable[[str], None]) -> Iterator[Expected]:
    """Every case on every part; a case is planned once for each architecture."""
    archs = list(dict.fromkeys(PARTS[p].arch for p in parts))
    for case in cases:
        module, given = case.build(), _like(case)
        for arch in archs:
            tell(f"{case} for {arch}")
            tiles, why = _planned(case, module, given, arch)
            yield from (_on(case, part, tiles, why) for part in parts if PARTS[part].arch == arch)


def _like(case: Case) -> tuple[Any, ...]:
    """Tensors of the inputs' shapes in memory that nobody writes: a plan reads no values, and some inputs have gigabytes."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._pytree import tree_map

    def alike(t: Any) -> Any:
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) if isinstance(t, torch.Tensor) else t

    with FakeTensorMode():
        shapes = case.inputs("cpu", 0)
    return tuple(tree_map(alike, shapes))


def _planned(case: Case, module: Any, given: tuple[Any, ...], arch: str) -> tuple[list[str], str]:
    """The tile programs of a case's regions; none, and why, where something of it stays with torch."""
    from redfuser import pipeline

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done = pipeline.run(module, given, arch=arch, build=False, verify="0", name=str(case))
    except RedFuserError as error:
        return [], f"{error.code} {error.what}"
    if left := [c.reason for c in done.report.refused if c.reason]:
        return [], f"{left[0].code} {left[0].why or left[0].condition}"
    kept = [s.op for s in done.report.steps if s.kind not in ("fused", "map")]
    if kept:
        return [], f"torch: {len(kept)} operations stay with it: {', '.join(dict.fromkeys(kept))}"
    made = [done.produced[r.name] for r in done.partition.parts]
    return [m.stages["tiles"] for m in made if m.reason is None], ""


def _on(case: Case, part: str, tiles: Sequence[str], why: str) -> Expected:
    at = PARTS[part]
    floor = Roof(at.bandwidth, at.rates, "data sheet").floor_ms(case.flops, case.bytes, case.dtype)
    times = [time_of(k, at) for text in tiles for k in parse(text).kernels]
    found = [t for t in times if t is not None]
    if why or not times or len(found) < len(times):
        return Expected(str(case), part, None, "", floor, len(times), why or "unfit: a kernel has no room")
    longest, ms = max(found, key=lambda t: t.total), 1e3 * sum(t.total for t in found)
    if ms < floor:
        return Expected(str(case), part, None, "", floor, len(found), f"impossible: {ms:.4f} ms is less than the floor")
    return Expected(str(case), part, ms, longest.limit, floor, len(found))


def table(found: Sequence[Expected], parts: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Cases by parts: milliseconds, modelled, with what bounds them and the share of the floor."""
    by = {(e.case, e.part): e for e in found}
    cases = dict.fromkeys(e.case for e in found)
    return [f"ms, {MARK}", *parts], [[case, *(_cell(by.get((case, p))) for p in parts)] for case in cases]


def _cell(e: Expected | None) -> str:
    if e is None:
        return ""
    return e.why.split()[0].rstrip(":") if e.ms is None else f"{e.ms:.4f} ({e.limit}, {e.floor_ms / e.ms:.0%})"
