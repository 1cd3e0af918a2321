"""Storage reused in place, where a pointwise map's operand dies with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from redfuser.acrf.expr import Load, walk
from redfuser.tensorize.ir.effects import reads, renamed, writes
from redfuser.tensorize.ir.nodes import Copy, For, If, Parallel, TileKernel, TileStmt

Block = tuple[TileStmt, ...]


@dataclass(frozen=True, slots=True)
class ReuseInPlace:
    """A map's target takes its operand's storage where both are the kernel's own, of one type and shape, and not read again::

        weights[i, j] = exp2(scores[i, j] * c - m[i])    -->    scores[i, j] = exp2(scores[i, j] * c - m[i])

    Not what a pipelined loop copies in while earlier iterations run. Adds no rounding."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        shared = frozenset(b.name for b in kernel.buffers if b.scope == "shared")
        facts, stmts = _Facts({b.name: (b.dtype, b.shape) for b in kernel.buffers}, shared), kernel.body
        while (pair := facts.candidate(stmts)) is not None:
            stmts = tuple(renamed(s, *pair) if pair[0] in facts.of(s).touched else s for s in stmts)
        return replace(kernel, body=stmts)


@dataclass(frozen=True, slots=True)
class _Touch:
    """Of a statement: itself, what it touches, in how many places, what it reads; as a map, (target, operand) in place."""

    stmt: TileStmt
    touched: frozenset[str]
    uses: Counter[str]
    reads: frozenset[str]
    pairs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Facts:
    """Of statements met, each asked once. homes: types and shapes of the kernel's own buffers. shared: those that all
    threads have."""

    homes: Mapping[str, tuple[str, tuple[int, ...]]]
    shared: frozenset[str] = frozenset()
    known: dict[int, _Touch] = field(default_factory=dict)

    def of(self, s: TileStmt) -> _Touch:
        if id(s) not in self.known:
            read = frozenset(reads(s))
            touched = read | writes(s)
            inner = s.body if isinstance(s, (For, If)) else None
            uses = Counter(touched) if inner is None else self.total(inner)
            self.known[id(s)] = _Touch(s, touched, uses, read, tuple(self.pairs(s)))
        return self.known[id(s)]

    def total(self, block: Block) -> Counter[str]:
        found: Counter[str] = Counter()
        for s in block:
            found.update(self.of(s).uses)
        return found

    def pairs(self, s: TileStmt) -> Iterator[tuple[str, str]]:
        if isinstance(s, Parallel) and len(s.body) == 1 and len(s.vars) == 2 and s.body[0].target in self.homes:
            (a,) = s.body
            for x in walk(a.expr):
                if isinstance(x, Load) and x.tensor != a.target and x.indices == a.indices \
                        and self.homes.get(x.tensor) == self.homes[a.target]:
                    yield a.target, x.tensor

    def arriving(self, s: TileStmt) -> frozenset[str]:
        """What a statement brings from a tensor: a copy, or, element by element, a map into shared memory."""
        if isinstance(s, Copy):
            return frozenset({s.dst.buffer} if s.src.dims else ())
        outside = isinstance(s, Parallel) and not self.of(s).reads <= self.homes.keys()
        return frozenset(writes(s) & self.shared) if outside else frozenset()

    def candidate(self, everything: Block) -> tuple[str, str] | None:
        """(target, operand) of a map that can be done in place: the target is defined by it and used in its list only, and the
        operand is a local of that list, written whole before it and untouched after it."""
        total = self.total(everything)
        for block, pipelined in _lists(everything):
            own = total if block is everything else self.total(block)
            arriving = set().union(*map(self.arriving, block)) if pipelined else ()
            touched = [self.of(s).touched for s in block]
            first = {name: n for n, names in reversed([*enumerate(touched)]) for name in names}
            last = {name: n for n, names in enumerate(touched) for name in names}
            for n, s in enumerate(block):
                for target, operand in self.of(s).pairs:
                    made = self.of(block[first[operand]])
                    within = not isinstance(made.stmt, (For, If)) and operand not in made.reads
                    if first[target] == n and own[target] == total[target] and operand not in arriving \
                            and first[operand] < n == last[operand] and (
                            within or (isinstance(made.stmt, For) and block is everything)) \
                            and own[operand] == total[operand]:
                        return target, operand
        return None


def _lists(stmts: Block, pipelined: bool = False) -> Iterator[tuple[Block, bool]]:
    """Every statement list, and whether it is the body of a pipelined loop: what that copies in while earlier iterations run
    nobody else may write."""
    yield stmts, pipelined
    for s in stmts:
        if isinstance(s, For):
            yield from _lists(s.body, s.stages > 0)
