"""Which values are known to be contiguous and aligned, so that a kernel can take them as they are; and which
results must be copied, for memory of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redfuser.fourier import C2C, C2R, R2C
from redfuser.grouped import GROUPED_MM
from redfuser.outer.moving import slices
from redfuser.tvm_compat import dtype_of, op_name, relax, shape_of

ALIGN = 16
_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}
_FRESH = ("matmul", "take", "concat", "gather_elements", "arange", "full", "nn.batch_norm")
_LYING = ("aten.contiguous.default", GROUPED_MM, R2C, C2C, C2R)
"""Calls whose results begin an allocation and lie row by row."""
_OWN = ("convolution", "max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d", "upsample_nearest2d")
"""Calls of torch whose results begin an allocation, in the order of their operand or another."""
SAME = frozenset({"reshape", "expand_dims", "squeeze"})
_CLONES = ("index_put", "index_add", "index_copy", "index_reduce", "scatter", "scatter_add", "scatter_reduce", "masked_scatter")
"""Calls of torch that write into a copy of their first operand, which lies as that does where it leaves no gaps."""
VIEWS = (*SAME, "permute_dims", "broadcast_to", "strided_slice")


class Layouts:
    """``contiguous`` and ``aligned`` per variable; ``known`` seeds inputs, weights and kernel results."""

    def __init__(self, value: Callable[[Any], Any], known: dict[str, tuple[bool, bool]]) -> None:
        self.value, self.known = value, known

    def of(self, expr: Any) -> tuple[bool, bool]:
        """(contiguous, aligned to 16 bytes), both False where it is not known."""
        if not isinstance(expr, relax.Var):
            return (True, True)
        name = expr.name_hint
        if name not in self.known:
            chain, at = [], expr
            while isinstance(at, relax.Var) and at.name_hint not in self.known:
                chain.append(at)
                call = self.value(at)
                at = call.args[0] if isinstance(call, relax.Call) and len(call.args) else None
            for var in reversed(chain):
                self.known[var.name_hint] = self._call(self.value(var))
        return self.known[name]

    def _call(self, call: Any) -> tuple[bool, bool]:
        name = op_name(call)
        if name == "call_dps_packed" and any(f".{t}." in str(call.args[0].global_symbol) for t in _LYING):
            return (True, True)
        if name == "call_dps_packed" and any(f"aten.{t}." in str(call.args[0].global_symbol) for t in _CLONES):
            return (self.of(call.args[1][0])[0], True)
        if isinstance(call, relax.TupleGetItem) and op_name(made := self.value(call.tuple_value)) == "call_dps_packed":
            call, name = made, "call_dps_packed"
        if not name or name == "call_dps_packed":
            return (False, bool(name) and any(f".{t}." in str(call.args[0].global_symbol) for t in _OWN))
        if name.startswith(_FRESH):
            return (True, True)
        first = self.of(call.args[0]) if isinstance(call.args[0], relax.Var) else (True, True)
        if name in SAME:
            return first
        if name.startswith(("nn.conv", "nn.avg_pool", "nn.max_pool")):  # its result lies as its operands do
            return (False, True)
        if name in ("permute_dims", "broadcast_to"):
            return (False, first[1])
        if name == "strided_slice":
            return _slice(call, first)
        if name == "topk":
            return (False, False)
        operands = [a for a in call.args if isinstance(a, relax.Var)]
        return (all(self.of(a)[0] for a in operands), True)


def _slice(call: Any, source: tuple[bool, bool]) -> tuple[bool, bool]:
    shape = shape_of(call.args[0])
    strides = [1]
    for n in reversed(shape[1:]):
        strides.insert(0, strides[0] * n)
    offset, cuts = 0, {}
    for axis, begin, end, step in slices(call):
        offset += begin * strides[axis]
        cuts[axis] = (begin, end, step)
    whole = source[0]
    for axis, n in enumerate(shape):
        begin, end, step = cuts.get(axis, (0, n, 1))
        if (begin, end, step) == (0, n, 1):
            continue
        whole = whole and step == 1 and all(s == 1 for s in shape[:axis])
    return whole, source[1] and source[0] and offset * _BYTES.get(dtype_of(call), 1) % ALIGN == 0


def copied(results: Sequence[Any], made: Sequence[str], held: Sequence[str], tables: Sequence[str],
           value: Callable[[Any], Any], opaque: Mapping[str, Any]) -> list[int]:
    """Positions in ``results`` (variables of main) of those that must be copied: where torch computes a result, what a user
    writes into it reaches neither an input, nor a weight, nor another result, nor the next call. made: for each the name of
    what made its memory where torch runs the model (:func:`redfuser.frontend.program.roots`), or nothing where that is not
    known: then each has memory of its own. held: inputs and weights; tables: values that are kept from call to call. value:
    what a variable is bound to; opaque: the torch calls."""
    owners = {name: name for name in held} | dict.fromkeys((*tables, ""), "")
    names = made if len(made) == len(results) else [f"result {i}" for i in range(len(results))]
    where = [_lies_in(var, value, opaque) for var in results]
    return [i for i, (at, name) in enumerate(zip(where, names)) if owners.setdefault(at, name) != name]


def _lies_in(at: Any, value: Callable[[Any], Any], opaque: Mapping[str, Any]) -> str:
    """The variable in whose memory a variable's text gives its value; nothing for a constant."""
    while True:
        call = value(at)
        if isinstance(call, relax.Constant):
            return ""
        made = value(call.tuple_value) if isinstance(call, relax.TupleGetItem) else call
        if isinstance(call, relax.Var) and not call.same_as(at):
            at = call
        elif op_name(call) in VIEWS and isinstance(call.args[0], relax.Var):
            at = call.args[0]
        elif op_name(made) == "call_dps_packed" and isinstance(source := _seen(made, opaque), relax.Var):
            at = source
        else:
            return str(at.name_hint)


def _seen(call: Any, opaque: Mapping[str, Any]) -> Any:
    """The operand that a torch call gives a view of; None where its result is its own."""
    spec = opaque[str(call.args[0].global_symbol)]
    if not spec.args or not isinstance(spec.args[0], dict) or "tensor" not in spec.args[0]:
        return None
    import torch

    namespace, name, which = spec.target.split(".")
    schema = getattr(getattr(getattr(torch.ops, namespace), name), which)._schema
    if all(r.alias_info is None for r in schema.returns):
        return None
    fields = call.args[1].fields if isinstance(call.args[1], relax.Tuple) else [call.args[1]]
    return fields[spec.args[0]["tensor"]]
