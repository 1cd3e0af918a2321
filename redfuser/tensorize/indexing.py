"""Index maps: from index expressions such as ``k[b, l, (h // 4) * 64 + c]`` to rectangular views and slices.

A contiguous tensor may be looked at under any factorisation of its dimensions. :mod:`redfuser.tensorize.rearrange` splits an
axis that is read through ``h // g`` (heads that share a key-value head) into two; :func:`view` splits the dimensions of a
tensor so that, where possible, each has one axis; :func:`affine` is the normal form both use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from redfuser.acrf.expr import Const, Expr, Index, Load, Op, map_children, walk
from redfuser.tensorize.ir.index import i64, iadd, imul


@dataclass(frozen=True, slots=True)
class Affine:
    """``sum coefficient * axis + constant``; axes with coefficient 0 are absent."""

    terms: tuple[tuple[str, int], ...]
    constant: int = 0

    def coefficient(self, axis: str) -> int:
        return dict(self.terms).get(axis, 0)

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(a for a, _ in self.terms)

    def without(self, axis: str) -> Affine:
        return Affine(tuple(t for t in self.terms if t[0] != axis), self.constant)

    def expr(self, names: Mapping[str, Expr] | None = None) -> Expr:
        """As an index expression, axes replaced by ``names`` where given."""
        out: Expr = i64(0)
        for axis, k in self.terms:
            out = iadd(out, imul((names or {}).get(axis, Index(axis)), k))
        return iadd(out, i64(self.constant))


def make(terms: Mapping[str, int], constant: int) -> Affine:
    return Affine(tuple(sorted((a, k) for a, k in terms.items() if k)), constant)


def affine(e: Expr, extents: Mapping[str, int]) -> Affine | None:
    """The affine form of an integer expression over axes ``0 <= axis < extent``, or None.

    ``(4*g + r) // 4`` is ``g`` and ``(4*g + r) % 4`` is ``r`` when ``0 <= r < 4`` by its extent; other quotients and
    remainders are not affine.
    """
    match e:
        case Const(value=v):
            return Affine((), int(v)) if not isinstance(v, float) else None
        case Index(axis=a):
            return make({a: 1}, 0) if extents.get(a) != 1 else Affine(())
        case Op(name="neg", args=(x,)):
            p = affine(x, extents)
            return None if p is None else make({a: -k for a, k in p.terms}, -p.constant)
        case Op(name="add" | "sub" | "mul" | "floordiv" | "mod" as name, args=(x, y)):
            p, q = affine(x, extents), affine(y, extents)
            if p is None or q is None:
                return None
            return _combine(name, p, q, extents)
        case _:
            from redfuser.acrf.expr import Cast

            if isinstance(e, Cast) and e.dtype in ("i64", "i32"):
                return affine(e.arg, extents)
    return None


def _combine(name: str, p: Affine, q: Affine, extents: Mapping[str, int]) -> Affine | None:
    if name in ("add", "sub"):
        return minus(p, q if name == "sub" else make({a: -k for a, k in q.terms}, -q.constant))
    if name == "mul":
        if p.terms and q.terms:
            return None
        k, r = (p.constant, q) if not p.terms else (q.constant, p)
        return make({a: c * k for a, c in r.terms}, r.constant * k)
    if q.terms or q.constant <= 0:
        return None
    quotient, rest = divide(p, q.constant)
    low, high = bounds(rest, extents)
    if low < 0 or high >= q.constant:
        return None
    return quotient if name == "floordiv" else rest


def minus(p: Affine, q: Affine) -> Affine:
    terms = dict(p.terms)
    for a, k in q.terms:
        terms[a] = terms.get(a, 0) - k
    return make(terms, p.constant - q.constant)


def divide(p: Affine, k: int) -> tuple[Affine, Affine]:
    """``p = k * quotient + rest`` with every divisible term in the quotient."""
    quotient = {a: c // k for a, c in p.terms if c % k == 0}
    rest = {a: c for a, c in p.terms if c % k}
    return make(quotient, p.constant // k), make(rest, p.constant % k)


def bounds(p: Affine, extents: Mapping[str, int]) -> tuple[int, int]:
    """Least and greatest value over the axes' ranges."""
    low = high = p.constant
    for a, k in p.terms:
        span = k * (extents[a] - 1)
        low, high = low + min(span, 0), high + max(span, 0)
    return low, high


# -- axes that tensors read in groups ----------------------------------------------------------------------------------


def group_size(exprs: Iterable[Expr], axis: str, extent: int) -> int:
    """The g > 1 of ``axis // g`` or ``axis % g`` in ``exprs``, when there is exactly one and it divides the extent."""
    sizes = set()
    for root in exprs:
        for e in walk(root):
            match e:
                case Op(name="floordiv" | "mod", args=(x, Const(value=g))) if Index(axis) in set(walk(x)):
                    sizes.add(int(g))
    return sizes.pop() if len(sizes) == 1 and extent % min(sizes) == 0 and 1 < min(sizes) < extent else 1


# -- views -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """A contiguous reshape of a tensor: ``shape`` after splitting each dimension by ``radices`` (strides within the
    original dimension, largest first, ending in 1)."""

    shape: tuple[int, ...]
    radices: tuple[tuple[int, ...], ...]

    def index(self, dims: tuple[Affine, ...], extents: Mapping[str, int]) -> tuple[Affine, ...] | None:
        """The view's own indices for indices into the original dimensions; None when the view does not fit them."""
        out: list[Affine] = []
        for p, radix in zip(dims, self.radices, strict=True):
            rest = p
            for stride in radix[:-1]:
                quotient, rest = divide(rest, stride)
                low, high = bounds(rest, extents)
                if low < 0 or high >= stride:
                    return None
                out.append(quotient)
            out.append(rest)
        return tuple(out)


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


def zero_filled(indices: Iterable[Expr], shape: Iterable[int], axis: str, extents: Mapping[str, int]) -> bool:
    """Does a read with ``axis`` past its extent leave the tensor, which gives 0? Not where it reads a part of one: the
    first 100 columns of 128 are followed by 28 others."""
    wide = {a: max(2, n) for a, n in extents.items()}
    for e, size in zip(indices, shape, strict=True):
        p = affine(e, wide)
        if p is not None and p.coefficient(axis) > 0:
            rest = p.without(axis)
            if p.coefficient(axis) * extents[axis] + bounds(rest, extents)[0] >= size:
                return True
    return False


def rename_loads(e: Expr, tensors: Mapping[str, str]) -> Expr:
    """Loads of ``tensors``' keys become loads of their values."""

    def go(x: Expr) -> Expr:
        if isinstance(x, Load) and x.tensor in tensors:
            x = Load(tensors[x.tensor], x.indices, x.dtype)
        return map_children(x, go)

    return go(e)
