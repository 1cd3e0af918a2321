"""Programs drawn from seeds: chains of maps, reductions, norms, products, attentions, masks and moves that nobody chose.

A seed gives the inputs and the steps; every step reads values that are there, later ones more often, and what nobody reads is a
result. The list has a few dozen; ``--seeds`` of ``redfuser bench correctness`` draws others.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from workloads.correctness.program import DTYPES, In, Program
from workloads.correctness.steps import JUMPS, KINDS, Step

FAMILY = "drawn"
SEEDS = (*range(22), *range(23, 48))
"""Not 22: the trial before first use draws what its kernel divides by, 0 / 0 in half precision, and takes torch for it."""
LARGEST = 1 << 17
"""Elements of a value."""
WANTED = {"f": lambda t: t.is_floating_point() and t.dim() > 0, "b": lambda t: t.dtype is torch.bool,
          "i": lambda t: t.dtype is torch.int64}


@dataclass
class Drawing:
    """A program under construction: its values as torch's ``meta`` has them, and which are inputs or moved ones."""

    r: random.Random
    ins: list[In]
    wide: bool
    values: list[Tensor] = field(default_factory=list)
    given: set[int] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.low = DTYPES[self.ins[0].dtype]
        self.values = widened([torch.empty(i.shape, dtype=DTYPES[i.dtype], device="meta") for i in self.ins], self.wide)
        self.given = set(range(len(self.ins)))

    def pick(self, wanted: str) -> int | None:
        found = [i for i, t in enumerate(self.values) if WANTED[wanted](t)]
        weights = [1 + 3 * (i >= len(self.ins)) + 4 * (i == len(self.values) - 1) for i in found]
        return self.r.choices(found, weights)[0] if found else None

    def axis(self, dims: int) -> int | tuple[int, ...]:
        """The last one mostly, at times the one before or two of them."""
        if dims > 1 and self.r.random() < 0.12:
            return tuple(sorted(self.r.sample(range(-dims, 0), 2)))
        return self.r.choices(range(-dims, 0), [1 + 5 * (i == dims - 1) + (i == dims - 2) for i in range(dims)])[0]

    def draw(self) -> None:
        """One step, or none where what is drawn does not fit."""
        kind = self.r.choices(list(KINDS), [often for _, _, often in KINDS.values()])[0]
        table, wanted, _ = KINDS[kind]
        what = self.r.choice(list(table))
        reads = [self.pick(w) for w in wanted]
        axis, keep = self.axis(self.values[reads[0] or 0].dim() or 1), self.r.random() < 0.7
        if any(i is None or (what in JUMPS and i not in self.given) for i in reads):
            return
        step = Step(kind, what, tuple(i for i in reads if i is not None), axis, keep)
        made = self.made(step)
        if made is None:
            return
        if kind == "move" and step.reads[0] in self.given:
            self.given.add(len(self.values))
        self.steps.append(step)
        self.values.append(made)

    def made(self, step: Step) -> Tensor | None:
        """What a step gives, where it is a program that somebody might write: of few elements, along axes of some length, of
        indices that are there."""
        x, *rest = (self.values[i] for i in step.reads)
        axes = step.axis if isinstance(step.axis, tuple) else (step.axis,)
        if step.kind in ("fold", "norm") and min(x.shape[a] for a in axes) < 3:
            return None
        if step.kind not in ("map", "pair", "fold", "norm") and (x.dim() < 2 or min(x.shape[-2:]) < 4):
            return None
        if step.kind == "dot" and x.shape[-1] < 8:
            return None
        if step.kind in ("label", "take"):
            axis = -1 if step.kind == "label" else -2
            if self.ins[step.reads[1]].high > x.shape[axis] or rest[0].dim() != (x.dim() - 1 if step.kind == "label" else 1):
                return None
        try:
            out = step.of(self.values, self.low)
        except (RuntimeError, IndexError, ValueError, TypeError):
            return None
        return out if out.dim() <= 4 and 0 < out.numel() <= LARGEST and 0 not in out.shape else None


def widened(values: Iterable[Tensor], wide: bool) -> list[Tensor]:
    return [t.float() if wide and t.is_floating_point() else t for t in values]


def program(seed: int) -> Program:
    """The same on every machine: nothing but the seed is drawn from."""
    r = random.Random(seed)
    dtype = r.choice(("f16", "bf16", "f32"))
    b, n, c, k = r.choice((1, 2, 3)), r.choice((17, 48, 64, 100)), r.choice((40, 64, 130, 192)), r.choice((16, 24, 32, 64))
    offered = [In("x", (b, n, c), dtype)]
    for name, shape in (("y", r.choice(((b, n, c), (n, c), (b, 1, c)))), ("g", (c,)), ("m", (c, k)), ("v", (b, n, k))):
        if r.random() < 0.6:
            offered.append(In(name, shape, dtype, "weight" if name in "gm" else "data", c**-0.5 if name == "m" else 1.0))
    for i in (In("h", r.choice(((b, n, c), (n, c), (b, 1, c), (c,), (n, n), (b, 1, n))), "bool", "keep"),
              In("e", (b, n), "i64", "label", high=c), In("r", (r.choice((5, 16, n)),), "i64", "label", high=n)):
        if r.random() < 0.5:
            offered.append(i)
    wide, half, count = r.random() < 0.7, r.random() < 0.6, r.randint(5, 11)
    d = Drawing(r, offered, wide)
    for _ in range(400):
        if len(d.steps) < count:
            d.draw()
    read = {i for s in d.steps for i in s.reads}
    results = [i for i in range(len(offered), len(d.values)) if i not in read][-4:]
    used = [i for i in range(len(offered)) if i in read]
    at = {old: new for new, old in enumerate([*used, *range(len(offered), len(d.values))])}
    steps, out, low = [replace(s, reads=tuple(at[i] for i in s.reads)) for s in d.steps], [at[i] for i in results], d.low

    def fn(*args: Tensor) -> tuple[Tensor, ...]:
        values = widened(args, wide)
        for s in steps:
            values.append(s.of(values, low))
        return tuple(values[i].to(low) if half else values[i] for i in out)

    what = f"{dtype} {b}x{n}x{c} {seed}: {', '.join(map(str, steps))}"
    return Program(FAMILY, what, fn, tuple(offered[i] for i in used))


def programs() -> Iterator[Program]:
    for seed in SEEDS:
        yield program(seed)


def named(name: str) -> Program | None:
    """The drawn program of that name, whatever its seed; None where there is none, as of a name that other steps gave."""
    family, _, what = name.partition("/")
    head = what.partition(":")[0].split()
    if family != FAMILY or not head or not head[-1].isdigit():
        return None
    found = program(int(head[-1]))
    return found if found.name == name else None
