"""Simplifications of a call as an importer emits it, by what its operands are: exact in values, NaN and infinities included."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

from redfuser import tvm_compat as tc
from redfuser.frontend.appended import Appended
from redfuser.frontend.forms import changes_nothing, numpy_shape, unit_insertions
from redfuser.frontend.totals import TOTALS, row_axes
from redfuser.tvm_compat import dtype_of, op_name, relax, shape_of

BINARY = frozenset({
    "add", "subtract", "multiply", "divide", "floor_divide", "floor_mod", "power", "maximum", "minimum", "equal",
    "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift",
})
VIEWS = frozenset({"reshape", "expand_dims", "squeeze"})
UNARY = frozenset({
    "abs", "acos", "asin", "atan", "bitwise_not", "ceil", "cos", "cosh", "erf", "exp", "floor", "isfinite", "isinf",
    "isnan", "log", "logical_not", "negative", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh",
    "trunc", "nn.gelu", "nn.gelu_tanh", "nn.relu", "nn.silu",
})
MAPS = BINARY | UNARY | {"where", "astype", "broadcast_to"}
REDUCTIONS = frozenset({"sum", "mean", "prod", "max", "min", "variance", "argmax", "argmin"})
POOLS = frozenset({"nn.avg_pool2d", "nn.avg_pool3d", "nn.max_pool2d", "nn.max_pool3d"})
OPERATORS = BINARY | UNARY | REDUCTIONS | VIEWS | POOLS | frozenset({
    "arange", "astype", "broadcast_to", "call_dps_packed", "concat", "cumprod", "cumsum", "flip", "full",
    "gather_elements", "index_tensor", "matmul", "permute_dims", "repeat", "scatter_elements", "strided_slice", "take",
    "topk", "where", "nn.batch_norm", "nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.group_norm", "nn.layer_norm", "nn.log_softmax",
    "nn.rms_norm", "nn.softmax", "nn.softplus",
})
"""Every operator that a module in normal form may contain."""
_WIDER = {"float16": {"float32", "float64"}, "bfloat16": {"float32", "float64"}, "float32": {"float64"}}


class Simplifier:
    """The rules of the normal form that look at one call and at what its operands are bound to."""

    def __init__(self, kept: Collection[str] = ()) -> None:
        self.kept = kept
        self._blocks = relax.BlockBuilder()
        self._appended = Appended(self, MAPS)

    def emit(self, expr: Any, suffix: str = "") -> Any:
        """Bind ``expr``, simplified, to a fresh variable; returns that variable, or an existing value equal to it."""
        raise NotImplementedError

    def value(self, expr: Any) -> Any:
        """The call that a variable is bound to; ``expr`` itself for parameters and constants."""
        raise NotImplementedError

    def _simplify(self, expr: Any) -> Any:
        name = op_name(expr)
        if name in BINARY:
            return self._binary(name, expr)
        if name in VIEWS:
            return self.view(expr.args[0], shape_of(expr))
        rule = _RULES.get(name)
        return rule(self, expr) if rule else expr

    def _again(self, call: Any) -> Any:
        return self._simplify(self._blocks.normalize(call))

    def view(self, x: Any, shape: tuple[int, ...]) -> Any:
        """``x`` seen as ``shape``: a call in the canonical spelling, or a value that is already that."""
        inner = self.value(x)
        while op_name(inner) in VIEWS:
            x = inner.args[0]
            inner = self.value(x)
        old = shape_of(x)
        if old == shape:
            return x
        if op_name(inner) == "full":
            return self._blocks.normalize(relax.op.full(shape, inner.args[1], dtype_of(x)))
        inserted = unit_insertions(old, shape)
        if inserted is not None:
            return self._blocks.normalize(relax.op.expand_dims(x, list(inserted)))
        removed = unit_insertions(shape, old)
        if removed is not None:
            return self._blocks.normalize(relax.op.squeeze(x, list(removed)))
        return self._blocks.normalize(relax.op.reshape(x, shape))

    def _astype(self, call: Any) -> Any:
        x, dtype = call.args[0], dtype_of(call)
        if dtype_of(x) == dtype:
            return x
        inner = self.value(x)
        if op_name(inner) == "astype":
            source = dtype_of(inner.args[0])
            if source == dtype and dtype_of(x) in _WIDER.get(source, ()):
                return inner.args[0]
        return call

    def _permute(self, call: Any) -> Any:
        x, axes = call.args[0], tc.permute_axes(call)
        inner = self.value(x)
        if op_name(inner) == "permute_dims":
            before = tc.permute_axes(inner)
            x, axes = inner.args[0], tuple(before[a] for a in axes)
        if axes == tuple(range(len(axes))):
            return x
        return self._blocks.normalize(relax.op.permute_dims(x, list(axes)))

    def _broadcast(self, call: Any) -> Any:
        x, shape = call.args[0], shape_of(call)
        if shape_of(x) == shape:
            return x
        inner = self.value(x)
        if op_name(inner) == "broadcast_to":
            return self._again(relax.op.broadcast_to(inner.args[0], shape))
        if op_name(inner) == "full":
            return self._blocks.normalize(relax.op.full(shape, inner.args[1], dtype_of(x)))
        return call

    def _binary(self, name: str, call: Any) -> Any:
        shape = shape_of(call)
        left, right = (self._unbroadcast(x) for x in call.args)
        if numpy_shape([shape_of(left), shape_of(right)]) != shape:
            # compute on what there is and broadcast the result: the next elementwise op takes that away again
            return self._filled(self.emit(relax.Call(call.op, [left, right], call.attrs), "once"), shape)
        if left is not call.args[0] or right is not call.args[1]:
            call = self._blocks.normalize(relax.Call(call.op, [left, right], call.attrs, call.sinfo_args))
        for keep, other, on_right in ((left, right, True), (right, left, False)):
            constant = self.scalar(other)
            if constant is None:
                continue
            if changes_nothing(name, constant, dtype_of(keep), on_right):
                return self._filled(keep, shape)
            if (name == "logical_and" and not constant) or (name == "logical_or" and constant):
                return self._filled(relax.const(bool(constant), "bool"), shape)
            zero = constant == 0 and dtype_of(keep) in ("float64", *_WIDER)
            if zero and name == "divide" and on_right:
                return self._again(relax.op.multiply(keep, relax.const(math.copysign(math.inf, constant), dtype_of(keep))))
            if zero and name in ("multiply", "divide"):
                return self._filled(self._nothing(name, keep), shape)
        return call

    def _nothing(self, name: str, x: Any) -> Any:
        """``0 * x`` and ``0 / x`` as the choice that they are between 0 and NaN: TVM takes both for 0 when it writes them down
        (and ``x / 0`` for an error)."""
        dtype = dtype_of(x)
        size, bound = self.emit(relax.op.abs(x), "size"), relax.const(math.inf if name == "multiply" else 0.0, dtype)
        test = relax.op.less if name == "multiply" else relax.op.greater
        plain = self.emit(test(size, bound), "plain")
        return self.emit(relax.op.where(plain, relax.const(0.0, dtype), relax.const(math.nan, dtype)), "nothing")

    def _total(self, call: Any) -> Any:
        x, keep = call.args[0], bool(call.attrs.keepdims)
        rank, named = len(shape_of(x)), call.attrs.axis
        axes = tuple(range(rank)) if named is None else tuple(int(a) % rank for a in named)
        if len(axes) == 1 and (joined := self._appended.total(op_name(call), x, axes[0], keep)) is not None:
            return joined
        long = tuple(a for a in axes if shape_of(x)[a] > 1)
        first = row_axes(x, long, self.value, MAPS) if len(long) > 1 else ()
        if not first:
            return call
        f = getattr(relax.op, op_name(call))
        rows = self.emit(f(x, list(first), keep), "rows")
        rest = [a if keep else a - sum(b < a for b in first) for a in axes if a not in first]
        return self._blocks.normalize(f(rows, rest, keep))

    def _where(self, call: Any) -> Any:
        shape = shape_of(call)
        mask, left, right = self._shrink(call.args, shape)
        chosen = self.scalar(mask)
        if chosen is not None:
            return self._filled(left if chosen else right, shape)
        if mask is not call.args[0] or left is not call.args[1] or right is not call.args[2]:
            return self._blocks.normalize(relax.Call(call.op, [mask, left, right], call.attrs, call.sinfo_args))
        return call

    def _shrink(self, operands: Sequence[Any], shape: tuple[int, ...]) -> list[Any]:
        """Operands without explicit broadcasts, as far as their joint shape stays ``shape``."""
        small = [self._unbroadcast(x) for x in operands]
        if numpy_shape([shape_of(x) for x in small]) == shape:
            return small
        result = list(operands)
        for i, x in enumerate(small):
            trial = [*result[:i], x, *result[i + 1:]]
            if numpy_shape([shape_of(t) for t in trial]) == shape:
                result = trial
        return result

    def _unbroadcast(self, x: Any) -> Any:
        inner = self.value(x)
        if op_name(inner) == "broadcast_to":
            return inner.args[0]
        if op_name(inner) == "full":
            return inner.args[1]
        return x

    def scalar(self, x: Any) -> Any:
        """The Python value of a scalar constant or of a tensor filled with one; ``None`` for anything else."""
        inner = self.value(x)
        if op_name(inner) == "full":
            inner = inner.args[1]
        return inner.data.numpy().item() if isinstance(inner, relax.Constant) and not shape_of(inner) else None

    def _filled(self, x: Any, shape: tuple[int, ...]) -> Any:
        if shape_of(x) == shape:
            return x
        if isinstance(x, relax.Constant) and not shape_of(x):
            return self._blocks.normalize(relax.op.full(shape, x, dtype_of(x)))
        return self._again(relax.op.broadcast_to(x, shape))

    def _slice(self, call: Any) -> Any:
        x, shape = call.args[0], shape_of(call)
        axes, first, _, steps = ([tc.prim_int(v) for v in t.fields] for t in call.args[1:5])
        if any(s != 1 for s in steps):
            return call
        if shape_of(x) == shape:
            return x
        inner = self.value(x)
        if op_name(inner) == "full":
            return self._blocks.normalize(relax.op.full(shape, inner.args[1], dtype_of(x)))
        if op_name(inner) == "concat" and isinstance(inner.args[0], relax.Tuple) and len(axes) == 1:
            joined = int(inner.attrs.axis) if inner.attrs.axis is not None else 0
            return self._slice_of_concat(call, inner.args[0].fields, joined % len(shape), axes[0] % len(shape), first[0], shape)
        if len(axes) == 1 and (found := self._appended.pieces(x, axes[0] % len(shape))) is not None:
            return self._slice_of_concat(call, found, axes[0] % len(shape), axes[0] % len(shape), first[0], shape)
        return call

    def _matmul(self, call: Any) -> Any:
        joined = self._appended.product(call)
        return call if joined is None else self._blocks.normalize(joined)

    def _slice_of_concat(self, call: Any, joined: Sequence[Any], at: int, axis: int, first: int, shape: tuple[int, ...]) -> Any:
        """A slice that lies within one operand of a concatenation is a slice of that operand."""
        if at != axis:
            return call
        start = 0
        for part in joined:
            extent = shape_of(part)[axis]
            if start <= first and first + shape[axis] <= start + extent:
                begin = first - start
                return self._again(relax.op.strided_slice(part, axes=[axis], begin=[begin], end=[begin + shape[axis]],
                                                          strides=[1]))
            start += extent
        return call

    def _concat(self, call: Any) -> Any:
        parts = call.args[0]
        if not isinstance(parts, relax.Tuple):
            return call
        axis = int(call.attrs.axis) if call.attrs.axis is not None else 0
        kept = [p for p in parts.fields if shape_of(p)[axis] != 0]
        if len(kept) == 1:
            return kept[0]
        if len(kept) < len(parts.fields) and kept:
            return self._blocks.normalize(relax.op.concat(kept, axis))
        return call

    def _pick(self, call: Any) -> Any:
        """Few elements of a map are a map of few elements: ``x.float().gather(-1, i)`` writes no float32 of all of ``x``."""
        x = call.args[0]
        inner = self.value(x)
        whole = [a for a in getattr(inner, "args", ()) if isinstance(a, relax.Var)]
        if op_name(inner) not in UNARY | BINARY | {"astype"} or math.prod(shape_of(call)) >= math.prod(shape_of(x)):
            return call
        if len(whole) != 1 or shape_of(whole[0]) != shape_of(x) or "float8" in dtype_of(whole[0]):
            return call
        if any(shape_of(a) for a in inner.args if not isinstance(a, relax.Var)):
            return call
        few = self.emit(relax.Call(call.op, [whole[0], *call.args[1:]], call.attrs, call.sinfo_args), "few")
        args = [few if isinstance(a, relax.Var) else a for a in inner.args]
        return self._again(relax.Call(inner.op, args, inner.attrs, inner.sinfo_args))

    def _repeat(self, call: Any) -> Any:
        return call.args[0] if int(call.attrs.repeats) == 1 and call.attrs.axis is not None else call


_RULES: dict[str, Callable[[Simplifier, Any], Any]] = {
    "astype": Simplifier._astype, "permute_dims": Simplifier._permute, "broadcast_to": Simplifier._broadcast,
    **dict.fromkeys(TOTALS, Simplifier._total),
    "matmul": Simplifier._matmul, "where": Simplifier._where, "strided_slice": Simplifier._slice,
    "concat": Simplifier._concat, "repeat": Simplifier._repeat, "gather_elements": Simplifier._pick, "take": Simplifier._pick,
}
