"""Parts of a tile's expression that depend on the row alone: one evaluation per row, not per element."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from redfuser.acrf.expr import Expr, Op, Ref, map_children, refs_of, walk
from redfuser.acrf.functions import DEAR
from redfuser.strategies.names import fresh
from redfuser.strategies.program import Block, Kernel
from redfuser.tensorize.algebra import guard_of, is_const, rewrite_bottom_up
from redfuser.tensorize.rewrite.facts import Facts, Setting, is_contraction, is_copy, is_value, learn, names_taken

COSTLY = DEAR | {"select"}


@dataclass(frozen=True, slots=True)
class HoistRows:
    """Costly parts that only depend on the row become row values of their own::

        w[i, l] = exp2((p - select(m == -inf, 0.0, m)) * 0.18)
        -->
        m_finite[i] = select(m == -inf, 0.0, m); w[i, l] = exp2((p - m_finite) * 0.18)

    Adds no rounding."""

    def __call__(self, kernel: Kernel, at: Setting) -> Kernel:
        facts, taken = learn(kernel, at), names_taken(kernel)
        body, tail = (tuple(_Rows(facts, taken).blocks(part)) for part in (kernel.body, kernel.tail))
        return replace(kernel, body=body, tail=tail)


@dataclass(slots=True)
class _Rows:
    """The row values of one walk. names: by what they are; a value from before one of its names changed is stale."""

    facts: Facts
    taken: set[str]
    names: dict[Expr, str] = field(default_factory=dict)

    def blocks(self, part: tuple[Block, ...]) -> list[Block]:
        out: list[Block] = []
        for b in part:
            if b.role in ("correct", "reduce", "merge"):
                self.names = {e: n for e, n in self.names.items() if not refs_of(e) & set(b.names)}
            if is_copy(b) or is_contraction(b) or self.facts.counted(b):
                out.append(b)
                continue
            exprs = tuple(self.hoisted(e, b, out) for e in b.exprs)
            out.append(replace(b, exprs=exprs))
        return out

    def hoisted(self, e: Expr, b: Block, out: list[Block]) -> Expr:
        if self.facts.where(b) <= self.facts.at.row:
            if is_value(b) and _shift(e) and self.facts.where(b) == self.facts.at.row:  # it has a name already
                self.names.setdefault(e, b.name)
                return e
            return rewrite_bottom_up(e, lambda x: self.value(x, b, out) if _shift(x) else x)

        def go(x: Expr) -> Expr:
            if isinstance(x, Op) and x.dtype == "f32" and self.facts.per_row(x) and self.worth(x):
                return self.value(x, b, out)
            return map_children(x, go)

        return go(e)

    def worth(self, e: Expr) -> bool:
        ops = [x for x in walk(e) if isinstance(x, Op)]
        return bool(self.facts.level(e)) and (len(ops) > 1 or any(x.name in COSTLY for x in ops))

    def value(self, x: Expr, b: Block, out: list[Block]) -> Expr:
        if x not in self.names:
            name = fresh(_called(x, b), self.taken)
            row = self.facts.at.row
            out.append(replace(self.facts.value(name, x, row, b.axes), dtype="f32"))
            self.facts = self.facts.knowing(out[-1], row)
            self.names[x] = name
        return Ref(self.names[x], "f32")


def _shift(x: Expr) -> bool:
    """A guarded reference is a row value of its own: the tile's expression needs the same one."""
    return isinstance(x, Op) and x.name == "select" and isinstance(x.args[2], Ref) and guard_of(x.args[0]) is not None


def _called(e: Expr, b: Block) -> str:
    match e:
        case Op(name="div", args=(one, Ref(name=n))) if is_const(one, 1.0):
            return f"{n.partition('@')[0]}_inverse"
        case Op(name="select", args=(c, _, Ref(name=n))) if guard_of(c):
            return f"{n}_finite"
    return f"{b.name.partition('@')[0]}_row"
