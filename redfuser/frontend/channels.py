"""Convolutions of one dimension and two in channels-last, and with them what lies between.

    y = conv2d(x, w)                                        xl = silu(nl)              # [n, h, w, c]
    x = silu(norm(...))        # [n, c, h, w]       -->     y = conv2d(permute(xl), w) # torch has the view for nothing
    z = relu(y)                                             zl = relu(permute(y))      # [n, h, w, c]

A GPU's library computes such a convolution in channels-last, whatever it is given: each by itself lays its operand, its weights
and its result out anew. Here maps, the normalisations of groups and batches, and views that keep the channels an axis are
computed in the order that convolutions have, so that a kernel writes what the library reads and reads what it writes. What is
known of no other order (an opaque call, a product) is given a permuted view. Values are those of the program; a group's
statistics are combined from those of its channels.

:mod:`redfuser.frontend.orders` says which convolutions, and what an order goes through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from redfuser.frontend.builder import Again
from redfuser.frontend.group_norm import group_norm
from redfuser.frontend.imported import Imported, OpaqueCall, Provenance
from redfuser.frontend.local import POOLS
from redfuser.frontend.neighbours import repeats
from redfuser.frontend.orders import CONVOLUTIONS, MAPS, TOTALS, VIEWS, Orders
from redfuser.tvm_compat import (
    bindings,
    call_dps_packed,
    dtype_of,
    op_name,
    permute_axes,
    prim_int,
    relax,
    results,
    shape_of,
)

op = relax.op
COPY = "aten.contiguous.default"


def channels_last(imported: Imported) -> Imported:
    """``imported`` with its convolutions laid out, where that pays; else as it is."""
    if any(op_name(b.value) in CONVOLUTIONS for b in bindings(imported.mod["main"])):
        return _Laid(imported).run()
    return imported


def to_last(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> tuple[int, ...]:
    return (0, rank - 1, *range(1, rank - 1))


class _Laid:
    """``plain`` and ``last``: by a variable's name in main, its value in the program's order and with channels last, as far as
    there are such. ``lies``: those that are computed with channels last, so that the other is a view."""

    def __init__(self, imported: Imported) -> None:
        self.imported, self.main = imported, imported.mod["main"]
        self.orders = Orders(imported)
        self.bound = self.orders.bound
        params = list(self.main.params)
        self.builder = Again(params)
        self.opaque = dict(imported.opaque)
        self.plain: dict[str, Any] = {p.name_hint: p for p in params}
        self.last: dict[str, Any] = {}
        self.lies: set[str] = set()
        self.norms: dict[str, Any] = {}
        self.wanted: set[str] = set()
        self.laid: dict[str, None] = {}

    def run(self) -> Imported:
        convolutions = self.orders.paying()
        if not convolutions:
            return self.imported
        for var, e in reversed(self.bound):
            if var.name_hint in convolutions:
                self.wanted.add(e.args[0].name_hint)
            elif var.name_hint in self.wanted and op_name(e) != "permute_dims":
                self.wanted |= {a.name_hint for a in self.orders.through(var, e)}
        for var, e in self.bound:
            self.builder.begin(var.name_hint, self.imported.provenance[var.name_hint])
            self.bind(var, e, var.name_hint in convolutions)
        outputs = [self.result(f) for f in results(self.main)]
        note = f"{len(convolutions)} convolutions and what lies between them are computed with channels last"
        return replace(self.imported, mod=self.builder.finish(outputs), provenance=self.builder.provenance,
                       opaque=self.opaque, laid=tuple(self.laid), notes=(*self.imported.notes, note))

    # -- one order and the other ---------------------------------------------------------------------------------------

    def first(self, a: Any) -> Any:
        """A value in the program's order."""
        if not isinstance(a, relax.Var):
            return a
        name = a.name_hint
        if name not in self.plain:
            x = self.last[name]
            shape = shape_of(a)
            alone = prod(shape[2:]) == 1
            view = op.reshape(x, shape) if alone else op.permute_dims(x, list(to_first(len(shape))))
            self.plain[name] = self.named(name, lambda: self.builder.emit(view))
        return self.plain[name]

    def result(self, a: Any) -> Any:
        """A result of the model lies as eager's: row by row, or with channels last where the weights of convolutions do."""
        given = [w for name in self.laid if (w := self.imported.weights.get(name)) is not None]
        lies = isinstance(a, relax.Var) and a.name_hint in self.lies and prod(shape_of(a)[2:]) > 1
        if not lies or not all(w.is_contiguous() for w in given):
            return self.first(a)
        return self.named(a.name_hint, lambda: self.copied(self.first(a), "laid out as eager's result"))

    def copied(self, x: Any, why: str) -> Any:
        symbol = f"torchop.{COPY}.{len(self.opaque)}"
        origin = Provenance("contiguous", self.builder.origin.source)
        self.opaque[symbol] = OpaqueCall(COPY, ({"tensor": 0},), {}, 1, True, provenance=origin, why=why)
        x = self.builder.emit(call_dps_packed(symbol, [x], x.struct_info), "last")
        self.builder.provenance[x.name_hint] = origin
        return x

    def turned(self, a: Any) -> Any:
        """A value with channels last. One that lies otherwise, or of which that is not known, torch lays out, once."""
        name = a.name_hint if isinstance(a, relax.Var) else ""
        if name not in self.last:
            x, shape = self.first(a), shape_of(a)
            filled = self.builder.value(x)
            if op_name(filled) == "full":  # padding: of any order, and none to lay out
                return self.builder.emit(op.full(_last(shape), filled.args[1], dtype_of(x)), "last")
            order = [d for d in to_last(len(shape)) if shape[d] > 1]
            if order == sorted(order):
                return self.builder.emit(op.reshape(x, _last(shape)), "last")
            x = self.builder.emit(op.permute_dims(x, list(to_last(len(shape)))), "turned")
            x = self.copied(x, "laid out with channels last; nothing to do where it lies so already")
            if not name:
                return x
            self.last[name] = x
        return self.last[name]

    def named(self, name: str, emit: Callable[[], Any]) -> Any:
        """Emit as the result of that operation, whichever is being written down."""
        kept = self.builder._prefix, self.builder.origin
        self.builder.begin(name, self.imported.provenance[name])
        made = emit()
        self.builder.begin(*kept)
        return made

    def beside(self, a: Any, shape: tuple[int, ...]) -> Any:
        """An operand of a map whose result has ``shape``, with channels last."""
        if not isinstance(a, (relax.Var, relax.Constant)) or not shape_of(a):
            return a
        own = (1,) * (len(shape) - len(shape_of(a))) + shape_of(a)
        if own == shape_of(a):
            return self.turned(a)
        order = [d for d in to_last(len(own)) if own[d] > 1]
        if order == sorted(order):
            return self.builder.emit(op.reshape(self.first(a), _last(own)), "last")
        row = self.builder.emit(op.reshape(self.first(a), own), "row")
        return self.builder.emit(op.permute_dims(row, list(to_last(len(own)))), "last")

    # -- one binding ---------------------------------------------------------------------------------------------------

    def bind(self, var: Any, e: Any, convolution: bool) -> None:
        name = var.name_hint
        if convolution:
            self.last[name] = self.convolution(e)
            self.lies.add(name)
            return
        carried = self.orders.through(var, e)
        lying = [a for a in carried if a.name_hint in self.lies]
        if carried and (lying or name in self.wanted) and self.moved(var, e):
            self.lies |= {name} & (self.last.keys() | self.norms.keys())
            return
        self.plain[name] = made = self.builder.emit(self.again(e))
        call = self.builder.value(made)
        if lying and (op_name(e) == "call_dps_packed" or isinstance(e, relax.TupleGetItem)):  # torch keeps an order
            self.turned(var)
            self.lies.add(name)
        elif op_name(call) == "permute_dims" and len(shape_of(var)) > 2 and permute_axes(call) == to_first(len(shape_of(var))):
            self.last[name] = call.args[0]
            self.lies.add(name)

    def again(self, e: Any) -> Any:
        """The same of the values as the program has them."""
        if isinstance(e, relax.TupleGetItem):
            return relax.TupleGetItem(self.first(e.tuple_value), e.index)
        if not isinstance(e, relax.Call):
            return self.first(e)
        args = [relax.Tuple([self.first(f) for f in a.fields]) if isinstance(a, relax.Tuple) else self.first(a) for a in e.args]
        if op_name(e) in CONVOLUTIONS and isinstance(e.args[0], relax.Var) and e.args[0].name_hint in self.lies:
            args[0] = self.copied(args[0], "laid out row by row, as a convolution reads it that is more exact so")
        return relax.Call(e.op, args, e.attrs, e.sinfo_args)

    def moved(self, var: Any, e: Any) -> bool:
        """Compute it with channels last; False where that is not known."""
        name, emit = op_name(e), self.builder.emit
        if isinstance(e, relax.TupleGetItem):
            if e.tuple_value.name_hint not in self.norms:
                return False
            self.last[var.name_hint] = emit(relax.TupleGetItem(self.norms[e.tuple_value.name_hint], 0), "last")
            return True
        x = e.args[0]
        if name in MAPS:
            made = relax.Call(e.op, [self.beside(a, shape_of(var)) for a in e.args], e.attrs, e.sinfo_args)
        elif name in VIEWS:
            made = op.reshape(self.turned(x), _last(shape_of(var)))
        elif name == "concat":
            axis = int(e.attrs.axis or 0) % len(shape_of(var))
            made = op.concat([self.turned(a) for a in x.fields], to_last(len(shape_of(var))).index(axis))
        elif name == "strided_slice":
            axes, first, end, steps = ([prim_int(v) for v in t.fields] for t in e.args[1:5])
            rank = len(shape_of(var))
            made = op.strided_slice(self.turned(x), [to_last(rank).index(a % rank) for a in axes], first, end, steps)
        elif name in TOTALS:
            return self.total(var, e)
        elif name in POOLS:
            made = _pool(self.turned(x), e)
        elif name == "nn.batch_norm":
            rest = [self.first(a) for a in e.args[1:]]
            a = e.attrs
            self.norms[var.name_hint] = emit(op.nn.batch_norm(
                self.turned(x), *rest, axis=len(shape_of(x)) - 1, epsilon=float(a.epsilon), center=bool(a.center),
                scale=bool(a.scale), training=False), "both")
            return True
        elif name == "nn.group_norm":
            made = group_norm(self.builder, self.turned(x), shape_of(x), e.attrs, self.first(e.args[1]), self.first(e.args[2]))
        elif name == "call_dps_packed" and (times := repeats(self.opaque[str(e.args[0].global_symbol)],
                                                            shape_of(e.args[1].fields[0]), shape_of(var))):
            x = emit(op.repeat(self.turned(e.args[1].fields[0]), times[1], 2), "wide")
            made = op.repeat(x, times[0], 1)
        else:
            return False
        self.last[var.name_hint] = emit(made, "last")
        return True

    def convolution(self, e: Any) -> Any:
        a, ints = e.attrs, lambda v: tuple(int(i) for i in v)
        weight = self.first(e.args[1])
        if isinstance(weight, relax.Var) and shape_of(weight)[1] > 1:  # one of each channel's own is read the same either way
            self.laid.setdefault(weight.name_hint)
        f, layout = (op.nn.conv1d, "NWC") if op_name(e) == "nn.conv1d" else (op.nn.conv2d, "NHWC")
        return self.builder.emit(f(
            self.turned(e.args[0]), weight, ints(a.strides), ints(a.padding), ints(a.dilation), int(a.groups), layout,
            str(a.kernel_layout), layout, str(a.out_dtype)), "last")

    def total(self, var: Any, e: Any) -> bool:
        x, keep = e.args[0], bool(e.attrs.keepdims)
        rank = len(shape_of(x))
        axes = [int(a) % rank - 1 for a in e.attrs.axis]
        made = getattr(op, op_name(e))(self.turned(x), axes, keep)
        if len(shape_of(var)) > 2:
            self.last[var.name_hint] = self.builder.emit(made, "last")
            return True
        self.plain[var.name_hint] = self.builder.emit(made)
        return True


def _pool(x: Any, e: Any) -> Any:
    """The same pool of ``x``, whose channels lie last."""
    a, ints = e.attrs, lambda v: tuple(int(i) for i in v)
    return getattr(op.nn, op_name(e).removeprefix("nn."))(
        x, ints(a.pool_size), ints(a.strides), ints(a.padding), ints(a.dilation), bool(a.ceil_mode), bool(a.count_include_pad),
        "NHWC" if len(shape_of(x)) == 4 else "NDHWC")


def _last(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[d] for d in to_last(len(shape)))
