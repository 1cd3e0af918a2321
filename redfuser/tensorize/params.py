"""The parameters of a kernel: views of the arguments in which its index maps are simplest."""

from __future__ import annotations

from redfuser.acrf.expr import Expr, Load, walk
from redfuser.tensorize.arguments import static_extent
from redfuser.tensorize.indexing import Affine, affine, view
from redfuser.tensorize.ir.nodes import Param
from redfuser.tensorize.state import KernelState


def declare_params(work: KernelState) -> None:
    """Give every tensor that is read or written a parameter, viewed so that its indices are simplest."""
    loads: dict[str, list[tuple[Expr, ...]]] = {}
    for b in (*work.kernel.body, *work.kernel.tail):
        for e in b.exprs:
            for x in walk(e):
                if isinstance(x, Load):
                    loads.setdefault(x.tensor, []).append(x.indices)
    results = {t for t, _ in work.stores.values()}
    for name, indices in work.stores.values():
        loads.setdefault(name, []).append(indices)
    for name, uses in loads.items():
        tensor = work.declared[name]
        shape = tuple(static_extent(s, name) for s in tensor.shape)
        forms = [tuple(affine(i, _index_extents(work)) for i in use) for use in uses]
        if any(p is None for form in forms for p in form):
            work.views[name] = None
            work.params[name] = Param(work.arg(name), tensor.dtype, shape or (1,), name in results)
            continue
        v = view(shape, forms, _index_extents(work))  # type: ignore[arg-type]
        work.views[name] = v
        work.params[name] = Param(work.arg(name), tensor.dtype, v.shape or (1,), name in results)


def view_indices(work: KernelState, name: str, indices: tuple[Expr, ...]) -> tuple[Affine, ...] | None:
    """Indices into the parameter's view, or None when they are not affine."""
    v = work.views[name]
    if v is None:
        return None
    if not indices:  # a single number: its parameter has one element
        return (Affine(()),)
    forms = tuple(affine(i, _index_extents(work)) for i in indices)
    return v.index(forms, _index_extents(work))  # type: ignore[arg-type]


def _index_extents(work: KernelState) -> dict[str, int]:
    """Extents for index analysis: the row axis keeps its dimension even when it has one point."""
    rows = work.roles.rows
    return {**work.extents, rows: max(2, work.extents[rows])}
