"""Strength reduction over a kernel's blocks: the rules of :mod:`rewrite`, applied along the dataflow of one segment.

Before, as the segment program has it, and after::

    producer p = select(l <= i, s * 0.125, -inf)          producer p = select(l <= i, s, -inf)
    reduce   m = m max max[l] p                           reduce   m = m max max[l] p         (in units of s)
    producer w = select(m == -inf, 0, exp(p - m))         producer m_finite = select(m == -inf, 0, m)
    ...                                                   producer w = exp2((p - m_finite) * 0.18)
    finalize o = acc / t                                  producer t_inverse = 1 / t;  finalize o = acc * t_inverse
"""

from __future__ import annotations

import math
from dataclasses import replace

from redfuser.acrf.expr import Cast, Const, Expr, Load, Op, Ref, f32, op, print_expr, refs_of, substitute
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block, Kernel
from redfuser.tensorize import rewrite
from redfuser.tensorize.alive import alive_where, mask_tail
from redfuser.tensorize.axes import Roles, constants
from redfuser.tensorize.facts import Facts, Prepared
from redfuser.tensorize.hoist import hoist
from redfuser.tensorize.masks import TRUE
from redfuser.tensorize.unit_interval import in_unit_interval


class Preparation(Facts):
    """The walk over a kernel's blocks."""

    def run(self) -> Prepared:
        body: list[Block] = []
        for b in self.kernel.body:
            if self.resident and b.role in ("store", "correct"):
                continue
            if b.role in ("correct", "reduce", "merge"):  # a value of the row from before the change is stale
                self.row_values = {e: n for e, n in self.row_values.items() if not refs_of(e) & set(b.names)}
            body += self.block(b)
        self.row_values = {}
        if not self.resident:  # a second visit of the row is another segment
            self.shared = {}
        tail: list[Block] = []
        for b in self.kernel.tail:
            tail += self.block(b)
        return Prepared(tuple(body), tuple(tail), frozenset(self.unit), tuple(self.alive),
                        self.levels, self.lets)

    def block(self, b: Block) -> list[Block]:
        if b.role == "producer" and b.reducer is not None:
            return [] if b.name in self.contractions and self.resident else self._contraction(b)
        if b.role == "producer" and self.resident and b.name in self.done:
            return []
        self.done.update(b.names)
        if b.role == "store" and b.name.partition("@")[2]:
            base = b.name.partition("@")[0]
            self.levels[b.name] = self.levels[base]
            if base in self.subs:
                self.stand(b.name, substitute(self.subs[base], {base: Ref(b.name, b.dtype)}))
            return [b]
        if b.role == "reduce":
            return self._reduce(b)
        exprs = tuple(self.rewrite(e) for e in b.exprs)
        if b.reducer is None and len(b.names) == 1 and b.role in ("producer", "finalize", "epilogue", "post"):
            return self._let(b, exprs[0])
        for n in b.names:
            self.levels.setdefault(n, self.tiled(b.axes))
        out: list[Block] = []
        hoisted = tuple(hoist(self, e, b, out, self.tiled(b.points)) for e in exprs)
        return [*out, replace(b, exprs=hoisted)]

    def rewrite(self, e: Expr) -> Expr:
        e = rewrite.replace_exprs(rewrite.simplify(substitute(e, self.subs)), self.shared)
        e = rewrite.hoist_guards(e, self.dominated)
        e = rewrite.lowest_as_guard(e, self.resolve, self.dominated)
        e = rewrite.exponentials(e)
        return rewrite.simplify(rewrite.hyperbolic(e, self.rounded))

    def _contraction(self, b: Block) -> list[Block]:
        """Constants leave the product, so that the operands are loads."""
        k, rest = constants(rewrite.factors(rewrite.simplify(substitute(b.exprs[0], self.subs))))
        if not (rest and math.isfinite(k)):  # an infinite factor makes infinities and NaN term by term
            raise LoweringError("RF491", f"{self.kernel.name}: {print_expr(b.exprs[0])[:80]} is not a matrix product")
        self.levels[b.name] = self.tiled(b.axes)
        self.contractions[b.name] = (rewrite.product(rest), self.roles.extents[b.over or ""])
        if k != 1.0:
            self.stand(b.name, op("mul", Ref(b.name, b.dtype), f32(k)))
        return [replace(b, exprs=(rewrite.product(rest),))]

    def _let(self, b: Block, e: Expr) -> list[Block]:
        """A value becomes a tile of its own (in units of its scale), or stands for a simpler one: ``k * rest`` in both
        cases, written down once."""
        name, k = b.name, 1.0
        if name not in self.written:
            if b.role == "producer" and self.along(e) and not self.exact:
                k, e = rewrite.positive_scale(e)
            if self._stands_for_itself(b, e):
                if k == 1.0 and in_unit_interval(self, e):
                    self.unit.add(name)
                self.stand(name, rewrite.scaled(e, k))
                return []
            if k != 1.0:
                self.stand(name, op("mul", Ref(name, b.dtype), f32(k)))
        out: list[Block] = []
        self.levels[name] = self.level(e) | (self.tiled(b.axes) if name in self.written else frozenset())
        if in_unit_interval(self, e):
            self.unit.add(name)
        e = hoist(self, e, b, out, self.levels[name])
        self.lets[name] = e
        return [*out, replace(b, exprs=(e,), axes=b.axes)]

    def _stands_for_itself(self, b: Block, e: Expr) -> bool:
        """Is the value another name, a constant, or a cast of a name, which needs no tile?"""
        if isinstance(e, (Ref, Const)):
            return b.dtype == e.dtype and not getattr(e, "indices", ())
        return isinstance(e, Cast) and isinstance(_under_casts(e), Ref)

    def _reduce(self, b: Block) -> list[Block]:
        e = self.rewrite(b.exprs[0])
        kind = b.reducer.kind if b.reducer else ""
        out: list[Block] = []
        if kind in ("max", "min") and b.name not in self.corrected:
            k, e = rewrite.positive_scale(e)
            if k != 1.0:
                for name in (b.name, f"{b.name}@old"):
                    self.stand(name, op("mul", Ref(name, b.dtype), f32(k)))
        if kind == "sum" and self.roles.segment and not self.along(e) and not self.roles.column_of(b.axes):
            return self._count(b, e)
        e, before = mask_tail(self, b, e)
        out += before
        across = self.level(e) == self.row | {self.roles.segment}
        if kind in ("max", "min") and (self.one_for_all_rows(e) or (across and isinstance(e, (Op, Cast))
                                                                    and not isinstance(_under_casts(e), Load))):
            e = self._name_term(b, e, out)
        if kind == "max":
            self.maxima[b.name] = e
        e = hoist(self, e, b, out, self.tiled(b.points) | {self.roles.segment or ""})
        self.alive.append(alive_where(self, b.reducer, e))
        return [*out, replace(b, exprs=(e,))]

    def _name_term(self, b: Block, e: Expr, out: list[Block]) -> Expr:
        """Give a contribution that later ones contain a name, so that it is evaluated once."""
        name = self.fresh(f"{b.name}_term")
        self.levels[name] = self.level(e) | self.row
        value = hoist(self, e, b, out, self.levels[name])
        self.lets[name] = value
        out.append(Block("producer", (name,), (*b.axes, self.roles.segment or ""), (value,), e.dtype))
        self.shared[e] = Ref(name, e.dtype)
        return self.shared[e]

    def _count(self, b: Block, e: Expr) -> list[Block]:
        """A sum of something that does not vary along the segment: that, times the number of elements."""
        n = self.roles.segment
        assert n is not None
        if self.resident:
            self.stand(b.name, rewrite.fold(op("mul", f32(float(self.roles.extents[n])), e)))
            return []
        self.alive.append(TRUE)
        return [replace(b, exprs=(e,))]


def _under_casts(e: Expr) -> Expr:
    while isinstance(e, Cast):
        e = e.arg
    return e


def prepare(kernel: Kernel, roles: Roles, written: frozenset[str], ragged: bool, resident: bool,
            exact: bool = False) -> Prepared:
    """Rewrite the blocks of ``kernel``. written: names that are results. ragged: the last segment has padding that must not
    count. resident: the row is one segment, so that the old state is neutral, rebasing does nothing, and producers stay on
    chip. exact: quotients and products are rounded where the program rounds them."""
    work = Preparation(kernel, roles, written, ragged, resident, exact)
    work.patched = {}
    done = work.run()
    if not work.patched:
        return done
    body = tuple(replace(b, exprs=(work.patched[b.name],)) if b.role == "producer" and b.name in work.patched else b
                 for b in done.body)
    return replace(done, body=body)
