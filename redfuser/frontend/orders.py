"""Which convolutions are worth laying out with channels last, and what an order of a tensor goes through.

Only convolutions that meet others through operations that keep an order, or that lie between permutations of the program: any
other by itself trades a layout for another. Grouped ones too, which take two to six times as long row by row. In float32 only
those that compute no worse so (decision 0023): a library may take TF32 in one order and float32 in the other, where few
channels are summed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Any

from redfuser.frontend.imported import Imported
from redfuser.frontend.local import BINARY, POOLS, UNARY, VIEWS
from redfuser.tvm_compat import bindings, dtype_of, is_static, op_name, permute_axes, relax, results, shape_of

HALF = ("float16", "bfloat16")
CONVOLUTIONS = ("nn.conv1d", "nn.conv2d")
MAPS = BINARY | UNARY | {"where", "astype"}
TOTALS = frozenset({"sum", "mean", "max", "min"})
NARROW, WIDE, POINTS = 16, 32, 64
"""Channels in float32: that a convolution sums and makes at least for the order to pay; that one of 3x3 or 5x5 sums, and one of
1x1 sums and makes, for a library to take TF32 in both orders."""
TURN = 2
"""torch's copy to another order takes so many times what a library's own change of layout takes."""
OVER = MAPS | VIEWS | TOTALS | POOLS | {
    "permute_dims", "concat", "strided_slice", "nn.group_norm", "nn.batch_norm", "call_dps_packed"}
"""What a tensor's order goes through."""


class _Groups:
    """Values that share an order, by their names: each group by one of them."""

    def __init__(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        self.above: dict[str, str] = {}
        for one, other in pairs:
            self.join(one.name_hint, other.name_hint)

    def of(self, name: str) -> str:
        while name in self.above:
            name = self.above[name]
        return name

    def join(self, one: str, other: str) -> None:
        if self.of(one) != self.of(other):
            self.above[self.of(one)] = self.of(other)

    def ends(self, name: str, convolution: Any) -> tuple[str, str]:
        return self.of(convolution.args[0].name_hint), self.of(name)


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
        """The convolutions (their variables) of which another reads or makes what one reads or makes; and those by themselves
        for which the program turns tensors itself."""
        alike = self.alike()
        found = {v.name_hint: e for v, e in self.bound if op_name(e) in CONVOLUTIONS and (
            dtype_of(e.args[0]) in HALF or v.name_hint in alike)}
        joined = _Groups((a, v) for v, e in self.bound for a in self.through(v, e))
        count = Counter(end for name, e in found.items() for end in joined.ends(name, e))
        met = {name: e for name, e in found.items() if sum(count[end] for end in set(joined.ends(name, e))) > 2}
        if met.keys() & alike:
            gain = self.gain(joined, met, met)
            met = {name: e for name, e in met.items() if name not in alike or gain[joined.of(name)] > 0}
        alone = {name: e for name, e in found.items() if name not in met}
        joined = _Groups((a, v) for v, e in self.bound if not _turns(e) for a in self.through(v, e))
        gain = self.gain(joined, alone, found)
        return met.keys() | {name for name in alone if gain[joined.of(name)] > 0}

    def gain(self, joined: _Groups, convolutions: dict[str, Any], last: dict[str, Any]) -> Counter[str]:
        """Elements that a library need not turn for ``convolutions``, less those that have to be turned at the ends, where
        those of ``last`` lie with channels last; by group, which all that one convolution reads and makes becomes."""
        for name, e in convolutions.items():
            joined.join(*joined.ends(name, e))
        gain: Counter[str] = Counter()
        for var, e in self.bound:
            if var.name_hint in convolutions and prod(shape_of(e.args[1])[2:]) > 1:
                gain[joined.of(var.name_hint)] += _size(var) + _size(e.args[0])
        border = [v for v, e in self.bound if v.name_hint not in last and not self.through(v, e)]
        border += [e.args[0] for v, e in self.bound if op_name(e) in CONVOLUTIONS and v.name_hint not in last]
        for a in (*self.main.params, *border, *results(self.main)):
            if isinstance(a, relax.Var):
                gain[joined.of(a.name_hint)] -= TURN * _size(a)
        return gain

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
        if name in ("permute_dims", *TOTALS, *POOLS):
            return [a for a in operands if len(shape_of(a)) > 2]
        return [a for a in operands if len(shape_of(a)) == len(shape) > 2 and (
            name in ("concat", "strided_slice") or shape_of(a) == shape)]


def _turns(e: Any) -> bool:
    """Does the program itself put the channels last, or back?"""
    if op_name(e) != "permute_dims":
        return False
    rank = len(shape_of(e.args[0]))
    return permute_axes(e) in ((0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1)))


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
