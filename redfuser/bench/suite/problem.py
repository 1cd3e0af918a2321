"""One problem: loaded with sizes that this machine can afford, compiled, run, held to eager; its report held to what ran."""

from __future__ import annotations

import time
import types
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import redfuser
from redfuser import numerics
from redfuser.bench.suite.shrink import shrunk
from redfuser.errors import RedFuserError
from redfuser.partition.account import kind_of
from redfuser.report import Report

Row = dict[str, Any]
LIMITS = (16, 32, 64, 128, 256, 512, 1024, 1 << 62)
"""Tried one after another, smallest first; the largest that runs within what may be spent is taken. The last, the sizes as
published, only where nothing smaller runs."""
BATCH = 2
FLOPS = 1 << 30
ELEMENTS = 1 << 21
"""Of all inputs and results together."""
REDUCING = frozenset((
    "sum", "mean", "amax", "amin", "max", "min", "aminmax", "argmax", "argmin", "prod", "var", "std", "var_mean", "std_mean",
    "norm", "any", "all", "logsumexp", "topk", "sort", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"))
"""Reductions of torch that are no cascade by their name; those are :func:`redfuser.partition.account.kind_of`'s."""
GIVEN = ("native_batch_norm", "native_batch_norm_legit_no_training", "cudnn_batch_norm")
"""Of a model in evaluation mode, maps: the statistics are given."""


@dataclass(frozen=True)
class Loaded:
    """``limit``: of the numbers at the top of its source."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    limit: int
    flops: int


def load(path: Path) -> Loaded:
    """The problem in evaluation mode with drawn weights and inputs, both of seed 0. Raises what its own code raises where it
    runs at no size."""
    source = path.read_text(encoding="utf-8")
    failures: list[Exception] = []
    for batch in (BATCH, None):  # one that is as long as another axis is a number like any other
        found = None
        for limit in LIMITS:
            if found is not None and limit == LIMITS[-1]:
                break
            try:
                candidate, elements = _build(path, shrunk(source, limit, batch), limit)
            except ImportError:
                raise
            except Exception as error:  # sizes that do not fit one another; a larger limit may
                failures.append(error)
                continue
            if found is not None and (candidate.flops > FLOPS or elements > ELEMENTS):
                break
            found = candidate
        if found is not None:
            return found
    raise failures[0]


def _build(path: Path, source: str, limit: int) -> tuple[Loaded, int]:
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(source, str(path), "exec"), module.__dict__)
    torch.manual_seed(0)
    model = module.Model(*module.get_init_inputs()).eval()
    torch.manual_seed(0)
    args = tuple(module.get_inputs())
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        out = model(*args)
    return Loaded(model, args, limit, counter.get_total_flops()), sum(t.numel() for t in numerics.tensors((args, out)))


def one(path: Path, target: str, planned: str) -> Row:
    """The row of a problem. ``status``: ``ok`` (compiled and right), ``wrong``, ``refused`` (a coded error), ``failed`` (any
    other exception of ours), ``broken`` (the problem does not run without us). planned: another target, planned for only."""
    began = time.perf_counter()
    row: Row = {"problem": path.stem, "level": path.parent.name, "target": target}
    try:
        problem = load(path)
    except Exception as error:
        return {**row, "status": "broken", "why": _words(error)}
    row |= {"limit": problem.limit, "flops": problem.flops, "inputs": [_shape(a) for a in problem.args],
            "loading": _since(began)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {**row, **_compiled(problem, target), planned: _planned(problem, planned)}


def _compiled(problem: Loaded, target: str) -> Row:
    began = time.perf_counter()
    try:
        compiled = redfuser.compile(problem.model, problem.args, target=target)
    except Exception as error:
        return _raised(error)
    row = {"seconds": _since(began), **said(compiled.report)}
    try:
        checks = numerics.check(compiled, problem.model, problem.args)
        with torch.no_grad():
            ours, eager = (Ran.of(f, problem.args) for f in (compiled, problem.model))
    except Exception as error:
        return {**row, **_raised(error)}
    worst = max(checks, key=lambda c: c.ratio)
    right = all(c.passed for c in checks)
    return {**row, "status": "ok" if right else "wrong", "why": "" if right else str(worst), "ratio": round(worst.ratio, 3),
            "error": worst.ours.maximum, "eager error": worst.unfused.maximum,
            "ran": ours.reducing(), "eager": eager.reducing(),
            "untrue": list(contradictions(compiled.report, ours, eager, len(set(compiled.kernels))))}


def _planned(problem: Loaded, target: str) -> Row:
    began = time.perf_counter()
    try:
        report = redfuser.explain(problem.model, problem.args, target=target)
    except Exception as error:
        return _raised(error)
    return {"status": "ok", "seconds": _since(began), **said(report)}


def said(report: Report) -> Row:
    """What a report says, in a row."""
    kept = [(c.name, c.reason) for c in report.refused if c.reason]
    return {"found": len(report.cascades), "fused": len(report.fused), "maps": len(report.maps),
            "kept": [f"{name} {reason.code} {(reason.why or reason.condition)[:200]}" for name, reason in kept],
            "opaque": {o.op: sum(x.count for x in report.opaque if x.op == o.op) for o in report.opaque},
            "notes": sorted({f"{n.code} {n.text[:200]}".strip() for n in report.notes}),
            "stages": {k: round(v, 2) for k, v in report.timings.items()}}


class Ran(TorchDispatchMode):
    """Counts what torch runs, and the kernels that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))

    @classmethod
    def of(cls, call: Any, args: tuple[Any, ...]) -> Ran:
        with cls() as mode:
            call(*args)
        return mode

    @property
    def kernels(self) -> set[str]:
        return {name for name in self.seen if name.startswith("redfuser")}

    def reducing(self) -> dict[str, int]:
        """Calls of operators that reduce, products aside."""
        found: Counter[str] = Counter()
        for name, n in self.seen.items():
            stem = name.split(".")[1].strip("_") if name.startswith("aten.") else ""
            if stem in REDUCING or (stem and stem not in GIVEN and kind_of(name)):
                found[stem] += n
        return dict(sorted(found.items()))


def contradictions(report: Report, ours: Ran, eager: Ran, kernels: int) -> Iterator[str]:
    """Where the report says what did not happen, or is silent about what did."""
    left, told = ours.reducing(), Counter(s.kind for s in report.steps)
    if len(ours.kernels) != kernels:
        yield f"{kernels} kernels, {len(ours.kernels)} of them called"
    if (report.fused or report.maps) and not ours.kernels:
        yield f"{len(report.fused)} cascades fused, no kernel called"
    whole = {op: n for op, n in left.items() if kind_of(f"aten.{op}.default")}
    if whole and not report.refused:
        yield f"torch ran {_counts(whole)}, and no cascade is said to be unfused"
    if left and not (told["torch"] or told["opaque"]):
        yield f"torch ran {_counts(left)}, and every operation is said to be in a kernel"
    if eager.reducing() and not (left or report.cascades or report.maps):
        yield f"eager runs {_counts(eager.reducing())}, which is in no cascade and was not run"


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{n} {op}" for op, n in found.items())


def _raised(error: Exception) -> Row:
    if isinstance(error, RedFuserError):
        return {"status": "refused", "code": error.code, "why": error.render()[:600]}
    return {"status": "failed", "code": "", "why": _words(error)}


def _words(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:600]


def _shape(a: Any) -> str:
    return f"{str(a.dtype).removeprefix('torch.')}{list(a.shape)}" if isinstance(a, torch.Tensor) else repr(a)


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 2)
