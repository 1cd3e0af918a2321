"""Index maps: from index expressions such as ``k[b, l, (h // 4) * 64 + c]`` to rectangular views and slices.

A contiguous tensor may be looked at under any factorisation of its dimensions. :mod:`redfuser.tensorize.rewrite` splits an
axis that is read through ``h // g`` (heads that share a key-value head) into two; :func:`view` splits the dimensions of a
tensor so that, where possible, each has one axis; :func:`affine` is the normal form both use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from redfuser.acrf.affine import Affine, Indices
from redfuser.acrf.expr import Expr, Load, map_children


@dataclass(frozen=True, slots=True)
class View:
    """A contiguous reshape of a tensor: ``shape`` after splitting each dimension by ``radices`` (strides within the
    original dimension, largest first, ending in 1)."""

    shape: tuple[int, ...]
    radices: tuple[tuple[int, ...], ...]

    def index(self, dims: tuple[Affine, ...], extents: Mapping[str, int]) -> tuple[Affine, ...] | None:
        """The view's own indices for indices into the original dimensions; None when the view does not fit them."""
        out: list[Affine] = []
        ix = Indices(extents)
        for p, radix in zip(dims, self.radices, strict=True):
            rest = p
            for stride in radix[:-1]:
                quotient, rest = divmod(rest, stride)
                low, high = ix.range(rest)
                if low < 0 or high >= stride:
                    return None
                out.append(quotient)
            out.append(rest)
        return tuple(out)

    @property
    def with_row(self) -> View:
        """The same with a dimension of one element before the last."""
        *before, last = self.radices
        strides = (*last[:-1], last[-2] if len(last) > 1 else self.shape[-1], 1)
        return View((*self.shape[:-1], 1, self.shape[-1]), (*before, strides))


def view(shape: tuple[int, ...], loads: Iterable[tuple[Affine, ...]], extents: Mapping[str, int]) -> View:
    """The finest view of a tensor under which every load has at most one axis per dimension, else the tensor as it is.

    ``k: [B, L, 768]`` read as ``k[b, l, 64*h + c]`` becomes ``[B, L, 12, 64]`` read as ``[b, l, h, c]``.
    """
    loads = list(loads)
    radices: list[tuple[int, ...]] = []
    for d, extent in enumerate(shape):
        several = any(len(p[d].terms) > 1 or any(k != 1 for _, k in p[d].terms) for p in loads)
        strides = sorted({k for p in loads for _, k in p[d].terms if several and k > 0} | {1}, reverse=True)
        radices.append(tuple(strides) if _nested(strides, extent) else (1,))
    # A dimension's split must fit every load; if one does not, that dimension stays whole.
    for d, radix in enumerate(radices):
        one = View((), (radix,))
        if any(one.index((p[d],), extents) is None for p in loads):
            radices[d] = (1,)
    split = [n for extent, radix in zip(shape, radices, strict=True) for n in _split(extent, radix)]
    return View(tuple(split), tuple(radices))


def _nested(strides: list[int], extent: int) -> bool:
    fits = all(strides[k] % strides[k + 1] == 0 for k in range(len(strides) - 1))
    return fits and extent % strides[0] == 0


def _split(extent: int, radix: tuple[int, ...]) -> list[int]:
    sizes = [extent // radix[0]]
    sizes += [radix[k] // radix[k + 1] for k in range(len(radix) - 1)]
    return sizes


def zero_filled(indices: Iterable[Expr | Affine], shape: Iterable[int], axis: str, extents: Mapping[str, int]) -> bool:
    """Does a read with ``axis`` past its extent leave the tensor, which gives 0? Not where it reads a part of one: the
    first 100 columns of 128 are followed by 28 others."""
    ix = Indices({a: max(2, n) for a, n in extents.items()})
    for e, size in zip(indices, shape, strict=True):
        p = e if isinstance(e, Affine) else ix.of_axes(e)
        if p is not None and (k := p.coefficient(axis)) > 0 and k * extents[axis] + ix.range(p.without(axis))[0] >= size:
            return True
    return False


def rename_loads(e: Expr, tensors: Mapping[str, str]) -> Expr:
    """Loads of ``tensors``' keys become loads of their values."""

    def go(x: Expr) -> Expr:
        if isinstance(x, Load) and x.tensor in tensors:
            x = Load(tensors[x.tensor], x.indices, x.dtype)
        return map_children(x, go)

    return go(e)
