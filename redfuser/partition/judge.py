"""What a grown set of units must be to be kept: questions about its draft, each answered by None or by what is amiss.

``c`` and ``u`` are the unit that came last, about which the question is. What a question reads beyond the draft is part of the
key under which :class:`redfuser.partition.grow.Grower` remembers its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod

from redfuser.acrf.affine import axes_of
from redfuser.acrf.expr import NARROW, Cast, Load, Op
from redfuser.partition.cost import (
    columns_shared,
    consumer_pays,
    deep,
    inner_pays,
    pays_alone,
    product_alone,
    reduced_as_made,
    weights_stay,
)
from redfuser.partition.drafted import Draft, R, Reject, Sink, columned, row_axes
from redfuser.partition.epilogue import launches
from redfuser.partition.graph import Unit
from redfuser.partition.per_step import by_columns, no_matrix
from redfuser.partition.reads import TOO_MANY, crowded, laden
from redfuser.partition.single import by_itself
from redfuser.partition.values import Instance

Question = Callable[[Draft, Unit | None], Reject | None]
HEAD = 256
"""Depth and columns of a head of attention, at most."""
TWO_CONTRACTIONS = Reject("RF305", None, "two contractions that share an operand gain nothing from one kernel")

STEPWISE = Reject("RF305", None, "evaluating the contraction per step costs more than it saves",
                  "a library GEMM and one more pass over its result are faster")
CONSUMING = Reject("RF305", None, "consuming the row in this contraction costs more than it saves",
                   "a library GEMM and one more pass over its operand are faster")


def worth(d: Draft, _: Unit | None) -> Reject | None:
    """Fusing must bring something: dependent reductions, a row map over the same data, or a reduction over a
    contraction."""
    inner = [i for i in d.inner if i.contraction]
    if pays_alone(d):
        return None
    for i in d.rows if len(d.rows) + len(inner) > 1 else ():
        if i.contraction and columns_shared(d, i) and not consumer_pays(d, i, settled=True):
            return replace(CONSUMING, node=i.node, rows=frozenset(i.node for i in d.rows))
    if len(d.rows) >= 2 or d.row_map or (inner and not columned(d, d.rows[0])):
        return None
    if d.rows[0].contraction and (widened(d.rows[0]) if not inner else headlike(d, inner)):
        return None
    return Reject("RF307", d.rows[0].node, "a single reduction")


AS_IT_LIES = "a single reduction of what lies in memory"
"""One of no maps: with another of the same row it saves a read."""


def reduced(d: Draft, _: Unit | None) -> Reject | None:
    """Reductions of one row that are no cascade: several, or with maps before or behind them that torch would write and read.
    Or of many short rows. Across memory it takes more (:mod:`redfuser.partition.across`)."""
    around = [n.unit for i in d.rows for n, _ in i.body.sites if n.unit is not None]
    if d.inner or d.row_map or any(i.contraction for i in d.rows):
        return Reject("RF307", d.rows[0].node, "a single reduction")
    several = len({i.node.unit for i in d.rows}) > 1
    alone = not several and not any(map(launches, (*d.units, *around))) and not by_itself(d)
    return Reject("RF307", d.rows[0].node, AS_IT_LIES) if alone else None


def scaled(d: Draft, _: Unit | None) -> Reject | None:
    """Products whose rows are scaled behind their sums: do they pay, all maps in front of them included?"""
    return None if pays_alone(d) else Reject("RF305", d.rows[0].node, "a scale behind this product saves too little")


def products(d: Draft, _: Unit | None) -> Reject | None:
    """Are products all that is reduced?"""
    return None if product_alone(d) else Reject("RF302", d.rows[0].node, "a reduction that is no product")


def escapes(d: Draft, _: Unit | None) -> Reject | None:
    """Of a region with a contraction: a result along the row that depends on a reduction and that a reduction of the region
    reads too; or any result along the row, where the contraction is evaluated per step."""
    contraction = next((i for i in d.inner if i.contraction), None)
    for s in d.sinks:
        if contraction is not None and along(s) and not tile_written(d, s):
            return Reject("RF303", contraction.node, "a result along the row depends on the contraction",
                          "its value would be written, or computed a second time, for every element of the row")
    if multiplies(d) and (s := next(iter(again(d)), None)) is not None:
        return Reject(
            "RF303", s.node, "a tensor of the row that depends on a reduction is needed both inside and outside",
            "it must be written in any case, so reading it back is all that a fusion would save",
            "drop the other use, or recompute it there")
    return None


def again(d: Draft) -> list[Sink]:
    """Results along the row that depend on a reduction, and that a reduction of the region reads too."""
    read = {n for i in (*d.rows, *d.inner) for n, _ in i.body.sites}
    return [s for s in d.sinks if s.node in read and s.value is not None and d.depends(s.value) and along(s)]


def along(s: Sink) -> bool:
    return R in {a for e in s.at for a in axes_of(e)}


def tile_written(d: Draft, s: Sink) -> bool:
    """Is it the row that a deep product makes, before anything is reduced of it? The blocks that make its tiles write them."""
    return deep(d) and s.value is not None and not d.depends(s.value)


def made(got: Draft, c: Unit | None) -> Reject | None:
    """A deep product whose row is read elsewhere as well: blocks write their tiles of it, in half precision, and add them up.
    What one reduction needs of another (a variance of the mean) takes registers that such a tile has not left."""
    mine = [i for i in got.inner if i.node.unit is c and i.contraction]
    if got.inner != mine or len(mine) != 1 or not deep(got) or any(i.contraction or got.depends(i.body) for i in got.rows):
        return STEPWISE
    if any(s.node.dtype not in ("f16", "bf16") for s in got.sinks if along(s)):
        return STEPWISE
    return one_contraction(got) or join(got, c) or escapes(got, c)


def made_and_read(got: Draft, c: Unit | None) -> Reject | None:
    """The same, with a map of the row left that its numbers scale."""
    return made(got, c) or (None if all(reduced_as_made(got, i, again=True) for i in got.inner) else STEPWISE)


def kept(got: Draft, c: Unit | None) -> Reject | None:
    """A reduction whose row is written, and reduced again: a block that holds it need not read it back."""
    if got.inner or multiplies(got) or laden(got):
        return Reject("RF305", got.rows[0].node, "a row that is written is reduced again where it is held")
    return join(got, c) or rows(got, c)


def join(got: Draft, c: Unit | None) -> Reject | None:
    inner = [i for i in got.inner if i.contraction]
    if inner and len(got.rows) == 1 and columned(got, got.rows[0]) and not headlike(got, inner):
        return Reject("RF305", got.inner[0].node, "two products with nothing but a map between them",
                      "a library runs them better, one after the other")
    for i in got.inner:
        if c is not None and i.node.unit is c and (i.node.escapes or any(x not in got.units for x in c.consumers)):
            return Reject("RF305", i.node, "the result of an inner reduction is also read elsewhere",
                          "it must be written in any case")
        if i.node.unit is c and (no_matrix(got, i) or (i.contraction and (not inner_pays(got, i) or got.row_map))):
            return replace(STEPWISE, node=i.node)
    for i in got.rows:
        if not i.contraction and not set(got.p_axes) >= set(row_axes(i)) and any(
                i.node.unit is not c and j.node.unit is c and set(row_axes(j)) < set(row_axes(i)) for j in got.rows):
            return Reject("RF305", i.node, "the reductions have other rows",
                          "one has a result for every row, the other one result for all rows: fused, the rows could not "
                          "run in parallel", "nothing to change: the smaller reduction runs before the cascade")
        if i.contraction and i.axes != got.p_axes and not consumer_pays(got, i):
            return replace(CONSUMING, node=i.node)
    return None


def together(got: Draft, c: Unit | None) -> Reject | None:
    """Every reduction over the cascade's own row, or a contraction per step, and no tensor of the row left over."""
    if any(not i.contraction for i in got.inner):
        return Reject("RF302", None, "the reduction runs over another axis")
    return one_contraction(got) or join(got, c) or escapes(got, c)


def also(got: Draft, c: Unit | None) -> Reject | None:
    """A reduction of the row; or the deep product that makes it, once the maps behind have left nothing of the row to write."""
    makes = any(i.node.unit is c for i in got.inner) and deep(got)
    return one_contraction(got) or join(got, c) or (None if makes else rows(got, c))


def rows(got: Draft, c: Unit | None) -> Reject | None:
    """Does the newcomer reduce over the cascade's own r-axis?"""
    if any(i.node.unit is c for i in got.rows):
        return None
    return Reject("RF302", None, "the reduction runs over another axis")


def plain(got: Draft, c: Unit | None) -> Reject | None:
    if any(i.node.unit is c and not i.contraction for i in got.inner):
        return None
    return Reject("RF302", None, "the reduction is no plain one over another axis")


def one_contraction(got: Draft) -> Reject | None:
    several = len(matrices(got.rows)) > 1 and all(i.contraction for i in got.rows) and not pays_alone(got)
    if len(matrices(got.inner)) > 1 or several:
        return TWO_CONTRACTIONS  # weights that are normalised in the kernel serve any number of results
    return None


def follow(got: Draft, u: Unit | None) -> Reject | None:
    if u is not None and u.gathers and (len(got.rows) < 2 or laden(got)):
        return Reject("RF305", None, "one element of a map of a single reduction")
    if got.row_map and any(i.contraction for i in got.inner):
        return Reject("RF305", None, "a map over the row would need the inner contraction a second time")
    return None


def ending(got: Draft, _: Unit | None) -> Reject | None:
    """All maps behind a row."""
    if laden(got) or crowded(got):
        return Reject("RF305", got.rows[0].node, TOO_MANY)
    if got.inner:
        return Reject("RF305", got.rows[0].node, "a map over the row would need the inner reduction a second time")
    return None


def companion(got: Draft, c: Unit | None) -> Reject | None:
    mine = [i for i in got.rows if i.node.unit is c]
    if not mine or any(i.node.unit is c for i in got.inner):
        return Reject("RF302", None, "the reduction runs over another axis")
    if any(i.contraction or set(row_axes(i)) != set(got.p_axes) for i in mine):
        return Reject("RF305", None, "the reduction has other rows")
    if laden(got):
        return Reject("RF305", None, TOO_MANY)
    return escapes(got, c)


def beside(got: Draft, _: Unit | None) -> Reject | None:
    """Reductions of one row, whatever they write."""
    if got.inner or any(i.contraction for i in got.rows) or laden(got):
        return Reject("RF305", got.rows[0].node, "reductions of one row that few tensors are read for")
    if any(set(row_axes(i)) != set(got.p_axes) for i in got.rows):
        return Reject("RF305", got.rows[0].node, "the reduction has other rows")
    return None


def weighing(got: Draft, c: Unit | None) -> Reject | None:
    """A product of float32 numbers whose weights another reduction of the region adds up, if that is all there is."""
    found = [i for i in got.rows if i.contraction]
    alone = len(found) == 1 < len(got.rows) and found[0].node.unit is c and not got.inner
    if not (alone and weights_stay(got, found[0])):
        return Reject("RF305", found[0].node if found else None, "a sum beside this product saves too little")
    return escapes(got, c)


def sibling(got: Draft, u: Unit | None) -> Reject | None:
    contractions = [i for i in (*got.rows, *got.inner) if i.contraction]
    wide = matrices(contractions)
    if len(wide) > 1:
        return None if pays_alone(got) else TWO_CONTRACTIONS
    if len(contractions) > 1 and not consumer_pays(got, wide[0]):
        return Reject("RF305", wide[0].node, "a second reduction beside this contraction costs more than it saves",
                      "a library GEMM and one more pass over its operand are faster")
    return None


def lead(got: Draft, u: Unit | None) -> Reject | None:
    if laden(got):
        return Reject("RF305", None, TOO_MANY)
    if u is not None and any(n.unit in got.units and (n.unit is u or n.unit.ancestors >> u.index & 1)
                             for n in got.external if n.unit is not None):
        return Reject("RF305", u.nodes[-1], "a contraction reads what the producer leads to: it is written in any case")
    leaves = [s for s in got.sinks if s.node.unit is u]
    want = {R}.union(got.p_axes, *(i.axes for i in got.rows if i.contraction))
    if leaves and (got.inner or multiplies(got) or any({a for e in s.at for a in axes_of(e)} != want for s in leaves)):
        return Reject("RF303", None, "a producer that is read elsewhere is not written once per element of the row")
    return None


def multiplies(d: Draft) -> bool:
    """Is a matrix multiplied among its reductions? A sum whose columns are rows of their own multiplies none."""
    return any(i.contraction for i in d.inner) or any(i.contraction and not by_columns(d, i) for i in d.rows)


def tiled(got: Draft) -> bool:
    """Has it products for each step of the row, or into columns: elements of the row that a matrix unit makes or takes?"""
    return bool(got.inner) or any(i.contraction and not set(i.axes) <= set(got.p_axes) for i in got.rows)


def headlike(d: Draft, inner: list[Instance]) -> bool:
    """Are two products with a map between as small as a head of attention, and their tensors as narrow? Then what lies between
    them need not be written; larger ones a library runs better, one after the other."""
    unit, columns = d.rows[0].node.unit, prod(d.extents[a] for a in d.rows[0].axes if a not in d.p_axes)
    left = unit.args[0].unit if unit is not None and unit.args else None
    weights = [i.node.unit for i in inner if i.node.unit is not None]
    if left is None or not all(left is u or left.ancestors >> u.index & 1 for u in weights):
        return False  # the values are a product, not the weights
    return max(columns, *(d.extents[i.over] for i in inner)) <= HEAD and all(
        n.dtype in NARROW for n in d.external if len(n.shape) > 1)


def widened(i: Instance) -> bool:
    """Is it a product of tensors of narrower types, widened first? A library multiplies them as the wide numbers they have
    become, a matrix unit as what they are."""
    e, read = i.body.expr, i.node.unit.args if i.node.unit is not None else ()
    return all(n.dtype == "f32" for n in read) and isinstance(e, Op) and e.name == "mul" and all(
        isinstance(x, Cast) and x.dtype == "f32" and isinstance(x.arg, Load) and x.arg.dtype in NARROW
        for x in e.args)


def matrices(instances: Iterable[Instance]) -> list[Instance]:
    """The contractions but for those that have one column where another of them has many: a product with a vector (a
    normaliser ``q @ k.sum``) costs what a sum over the row costs."""
    some = [i for i in instances if i.contraction]
    return [i for i in some if not any(set(i.axes) < set(j.axes) for j in some)]
