"""Is an error that no check found an error? It is none where nothing that can occur shows it.

Many more inputs than a check has time for, drawn from another seed and for one tensor at a time, go through the kernel with the
error and without it. Neither float64 nor the program's own types may tell the two apart, as far as the program's results are
defined at all (:mod:`redfuser.chain.judge` decides that, as it does for every kernel)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from redfuser.acrf.expr import FLOATS
from redfuser.chain import judge
from redfuser.chain.draws import Draw, draws, facts
from redfuser.chain.judge import Want
from redfuser.chain.samples import case, steps_moved
from redfuser.chain.tiles import _typed, arguments
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.nodes import TileProgram
from tests.chain.planted import Mutant, mutants
from tests.chain.twins import Twin

SEED = 11
ALONE = ("small", "decades", "offset", "zeros", "large")
"""Kinds of inputs that a check draws for all tensors together, here for one of them at a time."""


@dataclass
class Table:
    """What became of one kernel's planted errors; refused: why the kernel itself is none."""

    kernel: str
    refused: str = ""
    planted: int = 0
    caught: int = 0
    equivalent: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)


class Kernel:
    """Both twins of a kernel."""

    def __init__(self, name: str, twins: tuple[Twin, Twin]) -> None:
        self.name, self.twins = name, twins
        self._wider: dict[int, Wider] = {}

    def sound(self) -> list[str]:
        return [text for t in self.twins if (text := t.wrong(t.tiles))]

    @cached_property
    def planted(self) -> list[list[tuple[int, Mutant]]]:
        """What can be planted: the same error in each twin that has its place."""
        found: dict[object, list[tuple[int, Mutant]]] = {}
        for k, t in enumerate(self.twins):
            for m in mutants(t.tiles):
                found.setdefault(m.place, []).append((k, m))
        return list(found.values())

    def caught(self, error: list[tuple[int, Mutant]]) -> bool:
        return any(_wrong(self.twins[k], m.tiles) for k, m in error)

    def missed(self, error: list[tuple[int, Mutant]]) -> str:
        """What shows that an error which was not caught is one; empty when nothing does."""
        k, m = error[-1]
        return self.wider(k).shown(m.tiles)

    def wider(self, k: int) -> Wider:
        if k not in self._wider:
            self._wider[k] = Wider(self.twins[k])
        return self._wider[k]


class Wider:
    """A twin with many more cases."""

    def __init__(self, twin: Twin) -> None:
        self.twin = twin
        fused = twin.program.fused
        floats = [t.name for t in fused.cascade.inputs if t.dtype in FLOATS]
        alone = [Draw(f"{n} {kind}", "normal", {n: kind}) for n in floats for kind in ALONE] if len(floats) > 1 else []
        known = facts(fused.cascade)
        self.cases = [case(fused, d, known, SEED) for d in (*draws(fused.cascade), *alone)]
        self.exact = self._run(twin.tiles, True)

    def shown(self, changed: TileProgram) -> str:
        for c, ours, theirs in zip(self.cases, self._run(changed, True), self.exact, strict=True):
            for name, want in c.wanted.items():
                if text := _apart(ours[name], theirs[name], want):
                    return f"float64, {c.name}: {name}: {text}"
        for c, got in zip(self.cases, self._run(changed, False), strict=True):
            text = c.rule(got, lambda x: self._run_one(changed, x))
            if text and not c.rule(self._run_one(self.twin.tiles, c.inputs), lambda x: self._run_one(self.twin.tiles, x)):
                return f"{c.name}: {text}"  # and not so without the error
        return ""

    def _run(self, tiles: TileProgram, wide: bool) -> list[dict[str, np.ndarray]]:
        given = [arguments(self.twin.program, tiles, c.inputs) for c in self.cases]
        steps = not (wide and steps_moved(self.twin.program.fused))  # roundings that moved depend on how the row is walked
        return [_typed(r) for r in interpret.run_all(tiles, given, wide, steps)]

    def _run_one(self, tiles: TileProgram, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return _typed(interpret.run(tiles, arguments(self.twin.program, tiles, inputs)))


def _apart(ours: np.ndarray, theirs: np.ndarray, want: Want) -> str:
    """Where both the program and its kernel have a number: another number, to the digits that the kernel itself has."""
    exact = np.asarray(want.exact)
    if ours.dtype.kind != "f":
        bad = ours != theirs
        if (ranked := want.ranked) is not None:  # places of equal values are as good
            n = ranked[0].shape[-1]
            value, other = (judge._at(ranked[0], np.clip(x, 0, n - 1)) for x in (ours, theirs))
            bad &= np.isfinite(other) & ((value != other) | (ours < 0) | (ours >= n))
        return "another place" if bad.any() else ""
    with np.errstate(all="ignore"):
        defined = np.isfinite(exact) & np.isfinite(theirs)
        size = np.where(defined, np.abs(theirs), 0.0)
        size = size.max(-1, keepdims=True) if size.ndim else size
        allowed = 1e-9 * size + 8 * np.abs(theirs - exact) + 1e-290
        bad = defined & ~(np.abs(ours - theirs) <= allowed)
    if not bad.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{int(bad.sum())} of {bad.size}, first at {list(at)}: {ours[at]:.12g} for {theirs[at]:.12g} ({exact[at]:.12g})"


def _wrong(twin: Twin, changed: TileProgram) -> bool:
    try:
        return bool(twin.wrong(changed))
    except Exception:  # it does not even run: a violation too
        return True


def table(kernel: Kernel, errors: list[list[tuple[int, Mutant]]] | None = None) -> Table:
    """What becomes of these errors, or of everything that can be planted in a kernel."""
    found = Table(kernel.name)
    if wrong := kernel.sound():
        found.refused = wrong[0]
        return found
    for error in kernel.planted if errors is None else errors:
        found.planted += 1
        if kernel.caught(error):
            found.caught += 1
        elif shown := kernel.missed(error):
            found.missed.append(f"{error[0][1]}: {shown}")
        else:
            found.equivalent.append(str(error[0][1]))
    return found


__all__ = ["Kernel", "Table", "table"]
