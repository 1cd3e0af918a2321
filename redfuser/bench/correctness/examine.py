"""One program held against eager torch and float64 on every draw: on the same machine, from the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from redfuser import numerics, perturbed
from redfuser.bench.correctness.judge import HIDDEN, Verdict, judge, words
from redfuser.errors import RedFuserError
from redfuser.unseen import unseen
from workloads.correctness import Program, draw, draws

SEEDS = 18
"""Draws of one kind that a verdict outside the numerics rule is made on. Over nine the largest of few results can be luck: a
cosine whose RMS error is .87 of eager's was outside by 2 %."""


def examine(program: Program, ours: Callable[..., Any], device: str, only: Sequence[str] = ()) -> dict[str, Any]:
    """``ours`` on every draw (or those in ``only``): how many, what is bad, the worst ratio, exceptions by name."""
    bad: list[dict[str, Any]] = []
    exceptions: dict[str, int] = {}
    worst, count = 0.0, 0
    names = [d for d in draws(program) if not only or d in only]
    for what in names:
        args = tuple(t.to(device) for t in draw(program, what))
        count += 1
        try:
            with torch.no_grad():
                result = ours(*args)
            if device != "cpu":
                torch.cuda.synchronize()
        except Exception as e:
            bad.append({"draw": what, "output": 0, "why": f"{type(e).__name__}: {str(e)[:300]}"})
            if not isinstance(e, RedFuserError) and device != "cpu":
                return {"draws": count, "bad": bad, "ratio": worst, "exceptions": exceptions, "poisoned": True}
            continue
        with torch.no_grad():
            found = [_again(program, ours, what, v, device) for v in _judged(program, result, args)]
        for v in found:
            if v.why:
                bad.append({"draw": what, "output": v.output, "why": v.why})
            else:
                worst = max(worst, v.ratio) if v.ratio != float("inf") else worst
            for name, n in v.exceptions.items():
                exceptions[name] = exceptions.get(name, 0) + n
    return {"draws": count, "bad": bad, "ratio": worst, "exceptions": exceptions}


def _again(program: Program, ours: Callable[..., Any], what: str, verdict: Verdict, device: str) -> Verdict:
    """A verdict outside the numerics rule, held to it on further draws as well; any other as it is."""
    if not verdict.why or verdict.check is None:
        return verdict
    checks = [verdict.check]
    for seed in range(1, SEEDS):
        args = tuple(t.to(device) for t in draw(program, what, seed))
        other = next(v for v in _judged(program, ours(*args), args) if v.output == verdict.output)
        if other.check is None:
            return other if other.why else verdict
        checks.append(other.check)
    whole = numerics.pooled(checks)
    why = "" if whole.passed else f"{words(verdict.check)}; over {SEEDS} draws, in units of storing: {words(whole)}"
    return Verdict(verdict.output, why, whole.ratio, verdict.exceptions, whole)


def _judged(program: Program, result: Any, args: tuple[torch.Tensor, ...]) -> list[Verdict]:
    """Against eager as torch runs it; where that is attention by a library kernel, also against torch's own composition of
    it (rows that see nothing differ between torch's backends), and against torch on the CPU (an infinity in a row makes all of
    an RMS norm NaN on a GPU, and on a CPU what the formula says): right by one is right. What a mask hides may be as if it
    were not there, element by element (:mod:`redfuser.unseen`)."""
    truth = numerics.reference(program.fn, args)
    eager = program.fn(*args)
    found = judge(result, eager, truth, args, program.ranked, lambda: perturbed.moved(program.fn, args, few=True))
    if not any(v.why for v in found):
        return found
    with sdpa_kernel(SDPBackend.MATH):
        composed = program.fn(*args)
    found = _either(found, judge(result, composed, truth, args, program.ranked))
    if any(v.why for v in found) and any(t.is_cuda for t in args):
        there = tuple(t.cpu() for t in args)
        ours = tree_map(lambda t: t.cpu() if isinstance(t, torch.Tensor) else t, result)
        found = _either(found, judge(ours, program.fn(*there), numerics.reference(program.fn, there), there, program.ranked,
                                     lambda: perturbed.moved(program.fn, there, few=True)))
    hidden = _hidden(program, args) if any(v.why for v in found) else []
    for other in (eager, composed) if hidden else ():
        changed, exact, spared = _spared(result, other, truth, hidden)
        again = judge(result, changed, exact, args, program.ranked)
        found = _either(found, [replace(v, exceptions={**v.exceptions, HIDDEN: n}) if n else v for v, n in zip(again, spared)])
    return found


def _either(found: list[Verdict], again: list[Verdict]) -> list[Verdict]:
    return [a if v.why and not a.why else v for v, a in zip(found, again)] if len(found) == len(again) else found


@dataclass(frozen=True)
class Hidden:
    """Per result: where it sees nothing of one input's NaN and infinities, and eager's and the exact results without them."""

    where: list[torch.Tensor]
    eager: list[torch.Tensor]
    exact: list[torch.Tensor]


def _hidden(program: Program, args: tuple[torch.Tensor, ...]) -> list[Hidden]:
    def without(i: int, number: float, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        return tuple(torch.where(a.isfinite(), a.to(dtype), number) if k == i else a for k, a in enumerate(args))

    def exact(i: int, number: float) -> list[Any]:
        results = numerics.tensors(numerics.reference(program.fn, without(i, number, torch.float64)))
        return [r.double().cpu().numpy() if r.is_floating_point() else r.cpu().numpy() for r in results]

    odd = [i for i, a in enumerate(args) if a.dtype in numerics.PROMOTED and not bool(a.isfinite().all())]
    return [Hidden([torch.from_numpy(np.asarray(w)) for w in where],
                   numerics.tensors(program.fn(*without(i, 0.0, args[i].dtype))),
                   [torch.from_numpy(np.asarray(r)) for r in results]) for i, where, results in unseen(exact, odd)]


def _spared(result: Any, eager: Any, truth: Any,
            hidden: list[Hidden]) -> tuple[list[torch.Tensor], list[torch.Tensor], list[int]]:
    """Eager and exact results, where ours is finite and hidden from an input's NaN and infinities as they are without
    them; and of how many elements per result that excuses eager's NaN or infinity."""
    ours, theirs, exact = (numerics.tensors(t) for t in (result, eager, truth))
    counts = []
    for n, x in enumerate(ours):
        y = theirs[n]
        for h in hidden if x.is_floating_point() else ():
            here = h.where[n].to(x.device) & x.double().isfinite()
            theirs[n] = torch.where(here, h.eager[n], theirs[n])
            exact[n] = torch.where(here.to(exact[n].device), h.exact[n].to(exact[n]), exact[n])
        counts.append(int((y.double().isfinite() != theirs[n].double().isfinite()).sum()) if x.is_floating_point() else 0)
    return theirs, exact, counts
