"""Identities that hold for every value, and names that stand for others."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.acrf.expr import Cast, Const, Expr, Ref
from redfuser.strategies.program import Block, Kernel
from redfuser.tensorize.algebra import simplify
from redfuser.tensorize.rewrite.facts import Meanings, Setting, is_contraction, is_copy, is_value


@dataclass(frozen=True, slots=True)
class Simplify:
    """Nested masks become one, factors of 1 go (:func:`redfuser.tensorize.algebra.fold`), and a value that is another name, a
    constant, or a cast of a name needs no tile::

        w = select(a, select(b, x, 0.0), 0.0) * 1.0; h = f16(w); y = f32(h) * v
        -->
        w = select(a and b, x, 0.0); y = f32(f16(w)) * v

    Adds no rounding."""

    def __call__(self, kernel: Kernel, at: Setting) -> Kernel:
        stands = Meanings(kernel)

        def done(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
            out: list[Block] = []
            for b in blocks:
                if is_copy(b):
                    out.append(b)
                    continue
                exprs = tuple(simplify(stands(e)) for e in b.exprs)
                if is_value(b) and b.name not in at.written and is_a_name(b, exprs[0]):
                    stands.stand(b.name, exprs[0])
                else:
                    out.append(b if is_contraction(b) and exprs == b.exprs else replace(b, exprs=exprs))
            return tuple(out)

        return replace(kernel, body=done(kernel.body), tail=done(kernel.tail))


def is_a_name(b: Block, e: Expr) -> bool:
    """Is what ``b`` computes another name, a constant, or a cast of a name?"""
    if isinstance(e, (Ref, Const)):
        return b.dtype == e.dtype and not getattr(e, "indices", ())
    return isinstance(e, Cast) and isinstance(under_casts(e), Ref)


def under_casts(e: Expr) -> Expr:
    while isinstance(e, Cast):
        e = e.arg
    return e
