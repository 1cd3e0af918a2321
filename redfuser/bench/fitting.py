"""How the coefficients of registers come about: each kind of kernel's, fitted to what ptxas gave, and as a check to all but one
family after the other, which is then predicted from the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from redfuser.bench.model import KINDS, rows, said
from redfuser.target import target
from redfuser.tensorize.ir.parse import parse
from redfuser.tensorize.model.registers import FITTED, LEAST, fixed, kind, most, traits

NEAR = 0.2
"""What counts as near."""
ROUNDS, EVEN = 12, 0.08
"""Rounds of weighing errors anew, those that are less than this alike: as many as may be near, not as near as may be."""


@dataclass(frozen=True, slots=True)
class Said:
    """A kernel whose registers are known. family: what is left out together."""

    family: str
    kind: str
    traits: dict[str, float]
    registers: int
    most: int


def known(kernels: Path, candidates: Sequence[Path], arch: str) -> Iterator[Said]:
    """The kernels of a folder or file (:func:`redfuser.bench.model.said`) and those of candidates, each once; without such as
    are launched with a fixed number. A candidate's may be known of its first kernel alone."""
    at, seen = target(arch), set()
    built = [(r["name"], f"tile program said\n{r['tiles']}", [r["registers"]]) for r in said(kernels, arch)]
    built = [(re.split(r"[/_ -]", name)[0], text, used) for name, text, used in built]
    timed = [(r["name"], r["tiles"], r["registers"]) for path in candidates for r in rows(path)]
    for family, text, registers in (*built, *timed):
        for k, used in zip(parse(text).kernels, registers, strict=False):
            if str(k) not in seen and not fixed(k, at):
                seen.add(str(k))
                yield Said(family, kind(k, at), traits(k, at), used, most(k, at))


def fitted(some: Sequence[Said], names: Sequence[str]) -> dict[str, float]:
    """Coefficients, none below 0, by relative error. More than a thread can have is as good as that."""
    x = np.array([[s.traits[n] / s.registers for n in names] for s in some])
    x, scale = x / (scale := np.abs(x).max(0) + 1e-9), scale
    at_most = np.array([s.registers >= s.most for s in some])
    found, weights = np.zeros(len(names)), np.ones(len(some))
    for _ in range(ROUNDS):
        used = weights * ~(at_most & (x @ found >= 1))
        squares, sums = (x * used[:, None] ** 2).T @ x + 1e-6 * np.eye(len(names)), x.T @ used ** 2
        for i in list(range(len(names))) * 25:
            found[i] = max(0.0, found[i] + (sums[i] - squares[i] @ found) / squares[i, i])
        weights = np.maximum(np.abs(x @ found - 1), EVEN) ** -0.5
    return {n: float(v) for n, v in zip(names, found / scale, strict=True)}


def near(some: Sequence[Said], coefficients: dict[str, float]) -> int:
    """Of how many the estimate is near."""
    wanted = ((sum(v * s.traits[n] for n, v in coefficients.items()), s) for s in some)
    return sum(abs(max(LEAST, min(s.most, round(w))) / s.registers - 1) <= NEAR for w, s in wanted)


def table(found: Sequence[Said]) -> tuple[list[str], list[list[str]]]:
    """A line for each kind: kernels near with the coefficients in use, with those fitted to all, and each family with those
    fitted to the others."""
    lines = []
    for name, used in FITTED.items():
        some, names = [s for s in found if s.kind == name], sorted(used)
        if not some:
            continue
        alone = 0
        for family in {s.family for s in some}:
            rest = [s for s in some if s.family != family]
            alone += near([s for s in some if s.family == family], fitted(rest, names)) if rest else 0
        best = fitted(some, names)
        lines.append([KINDS[name], str(len(some)), str(near(some, used)), str(near(some, best)), str(alone),
                      ", ".join(f"{n} {v:.2f}" for n, v in best.items())])
    return ["kernels", "count", "near now", "fitted", "held out", "coefficients, fitted"], lines
