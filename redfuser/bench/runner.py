"""Measure cases: every variant of a case checked against float64, then timed interleaved with the others."""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from redfuser import numerics, timing
from redfuser.bench import launches, provenance, rows
from redfuser.bench.baselines import BASELINES, Missing, Variant, artifact_path, handwritten_folder
from redfuser.bench.roof import roof
from redfuser.bench.thin import thin_path
from redfuser.errors import ArtifactError, RedFuserError
from redfuser.runtime.patience import Hang, ended, settle
from workloads.case import Case, Inputs

L2_BYTES = 64 << 20
MOST_SETS = 32
"""Sets of inputs that a graph rotates over, at most: what is larger than the second cache in all is read from memory."""
NOISY = 0.1
HOST_MS = 20.0
"""Milliseconds of the GPU's time in one burst of calls whose host time is taken."""


class Lost(Exception):
    """The device is not to be had by this process any more."""


@dataclass(frozen=True)
class Options:
    """What to run: variants by name (``redfuser`` is ours), the device, pre-built artifacts, seconds per variant and
    method, and the groups (case and variant, whatever the configuration) that were measured already."""

    variants: tuple[str, ...]
    device: str = "cpu"
    artifacts: Path | None = None
    budget_s: float = 0.3
    done: frozenset[str] = frozenset()


@dataclass
class Loaded:
    """A variant ready to be timed, with what its check said."""

    call: Variant
    first_call_s: float
    checks: list[numerics.Check]
    launched: launches.Launches | None
    peak_bytes: int | None


Turn = Callable[[], AbstractContextManager[Any]]


def run(cases: Sequence[Case], options: Options, progress: Callable[[str], None] = lambda text: None,
        turn: Turn = nullcontext) -> Iterator[list[rows.Row]]:
    """The rows of one case at a time. A case all of whose rows exist already yields nothing. Raises ArtifactError RF808 behind
    the rows of a case that has lost the device (a kernel that does not end, or that reads where it must not), which say
    ``lost``. ``turn``: entered while times are taken."""
    machine = provenance.machine(options.device)
    for i, case in enumerate(cases, 1):
        progress(f"[{i}/{len(cases)}] {case}")
        key, base = _facts(case, options, machine)
        if options.done and all(key(v) in options.done for v in options.variants):
            continue
        measured: list[rows.Row] = []
        held = ""
        try:
            with torch.no_grad():
                for row in _case(case, options, progress, turn):
                    measured.append(row)
        except Lost as lost:
            held = f"{case}: {lost}"
            seen = {r["variant"] for r in measured}
            measured += [_without(v, "lost", f"the device was lost: {lost}") for v in options.variants if v not in seen]
        yield _named(measured, key, base | _floor(case, options.device))
        if held:
            raise ArtifactError("RF808", held, why="nothing else can be measured by this process",
                                help="run the same command again: it goes on behind this case")
        gc.collect()
        if options.device.startswith("cuda"):
            torch.cuda.empty_cache()


def failed(case: Case, options: Options, why: str) -> list[list[rows.Row]]:
    """The rows of a case that could not be measured at all."""
    key, base = _facts(case, options, provenance.machine(options.device))
    return [_named([_without(v, "failed", why) for v in options.variants], key, base | _floor(case, options.device))]


def _facts(case: Case, options: Options, machine: dict[str, Any]) -> tuple[Callable[[str], str], dict[str, Any]]:
    """The key of a variant's row, and what all rows of a case say."""
    built = _fingerprint(case, options.artifacts)

    def key(variant: str) -> str:
        return rows.key(str(case), variant, dict(case.params), machine, built)

    return key, {
        "schema": rows.SCHEMA, "case": str(case), "params": dict(case.params), "dtype": case.dtype, "flops": case.flops,
        "bytes": case.bytes, "machine": machine, "artifact": built, "note": case.note,
        "reference": f"float64, {case.sample_note or 'all'}"}


def _floor(case: Case, device: str) -> dict[str, Any]:
    limit = roof(device)
    return {"floor_ms": limit.floor_ms(case.flops, case.bytes, case.dtype) if limit else None,
            "roof": limit.source if limit else None}


def _named(measured: Sequence[rows.Row], key: Callable[[str], str], base: dict[str, Any]) -> list[rows.Row]:
    return [{**base, "key": key(r["variant"]), "group": key(r["variant"].split(":")[0]), **r} for r in measured]


def _case(case: Case, options: Options, progress: Callable[[str], None], turn: Turn) -> Iterator[rows.Row]:
    on_gpu = options.device.startswith("cuda")
    sets = 1 + min(MOST_SETS - 1, 2 * L2_BYTES // max(case.bytes, 1)) if on_gpu else 2
    inputs = [case.inputs(options.device, seed) for seed in range(sets)]
    try:
        unfused, truth, chosen = _truth(case, inputs[0], options.device)
    except RuntimeError as e:
        yield from (_without(name, "failed", f"the reference: {_line(e)}") for name in options.variants)
        return
    ready: dict[str, Loaded] = {}
    for name in options.variants:
        try:
            made = BASELINES[name](case, options.device, options.artifacts)
        except Missing as e:
            yield _without(name, "missing", str(e))
            continue
        except (RedFuserError, RuntimeError, ImportError, ValueError, TypeError) as e:
            yield _without(name, "failed", _line(e))
            continue
        for variant, call in (made if isinstance(made, Mapping) else {name: made}).items():
            progress(f"    {variant}")
            try:
                ready[variant] = _check(case, call, inputs[0], (unfused, truth, chosen), options.device)
            except Hang as e:
                yield _without(variant, "lost", _line(e))
                raise Lost(f"{variant}: {e}") from e
            except Exception as e:  # a baseline that crashes is a row, whatever it raises
                lost = _lost(options.device)
                yield _without(variant, "lost" if lost else "failed", _line(e))
                if lost:
                    raise Lost(f"{variant}: {lost}") from e
    del truth, unfused, chosen
    if not ready:
        return
    calls = {name: r.call for name, r in ready.items()}
    try:
        with turn():
            progress("    timing")
            floor = _floor(case, options.device)["floor_ms"]  # if it has to be measured, now that nothing else runs
            before = provenance.state() if on_gpu else {}
            events = timing.cold(calls, inputs, options.device, options.budget_s)
            graphs, uncaptured = timing.replayed(calls, inputs, options.budget_s) if on_gpu else ({}, {})
            warm = timing.replayed({n: calls[n] for n in graphs}, inputs[:1], options.budget_s)[0] if graphs else {}
            host = {name: timing.host_us(call, inputs, max(4, min(40, int(HOST_MS / events[name].p50))))
                    for name, call in calls.items()} if on_gpu else {}
            after = provenance.state() if on_gpu else {}
    except RuntimeError as e:  # out of memory once all variants are loaded, or a kernel that fails on other inputs
        lost = _lost(options.device)
        yield from (_without(name, "lost" if lost else "failed", f"while timing: {_line(e)}") for name in ready)
        if lost:
            raise Lost(lost) from e
        return
    for name, r in ready.items():
        worst = max(r.checks, key=lambda c: c.ratio)
        row: rows.Row = {
            "variant": name, "status": "ok", "why": "", "passed": all(c.passed for c in r.checks),
            "events": asdict(events[name]),
            "graph": asdict(graphs[name]) if name in graphs else None, "graph_why": uncaptured.get(name, ""),
            "warm": asdict(warm[name]) if name in warm else None, "peak_bytes": r.peak_bytes, "graph_inputs": sets,
            "host_us": host.get(name), "launches": asdict(r.launched) if r.launched else None,
            "first_call_s": round(r.first_call_s, 3),
            "error": {"ratio": worst.ratio, "max": worst.ours.maximum, "rms": worst.ours.rms,
                      "unfused_max": worst.unfused.maximum, "unfused_rms": worst.unfused.rms,
                      "misplaced": worst.ours.misplaced},
            "state": {"before": before, "after": after}, "time": provenance.now(),
            "method": f"interleaved; events with {timing.FLUSH_BYTES >> 20} MiB flush; graph over {sets} input sets; "
                      "warm: graph over one" if on_gpu
            else "interleaved; wall clock",
        }
        row["flags"] = _flags(row)
        yield _below_the_roof(row, floor)


def _lost(device: str) -> str:
    """What the device says now, where an error of a kernel has taken it from this process for good; else nothing."""
    try:
        if device.startswith("cuda"):
            torch.cuda.synchronize()
    except RuntimeError as e:
        return _line(e)
    return ""


def _truth(case: Case, args: Inputs, device: str) -> tuple[Any, Any, Any]:
    """Of the case's sample: the unfused low-precision result, float64 from the same inputs, what places were chosen from."""
    return numerics.references((case.sample_build or case.build)().to(device), case.sample(args))


def _check(case: Case, call: Variant, args: Inputs, known: tuple[Any, Any, Any], device: str) -> Loaded:
    on_gpu = device.startswith("cuda")
    settle(torch.device(device))
    start = time.perf_counter()
    out = call(*args)
    ended(torch.device(device))
    first = time.perf_counter() - start
    unfused, truth, chosen = known
    checks = numerics.compare_all(case.pick(out), unfused, truth, chosen=chosen)
    del out
    return Loaded(call, first, checks, launches.count(call, args) if on_gpu else None, _peak(call, args) if on_gpu else None)


def _peak(call: Variant, args: Inputs) -> int:
    """Bytes of device memory that a call takes at most beside its inputs, its results among them."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call(*args)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _below_the_roof(row: rows.Row, floor: float | None) -> rows.Row:
    """A time that no memory and no unit allows is an error of measurement, or of the count of bytes: its row says so."""
    time_ms = rows.best_ms(row)
    if not floor or not time_ms or time_ms >= floor:
        return row
    return {**row, "status": "error", "why": f"above the roof: {time_ms:.4f} ms where {floor:.4f} are needed "
                                             f"({100 * floor / time_ms:.0f} %)"}


def _flags(row: rows.Row) -> list[str]:
    flags = []
    noisy = [k for k in ("events", "graph") if row[k] and (row[k]["p80"] - row[k]["p20"]) > NOISY * row[k]["p50"]]
    if noisy:
        flags.append(f"spread above {NOISY:.0%} in {', '.join(noisy)}")
    if not row["passed"]:
        e = row["error"]
        flags.append(f"outside the numerics rule: max {e['max']:.3g} against {e['unfused_max']:.3g} unfused, "
                     f"rms {e['rms']:.3g} against {e['unfused_rms']:.3g}")
    return flags


def _without(variant: str, status: str, why: str) -> rows.Row:
    return {"variant": variant, "status": status, "why": why, "passed": None, "events": None, "graph": None, "error": None,
            "flags": [], "time": provenance.now()}


def _line(e: Exception) -> str:
    text = str(e).strip().splitlines()
    return f"{type(e).__name__}: {text[0][:200] if text else ''}"


def _fingerprint(case: Case, artifacts: Path | None) -> str:
    """A hash of the built files this case is measured from; empty when it is compiled in place."""
    if artifacts is None:
        return ""
    digest = hashlib.sha256()
    path = artifact_path(artifacts, case)
    for root in (path, thin_path(path), handwritten_folder(artifacts, case)):
        for path in sorted([root, *root.rglob("*")]) if root.exists() else []:
            if path.is_file():
                digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]
