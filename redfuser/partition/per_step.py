"""Products that are no matrices of a cascade's tiles: what a library makes at once would be made again for every row.

A tile has rows and one axis beside them, along which the cascade walks. A product that it makes on the way has one operand of
each row and one of each place of the walk, which all rows share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import prod

from redfuser.acrf.cascade import Let, Reduce
from redfuser.partition.cost import elements
from redfuser.partition.drafted import Draft, R
from redfuser.partition.epilogue import contracts
from redfuser.partition.evaluate import factors
from redfuser.partition.positions import slides
from redfuser.partition.values import Instance

ROWS = 16
"""Rows of the smallest matrix that a unit multiplies."""


def no_matrix(d: Draft, i: Instance) -> bool:
    """Is an inner reduction a product, and none that tiles can make, or make once?"""
    tiles = d.machine.kind == "cuda"
    return along_diagonals(d, i) or repeated(d, i) or (tiles and (
        of_one_row(d, i) or (i.contraction and (nested(d, i) or parts_rows(d, i)))))


def along_diagonals(d: Draft, i: Instance) -> bool:
    """Is it a matrix product whose results are read where it is none: each row of the cascade at places of its own, as those of
    relative positions are that were shifted? The row reads what a library has written."""
    return i.node.unit is not None and contracts(i.node.unit) and (
        not i.contraction or any(slides(d.ev.ix, e, R) for e in i.indices))


def repeated(d: Draft, i: Instance) -> bool:
    """Has the product fewer elements than places that the row reads them at (``l // 14`` of it at ``l``)?"""
    return i.contraction and 2 * prod(i.node.shape) <= elements(d, i.axes)


def nested(d: Draft, i: Instance) -> bool:
    """Is what the product makes reduced over another axis before the row is? It is made, and reduced, as a row of that axis
    (``(q @ k.mT).amax(-1).sum(-1)``)."""
    return any(j.over in i.axes for j in d.inner if not j.contraction)


def parts_rows(d: Draft, i: Instance) -> bool:
    """Has each row of a tile an operand of its own in this product, and one in common in the others? Relative positions of
    lines and of columns (``bhwc,hkc->bhwk`` and ``bhwc,wkc->bhwk``) leave attention's ``q @ k.mT`` not one row to share."""
    others = [j for j in d.inner if j.contraction and j is not i]
    return bool(others) and _shared(d, [*others, i]) < ROWS <= min(_shared(d, others), _shared(d, [i]))


def of_one_row(d: Draft, i: Instance) -> bool:
    """Is it a sum of products that the program writes out (``(q[:, None] * k).sum(-1)``), of what no two rows read? A matrix
    unit would multiply one row of the many that it has. What is summed lies in memory and is read once in any case, and what
    it makes is less by its depth: a kernel of its own reads and adds as fast as memory goes. A step of RWKV on an H200 takes
    34.9 us with its sum in the norm behind it, 9.2 with it in front."""
    if not isinstance(i.node.stmt, Reduce) or i.node.stmt.reducer.kind != "sum" or d.extents[i.over] < ROWS:
        return False
    read = [n.stmt.expr for n, _ in i.body.sites if isinstance(n.stmt, Let)]  # a value that others read too stands for itself
    e = i.body.expr if i.contraction or len(read) != 1 else read[0]
    return len(factors(e)) > 1 and (i.node.unit is None or not contracts(i.node.unit)) and _shared(d, [i]) < 2


def by_columns(d: Draft, i: Instance) -> bool:
    """Is it a reduction of the row that has no columns, or that the program writes out, ``(w[:, None] * v).sum(0)``, and whose
    columns no two rows weigh? Each column is then a row of its own, which has weights that others have as well, and no matrix.
    (A projection of one token is a matrix all the same: its weights are a library's, or a kernel's of their own.)"""
    columns = set(i.axes) - set(d.p_axes)
    return not columns or ((i.node.unit is None or not contracts(i.node.unit)) and _shared(d, [i], columns) < 2)


def _shared(d: Draft, products: Iterable[Instance], across: Collection[str] = (R,)) -> int:
    """Rows of the cascade that read the same operands of these products: those that lie ``across``, along the walk else."""
    read = [d.ev.axes_read(f) or set() for i in products for f in factors(i.body.expr)]
    own = set().union(*(axes for axes in read if not axes.isdisjoint(across)))
    return prod(d.extents[a] for a in d.p_axes if a not in own)
