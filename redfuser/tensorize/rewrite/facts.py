"""What a kernel says of its names, read off its blocks: along which tile axes each varies, what it is defined as, whose maximum
it is. Nothing is remembered from one pass to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from redfuser.acrf.expr import Const, Expr, Index, Ref, op, print_expr, substitute, walk
from redfuser.errors import InternalError
from redfuser.strategies.program import Block, Kernel
from redfuser.tensorize.axes import Roles


def before_end(axis: str, extent: int) -> Expr:
    """What holds of a row's elements, and not of what is behind them."""
    return op("lt", Index(axis), Const(extent, "i64"))


@dataclass(frozen=True, slots=True)
class Setting:
    """What is decided before the passes. written: names that are results. inside: what holds of the row's elements and not of
    the padding of its segments, where they have some, which must not count. resident: the row is one segment, so that the old
    state is neutral, rebasing does nothing, and producers stay on chip. exact: quotients and products are rounded where the
    program rounds them. natural: exponentials keep their base. reduced: tensors in which a kernel before left what it
    reduced. told: values that reach the cascade's results as they are (:func:`redfuser.tensorize.rewrite.scales.told`)."""

    roles: Roles
    written: frozenset[str]
    inside: Expr | None
    resident: bool
    exact: bool = False
    natural: bool = False
    reduced: frozenset[str] = frozenset()
    told: frozenset[str] = frozenset()

    @property
    def scattered(self) -> bool:
        """Is there padding that does not come behind all of the row's elements?"""
        n = self.roles.segment
        return self.inside is not None and n is not None and self.inside != before_end(n, self.roles.extents[n])

    @property
    def row(self) -> frozenset[str]:
        return frozenset({self.roles.rows})

    def tiled(self, axes: Iterable[str]) -> frozenset[str]:
        """Those of some axes that tiles run along."""
        return frozenset(axes) & frozenset(self.roles.tiled)


@dataclass(frozen=True, slots=True)
class Facts:
    """axes: of each name. levels: the tile axes it varies along. lets: what a value is defined as, in the walk where it is
    defined there and after it. maxima: what is maximised. contractions: sums inside an element of the segment."""

    at: Setting
    axes: Mapping[str, tuple[str, ...]]
    levels: Mapping[str, frozenset[str]]
    lets: Mapping[str, Expr]
    maxima: Mapping[str, Expr]
    contractions: frozenset[str]

    def level(self, e: Expr) -> frozenset[str]:
        """The tile axes that a value varies along."""
        found: set[str] = set()
        for x in walk(e):
            if isinstance(x, Ref):
                found |= self.levels[x.name]
            elif isinstance(x, Index) and x.axis in self.at.roles.tiled:
                found.add(x.axis)
        return frozenset(found)

    def along(self, e: Expr) -> bool:
        """Does it vary along the segment?"""
        return self.at.roles.segment in self.level(e)

    def per_row(self, e: Expr) -> bool:
        """Is it one value per row?"""
        return self.level(e) <= self.at.row

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
        """What a named value was defined as."""
        return self.resolve(self.lets[e.name]) if isinstance(e, Ref) and e.name in self.lets else e

    def one_for_all_rows(self, e: Expr) -> bool:
        """Weights of a product that has one row: a tile of their own, whose rows are alike, since two readings of them from
        memory are two tiles that a product's layout cannot both be fitted to."""
        return self.level(e) == {self.at.roles.segment} and bool(self.at.roles.columns) and not self.at.roles.lists

    def counted(self, b: Block) -> bool:
        """Is it a sum of something that does not vary along the segment: that, times the number of elements?"""
        return (b.role == "reduce" and b.reducer is not None and b.reducer.kind == "sum" and bool(self.at.roles.segment)
                and not self.along(b.exprs[0]) and not self.at.roles.column_of(b.axes))

    def where(self, b: Block) -> frozenset[str]:
        """The tile axes of the points at which a block is evaluated."""
        if is_value(b):
            return self.levels[b.name]
        return self.at.tiled(b.points) | ({self.at.roles.segment or ""} if b.role == "reduce" else frozenset())

    def value(self, name: str, e: Expr, level: frozenset[str], order: Iterable[str]) -> Block:
        """``name = e``, a tile along ``level``, which may be more axes than ``e`` varies along. order: of the axes."""
        varies = {x.axis for x in walk(e) if isinstance(x, Index)}
        varies |= {a for x in walk(e) if isinstance(x, Ref) for a in self.axes[x.name]}
        more = level - self.level(e) - varies
        axes = (*(a for a in order if a in varies), *(a for a in self.at.roles.tiled if a in more))
        return Block("producer", (name,), axes, (e,), e.dtype)

    def knowing(self, b: Block, level: frozenset[str]) -> Facts:
        """With one more value."""
        return replace(self, axes={**self.axes, b.name: b.axes}, lets={**self.lets, b.name: b.exprs[0]},
                       levels={**self.levels, b.name: level})


def learn(kernel: Kernel, at: Setting) -> Facts:
    """The facts of a kernel."""
    levels = {n: at.tiled(b.axes) | at.row for b in kernel.init for n in b.names}
    lets: dict[str, Expr] = {}
    maxima: dict[str, Expr] = {}
    axes = {n: b.axes for b in (*kernel.tail, *kernel.body, *kernel.init) for n in b.names}
    facts = Facts(at, axes, levels, lets, maxima, frozenset(b.name for b in kernel.body if is_contraction(b)))
    for b in (*kernel.body, *kernel.tail):
        if is_copy(b):
            levels[b.name] = levels[b.name.partition("@")[0]]
        elif is_value(b):
            levels.setdefault(b.name, facts.level(b.exprs[0]) | at.tiled(b.axes))
            lets.setdefault(b.name, b.exprs[0])
        else:
            for n in b.names:
                levels.setdefault(n, at.tiled(b.axes))
        if b.role == "reduce" and b.reducer is not None and b.reducer.kind == "max":
            maxima[b.name] = b.exprs[0]
    return facts


def is_value(b: Block) -> bool:
    """One value at each point."""
    return b.reducer is None and len(b.names) == 1 and b.role in ("producer", "finalize", "epilogue", "post")


def is_contraction(b: Block) -> bool:
    """A sum inside an element of the segment."""
    return b.role == "producer" and b.reducer is not None


def is_copy(b: Block) -> bool:
    """``NAME@old = NAME``."""
    return b.role == "store" and "@" in b.name


def each_value(kernel: Kernel, rule: Callable[[Expr], Expr]) -> Kernel:
    """``kernel`` with ``rule`` applied to what every block computes but the operands of contractions."""
    def block(b: Block) -> Block:
        return b if is_copy(b) or is_contraction(b) else replace(b, exprs=tuple(map(rule, b.exprs)))

    return replace(kernel, body=tuple(map(block, kernel.body)), tail=tuple(map(block, kernel.tail)))


class Meanings:
    """What names stand for, within one pass: a second meaning for a name is an InternalError."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel.name
        self.known: dict[str, Expr] = {}

    def __call__(self, e: Expr) -> Expr:
        """``e`` with what its names stand for."""
        return substitute(e, self.known) if self.known else e

    def stand(self, name: str, e: Expr) -> None:
        """From here on every reader of ``name`` reads ``e``."""
        if self.known.get(name, e) != e:
            raise InternalError("RF900", f"{self.kernel}: {name} stands for {print_expr(self.known[name])} and for "
                                f"{print_expr(e)}")
        self.known[name] = e


def names_taken(kernel: Kernel) -> set[str]:
    """The names that a kernel's blocks have."""
    return {n for b in (*kernel.init, *kernel.body, *kernel.tail) for n in b.names}
