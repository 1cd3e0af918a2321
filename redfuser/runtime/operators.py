"""Every operator that a saved graph may call: the one list, held against what :mod:`redfuser.outer` writes by a test.

``OPERATORS`` are the torch functions (``torch.sum``, ``F.linear``) and methods (``.reshape``) that the outer graph is
written in, each with the rule for its arguments. ``OPAQUE`` are the overloads that a model may keep as opaque calls
(``torch.ops.aten.histc.default``): those of torch's functional operators that check their arguments themselves, or whose
arguments are checked here. Their results come from torch's own shape functions, on tensors without data.

Left out on purpose: whatever writes into its operands, shares memory under strides of its choice (``as_strided``,
``_reshape_alias``, ``set_``, ``resize_``), trusts indices (``_unsafe_index``, ``_unsafe_index_put``, ``_embedding_bag``,
``_grouped_mm``, gradients of pools and embeddings), returns memory as it finds it (``empty``), or has a shape that depends
on data. ``OWN`` are operators of this package.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from redfuser import fourier, grouped
from redfuser.runtime import computing, moving
from redfuser.runtime.shapes import (
    MAX_RESULTS,
    Ends,
    Refused,
    Rule,
    Shaped,
    broadcast,
    index,
    integer,
    need,
    promoted,
    tensor,
)

OPERATORS: dict[str, Rule] = {**computing.RULES, **moving.RULES}
INFIX = computing.INFIX
PROPERTIES = frozenset({"values", "indices"})
"""Attributes of what ``torch.topk`` returns."""

_POINTWISE = """abs acos acosh asin asinh atan atanh atan2 bitwise_not ceil cos cosh digamma erf erfc erfinv exp exp2 expm1
floor frac isfinite isinf isnan isneginf isposinf lgamma log log10 log1p log2 logical_and logical_not logical_or logical_xor
neg reciprocal relu round rsqrt sigmoid sign signbit silu sin sinh sqrt square tan tanh trunc maximum minimum fmax fmin hypot
logaddexp logaddexp2 nextafter sgn gelu elu leaky_relu hardtanh hardswish hardsigmoid mish softplus log_sigmoid_forward
prelu _prelu_kernel special_entr special_erfcx special_i0e special_i1 special_i1e special_ndtri special_log_ndtr i0 sinc
nan_to_num clamp clamp_min clamp_max polygamma heaviside copysign.Tensor xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self
special_zeta add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar
div.Tensor_mode div.Scalar_mode floor_divide floor_divide.Scalar remainder.Tensor remainder.Scalar fmod.Tensor fmod.Scalar
pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar
gt.Tensor gt.Scalar ge.Tensor ge.Scalar bitwise_and.Tensor bitwise_and.Scalar bitwise_or.Tensor bitwise_or.Scalar
bitwise_xor.Tensor bitwise_xor.Scalar bitwise_left_shift.Tensor bitwise_right_shift.Tensor bitwise_left_shift.Tensor_Scalar
bitwise_right_shift.Tensor_Scalar __and__.Tensor __and__.Scalar __or__.Tensor __or__.Scalar __xor__.Tensor __xor__.Scalar
__lshift__.Tensor __lshift__.Scalar __rshift__.Tensor __rshift__.Scalar gcd
where.self where.ScalarOther where.ScalarSelf where.Scalar masked_fill.Scalar masked_fill.Tensor clamp.Tensor clamp_min.Tensor
clamp_max.Tensor lerp.Tensor lerp.Scalar addcmul addcdiv threshold fill.Scalar full_like scalar_tensor max.other min.other
_to_copy to.dtype clone detach alias lift_fresh_copy native_dropout dropout"""
_REDUCTIONS = """sum sum.dim_IntList mean mean.dim prod prod.dim_int amax amin max max.dim min min.dim argmax argmin any any.dim
any.dims all all.dim all.dims var var.dim var.correction std std.dim std.correction var_mean var_mean.dim var_mean.correction
linalg_vector_norm logsumexp norm.ScalarOpt_dim median.dim mode kthvalue softmax.int log_softmax.int _softmax _log_softmax
_safe_softmax cumsum cumprod cummax cummin logcumsumexp topk sort sort.stable argsort argsort.stable histc searchsorted.Tensor
bucketize.Tensor trace native_layer_norm layer_norm rms_norm _fused_rms_norm group_norm native_group_norm
_native_batch_norm_legit_no_training _native_batch_norm_legit.no_stats native_batch_norm"""
_PRODUCTS = """mm bmm addmm addmv addbmm baddbmm matmul mv dot vdot outer linear convolution conv1d conv2d conv3d
conv_transpose1d conv_transpose2d.input conv_transpose3d.input _int_mm _scaled_mm linalg_cross linalg_inv_ex linalg_cholesky_ex
linalg_qr linalg_solve_triangular _linalg_eigh _linalg_svd _linalg_det _linalg_slogdet _linalg_solve_ex _cdist_forward
_pdist_forward scaled_dot_product_attention lstm.input gru.input rnn_tanh.input rnn_relu.input"""
_MOVES = """view view.dtype reshape _unsafe_view permute transpose.int t squeeze squeeze.dim squeeze.dims unsqueeze expand
expand_as broadcast_to flatten.using_ints unflatten.int view_as select.int slice.Tensor split.Tensor split_with_sizes chunk
unbind.int diagonal diag_embed unfold movedim.int cat concat stack repeat repeat_interleave.self_int roll flip rot90 tril triu
contiguous constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
replication_pad3d index.Tensor index_select index_put index_add index_copy index_fill.int_Scalar index_fill.int_Tensor gather
scatter.src scatter.value scatter_add scatter_reduce.two select_scatter slice_scatter diagonal_scatter masked_scatter embedding
arange arange.start arange.start_step full eye eye.m ones zeros ones_like zeros_like rand randn randint randint.low randperm
rand_like randn_like bernoulli bernoulli.p tril_indices triu_indices col2im im2col pixel_shuffle pixel_unshuffle
channel_shuffle"""
_WINDOWS = """avg_pool1d avg_pool2d avg_pool3d max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d
adaptive_max_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d upsample_nearest1d.vec upsample_nearest2d.vec
upsample_nearest3d.vec upsample_linear1d.vec upsample_bilinear2d.vec upsample_trilinear3d.vec upsample_bicubic2d.vec
grid_sampler_2d grid_sampler_3d"""

OPAQUE = frozenset(f"aten.{name}" if "." in name else f"aten.{name}.default"
                   for text in (_POINTWISE, _REDUCTIONS, _PRODUCTS, _MOVES, _WINDOWS) for name in text.split())


def _group_ends(offs: Any, rows: Any) -> Ends:
    need(index(offs).rank == 1 and offs.shape[0] > 0, "offsets of groups along one axis")
    return Ends(offs.shape[0], integer(rows, 1, (1 << 31) - 1))


def _grouped_mm(x: Any, w: Any, ends: Any) -> Shaped:
    need(tensor(x).rank == 2 and tensor(w).rank == 3 and x.dtype == w.dtype and x.dtype in grouped.DTYPES,
         "a grouped product of these operands")
    need(x.shape[1] == w.shape[1] and min(*x.shape, *w.shape) > 0, f"a grouped product of {list(x.shape)} and {list(w.shape)}")
    need(ends == Ends(w.shape[0], x.shape[0]), f"ends that are not those of {w.shape[0]} groups in {x.shape[0]} rows")
    return x.like((x.shape[0], w.shape[2]))


def _r2c(x: Any, dim: Any, norm: Any, onesided: Any) -> Shaped:
    shape = _transformed(x, tensor(x).rank, dim, norm)
    need(isinstance(onesided, bool), "a transform that is one-sided or not")
    if onesided:
        shape[dim[-1]] = shape[dim[-1]] // 2 + 1
    return x.like((*shape, 2))


def _c2c(z: Any, dim: Any, norm: Any, forward: Any) -> Shaped:
    shape = _pairs(z, dim, norm)
    need(isinstance(forward, bool), "a transform forward or back")
    return z.like((*shape, 2))


def _c2r(z: Any, dim: Any, norm: Any, last: Any) -> Shaped:
    shape = _pairs(z, dim, norm)
    need(isinstance(last, int) and not isinstance(last, bool) and last > 0 and last // 2 + 1 == shape[dim[-1]],
         "a real result as long as the transform's operand")
    shape[dim[-1]] = last
    return z.like(tuple(shape))


def _pairs(z: Any, dim: Any, norm: Any) -> list[int]:
    need(tensor(z).rank > 0 and z.shape[-1] == 2, "pairs of real numbers along the last axis")
    return _transformed(z, z.rank - 1, dim, norm)


def _transformed(x: Any, rank: int, dim: Any, norm: Any) -> list[int]:
    """The shape of what is transformed, of ``rank`` axes."""
    need(x.dtype in fourier.DTYPES and min(x.shape, default=0) > 0, "a Fourier transform of such a tensor")
    need(isinstance(dim, (list, tuple)) and len(dim) > 0 and len(set(dim)) == len(dim)
         and all(isinstance(d, int) and not isinstance(d, bool) and 0 <= d < rank for d in dim), "dimensions of a transform")
    need(isinstance(norm, int) and not isinstance(norm, bool) and 0 <= norm <= 2, "a norm of a transform")
    return list(x.shape[:rank])


OWN: dict[str, Rule] = {grouped.GROUP_ENDS: _group_ends, grouped.GROUPED_MM: _grouped_mm,
                        fourier.R2C: _r2c, fourier.C2C: _c2c, fourier.C2R: _c2r}
"""What looks at what torch's operators take on trust, with its rules."""


def opaque_results(target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an opaque call returns, by torch's own shape function. Raises :class:`Refused`."""
    if target in OWN:
        return OWN[target](*args, **kwargs)
    if target not in OPAQUE:
        raise Refused(f"{target} is not among the operators that a saved graph may call")
    _, name, overload = target.split(".")
    operator = getattr(getattr(torch.ops.aten, name), overload)
    schema = [argument.name for argument in operator._schema.arguments]
    need(len(args) <= len(schema), f"{len(args)} arguments for {len(schema)}")
    given = {**dict(zip(schema, args, strict=False)), **kwargs}
    if name in _GIVEN:
        return _GIVEN[name](given)
    check = _CHECKS.get(name)
    if check is not None:
        check(given)
    return _shaped(operator(*map(_meta, args), **{k: _meta(v) for k, v in kwargs.items()}))


def _meta(value: Any) -> Any:
    if isinstance(value, Shaped):
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    if isinstance(value, moving.Device):
        return torch.device("meta")
    return [_meta(v) for v in value] if isinstance(value, (list, tuple)) else value


def _shaped(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Shaped(value.dtype, tuple(value.shape))
    if isinstance(value, (tuple, list)):
        return tuple(_shaped(v) for v in value)
    if value is None:
        return None
    raise Refused("a result that is not a tensor")


# -- arguments that torch's kernels take on trust ---------------------------------------------------------------------


def _channels(given: Mapping[str, Any], *names: str) -> None:
    """Each of the named tensors, where it is given, has one element for each channel of the input."""
    x = tensor(given.get("input"))
    need(x.rank >= 2, "an input with channels")
    for name in names:
        value = given.get(name)
        need(value is None or tensor(value).shape == x.shape[1:2], f"{name} for each channel")


def _batch_norm(given: Mapping[str, Any]) -> None:
    _channels(given, "weight", "bias", "running_mean", "running_var")


def _group_norm(given: Mapping[str, Any]) -> None:
    _channels(given, "weight", "bias")
    x = tensor(given["input"])
    batch, channels, rest, groups = (integer(given.get(k), 0) for k in ("N", "C", "HxW", "group"))
    need((batch, channels, rest) == (x.shape[0], x.shape[1], math.prod(x.shape[2:])), "sizes that are not the input's")
    need(groups > 0 and channels % groups == 0, "groups of channels")


def _attention(given: Mapping[str, Any]) -> None:
    q, k, v = (tensor(given.get(n)) for n in ("query", "key", "value"))
    need(min(q.rank, k.rank, v.rank) >= 2 and q.shape[-1] == k.shape[-1] and k.shape[-2] == v.shape[-2],
         "attention of these shapes")
    need(k.shape[:-2] == v.shape[:-2], "keys and values of one batch")
    grouped = given.get("enable_gqa") is True and q.rank == k.rank and q.rank >= 3
    if grouped:
        need(q.shape[:-3] == k.shape[:-3] and k.shape[-3] > 0 and q.shape[-3] % k.shape[-3] == 0, "groups of heads")
    batch = q.shape[:-2] if grouped else broadcast(q.shape[:-2], k.shape[:-2])
    mask = given.get("attn_mask")
    if mask is not None:
        whole = (*batch, q.shape[-2], k.shape[-2])
        need(broadcast(tensor(mask).shape, whole) == whole, "a mask of another shape")


def _scaled_product(given: Mapping[str, Any]) -> Shaped:
    """The product of tensors of 8 bits, with a scale for each or for each of their rows and columns. torch's shape function
    wants to see how the second lies in memory, which a shape does not say."""
    a, b = tensor(given.get("self")), tensor(given.get("mat2"))
    need(a.rank == b.rank == 2 and a.shape[1] == b.shape[0], "a product of these shapes")
    m, n = a.shape[0], b.shape[1]
    for name, shape in (("scale_a", (m, 1)), ("scale_b", (1, n))):
        scale = tensor(given.get(name))
        need(scale.dtype == torch.float32 and (math.prod(scale.shape) == 1 or scale.shape == shape), f"{name} of this shape")
    bias, result = given.get("bias"), given.get("out_dtype")
    need(bias is None or tensor(bias).shape == (n,), "a bias for each column")
    need(given.get("scale_result") is None, "a scale of the result")
    need(result is None or (isinstance(result, torch.dtype) and result.is_floating_point), "a result of this dtype")
    return Shaped(result or a.dtype, (m, n))


_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Of a cell of a recurrent network, by its operator."""


def _recurrent(name: str) -> Callable[[Mapping[str, Any]], Any]:
    """Rows over time, the last state, and for an LSTM its memory, of layers with one direction or two. torch's shape function
    would run every step."""
    def rule(given: Mapping[str, Any]) -> tuple[Shaped, ...]:
        x, hx = tensor(given.get("input")), given.get("hx")
        states = [tensor(s) for s in hx] if isinstance(hx, (list, tuple)) else [tensor(hx)]
        layers, biases, both = integer(given.get("num_layers"), 1), given.get("has_biases"), given.get("bidirectional")
        first, train = given.get("batch_first"), given.get("train")
        need(all(isinstance(v, bool) for v in (biases, both, first)) and train is False, "a network that is not in training")
        ways = 1 + bool(both)
        need(x.rank == 3 and x.dtype.is_floating_point and len(states) == (2 if name == "lstm" else 1), "rows over time")
        hidden, batch = states[0].shape[-1], x.shape[0 if first else 1]
        need(all(s == Shaped(x.dtype, (layers * ways, batch, hidden)) for s in states), "a state of each layer")
        wide, weights = _GATES[name] * hidden, given.get("params")
        cells = [((wide, x.shape[2] if n < ways else hidden * ways), (wide, hidden), *([(wide,)] * 2 if biases else []))
                 for n in range(layers * ways)]
        need(isinstance(weights, (list, tuple)) and [tensor(w) for w in weights] ==
             [Shaped(x.dtype, shape) for cell in cells for shape in cell], "the weights of each layer")
        return Shaped(x.dtype, (*x.shape[:2], hidden * ways)), *states

    return rule


_GIVEN: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "_scaled_mm": _scaled_product, **{name: _recurrent(name) for name in _GATES}}
"""What comes out of operators whose shape functions cannot be asked."""


def _grid(given: Mapping[str, Any]) -> None:
    integer(given.get("interpolation_mode"), 0, 2)
    integer(given.get("padding_mode"), 0, 2)


def _quotient(given: Mapping[str, Any]) -> None:
    """The smallest integer divided by -1 and truncated ends the process."""
    x, divisor = tensor(given.get("self")), given.get("other")
    literal = isinstance(divisor, int) and divisor != -1
    need(given.get("rounding_mode") != "trunc" or literal or promoted(x, divisor).is_floating_point,
         "an integer division that truncates, by a tensor")


def _parts(given: Mapping[str, Any]) -> None:
    """Not more results than anyone keeps: the shape function makes them one by one."""
    x = tensor(next(iter(given.values())))
    need(max(x.shape, default=0) <= MAX_RESULTS, "too many results")


_CHECKS: dict[str, Callable[[Mapping[str, Any]], None]] = {
    "native_batch_norm": _batch_norm, "_native_batch_norm_legit_no_training": _batch_norm,
    "_native_batch_norm_legit": _batch_norm, "native_group_norm": _group_norm,
    "scaled_dot_product_attention": _attention, "grid_sampler_2d": _grid, "grid_sampler_3d": _grid, "unbind": _parts,
    "split": _parts, "chunk": _parts, "div": _quotient}
