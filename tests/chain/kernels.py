"""The kernels of the corpus: every accepted cascade in every form that has tiles, and attention and norms as torch spells them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from redfuser.acrf.cascade import Axis, Cascade, Tensor
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.expr import Cast, Expr, Load, map_children
from redfuser.acrf.state import Fused
from redfuser.errors import LoweringError
from tests.chain.lowered import fused_of, twin_of
from tests.chain.survivors import Kernel
from tests.tensorize.test_roles_of_products import program
from tests.unit.acrf.corpus import ACCEPT

SIZES = {"I": 150, "L": 900, "N": 96, "C": 64, "D": 64, "E": 64, "H": 2}
"""Two tiles and a part of one in every direction; a twin takes what it needs of them."""
FORMS = (("", 1), ("single", 1), ("multi", 3), ("resident", 1))
ROLES = (("overlap", 1), ("persistent", 1))
"""With roles of warp groups; attention and products with their maps have them."""
PRODUCTS = {f"product {kind}": kind for kind in ("bias and gelu", "two products", "row scale", "two results")}


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.mT).float() / 11.3, -1).to(q.dtype) @ v


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (768,), w)


def split(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


R = torch.randn
TORCH: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "torch attention": (attention, tuple(R(3, 2, 2, 200, 32).half())),
    "torch causal": (causal, (R(1, 4, 200, 32).bfloat16(), *R(2, 1, 2, 200, 32).bfloat16())),
    "torch norm": (norm, (R(64, 768), R(768))),
    "torch roles": (split, (R(4, 16, 384, 64).half(), *R(2, 4, 16, 640, 64).half())),
    "torch causal roles": (causal, (R(4, 16, 384, 64).bfloat16(), *R(2, 4, 16, 384, 64).bfloat16())),
    "torch split": (split, (R(1, 2, 1, 32).half(), *R(2, 1, 2, 4096, 32).half())),
}
CORPUS = {c.name: c for c in ACCEPT}
NAMES = (*TORCH, *CORPUS)
ROWS = [n for n, c in CORPUS.items() if all(len(t.shape) <= 2 for t in c.cascade.inputs) and "E" not in str(c.cascade)]
"""Programs of rows alone: cheap ones."""


def kernels(name: str, forms: tuple[tuple[str, int], ...] = FORMS) -> Iterator[Kernel]:
    """A kernel of each strategy that has tiles, the chosen one first; none where none has."""
    region, seen = fused(name), set()
    for strategy, splits in forms:
        try:
            twins = twin_of(region, True, strategy, splits), twin_of(region, False, strategy, splits)
        except LoweringError:
            continue
        if twins[0].form not in seen:
            seen.add(twins[0].form)
            yield Kernel(f"{name} {twins[0].form}", twins)


def fused(name: str) -> Fused:
    if name in TORCH:
        function, args = TORCH[name]
        return fused_of(function, *args)
    if name in PRODUCTS:
        return program(PRODUCTS[name]).fused
    case = CORPUS[name]
    found = fuse(_bound(case.cascade), case.casts)
    assert isinstance(found, Fused)
    try:
        twin_of(found, False)
    except LoweringError as error:
        if error.code != "RF490":
            return found
        halves = fuse(_halves(_bound(case.cascade)), case.casts)
        return halves if isinstance(halves, Fused) else found
    return found


def _bound(cascade: Cascade) -> Cascade:
    def size(n: int | str) -> int:
        return n if isinstance(n, int) else SIZES[n]

    return replace(cascade, axes=tuple(Axis(a.name, size(a.extent)) for a in cascade.axes),
                   inputs=tuple(replace(t, shape=tuple(map(size, t.shape))) for t in cascade.inputs))


def _halves(cascade: Cascade) -> Cascade:
    """The same of half-precision tensors: what the matrix units take."""
    def one(e: Expr) -> Expr:
        if isinstance(e, Load) and e.dtype == "f32":
            return Cast(Load(e.tensor, e.indices, "f16"), "f32")
        return e if isinstance(e, Load) else map_children(e, one)

    return replace(cascade, inputs=tuple(Tensor(t.name, "f16" if t.dtype == "f32" else t.dtype, t.shape)
                                         for t in cascade.inputs),
                   stmts=tuple(replace(s, expr=one(s.expr)) for s in cascade.stmts))


__all__ = ["FORMS", "NAMES", "PRODUCTS", "ROLES", "ROWS", "TORCH", "fused", "kernels"]
