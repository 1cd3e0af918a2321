"""A pool, or a convolution of each channel by itself, as a map of the elements of its window, written out.

    avg_pool2d(x, 3, 1, 1)           -->   y[n, c, h, w] = (select(h >= 1 and w >= 1, x[n, c, h - 1, w - 1], 0) + ... ) / 9
    conv1d(x, w, padding=2, groups=C) -->   y[n, c, l] = select(l >= 2, x[n, c, l - 2], 0) * w[c, 0, 0] + ...

Averages are summed in float32 (float64 of float64), from the first element on, and divided as torch divides them: by the
elements of the window, without those of the padding where they do not count, and never with those beyond it (``ceil_mode``).
NaN is the largest element of any window. Products are added up in the convolution's own accumulator, from the first on.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from itertools import product
from math import inf, prod
from typing import Any

from redfuser.acrf.cascade import Let, Tensor
from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, Op, op
from redfuser.acrf.index import i64, iadd, imul
from redfuser.acrf.lift import Lifted
from redfuser.acrf.lift_expr import Unliftable, short_dtype, static
from redfuser.partition.meanings import Positions, result_axes


class Line:
    """One axis of a pool: where windows lie in ``extent`` elements. ``count``: of them."""

    def __init__(self, axis: str, count: int, extent: int, size: int, stride: int, pad: int, dilation: int) -> None:
        self.index, self.count, self.extent, self.size = Index(axis), count, extent, size
        self.stride, self.pad, self.dilation = stride, pad, dilation

    def at(self, k: int) -> Expr:
        """The position of a window's element."""
        return iadd(imul(self.index, self.stride), i64(k * self.dilation - self.pad))

    def inside(self, k: int) -> list[Expr]:
        """What says that it is no padding."""
        first, found = k * self.dilation - self.pad, list[Expr]()
        if first < 0:
            found.append(op("le", i64(0), self.at(k)))
        if first + self.stride * (self.count - 1) >= self.extent:
            found.append(op("lt", self.at(k), i64(self.extent)))
        return found

    def counted(self, whole: bool) -> Expr:
        """How many elements of a window count. whole: those of the padding do."""
        margin = self.pad if whole else 0
        begin, end = self.at(0), iadd(self.at(0), i64(self.size))
        early = self.pad > margin
        late = self.stride * (self.count - 1) - self.pad + self.size > self.extent + margin
        if not (early or late):
            return i64(self.size)
        begin = Op("max", (begin, i64(0)), "i64") if early else begin
        end = Op("min", (end, i64(self.extent + margin)), "i64") if late else end
        return Op("sub", (end, begin), "i64")


def elements(x: Tensor, names: list[str], lines: dict[int, Line], idle: Const) -> Iterator[tuple[tuple[int, ...], Expr]]:
    """The elements of a window that slides along some axes of a tensor, and where in it they are; ``idle`` in the padding's
    place, of whose dtype all are."""
    for offsets in product(*(range(n.size) for n in lines.values())):
        at: list[Expr] = [Index(n) for n in names]
        tests: list[Expr] = []
        for (d, line), k in zip(lines.items(), offsets, strict=True):
            at[d] = line.at(k)
            tests += line.inside(k)
        value: Expr = Load(x.name, tuple(at), x.dtype)
        value = value if x.dtype == idle.dtype else Cast(value, idle.dtype)
        yield offsets, op("select", reduce(partial(op, "and"), tests), value, idle) if tests else value


def pool(call: Any, params: list[Tensor], where: Positions) -> Lifted:
    """``nn.avg_pool2d`` and its like, of channels first or last."""
    attrs, x = call.attrs, params[where[call.args[0]]]
    average = "avg" in call.op.name
    names, axes, shape = result_axes(call)
    layout = str(attrs.layout)
    if sorted(layout) != sorted("NC" + "DHW"[5 - len(shape):]) or str(attrs.out_layout) != layout:
        raise Unliftable(f"a pool in layout {layout}")
    places = [layout.index(a) for a in "DHW" if a in layout]
    size, stride, pad, dilation = ([int(v) for v in a] for a in (attrs.pool_size, attrs.strides, attrs.padding, attrs.dilation))
    if pad[:len(places)] != pad[len(places):] or (average and set(dilation) != {1}):
        raise Unliftable("a pool that torch has not")
    lines = {d: Line(names[d], shape[d], int(x.shape[d]), *spec)
             for d, *spec in zip(places, size, stride, pad[:len(places)], dilation, strict=True)}
    acc = "f64" if x.dtype == "f64" else "f32"
    values = [value for _, value in elements(x, names, lines, Const(0.0 if average else -inf, acc))]
    total = reduce(partial(op, "add"), values) if average else _largest(values)
    if average:
        counts = [n.counted(bool(attrs.count_include_pad)) for n in lines.values()]
        fixed = prod(int(n.value) for n in counts if isinstance(n, Const))
        varying = [n for n in counts if not isinstance(n, Const)]
        count: Expr = i64(fixed)
        for n in varying:
            count = op("mul", count, n)
        total = op("div", total, Cast(count, acc) if varying else Const(float(fixed), acc))
    out = total if x.dtype == acc else Cast(total, x.dtype)
    return Lifted(tuple(params), axes, (Let("out", tuple(names), out),), ("out",))


def apart(call: Any) -> bool:
    """Is it a convolution along one axis, of few taps, with a filter of its own for every channel? A library takes a line's for
    many times memory's time, and not a plane's (docs/decisions/0037)."""
    a, x, w = call.attrs, call.args[0], call.args[1]
    taps = [static(e) for e in w.struct_info.shape][2:]
    channels = static(x.struct_info.shape[str(a.data_layout).index("C")])
    return str(a.kernel_layout).startswith("OI") and int(a.groups) == channels == static(w.struct_info.shape[0]) and \
        str(a.out_layout or a.data_layout) == str(a.data_layout) and 1 < prod(taps) == max(taps) <= TAPS and \
        x.struct_info.dtype == w.struct_info.dtype


def depthwise(call: Any, params: list[Tensor], where: Positions) -> Lifted:
    """A convolution that is :func:`apart`, channels first or last."""
    a, x, w = call.attrs, params[where[call.args[0]]], params[where[call.args[1]]]
    names, axes, shape = result_axes(call)
    layout, acc = str(a.data_layout), short_dtype(call.struct_info.dtype)
    places = [layout.index(d) for d in "DHW" if d in layout]
    stride, pad, dilation = ([int(v) for v in v] for v in (a.strides, a.padding, a.dilation))
    taps = [int(e) for e in w.shape[2:]]
    lines = {d: Line(names[d], shape[d], int(x.shape[d]), *spec)
             for d, *spec in zip(places, taps, stride, pad[:len(places)], dilation, strict=True)}
    terms: list[Expr] = []
    for offsets, value in elements(x, names, lines, Const(0.0, acc)):
        tap: Expr = Load(w.name, (Index(names[layout.index("C")]), i64(0), *map(i64, offsets)), w.dtype)
        terms.append(op("mul", value, tap if w.dtype == acc else Cast(tap, acc)))
    return Lifted(tuple(params), axes, (Let("out", tuple(names), reduce(partial(op, "add"), terms)),), ("out",))


def _largest(values: list[Expr]) -> Expr:
    """By pairs: where NaN is the largest, a maximum is written with its left operand three times, and compilers write variables
    out in one another (3 ** 8 times the first of nine in a row, 5 ** 4 by pairs)."""
    while len(values) > 1:
        values = [*(op("max", a, b) for a, b in zip(values[::2], values[1::2], strict=False)), *values[len(values) & ~1:]]
    return values[0]


TAPS = 9
"""Of a filter that is written out, at most: on an H200 a scale, a convolution of 8 x 512 x 768 bfloat16 numbers and a SiLU take
10.4, 32.0, 17.0, 26.5 and 38.3 us as one map of 3, 4, 5, 7 and 9 taps, and 39 to 48 of torch.compile."""
CONVOLUTIONS = frozenset({"relax.nn.conv1d", "relax.nn.conv2d"})
POOLS = {f"relax.nn.{kind}_pool{n}d": pool for kind in ("avg", "max") for n in (2, 3)}
