"""Reductions that carry a place beside a value (argmax, argmin, topk), and merges of two states."""

from __future__ import annotations

from dataclasses import replace

from redfuser.acrf.expr import FLOATS, Ref
from redfuser.acrf.facts import algebra
from redfuser.strategies.program import Block
from redfuser.strategies.tir_expr import is_nan, wide
from redfuser.strategies.tir_place import Placed, Span, combined, indent


class Paired(Placed):
    """A value and its position on the row, of which the better pair is kept; and the merge of states, theirs and others."""

    def payload(self, b: Block, span: Span | None) -> list[str]:
        """argmax, argmin, topk: the element's value with its position on the row."""
        assert b.reducer is not None and b.over is not None
        texts = self.texts()
        value = texts.value(b.exprs[0])
        n = span.length if span is not None and b.over == self.raxis else self.extents[b.over]
        index = f'T.Cast("int64", {texts.value(b.exprs[1]) if len(b.exprs) > 1 else f"v_{b.over}"})'
        value = texts.bind(value, wide(b.dtype))
        if b.reducer.kind != "topk":
            body = [*texts.lets, *self.choose(b, value, index)]
            loop = self.block(b, f"reduce_{b.name}", (*b.axes, b.over), span, body, b.over)
            return self.loops(b.axes, None, [f"for i_{b.over} in range({n}):", *indent(loop)])
        first = [*texts.lets, f"carry_value{self.suffix}[0] = {value}", f"carry_index{self.suffix}[0] = {index}"]
        points = b.axes[:-1]
        take = self.block(b, f"reduce_{b.name}_take", (*points, b.over), span, first, b.over)
        loop = [f"for i_{b.over} in range({n}):", *indent(take), *indent(self.insert(b))]
        return self.loops(points, None, loop)

    def choose(self, b: Block, value: str, index: str) -> list[str]:
        """Keep the better of the accumulator's pair and (value, index); ties go to the lower index."""
        assert b.reducer is not None
        v, i = b.names
        lets = [f"new_v: T.let[T.{wide(self.dtypes[v])}] = {value}", f"new_i: T.let[T.int64] = {index}",
                f"old_v: T.let[T.{wide(self.dtypes[v])}] = {self.held(v)}",
                f'old_i: T.let[T.int64] = T.Cast("int64", {self.held(i)})',
                f"take: T.let[T.bool] = {_better(b.reducer.kind, 'new_v', 'new_i', 'old_v', 'old_i', self.dtypes[v])}"]
        return [*lets, self.store(v, "T.Select(take, new_v, old_v)"), self.store(i, "T.Select(take, new_i, old_i)")]

    def insert(self, b: Block) -> list[str]:
        """Insert the carried pair into the sorted list along ``axes[-1]``, carrying on what it displaces."""
        last = b.axes[-1]
        cv, ci = f"carry_value{self.suffix}[0]", f"carry_index{self.suffix}[0]"
        body = [*self.choose(b, cv, ci), f"{cv} = T.Select(take, old_v, new_v)", f"{ci} = T.Select(take, old_i, new_i)"]
        block = self.block(b, f"{b.role}_{b.name}_insert", b.axes, None, body)
        return [f"for i_{last} in range({self.extents[last]}):", *indent(block)]

    def merge(self, b: Block) -> list[str]:
        """``acc = rebase[@a] (reducer) rebase[@b]``."""
        assert b.reducer is not None
        n = len(b.names)
        left, right = b.exprs[:n], b.exprs[n:]
        if b.reducer.kind in algebra.PAYLOAD:
            lines = []
            if left != tuple(Ref(x, e.dtype) for x, e in zip(b.names, left, strict=True)):
                lines += self.pointwise(replace(b, exprs=left, reducer=None), None)
            if b.reducer.kind != "topk":
                texts = self.texts()
                value, index = (texts.value(e) for e in right)
                body = [*texts.lets, *self.choose(b, value, f'T.Cast("int64", {index})')]
                return lines + self.loops(b.axes, None, self.block(b, f"merge_{b.name}", b.axes, None, body))
            last, points = b.axes[-1], b.axes[:-1]
            texts = self.texts()
            value, index = (texts.value(e) for e in right)
            first = [*texts.lets, f"carry_value{self.suffix}[0] = {value}",
                     f'carry_index{self.suffix}[0] = T.Cast("int64", {index})']
            take = self.block(b, f"merge_{b.name}_take", b.axes, None, first, place={last: "i_other"})
            loop = [f"for i_other in range({self.extents[last]}):", *indent(take), *indent(self.insert(b))]
            return lines + self.loops(points, None, loop)
        texts = self.texts()
        a, c = (texts.bind(texts.value(e), wide(b.dtype)) for e in (left[0], right[0]))
        body = [*texts.lets, self.store(b.name, combined(b.reducer.kind, a, c, wide(b.dtype)))]
        return self.loops(b.axes, None, self.block(b, f"merge_{b.name}", b.axes, None, body))


def _better(kind: str, v: str, i: str, old: str, old_i: str, dtype: str) -> str:
    """Whether the pair (v, i) goes before (old, old_i). NaN is best; an index below 0 marks an empty place."""
    sign = "<" if kind == "argmin" else ">"
    if dtype in FLOATS:
        nan, old_nan = is_nan(v, wide(dtype)), is_nan(old, wide(dtype))
        wins = f"T.Or({v} {sign} {old}, T.And({nan}, T.Not({old_nan})))"
        ties = f"T.Or({v} == {old}, T.And({nan}, {old_nan}))"
    else:
        wins, ties = f"{v} {sign} {old}", f"{v} == {old}"
    return f"T.And({i} >= T.int64(0), T.Or({old_i} < T.int64(0), T.Or({wins}, T.And({ties}, {i} < {old_i}))))"
