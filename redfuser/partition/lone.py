"""How many of torch's kernels a group of maps replaces, and which operations are worth one by themselves: those of which
torch's takes longer than what they move."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import prod

from redfuser.acrf.affine import Indices
from redfuser.acrf.expr import BYTES
from redfuser.partition.epilogue import in_the_call, launches, moves, rounds
from redfuser.partition.graph import Node, Unit
from redfuser.partition.permuted import RUN, copied, fetches, source_of
from redfuser.partition.positions import lines

LEAST = 2
"""Operations of the program that a group replaces, at least: one by itself runs as well in torch."""


def pays(u: Unit, large: int) -> bool:
    """``large``: bytes of a tensor beyond which one that is repeated beside it is worth it."""
    return repeats(u, large) or scattered(u)


def repeats(u: Unit, large: int) -> bool:
    """Is it one operation of a tensor of so many bytes at least, and of one that is repeated along an axis: a row, positions, a
    scale of each row or of each image's channels? torch's kernel for two shapes takes 1.4 to 3 times memory's time. A bias
    that is in a library's call is not."""
    out = u.results[0]
    again = [n for n in u.args if 1 < prod(n.shape) <= prod(out.shape) // 2]
    one = len(u.nodes) == len(again) == 1 and len(u.args) == 2 and not in_the_call(u)
    return one and out.dtype in ("f16", "bf16", "f32") and out.bytes >= large


def scattered(u: Unit) -> bool:
    """Does it take elements from places that data say, or join tensors that lie in pieces or give short runs? torch's kernels
    for both take several times as long as a copy."""
    out, run = u.results[0], 1
    if u.gathers or not u.piecewise or any(len(n.shape) != len(out.shape) for n in u.args):
        return u.gathers
    for axis, extent in reversed(list(enumerate(out.shape))):
        own = [n.shape[axis] for n in u.args]
        if max(own) < extent:
            return min(own) * run * BYTES.get(out.dtype, 8) < RUN or any(in_pieces(n) for n in u.args)
        run *= extent
    return False


def turned(units: Collection[Unit], wanted: Collection[Node]) -> bool:
    """Does a kernel read, row by row, what these make of a tensor that lies in pieces? Or is it returned, and made of one that
    lies across? torch's result lies as its operand does, and is copied."""
    read = {n for u in units if launches(u) for n in u.args if 2 * prod(n.shape) > prod(u.results[0].shape)}
    made = [n for u in units for n in u.results]
    if any(n.lined for n in made) and any(map(copied, read)):
        return True
    return any(n in wanted for n in made) and any(map(in_pieces, read))


def in_pieces(n: Node) -> bool:
    """Is it a view of a tensor, behind any others, whose elements do not lie side by side?"""
    u = n.unit
    if u is None or not moves(u) or u.has_data is False:
        return False
    at, axes = source_of(u)
    ix, source = Indices(u.extents), u.args[0]
    return not at or not lines(ix, at, source.shape, axes) or in_pieces(source)


def replaced(units: Collection[Unit]) -> int:
    """The program's operations among these, or torch's where one was imported as several (a norm: squares and a root)."""
    return max(len(operations(units)), sum((launches(u) and not rounds(u)) + prepared(u) for u in units))


def prepared(u: Unit) -> bool:
    """Does torch start a kernel for what it makes of the vectors of an operation, and one for the operation: the reciprocal
    deviations of a batch norm of halves? (In float32 cuDNN has both in one.)"""
    several = u.pointwise and len(u.results) > 1 and not u.is_view
    return several and any(rounds(p) and p.args[0].dtype in ("f16", "bf16") for p in u.producers)


def operations(units: Iterable[Unit]) -> set[int]:
    """The program's operations among these that torch starts a kernel for: an operation may be imported as several, and a
    conversion belongs to it then."""
    return {id(u.provenance) if u.provenance.op else u.index for u in units if launches(u) or u.reducing or fetches(u)}

