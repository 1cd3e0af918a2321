"""Which convolutions are worth laying out with channels last, and what an order of a tensor goes through.

Only convolutions that meet others through operations that keep an order: one by itself trades a layout for another. Grouped
ones too, which take two to six times as long row by row. In float32 only those that compute no worse so (decision 0023): a
library may take TF32 in one order and float32 in the other, where few channels are summed.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

from redfuser.frontend.imported import Imported
from redfuser.frontend.local import BINARY, UNARY, VIEWS
from redfuser.tvm_compat import bindings, dtype_of, is_static, op_name, relax, results, shape_of

HALF = ("float16", "bfloat16")
MAPS = BINARY | UNARY | {"where", "astype"}
TOTALS = frozenset({"sum", "mean", "max", "min"})
NARROW, WIDE, POINTS = 16, 32, 64
"""Channels in float32: that a convolution sums and makes at least for the order to pay; that one of 3x3 or 5x5 sums, and one of
1x1 sums and makes, for a library to take TF32 in both orders."""
TURN = 2
"""torch's copy to another order takes so many times what a library's own change of layout takes."""
OVER = MAPS | VIEWS | TOTALS | {"permute_dims", "concat", "nn.group_norm", "nn.batch_norm", "call_dps_packed"}
"""What a tensor's order goes through."""


class Orders:
    """What is known of the orders of main's values. ``normed``: the normalisations of batches of which one result is read."""

    def __init__(self, imported: Imported) -> None:
        self.main = imported.mod["main"]
        self.bound = [(b.var, b.value) for b in bindings(self.main)]
        self.values = {v.name_hint: e for v, e in self.bound}
        items = [(e.tuple_value.name_hint, int(e.index)) for _, e in self.bound if isinstance(e, relax.TupleGetItem)]
        self.normed = {v.name_hint for v, e in self.bound if op_name(e) == "nn.batch_norm" and int(e.attrs.axis) == 1
                       and not bool(e.attrs.training)} - {name for name, i in items if i}

    def paying(self) -> set[str]:
        """The convolutions (their variables) of which another reads or makes what one reads or makes."""
        alike = self.alike()
        found = [(v, e) for v, e in self.bound if op_name(e) == "nn.conv2d" and (
            dtype_of(e.args[0]) in HALF or v.name_hint in alike)]
        group: dict[str, str] = {}

        def of(name: str) -> str:
            while name in group:
                name = group[name]
            return name

        def join(one: str, other: str) -> None:
            if of(one) != of(other):
                group[of(one)] = of(other)

        for var, e in self.bound:
            for a in self.through(var, e):
                join(a.name_hint, var.name_hint)
        ends = {v.name_hint: (of(e.args[0].name_hint), of(v.name_hint)) for v, e in found}
        count = Counter(end for both in ends.values() for end in both)
        kept = {name for name, both in ends.items() if sum(count[end] for end in set(both)) > 2}
        if not kept & alike:
            return kept
        for name in kept:
            join(*ends[name])
        gain: Counter[str] = Counter()  # elements that a library need not turn, and that we have to
        for var, e in ((v, e) for v, e in found if v.name_hint in kept):
            if prod(shape_of(e.args[1])[2:]) > 1:
                gain[of(var.name_hint)] += _size(var) + _size(e.args[0])
        border = [v for v, e in self.bound if v.name_hint not in kept and not self.through(v, e)]
        border += [e.args[0] for v, e in self.bound if op_name(e) == "nn.conv2d" and v.name_hint not in kept]
        for a in (*self.main.params, *border, *results(self.main)):
            if isinstance(a, relax.Var):
                gain[of(a.name_hint)] -= TURN * _size(a)
        return {name for name in kept if name not in alike or gain[of(name)] > 0}

    def alike(self) -> set[str]:
        """The float32 convolutions that are no worse with channels last: those that a library computes alike in both orders,
        and those of what such a one has rounded to TF32 before."""
        found, rounded = set(), set()
        for var, e in self.bound:
            if op_name(e) == "nn.conv2d" and dtype_of(e.args[0]) == dtype_of(var) == "float32":
                own = _own(e)
                if _size(e.args[0]) and (own or (_fits(e) and (_tf32(e) or e.args[0].name_hint in rounded))):
                    found.add(var.name_hint)
                if e.args[0].name_hint in rounded or (var.name_hint in found and not own):
                    rounded.add(var.name_hint)
            elif op_name(e) not in TOTALS and any(a.name_hint in rounded for a in self.through(var, e)):
                rounded.add(var.name_hint)
        return found

    def through(self, var: Any, e: Any) -> list[Any]:
        """The operands whose order a value has, or may have."""
        if isinstance(e, relax.TupleGetItem):
            source = self.values.get(e.tuple_value.name_hint)
            if op_name(source) == "call_dps_packed":
                return self.through(var, source)
            return [e.tuple_value] if e.tuple_value.name_hint in self.normed else []
        name = op_name(e)
        if name == "nn.batch_norm":
            return [e.args[0]] if var.name_hint in self.normed else []
        if name not in OVER or not isinstance(var.struct_info, relax.TensorStructInfo) or not is_static(var.struct_info):
            return []
        shape = shape_of(var)
        if name == "call_dps_packed":
            given = [a for a in e.args[1].fields if isinstance(a, relax.Var)] if isinstance(e.args[1], relax.Tuple) else []
            same = [a for a in given if len(shape_of(a)) == len(shape) == 4 and shape_of(a)[:2] == shape[:2]]
            return same if len(given) == 1 else []
        if name == "nn.group_norm":
            spatial = [int(a) % len(shape) for a in e.attrs.axes] == list(range(2, len(shape)))
            return [e.args[0]] if int(e.attrs.channel_axis) == 1 and spatial else []
        operands = [a for a in (e.args[0].fields if name == "concat" else e.args) if isinstance(a, relax.Var)]
        if name in TOTALS and not _spatial(e):
            return []
        if name in VIEWS:
            return [a for a in operands if len(shape) > 2 < len(shape_of(a)) and shape_of(a)[:2] == shape[:2]]
        if name in ("permute_dims", *TOTALS):
            return [a for a in operands if len(shape_of(a)) > 2]
        return [a for a in operands if len(shape_of(a)) == len(shape) > 2 and (name == "concat" or shape_of(a) == shape)]


def _own(e: Any) -> bool:
    """Is it a convolution of each channel, float32 in either order?"""
    return int(e.attrs.groups) == shape_of(e.args[0])[1] > 1


def _fits(e: Any) -> bool:
    """Is it of the kind that a library is no slower in with channels last?"""
    made, summed, *window = shape_of(e.args[1])
    return int(e.attrs.groups) == 1 and min(made, summed) >= NARROW and window in ([1, 1], [3, 3], [5, 5])


def _tf32(e: Any) -> bool:
    """Does a library take TF32 for one that fits in both orders, as far as that was measured?"""
    made, summed, *window = shape_of(e.args[1])
    if any(int(d) > 1 for d in e.attrs.dilation):
        return False
    return summed >= WIDE if window != [1, 1] else (min(made, summed) >= POINTS and all(int(n) == 1 for n in e.attrs.strides))


def _size(a: Any) -> int:
    """Elements, where there are pixels."""
    if not isinstance(a.struct_info, relax.TensorStructInfo) or not is_static(a.struct_info):
        return 0
    return prod(shape_of(a)) if prod(shape_of(a)[2:]) > 1 else 0


def _spatial(e: Any) -> bool:
    """Does it reduce axes behind the channels?"""
    rank = len(shape_of(e.args[0]))
    return e.attrs.axis is not None and all(int(a) % rank > 1 for a in e.attrs.axis)
