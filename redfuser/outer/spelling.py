"""A binding of Relax main as torch code: what its names, constants and operands are called, and the rule that spells it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from redfuser.outer import fused, moving, pointwise
from redfuser.outer.scope import is_float, literal, python_name, scalar, shape_text, torch_dtype
from redfuser.tvm_compat import TupleStructInfo, bindings, dtype_of, op_name, relax, same, shape_of

RULES = {**pointwise.RULES, **moving.RULES}
LINE = 140
"""Characters up to which views are chained on one line."""


class Speller:
    """The scope of the rules (see :class:`redfuser.outer.scope.Scope`). reads: variables and constants that the text since it
    was last emptied has named; missing: operators without a spelling, and why. within: that region is spelled alone,
    unfused."""

    def __init__(self, imported: Any, regions: Sequence[Any], kernel_names: Sequence[str], within: Any = None) -> None:
        self.imported, self.regions, self.kernel_names = imported, list(regions), list(kernel_names)
        self.within = within
        main = imported.mod["main"]
        self.main, self.bound = main, bindings(main)
        self.values = {b.var.name_hint: b.value for b in self.bound}
        self.vars = {**{p.name_hint: p for p in main.params}, **{b.var.name_hint: b.var for b in self.bound}}
        self.opaque = imported.opaque
        self.sealed = {v for r in regions for v in r.outputs.values()}
        """Results of kernels: their Relax definition is not to be looked into."""
        twins = self._twins(within) if within is not None else {}
        if within is not None:
            self.sealed |= {*within.inputs.values(), *twins}
            self.bound = [b for b in self.bound if b.var.name_hint not in self.sealed]
        self.names: dict[str, str] = {}
        taken: set[str] = {*kernel_names}
        for name in self.vars:
            self.names[name] = python_name(name, taken)
            taken.add(self.names[name])
        self.names |= {twin: self.names[own] for twin, own in twins.items()}
        self.taken = taken
        self.constants: dict[str, Any] = {}
        self.constant_names: dict[Any, str] = {}
        self.needed: set[str] = set()
        self.reads: set[str] = set()
        self.at = ""
        self.uses: dict[str, int] = {}
        self.missing: dict[str, str] = {}

    def _twins(self, region: Any) -> dict[str, str]:
        """Variables that are bound to what an input of the region is bound to, and that input: the kernel is given one."""
        inputs = {v: self.values[v] for v in region.inputs.values() if v in self.values}
        return {b.var.name_hint: v for b in self.bound for v, e in inputs.items()
                if b.var.name_hint not in inputs and same(b.value, e)}

    def text(self, expr: Any) -> str:
        value = scalar(expr)
        return literal(value, dtype_of(expr)) if value is not None else self.tensor(expr)

    def tensor(self, expr: Any) -> str:
        if isinstance(expr, relax.Var):
            self.reads.add(expr.name_hint)
            return self.names[expr.name_hint]
        if isinstance(expr, relax.Constant):
            return self._constant(expr)
        if isinstance(expr, relax.Tuple):
            return "(" + ", ".join(self.tensor(f) for f in expr.fields) + ",)"
        raise NotImplementedError(f"an operand {type(expr).__name__}")

    def value(self, expr: Any) -> Any:
        if isinstance(expr, relax.Var) and expr.name_hint not in self.sealed:
            return self.values.get(expr.name_hint, expr)
        return expr

    def once(self, expr: Any) -> bool:
        return isinstance(expr, relax.Var) and expr.name_hint not in self.sealed and self.uses.get(expr.name_hint) == 1

    def device(self) -> str:
        return "device"

    def laid(self, expr: Any) -> bool:
        return isinstance(expr, relax.Var) and expr.name_hint in self.imported.laid

    def operator(self, expr: Any) -> str:
        known = self.imported.provenance.get(expr.name_hint) if isinstance(expr, relax.Var) else None
        return known.op if known is not None else ""

    def _constant(self, expr: Any) -> str:
        if expr not in self.constant_names:
            import torch

            value = torch.from_dlpack(expr.data).clone()
            if self.within is not None and value.numel() and bool((value == value.flatten()[0]).all()):
                return f"torch.full({shape_text(shape_of(expr))}, {literal(value.flatten()[0].item(), dtype_of(expr))}, " \
                       f"dtype={torch_dtype(dtype_of(expr))}, device={self.device()})"
            name = python_name(f"{self.at}_const", self.taken)
            self.taken.add(name)
            self.constant_names[expr] = name
            self.constants[name] = value
        name = self.constant_names[expr]
        self.reads.add(name)
        return name

    def binding(self, expr: Any) -> str:
        """The right-hand side for a binding; a view of a value that nothing else reads is written behind it."""
        text = self._spelled(expr)
        if op_name(expr) in moving.VIEWS and self.once(expr.args[0]):
            name, inner = self.names[expr.args[0].name_hint], self.value(expr.args[0])
            if text.startswith(f"{name}.") and isinstance(inner, relax.Call):
                mine = self.reads
                self.reads = mine - {expr.args[0].name_hint}
                before = self.binding(inner)
                if len(before) + len(text) - len(name) <= LINE and _postfix(before):
                    return before + text[len(name):]
                self.reads = mine
        return text

    def _spelled(self, expr: Any) -> str:
        try:
            if isinstance(expr, relax.TupleGetItem):
                return self._item(expr)
            if isinstance(expr, (relax.Var, relax.Tuple, relax.Constant)):
                return self.tensor(expr)
            if not isinstance(expr, relax.Call):
                raise NotImplementedError(type(expr).__name__)
            if op_name(expr) == "call_dps_packed":
                return self._opaque(expr)
            mine = self.reads
            self.reads = set(mine)
            text = fused.spell(self, expr)
            if text is not None:
                return text
            self.reads = mine
            rule = RULES.get(op_name(expr))
            if rule is None:
                raise NotImplementedError("")
            return rule(self, expr)
        except NotImplementedError as error:
            self.missing[op_name(expr) or type(expr).__name__] = str(error)
            return "None"

    def _opaque(self, call: Any) -> str:
        """``torch.ops.aten.histc.default(x, 4)``: the call that an opaque binding stands for."""
        spec = self.opaque[str(call.args[0].global_symbol)]
        fields = list(call.args[1].fields) if isinstance(call.args[1], relax.Tuple) else [call.args[1]]

        def fill(v: Any) -> str:
            if isinstance(v, dict):
                ((kind, inner),) = v.items()
                if kind == "tensor":
                    return self.tensor(fields[inner])
                return self.device() if kind == "device" else f"torch.{inner}"
            if isinstance(v, (list, tuple)):
                return "[" + ", ".join(map(fill, v)) + "]"
            return literal(v, "float64") if isinstance(v, float) else repr(v)

        if spec.target == "aten.div.Tensor_mode" and spec.kwargs == {"rounding_mode": "trunc"} and spec.tensors == 2 and \
                not is_float(dtype_of(call)):
            x, y = spec.args
            return pointwise.truncated(fill(x), fill(y))
        args = [*map(fill, spec.args), *(f"{k}={fill(v)}" for k, v in spec.kwargs.items())]
        text = f"torch.ops.{spec.target}({', '.join(args)})"
        many = isinstance(call.struct_info, TupleStructInfo)
        return text if spec.single or many else f"{text}[{spec.results[0]}]"

    def _item(self, expr: Any) -> str:
        """One result of several: by its position among the torch operator's, in the dtype that the import says."""
        call, index = self.value(expr.tuple_value), int(expr.index)
        text = self.tensor(expr.tuple_value)
        if op_name(call) == "call_dps_packed":
            index = self.opaque[str(call.args[0].global_symbol)].results[index]
        narrow = op_name(call) == "topk" and index == 1 and dtype_of(expr) != "int64"
        return f"{text}[{index}]" + (f".to({torch_dtype(dtype_of(expr))})" if narrow else "")


def _postfix(text: str) -> bool:
    """Whether a method can be called on the expression as it stands."""
    return isinstance(ast.parse(text, mode="eval").body, (ast.Call, ast.Subscript, ast.Name))
