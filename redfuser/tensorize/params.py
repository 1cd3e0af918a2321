"""The parameters of a kernel: views of the arguments in which its index maps are simplest."""

from __future__ import annotations

from collections.abc import Mapping

from redfuser.acrf.affine import Indices
from redfuser.acrf.cascade import Tensor
from redfuser.acrf.expr import Expr, Load, walk
from redfuser.strategies.program import Kernel, Program
from redfuser.tensorize.arguments import argument_name, static_extent
from redfuser.tensorize.indexing import View, view
from redfuser.tensorize.ir.parts import Param

Stores = Mapping[str, tuple[str, tuple[Expr, ...]]]
"""By block name, the tensor that it writes and where."""


def declare_params(program: Program, kernel: Kernel, declared: Mapping[str, Tensor], stores: Stores,
                   extents: Mapping[str, int]) -> tuple[dict[str, Param], dict[str, View | None]]:
    """Of every tensor that is read or written its parameter, viewed so that its indices are simplest, and that view: None where
    some index has no affine form. extents: for index analysis."""
    loads: dict[str, list[tuple[Expr, ...]]] = {}
    for b in (*kernel.body, *kernel.tail):
        for e in b.exprs:
            for x in walk(e):
                if isinstance(x, Load):
                    loads.setdefault(x.tensor, []).append(x.indices)
    results = {t for t, _ in stores.values()}
    for name, indices in stores.values():
        loads.setdefault(name, []).append(indices)
    ix = Indices(extents)
    params: dict[str, Param] = {}
    views: dict[str, View | None] = {}
    for name, uses in loads.items():
        tensor = declared[name]
        shape = tuple(static_extent(s, name) for s in tensor.shape)
        forms = [tuple(map(ix.of_axes, use)) for use in uses]
        plain = any(p is None for form in forms for p in form)
        v = views[name] = None if plain else view(shape, forms, extents)  # type: ignore[arg-type]
        seen = shape if v is None else v.shape
        params[name] = Param(argument_name(program, name), tensor.dtype, seen or (1,), name in results)
    return params, views
