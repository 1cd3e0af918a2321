"""What is known of a kernel's names while its blocks are rewritten: their tile axes, meanings, ranges and masks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TypeGuard

from redfuser.acrf.expr import Cast, Expr, Index, Ref, print_expr, substitute, walk
from redfuser.errors import InternalError
from redfuser.strategies.program import Block, Kernel
from redfuser.tensorize.axes import Roles


@dataclass(frozen=True, slots=True)
class Prepared:
    """The blocks after rewriting.

    unit: names whose values lie in [0, 1] by construction. alive: per accumulator, where along the segment its
    contribution can matter. levels: the tile axes each name varies along. lets: what each name was defined as."""

    body: tuple[Block, ...]
    tail: tuple[Block, ...]
    unit: frozenset[str]
    alive: tuple[Expr, ...]
    levels: dict[str, frozenset[str]]
    lets: dict[str, Expr]


class Facts:
    """What the walk over a kernel's blocks has learned of the names so far."""

    patched: dict[str, Expr]

    def __init__(self, kernel: Kernel, roles: Roles, written: frozenset[str], ragged: bool, resident: bool,
                 exact: bool = False) -> None:
        self.kernel, self.roles, self.written = kernel, roles, written
        self.ragged, self.resident, self.exact = ragged, resident, exact
        self.row = frozenset({roles.rows})
        self.subs: dict[str, Expr] = {}
        self.lets: dict[str, Expr] = {}
        self.levels: dict[str, frozenset[str]] = {}
        self.maxima: dict[str, Expr] = {}
        self.contractions: dict[str, tuple[Expr, int]] = {}  # the terms and how many are summed
        self.unit: set[str] = set()
        self.alive: list[Expr] = []
        self.done: set[str] = set()
        self.shared: dict[Expr, Expr] = {}
        self.row_values: dict[Expr, str] = {}
        self.taken = {n for b in (*kernel.init, *kernel.body, *kernel.tail) for n in b.names}
        self.halved = read_as_half(kernel, written)
        self.corrected = {n for b in kernel.body if b.role in ("correct", "merge") for n in b.names}
        for b in kernel.init:
            for n in b.names:
                self.levels[n] = self.tiled(b.axes) | self.row

    # -- facts ---------------------------------------------------------------------------------------------------------

    def tiled(self, axes: tuple[str, ...]) -> frozenset[str]:
        """Those of some axes that tiles run along."""
        return frozenset(axes) & frozenset(self.roles.tiled)

    def level(self, e: Expr) -> frozenset[str]:
        """The tile axes that a value varies along."""
        found: set[str] = set()
        for x in walk(e):
            if isinstance(x, Ref):
                found |= self.levels[x.name]
            elif isinstance(x, Index) and x.axis in self.roles.tiled:
                found.add(x.axis)
        return frozenset(found)

    def along(self, e: Expr) -> bool:
        """Does it vary along the segment?"""
        return self.roles.segment in self.level(e)

    def per_row(self, e: Expr) -> bool:
        """Is it one value per row?"""
        return self.level(e) <= self.row

    def rounded(self, e: Expr) -> bool:
        """Carries the rounding of a contraction."""
        for x in walk(e):
            if not isinstance(x, Ref):
                continue
            name = x.name.partition("@")[0]
            source = self.lets.get(name, self.maxima.get(name))
            if name in self.contractions or (source is not None and self.rounded(source)):
                return True
        return False

    def dominated(self, x: Expr, maximum: str) -> bool:
        """Is ``maximum`` the running maximum of ``x``?"""
        return self.maxima.get(maximum) == x

    def resolve(self, e: Expr) -> Expr:
        """What a named row value was defined as."""
        return self.resolve(self.lets[e.name]) if isinstance(e, Ref) and e.name in self.lets else e

    def one_for_all_rows(self, e: Expr) -> bool:
        """Weights of a product that has one row: a tile of their own, whose rows are alike, since two readings of them from
        memory are two tiles that a product's layout cannot both be fitted to."""
        return self.level(e) == {self.roles.segment} and bool(self.roles.columns) and not self.roles.lists

    def stand(self, name: str, e: Expr) -> None:
        """From here on every reader of ``name`` reads ``e``. The only writer of :attr:`subs`: a second meaning for a name
        is an InternalError, so that no rule can silently undo another."""
        if self.subs.get(name, e) != e:
            raise InternalError("RF900", f"{self.kernel.name}: {name} stands for {print_expr(self.subs[name])} and for "
                                f"{print_expr(e)}")
        self.subs[name] = e

    def rename(self, old: Ref, new: Ref) -> None:
        """Every reader of ``old`` reads ``new``, whatever it stands for."""
        self.subs = {k: substitute(v, {old.name: new}) for k, v in {old.name: old, **self.subs}.items()}

    def fresh(self, stem: str) -> str:
        """``stem``, numbered until it is free."""
        name, n = stem, 2
        while name in self.taken:
            name, n = f"{stem}{n}", n + 1
        self.taken.add(name)
        return name


def read_as_half(kernel: Kernel, kept: frozenset[str]) -> frozenset[str]:
    """The names that every reader rounds to half precision at once."""
    exprs = [e for b in (*kernel.init, *kernel.body, *kernel.tail) for e in b.exprs]
    half = Counter(x.arg.name for e in exprs for x in walk(e) if rounds_to_half(x) and isinstance(x.arg, Ref))
    reads = Counter(x.name for e in exprs for x in walk(e) if isinstance(x, Ref))
    return frozenset(n for n, times in half.items() if times == reads[n] and n not in kept)


def rounds_to_half(e: Expr) -> TypeGuard[Cast]:
    """Is it a cast to half precision?"""
    return isinstance(e, Cast) and e.dtype in ("f16", "bf16")
