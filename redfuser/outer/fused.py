"""Torch's own fused spellings: several Relax calls that one torch operator computes in the same precision.

The import writes accumulation out (``astype(matmul(x, w, out_dtype=float32), float16)``), torch does it inside. A rule
looks at one call, may absorb calls that nothing else reads (``scope.once``), and returns the text or None.
"""

from __future__ import annotations

from typing import Any

from redfuser.outer.moving import view_text
from redfuser.outer.pointwise import RULES, UNARY, batch_norm, convolution, reduced_axes, trailing
from redfuser.outer.promoted import promoted, scaled
from redfuser.outer.scope import HALF, Scope, is_float, literal, scalar, shape_text
from redfuser.tvm_compat import dtype_of, op_name, permute_axes, prim_int, relax, shape_of

_OWN_ACCUMULATION = frozenset(UNARY) | {"nn.gelu_tanh", "nn.softplus", "nn.softmax", "nn.log_softmax", "nn.layer_norm",
                                        "nn.rms_norm", "nn.group_norm", "sum", "mean", "variance"}
"""Operators that torch computes in float32 for half operands, rounding the result once."""


def spell(s: Scope, call: Any) -> str | None:
    """The fused spelling of ``call``, when there is one."""
    for rule in (_attention, _narrowed, _linear, promoted, scaled):
        text = rule(s, call)
        if text is not None:
            return text
    return None


def _absorb(s: Scope, expr: Any, *names: str) -> Any:
    """The call ``expr`` is bound to when it is one of ``names`` and only read here, else None."""
    if not s.once(expr):
        return None
    call = s.value(expr)
    return call if op_name(call) in names else None


class _Narrow:
    """The scope of a rule applied to half operands: a widening cast reads as its operand."""

    def __init__(self, scope: Scope, half: str) -> None:
        self.scope, self.half = scope, half

    def narrow(self, expr: Any) -> Any:
        """What was widened, or None when ``expr`` is not a widening cast from the half dtype."""
        call = self.scope.value(expr)
        return call.args[0] if op_name(call) == "astype" and dtype_of(call.args[0]) == self.half else None

    def text(self, expr: Any) -> str:
        inner = self.narrow(expr)
        return self.scope.text(expr if inner is None else inner)

    def tensor(self, expr: Any) -> str:
        inner = self.narrow(expr)
        return self.scope.tensor(expr if inner is None else inner)

    def value(self, expr: Any) -> Any:
        return self.scope.value(expr)

    def once(self, expr: Any) -> bool:
        return self.scope.once(expr)

    def device(self) -> str:
        return self.scope.device()

    def laid(self, expr: Any) -> bool:
        return self.scope.laid(expr)

    def operator(self, expr: Any) -> str:
        return self.scope.operator(expr)


def _narrowed(s: Scope, call: Any) -> str | None:
    """astype(f(astype(x, float32)), half) -> f(x), for f that torch accumulates in float32 by itself."""
    if op_name(call) != "astype" or dtype_of(call) not in HALF:
        return None
    half = dtype_of(call)
    if isinstance(s.value(call.args[0]), relax.TupleGetItem):
        return _batch_norm(s, call.args[0], half)
    inner = _absorb(s, call.args[0], "matmul", "add", "nn.conv1d", "nn.conv2d", "nn.conv3d", *_OWN_ACCUMULATION)
    if inner is None or dtype_of(inner) != "float32":
        return None
    if op_name(inner) in ("matmul", "add"):
        return _product(s, inner, half)
    if op_name(inner).startswith("nn.conv"):
        return convolution(s, inner, operands=_halves(s, inner.args)) if _all_half(inner.args, half) else None
    view = _Narrow(s, half)
    if any(view.narrow(a) is None for a in inner.args if isinstance(a, relax.Var)):
        return None
    if any(isinstance(a, relax.Constant) and not _uniform(a) for a in inner.args):
        return None
    if op_name(inner) in ("nn.layer_norm", "nn.rms_norm"):
        return _norm(view, inner)
    if any(isinstance(a, relax.Constant) for a in inner.args):
        return None
    if op_name(inner) in ("sum", "mean") and not reduced_axes(inner):
        return None
    return RULES[op_name(inner)](view, inner)


def _batch_norm(s: Scope, expr: Any, half: str) -> str | None:
    """F.batch_norm on half operands, by statistics that are given."""
    item = s.value(expr)
    call = _absorb(s, item.tuple_value, "nn.batch_norm") if s.once(expr) and item.index == 0 else None
    view = _Narrow(s, half)
    if call is None or any(view.narrow(a) is None for a, used in zip(call.args, (
            True, call.attrs.scale, call.attrs.center, True, True), strict=True) if used):
        return None
    return batch_norm(view, call)


def _norm(view: _Narrow, c: Any) -> str | None:
    """F.layer_norm / F.rms_norm on half operands; a weight of ones or a bias of zeros is left out."""
    shape = trailing(c)
    if shape is None:
        return None
    operands = []
    for a, idle in zip(c.args[1:], (1.0, 0.0), strict=False):
        if isinstance(a, relax.Constant):
            if _uniform(a) != idle:
                return None
            operands.append("None")
        else:
            operands.append(view.tensor(a))
    name = op_name(c).removeprefix("nn.")
    return f"F.{name}({view.tensor(c.args[0])}, {shape_text(shape)}, {', '.join(operands)}, {float(c.attrs.epsilon)!r})"


def _uniform(c: Any) -> float | None:
    """The one value of a float constant tensor, None when it has several."""
    if not is_float(dtype_of(c)) or dtype_of(c) not in ("float32", "float64"):
        return None
    values = c.data.numpy()
    return float(values.flat[0]) if values.size and bool((values == values.flat[0]).all()) else None


def _all_half(args: Any, half: str) -> bool:
    return all(dtype_of(a) == half for a in args)


def _halves(s: Scope, args: Any) -> tuple[str, str]:
    return (s.tensor(args[0]), s.tensor(args[1]))


def _bias(s: Scope, call: Any, dtype: str, names: tuple[str, ...]) -> tuple[Any, Any] | None:
    """(contraction, bias) of ``add(contraction, bias)``, the bias without its widening cast and view."""
    for product, bias in (call.args, call.args[::-1]):
        inner = _absorb(s, product, *names)
        if inner is None:
            continue
        while True:
            wide = s.value(bias)
            widened = op_name(wide) == "astype" and dtype_of(wide.args[0]) == dtype
            viewed = op_name(wide) in ("reshape", "expand_dims") and sum(n != 1 for n in shape_of(wide)) <= 1
            if not widened and not viewed:
                break
            bias = wide.args[0]
        if dtype_of(bias) == dtype and isinstance(bias, relax.Var) and len(shape_of(bias)) == 1:
            return inner, bias
    return None


def _product(s: Scope, call: Any, dtype: str) -> str | None:
    """A contraction with operands of ``dtype``, possibly with a bias, as F.linear, a convolution or torch.matmul."""
    bias = ""
    if op_name(call) == "add":
        found = _bias(s, call, dtype, ("matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d"))
        if found is None:
            return None
        inner, vector = found
        axis = 1 if op_name(inner).startswith("nn.conv") else len(shape_of(inner)) - 1
        if shape_of(vector) != (shape_of(inner)[axis],) or shape_of(inner) != shape_of(call):
            return None
        if not _bias_on(s, call, inner, axis):
            return None
        call, bias = inner, s.tensor(vector)
    if not _all_half(call.args, dtype):
        return None
    if op_name(call).startswith("nn.conv"):
        return convolution(s, call, bias, _halves(s, call.args))
    x, w = call.args
    weight = s.value(w)
    if op_name(weight) == "permute_dims" and len(shape_of(w)) == 2 and permute_axes(weight) == (1, 0):
        return f"F.linear({s.tensor(x)}, {s.tensor(weight.args[0])}{', ' + bias if bias else ''})"
    if bias and len(shape_of(w)) == 2:
        return f"F.linear({s.tensor(x)}, {s.tensor(w)}.t(), {bias})"
    return None if bias else f"torch.matmul({s.tensor(x)}, {s.tensor(w)})"


def _bias_on(s: Scope, call: Any, inner: Any, axis: int) -> bool:
    """Whether the added operand's only extent lies on ``axis`` of the result."""
    rank = len(shape_of(inner))
    for a in call.args:
        if s.value(a) is inner:
            continue
        shape = (1,) * (rank - len(shape_of(a))) + shape_of(a)
        return all(n == 1 for i, n in enumerate(shape) if i != axis)
    return False


def _linear(s: Scope, call: Any) -> str | None:
    """matmul(x, permute_dims(w)) [+ b] in one dtype -> F.linear(x, w, b); a convolution likewise takes its bias."""
    if op_name(call) not in ("add", "matmul") or dtype_of(call) not in ("float32", "float64"):
        return None
    if op_name(call) == "matmul" and op_name(s.value(call.args[1])) != "permute_dims":
        return None
    return _product(s, call, dtype_of(call))


# -- attention -----------------------------------------------------------------------------------------------------------


def _attention(s: Scope, call: Any) -> str | None:
    """matmul(softmax(q k^T * scale [causal | + mask | where mask]), v) -> F.scaled_dot_product_attention, when it is
    exactly that: heads folded in the batch, the scale a constant, everything between absorbed. Of a row that a mask hides
    torch's call makes 0, a softmax NaN; of float32 with an infinite key it makes NaN of every row (its products are of parts).
    So in float32, and under a mask that is not causal, only what the import wrote for that very call is spelled as it; it
    knows then that the mask leaves something of every row."""
    half = op_name(call) == "astype" and dtype_of(call) in HALF
    product = _absorb(s, call.args[0], "matmul") if half else call if op_name(call) == "matmul" else None
    if product is None or dtype_of(product) != "float32" or len(shape_of(product)) != 4:
        return None
    dtype = dtype_of(call)
    weights = _absorb(s, product.args[0], "nn.softmax")
    if weights is None or int(weights.attrs.axis) % 4 != 3 or dtype_of(weights) != "float32":
        return None
    v = product.args[1]
    if half:
        wide = s.value(v)
        if op_name(wide) != "astype" or dtype_of(wide.args[0]) != dtype:
            return None
        v = wide.args[0]
    own = "scaled_dot_product_attention" in s.operator(product.args[0])
    if not half and not own:
        return None
    scores, extra = weights.args[0], ""
    masked = _absorb(s, scores, "where", "add")
    if masked is not None and op_name(masked) == "where":
        mask, scores, hidden = masked.args
        if scalar(hidden) != float("-inf"):
            return None
        causal = _is_causal(s, mask)
        if not causal and not own:
            return None
        extra = ", is_causal=True" if causal else f", attn_mask={s.tensor(mask)}"
    elif masked is not None:
        scores, mask = masked.args
        cast = s.value(mask)
        if half:
            if op_name(cast) != "astype" or dtype_of(cast.args[0]) != dtype:
                return None
            mask = cast.args[0]
        if not own:
            return None
        extra = f", attn_mask={s.tensor(mask)}"
    scaled, scale = _absorb(s, scores, "multiply"), 1.0
    if scaled is not None:
        constant = scalar(scaled.args[1])
        if constant is None:
            return None
        scores, scale = scaled.args[0], float(constant)
    inner = _absorb(s, scores, "matmul")
    if inner is None or not _all_half(inner.args, dtype) or (not half and dtype != "float32"):
        return None
    q, keys = inner.args
    turned = s.value(keys)
    if op_name(turned) != "permute_dims":
        return None
    a, b, c, d = permute_axes(turned)
    source, order = s.tensor(turned.args[0]), (a, b, d, c)
    batch, heads, width, columns = shape_of(keys)
    if shape_of(q)[:2] != (batch, heads) or shape_of(q)[3] != width or shape_of(v)[:3] != (batch, heads, columns):
        return None
    k = source if order == (0, 1, 2, 3) else view_text(source, order)
    how = f"{extra}, scale={literal(scale, 'float32')}"
    return f"F.scaled_dot_product_attention({s.tensor(q)}, {k}, {s.tensor(v)}{how})"


def _is_causal(s: Scope, mask: Any) -> bool:
    """less_equal(arange(l) as a row, arange(i) as a column): torch's own causal mask, aligned to the start."""
    call = s.value(mask)
    if op_name(call) != "less_equal":
        return False
    for a, axis in ((call.args[0], 0), (call.args[1], 1)):
        row = s.value(a)
        if op_name(row) != "expand_dims" or [int(v) for v in row.attrs.axis] != [axis]:
            return False
        count = s.value(row.args[0])
        if op_name(count) != "arange" or [prim_int(x) for x in (count.args[0], count.args[2])] != [0, 1]:
            return False
    return True
