"""Roundings to float16 in statements of their own, so that they are made two at a time.

TileLang takes the conversions of a loop by pairs where nothing else in it is a call or a choice. Beside one they are made
singly; and of a tile that a product of warp groups has written, ptxas joins them again in such a way that it no longer knows
when the product is read, and runs the kernel's products one after another (C7514)::

    scores[i, j] = tanh_approx(cast(cast(scores[i, j], "float16"), "float32") * 0.004)
    -->
    scores[i, j] = cast(cast(scores[i, j], "float16"), "float32")
    scores[i, j] = tanh_approx(scores[i, j] * 0.004)

What is computed of one element is a chain, each part of which is in single precision exactly what it is in half: no value
changes. Only the text is in parts; a tile program says what is computed, not how it is spelled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from redfuser.acrf.expr import Cast, Expr, Load, children, walk
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import Assign, Gemm, Parallel, TileKernel


@dataclass(slots=True)
class Pairs:
    """The parts of one statement. own: the product's element at which the chain begins; here: the text of the element that
    keeps what was computed so far; parts: the texts of the statements but the last; known: expressions that stand there."""

    own: Load
    here: str
    parts: list[str] = field(default_factory=list)
    known: dict[Expr, str] = field(default_factory=dict)

    def on(self, e: Expr) -> bool:
        """Is an expression a part of the chain?"""
        return any(x == self.own for x in walk(e))

    def keep(self, e: Expr, text: str, again: str = "") -> str:
        """A statement that computes ``e``. again: how ``e`` is read from then on, where not as the element itself."""
        if text != self.here:
            self.parts.append(text)
        self.known[e] = again or self.here
        return self.known[e]


def chain(kernel: TileKernel, s: Parallel) -> Load | None:
    """The element of a product that the one statement of a loop rounds to float16 and makes a number of single precision of;
    None elsewhere, and where it reads another of the kind but as it is rounded, which is not before the last part."""
    if len(s.body) != 1:
        return None
    (a,) = s.body
    homes = {b.name: b for b in kernel.buffers if b.scope == "fragment"}
    products = {k.c for k in every(kernel.body) if isinstance(k, Gemm)}
    read = dict.fromkeys(x for x in walk(a.expr) if isinstance(x, Load) and x.tensor in products | {a.target})
    found = [x for x in read if x.tensor == a.target or x.indices != a.indices or not _as_rounded(a.expr, x)]
    found = found if len(read) > 1 else [*read]
    alone = len(found) == 1 and found[0].tensor in products and found[0].indices == a.indices
    held = all(n in homes and homes[n].dtype == "f32" for n in (a.target, *(x.tensor for x in read)))
    return found[0] if alone and held and _rounded(a, found[0]) else None


def _as_rounded(e: Expr, own: Load) -> bool:
    """Is all that reads it a rounding?"""
    read = [x for x in walk(e) if own in children(x)]
    return all(isinstance(x, Cast) and x.dtype == "f16" for x in read)


def _rounded(a: Assign, own: Load) -> bool:
    return any(isinstance(x, Cast) and x.dtype == "f16" and own in walk(x) for x in walk(a.expr))
