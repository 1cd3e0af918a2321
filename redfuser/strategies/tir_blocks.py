"""The statements of a segment program as TIR blocks, one each, annotated with their roles and axes."""

from __future__ import annotations

from redfuser.acrf.facts import algebra
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block
from redfuser.strategies.tir_expr import wide
from redfuser.strategies.tir_pairs import Paired
from redfuser.strategies.tir_place import Span, combined, neutral
from redfuser.strategies.tir_reduce import Reduced


class Blocks(Reduced, Paired):
    """Lines of one kernel's statements."""

    def statement(self, b: Block, span: Span | None) -> list[str]:
        if b.role == "merge":
            return self.merge(b)
        if b.reducer is None:
            return self.pointwise(b, span)
        if b.role in ("producer", "epilogue"):
            return self.contraction(b, span)
        return self.reduction(b, span)

    def start(self, b: Block) -> list[str]:
        """Set the result of a reduction to its neutral element, or what one carries that runs along the row."""
        if b.running:
            points = tuple(a for a in b.axes if a != b.over)
            return self.pointwise(Block("init", (carry_of(b),), points, neutral(b), b.dtype), None)
        first = Block("init", b.names, b.axes, neutral(b), b.dtype)
        return self.pointwise(first, None) if self.raxis not in b.axes else []

    def contraction(self, b: Block, span: Span | None) -> list[str]:
        """An inner reduction that finishes at once: neutral element, then the loop, at every point of its axes."""
        assert b.over is not None
        if b.reducer is not None and b.reducer.kind in algebra.PAYLOAD:
            raise LoweringError("RF430", f"the CPU target has no {b.reducer} along an inner axis")
        if self.across in b.axes:
            return self.tiles(b, span, fresh=True)
        first = self.block(b, f"{b.role}_{b.name}_init", b.axes, span,
                           [self.store(b.name, self.texts().const(neutral(b)[0]))])
        return self.loops(b.axes, span, [*first, *self.accumulate(b, span)])

    def reduction(self, b: Block, span: Span | None) -> list[str]:
        """Reduce a segment into an accumulator (or a row into a ``post`` result)."""
        assert b.reducer is not None and b.over is not None
        if b.running:
            return self.running(b, span)
        inner = tuple(a for a in b.axes if a not in self.outer)
        if b.reducer.kind in algebra.PAYLOAD:
            return self.payload(b, span)
        if self.across in b.axes:
            return self.tiles(b, span, fresh=False)
        if inner and not self.along(b, b.over):
            return self.in_turn(b, span, b.axes)
        return self.loops(b.axes, None, self.accumulate(b, span))

    def running(self, b: Block, span: Span | None) -> list[str]:
        """Elements in their order: each joins what is carried, and is what is carried then."""
        assert b.reducer is not None
        texts, carry, dtype = self.texts(), carry_of(b), wide(b.dtype)
        value = texts.bind(texts.value(b.exprs[0]), dtype)
        body = [*texts.lets, self.store(carry, combined(b.reducer.kind, self.held(carry), value, dtype)),
                self.store(b.name, self.held(carry))]
        axes = (*(a for a in b.axes if a != b.over), b.over or "")
        return self.loops(axes, span, self.block(b, f"{b.role}_{b.name}", b.axes, span, body))


def carry_of(b: Block) -> str:
    """What a running reduction carries from element to element."""
    return f"{b.name} so far"
