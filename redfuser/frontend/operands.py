"""Operands of products that torch must copy: each tensor once, line by line.

    a = reshape(permute(x))                    # [b, p, l], whose neighbours in memory are p: an einsum's
    y = matmul(a, w)                           -->      c = reshape(permute'(x)); y = matmul(permute(c, (0, 2, 1)), w)
    b = reshape(permute'(x))                            b = c

A library reads a matrix either way round. So a copy is made with what lies side by side side by side, and written down one
way from the tensor that it is of: two products of one tensor share it, and a map in front may write it itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from redfuser.frontend.builder import Again, renamed
from redfuser.frontend.imported import Imported
from redfuser.tvm_compat import (
    bindings,
    is_static,
    op_name,
    permute_axes,
    prim_int,
    relax,
    results,
    shape_of,
    variables,
)

op = relax.op
VIEWS = ("reshape", "permute_dims", "expand_dims", "squeeze", "strided_slice")


class Factor(NamedTuple):
    """Of an axis, or all of it: so many elements, so far apart in memory, and in the order of the tensor that is copied."""

    extent: int
    stride: int
    place: int


Dims = list[list[Factor]]


def lined_up(imported: Imported) -> Imported:
    """``imported`` with the copies of its products' operands made once each, and line by line; as it is where it has none."""
    main = imported.mod["main"]
    bound = [(b.var, b.value) for b in bindings(main)]
    values = {v.name_hint: e for v, e in bound}
    read: dict[str, list[Any]] = {}
    for _, e in bound:
        for name in dict.fromkeys(variables(e)):
            read.setdefault(name, []).append(e)
    kept = {f.name_hint for f in results(main)}
    matrices = [v for v, e in bound if op_name(e) == "reshape" and len(shape_of(v)) == 3 and is_static(v.struct_info)
                and v.name_hint not in kept and all(op_name(r) == "matmul" for r in read.get(v.name_hint, ()))]
    found = {v.name_hint: copy for v in matrices if (copy := _copy(v, values)) is not None}
    if not found:
        return imported
    builder = Again(list(main.params))
    now: dict[str, Any] = {}
    made: dict[tuple[Any, ...], Any] = {}
    for var, e in bound:
        builder.begin(var.name_hint, imported.provenance[var.name_hint])
        if var.name_hint not in found:
            now[var.name_hint] = builder.emit(renamed(e, now))
            continue
        source, shape, order, turned = found[var.name_hint]
        b, m, n = shape_of(var)
        key = (source.name_hint, shape, order, (b, n, m) if turned else (b, m, n))
        if key not in made:
            x = builder.emit(op.reshape(now.get(source.name_hint, source), shape), "axes")
            made[key] = builder.emit(op.reshape(builder.emit(op.permute_dims(x, order), "lines"), key[-1]), "copy")
        now[var.name_hint] = builder.emit(op.permute_dims(made[key], [0, 2, 1])) if turned else made[key]
    outputs = [now.get(f.name_hint, f) for f in results(main)]
    return replace(imported, mod=builder.finish(outputs), provenance=builder.provenance)


def _copy(var: Any, values: dict[str, Any]) -> tuple[Any, tuple[int, ...], tuple[int, ...], bool] | None:
    """What an operand is a copy of, the axes of that, their order in the copy, and whether the copy is the operand turned; None
    where torch has a view."""
    chain, base = [], var
    while (e := values.get(base.name_hint)) is not None and op_name(e) in VIEWS:
        chain.append((base, e))
        base = e.args[0]
        if not isinstance(base, relax.Var):
            return None
    source, dims = base, _contiguous(shape_of(base))
    for made, e in reversed(chain):
        if (dims := _viewed(dims, e)) is None:
            return None
        if op_name(e) == "strided_slice":
            source, dims = made, _placed(dims)
    if all(len(_merged(d, "stride")) <= 1 for d in dims):
        return None
    batch, rows, columns = (_merged(d, "place") for d in dims)
    turned = bool(rows) and rows[-1].stride == 1
    order = [*batch, *columns, *rows] if turned else [*batch, *rows, *columns]
    axes = sorted(order, key=lambda f: -f.place)
    if prod(f.extent for f in axes) != prod(shape_of(source)):
        return None
    return source, tuple(f.extent for f in axes), tuple(map(axes.index, order)), turned


def _contiguous(shape: Sequence[int]) -> Dims:
    strides = [prod(shape[i + 1:]) for i in range(len(shape))]
    return [[Factor(n, stride, stride)] if n > 1 else [] for n, stride in zip(shape, strides, strict=True)]


def _placed(dims: Dims) -> Dims:
    """The same axes, of a tensor that is copied as it lies here."""
    sizes = [prod(f.extent for f in d) for d in dims]
    out = []
    for i, d in enumerate(dims):
        within = [prod(f.extent for f in d[k + 1:]) * prod(sizes[i + 1:]) for k in range(len(d))]
        out.append([f._replace(place=place) for f, place in zip(d, within, strict=True)])
    return out


def _viewed(dims: Dims, e: Any) -> Dims | None:
    """The axes behind one view; None where they are cut otherwise."""
    shape = shape_of(e)
    match op_name(e):
        case "permute_dims":
            return [dims[a] for a in permute_axes(e)]
        case "reshape":
            return _grouped([f for d in dims for f in d], shape)
        case "strided_slice":
            if any(prim_int(step) != 1 for step in e.args[4].fields) if len(e.args) > 4 else False:
                return None
            cut = [d if prod(f.extent for f in d) == n else [d[0]._replace(extent=n)] if len(d) == 1 else None
                   for d, n in zip(dims, shape, strict=True)]
            return None if None in cut else [[f for f in d if f.extent > 1] for d in cut if d is not None]
    kept = [d for d in dims if d]  # axes of one element come and go
    return [kept.pop(0) if n > 1 else [] for n in shape]


def _grouped(factors: list[Factor], shape: Sequence[int]) -> Dims | None:
    """The same elements in order, as axes of these extents."""
    todo, out = list(factors), []
    for n in shape:
        group: list[Factor] = []
        while n > 1:
            f = todo.pop(0)
            if n % f.extent == 0:
                group.append(f)
                n //= f.extent
            elif f.extent % n == 0:
                rest = f.extent // n
                group.append(Factor(n, f.stride * rest, f.place * rest))
                todo.insert(0, f._replace(extent=rest))
                n = 1
            else:
                return None
        out.append(group)
    return out


def _merged(factors: list[Factor], by: str) -> list[Factor]:
    """Neighbours that follow one another are one."""
    out: list[Factor] = []
    for f in factors:
        if out and getattr(out[-1], by) == f.extent * getattr(f, by):
            out[-1] = f._replace(extent=out[-1].extent * f.extent)
        else:
            out.append(f)
    return out
