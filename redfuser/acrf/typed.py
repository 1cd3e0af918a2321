"""From an untyped expression to a typed one: what each name is, which dtype each bare number takes.

A bare number takes the dtype of the operand beside it, else the one its context asks for; nothing else is converted
silently. Every error is an InputError with its place: RF180 arity, RF181 names, RF182 dtypes, RF183 shapes.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from math import isinf
from typing import NoReturn

from redfuser.acrf import functions
from redfuser.acrf.cascade import Extent, Tensor
from redfuser.acrf.expr import BINARY, COMPARISONS, DTYPES, FLOATS, Cast, Const, Expr, Index, Load, Op, Ref
from redfuser.acrf.source import Source, short
from redfuser.acrf.tree import Node
from redfuser.dtypes import TABLE

_LOGIC = frozenset({"and", "or", "not"})
_FLOAT_ONLY = functions.DEAR | {"floor", "ceil", "round", "isnan"}


@dataclass
class Typing:
    """What the names mean at one point of the text. ``lenient``: unknown names are axes (a lone expression, as a fused state
    holds them)."""

    source: Source
    lenient: bool = False
    tensors: dict[str, Tensor] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    stmt_axes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    extents: dict[str, Extent | None] = field(default_factory=dict)
    coming: dict[str, int] = field(default_factory=dict)
    """Results of this statement and of later ones, with the line that defines them."""
    raxis_extent: Extent | None = None
    counted: bool = False
    count_name: str = ""

    def expr(self, e: Node, want: str = "f32") -> Expr:
        """Type one node. ``want``: the dtype a bare number takes when nothing beside it says otherwise."""
        if e.kind == "number":
            return self._number(e, want)
        if e.kind == "bool":
            return Const(e.name == "true", "bool")
        if e.kind == "name":
            return self._name(e)
        if e.kind == "subscript":
            return self._subscript(e)
        if e.kind == "call" and e.name in DTYPES:
            return self._cast(e)
        return self._op(e, want)

    # -- numbers --

    def _number(self, e: Node, dtype: str) -> Const:
        if dtype in FLOATS:
            return self._float(e, dtype)
        digits = e.name.lstrip("-")
        if not digits.isdigit() or dtype == "bool":
            self.source.fail("RF182", e.at, f"{short(e.name)} is not a value of {dtype}",
                             help="cast the operand beside it: f32(...)" if dtype != "bool" else "true or false")
        low, high = TABLE[dtype].least, TABLE[dtype].largest
        if len(digits.lstrip("0")) > 19 or not low <= int(e.name) <= high:
            self.source.fail("RF182", e.at, f"{short(e.name)} is not a value of {dtype}", why=f"{dtype} is {low} to {high}",
                             help="cast the operand beside it to a wider dtype")
        return Const(int(e.name), dtype)

    def _float(self, e: Node, dtype: str) -> Const:
        value = float(e.name)
        if isinf(value) and not e.name.endswith("inf"):
            self.source.fail("RF182", e.at, f"{short(e.name)} is beyond the range of every dtype",
                             help="write inf if that is meant")
        if isinf(value) and dtype == "e4m3" and not self.lenient:
            self.source.fail("RF182", e.at, "e4m3 has no infinity", help="cast the operand beside it: f32(...)")
        return Const(value, dtype)

    # -- names --

    def _name(self, e: Node) -> Expr:
        if e.name in self.dtypes:
            return Ref(e.name, self.dtypes[e.name])
        if e.name in self.tensors:
            t = self.tensors[e.name]
            if t.shape:
                self.source.fail("RF183", e.at, f"{e.name} has {_count(len(t.shape), 'dimension')} and is read without indices",
                                 help=f"write {e.name}[...], one index per dimension")
            return Load(e.name, (), t.dtype)
        if e.name in self.extents or self.lenient:
            return Index(e.name)
        if e.name == self.raxis_extent:
            self.counted = True
            return Ref(self.count_name, "f32")
        self._unknown(e)

    def _unknown(self, e: Node) -> NoReturn:
        if e.name in {d for t in self.tensors.values() for d in t.shape}:
            self.source.fail("RF181", e.at, f"{e.name} is the extent of a dimension, not a value",
                             help="only the r-axis's own extent can be read as a value; count with sum[axis] 1.0")
        near = difflib.get_close_matches(e.name, [*self.tensors, *self.dtypes, *self.extents], 1)
        if e.name in self.coming:
            line = self.coming[e.name]
            help = (f"'{e.name}' is what this statement defines" if line == self.source.line(e.at) else
                    f"'{e.name}' is defined later, in line {line}") + "; a statement reads earlier ones"
        elif e.name in self.extents:
            help = f"'{e.name}' is an axis, and an axis has no elements"
        else:
            help = (f"did you mean '{near[0]}'? " if near else "") + "names are inputs, earlier statements and axes"
        self.source.fail("RF181", e.at, f"nothing here is called '{short(e.name)}'", help=help)

    def _subscript(self, e: Node) -> Expr:
        indices = tuple([self._integer(a) for a in e.args])
        if e.name in self.tensors:
            t = self.tensors[e.name]
            if len(t.shape) != len(indices) and not self.lenient:
                self.source.fail("RF183", e.at, f"{e.name} has {_count(len(t.shape), 'dimension')}, "
                                                f"{_given(len(indices), 'index', 'indices')}", help=f"it is {t}")
            return Load(e.name, indices, t.dtype)
        if e.name in self.dtypes:
            own = self.stmt_axes.get(e.name)
            if own is not None and len(own) != len(indices):
                self.source.fail("RF183", e.at, f"{e.name} has {_count(len(own), 'axis', 'axes')}, "
                                                f"{_given(len(indices), 'index', 'indices')}",
                                 help=f"write {e.name}[{', '.join(own)}]" if own else f"write {e.name}")
            pointwise = own is not None and indices == tuple(Index(a) for a in own)
            for axis, i in zip(own or (), indices, strict=False):
                if isinstance(i, Index) and self.extents.get(i.axis) is None:
                    self.extents[i.axis] = self.extents.get(axis)
            return Ref(e.name, self.dtypes[e.name], () if pointwise else indices)
        self._unknown(e)

    def _integer(self, e: Node) -> Expr:
        index = self.expr(e, "i64")
        if index.dtype in FLOATS or index.dtype == "bool":
            self.source.fail("RF182", e.at, f"an index must be an integer, this is {index.dtype}",
                             help="cast it: i64(...)")
        return index

    # -- operations --

    def _cast(self, e: Node) -> Expr:
        if len(e.args) != 1:
            self.source.fail("RF180", e.at, f"a cast to {e.name} takes one operand, {len(e.args)} given",
                             help=f"{e.name}(x)")
        if e.args[0].kind == "number":
            return self._number(e.args[0], e.name)
        return Cast(self.expr(e.args[0]), e.name)

    def _op(self, e: Node, want: str) -> Expr:
        name = e.name
        two = name in BINARY or name in ("pow", "min", "max") or (name in functions.TABLE and functions.TABLE[name].arity == 2)
        arity = 3 if name == "select" else 2 if two else 1
        if len(e.args) != arity:
            shown = {1: f"{name}(x)", 2: f"{name}(x, y)", 3: f"{name}(condition, x, y)"}[arity]
            over = f"; the {name} of a row is {name}[axis] x, a statement of its own" if name in ("min", "max") else ""
            self.source.fail("RF180", e.at, f"{name} takes {_count(arity, 'operand')}, {len(e.args)} given", help=shown + over)
        if name in _LOGIC:
            return Op(name, tuple([self._boolean(a) for a in e.args]), "bool")
        if name == "select":
            x, y = self._alike(e, e.args[1:], want)
            return Op(name, (self._boolean(e.args[0]), x, y), x.dtype)
        args = self._alike(e, e.args, "f32" if name in COMPARISONS or name == "isnan" else want)
        dtype = args[0].dtype
        if dtype == "bool" and name not in ("eq", "ne"):
            self.source.fail("RF182", e.at, f"{_spelt(name)} does not take bool",
                             help="use and, or, not, or select(c, 1.0, 0.0)")
        if dtype not in FLOATS and name in _FLOAT_ONLY:
            self.source.fail("RF182", e.at, f"{_spelt(name)} takes a float, this is {dtype}",
                             help="cast it: f32(...)" + (", or divide with //" if name == "div" else ""))
        return Op(name, args, "bool" if name in COMPARISONS or name == "isnan" else dtype)

    def _boolean(self, e: Node) -> Expr:
        x = self.expr(e)
        if x.dtype != "bool":
            self.source.fail("RF182", e.at, f"a condition must be bool, this is {x.dtype}", help="compare: x != 0")
        return x

    def _alike(self, e: Node, args: tuple[Node, ...], want: str) -> tuple[Expr, ...]:
        """Type operands that must share one dtype; bare numbers among them take it."""
        out: list[Expr | None] = []
        for a in args:  # no comprehension: each level of a long sum would cost one more frame
            out.append(None if bare(a) else self.expr(a))
        dtype = next((x.dtype for x in out if x is not None), want)
        typed = []
        for a, x in zip(args, out, strict=True):
            typed.append(self.expr(a, dtype) if x is None else x)
        if odd := next((x for x in typed if x.dtype != typed[0].dtype), None):
            pair = {typed[0].dtype, odd.dtype}
            wide = min(pair, key=DTYPES.index)
            self.source.fail("RF182", e.at, f"{_spelt(e.name)} of {typed[0].dtype} and {odd.dtype}", help=(
                "write select(condition, x, 0.0)" if "bool" in pair else f"cast the other side: {wide}(...)"))
        return tuple(typed)


def bare(e: Node) -> bool:
    """Bare numbers only, so that the dtype comes from outside (the text's side of expr.is_literal)."""
    if e.kind == "number":
        return True
    if e.name == "select" and e.kind == "call":
        return all(map(bare, e.args[1:]))
    typed = e.name in DTYPES or e.name in COMPARISONS or e.name in _LOGIC or e.name == "isnan"
    return e.kind in ("op", "call") and not typed and all(map(bare, e.args))


def _spelt(name: str) -> str:
    return f"'{BINARY[name]}'" if name in BINARY else name


def _count(n: int, one: str, many: str = "") -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"


def _given(n: int, one: str, many: str) -> str:
    return f"{_count(n, one, many)} given"
