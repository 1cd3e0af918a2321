"""Emit the outer graph: Relax main, minus what fused kernels cover, as straight-line torch source.

    lv = matmul(x, permute_dims(w), out_dtype=float32)          h = F.linear(x, w, b)
    lv1 = add(lv, astype(b, float32))                   -->     o = k_attention(q, k.contiguous(), v)
    h = astype(lv1, float16)                                    return o
    ...

Text is deterministic: names come from the import, order from :mod:`redfuser.outer.order`. What depends on no input is
computed here and kept as a constant.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from redfuser.errors import InternalError, UnsupportedError
from redfuser.outer import fused, moving, pointwise
from redfuser.outer.graph import OuterGraph
from redfuser.outer.layout import SAME, Layouts
from redfuser.outer.order import Step, schedule
from redfuser.outer.scope import is_float, literal, python_name, scalar, shape_text, torch_dtype
from redfuser.tvm_compat import TupleStructInfo, bindings, dtype_of, op_name, relax, same, shape_of, variables

RULES = {**pointwise.RULES, **moving.RULES}
FOLD_BYTES = 1 << 20
"""Largest result of a computation on constants that is kept instead of computed anew in every call."""
FREE_BYTES = 1 << 20
"""Intermediates from this size on are released after their last use."""
LINE = 140
"""Characters up to which views are chained on one line."""


def emit(imported: Any, regions: Sequence[Any] = (), kernel_names: Mapping[str, str] | None = None) -> OuterGraph:
    """The outer graph of ``imported`` (:class:`redfuser.frontend.imported.Imported`).

    regions: fused regions, each with ``name``, ``inputs`` (cascade tensor -> variable of main), ``outputs`` (cascade output
    -> variable) and ``cascade``. kernel_names: per region name the function that the text calls; several regions may
    share one.
    Raises UnsupportedError (RF471), one error listing every Relax call that has no torch spelling, and InternalError
    (RF470) for a region that cannot run at one place."""
    names = kernel_names or {}
    nameless = [r.name for r in regions if r.name not in names]
    if nameless:
        raise InternalError("RF472", f"regions without a kernel: {', '.join(nameless)}")
    return _Emitter(imported, regions, [names[r.name] for r in regions]).run()


def emit_region(imported: Any, region: Any) -> str | None:
    """A fused region as the torch code it stands for: what its kernel is held against where it runs. Its parameters are the
    kernel's inputs, with the kernel's shapes, its results the kernel's outputs (of the model's shapes); positions and masks
    made of them are computed in it. None where the text would need a table that is written in the model (a tensor literal),
    or an operator has no spelling."""
    try:
        graph = _Emitter(imported, (), (), region).run()
    except UnsupportedError:
        return None
    return None if graph.constants or _unbound(graph.source) else graph.source


def _unbound(source: str) -> bool:
    """Does the text name a variable of the model that is none of the kernel's inputs: one of equal value?"""
    tree = ast.parse(source)
    names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
    bound = {n.id for n in names if isinstance(n.ctx, ast.Store)} | {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    return not {n.id for n in names} <= bound | {"torch", "F", "device", "float"}


class _Emitter:
    """The scope of the rules (see :class:`redfuser.outer.scope.Scope`) and the text they make. within: emit that region
    alone, unfused."""

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

    # -- the scope of a rule -------------------------------------------------------------------------------------------

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

    # -- emitting ------------------------------------------------------------------------------------------------------

    def run(self) -> OuterGraph:
        body = self.main.body.body
        fields = list(body.fields) if isinstance(body, relax.Tuple) else [body]
        outputs = [f.name_hint for f in fields]
        if self.within is not None:
            outputs = [self.within.outputs[o] for o in self.within.cascade.outputs if o in self.within.outputs]
        steps = schedule(self.bound, self.regions, outputs)
        for s in steps:
            for r in s.reads:
                self.uses[r] = self.uses.get(r, 0) + _occurrences(s, r)
        for o in outputs:
            self.uses[o] = self.uses.get(o, 0) + 2
        self.needed = set(outputs)
        texts: dict[int, tuple[str, set[str]]] = {}
        for i in reversed(range(len(steps))):
            step = steps[i]
            if not self.needed & set(step.defines):
                continue
            self.reads = set()
            self.at = self.names[step.defines[0]]
            text = "" if step.region >= 0 else self._binding(step.expr)
            reads = set(step.reads) if step.region >= 0 else self.reads
            self.needed |= reads
            texts[i] = (text, reads)
        if self.missing:
            listed = "; ".join(f"{op} ({why})" if why else op for op, why in sorted(self.missing.items()))
            raise UnsupportedError("RF471", f"no torch spelling for {listed}",
                                   help="leave the model's own operator in place, or report the model")
        return self._assemble(steps, texts, outputs)

    def _binding(self, expr: Any) -> str:
        """The right-hand side for a binding; a view of a value that nothing else reads is written behind it."""
        text = self._spelled(expr)
        if op_name(expr) in moving.VIEWS and self.once(expr.args[0]):
            name, inner = self.names[expr.args[0].name_hint], self.value(expr.args[0])
            if text.startswith(f"{name}.") and isinstance(inner, relax.Call):
                mine = self.reads
                self.reads = mine - {expr.args[0].name_hint}
                before = self._binding(inner)
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

    def _assemble(self, steps: list[Step], texts: dict[int, tuple[str, set[str]]], outputs: list[str]) -> OuterGraph:
        import torch

        from redfuser.runtime.operators import OPERATORS

        folded: dict[str, Any] = {}
        lines: list[tuple[str, set[str], tuple[str, ...]]] = []
        layouts = Layouts(self.value, self._known_layouts())
        whole = self._sliced(steps, layouts)
        layouts = Layouts(self.value, self._known_layouts() | {n: (True, True) for n in whole})
        lines += [(f"{self.names[n]} = {self.names[n]}.contiguous()", {n}, (n,)) for n in whole]
        counts: dict[str, int] = {}
        constant = set(self.constants)
        for i, step in enumerate(steps):
            if i not in texts:
                continue
            text, reads = texts[i]
            names = [self.names[d] for d in step.defines]
            if step.region >= 0:
                lines.append((self._kernel_call(step, layouts), reads, step.defines))
                continue
            if "scaled_dot_product_attention" in text:
                layouts.known[step.defines[0]] = (False, True)
            opaque = op_name(step.expr) == "call_dps_packed"
            if self.within is None and not opaque and reads <= constant | set(folded):
                scope = {"torch": torch, "F": torch.nn.functional, "device": "cpu", **self.constants,
                         **{self.names[k]: v for k, v in folded.items()}}
                with torch.no_grad():
                    value = eval(text, scope)
                if isinstance(value, torch.Tensor) and value.numel() * value.element_size() <= FOLD_BYTES:
                    folded[step.defines[0]] = value.contiguous().clone()
                    continue
            lines.append((f"{names[0]} = {text}", reads, step.defines))
            for called in re.findall(r"\b(?:torch|F)\.[\w.]+(?=\()|\.\w+(?=\()", text):
                if called not in OPERATORS and not called.startswith("torch.ops."):
                    raise InternalError("RF900", f"the outer graph calls {called}",
                                        why="redfuser.runtime.operators does not list it")
                counts[called.lstrip(".")] = counts.get(called.lstrip("."), 0) + 1
        return self._graph(lines, folded, outputs, counts)

    def _sliced(self, steps: list[Step], layouts: Layouts) -> list[str]:
        """Inputs of which kernels read slices that nothing is known of (a cache of each layer): they lie as the input lies, so
        that is looked at once, instead of copying each."""
        given = {s.name for s in self.imported.inputs if s.kind == "user"}
        found: dict[str, None] = {}
        for step in steps:
            for name in self.regions[step.region].inputs.values() if step.region >= 0 else ():
                at, sliced = self.vars[name], False
                while layouts.of(at) != (True, True) and op_name(call := self.value(at)) in (*SAME, "strided_slice"):
                    sliced = sliced or op_name(call) == "strided_slice"
                    at = call.args[0]
                if sliced and isinstance(at, relax.Var) and at.name_hint in given:
                    found.setdefault(at.name_hint)
        return list(found)

    def _known_layouts(self) -> dict[str, tuple[bool, bool]]:
        known = {}
        for spec in self.imported.inputs:
            weight = self.imported.weights.get(spec.name)
            known[spec.name] = (bool(weight.is_contiguous()), True) if weight is not None else (False, True)
        known.update({v: (True, True) for v in self.sealed})
        return known

    def _kernel_call(self, step: Step, layouts: Layouts) -> str:
        """``o = k_attention(q, k.contiguous(), v)``; operands as the kernel wants them, results as main has them."""
        region = self.regions[step.region]
        tensors = [t.name for t in region.cascade.inputs]
        operands = []
        for tensor in tensors:
            var = self.vars[region.inputs[tensor]]
            contiguous, aligned = layouts.of(var)
            how = ".contiguous()" if aligned else ".clone(memory_format=torch.contiguous_format)"
            how = "" if contiguous and aligned else how
            shape = tuple(region.cascade.tensor(tensor).shape)
            if shape != shape_of(var) and all(isinstance(n, int) for n in shape):
                how += f".reshape({shape_text(shape)})"
            operands.append(self.names[var.name_hint] + how)
        call = f"{self.kernel_names[step.region]}({', '.join(operands)})"
        results = [region.outputs[o] for o in region.cascade.outputs if o in region.outputs]
        left = ", ".join(self.names[r] for r in results)
        views = [(var, f".reshape({shape_text(shape_of(self.vars[var]))})") for name, var in region.outputs.items()
                 if _output_shape(region.cascade, name) not in (None, shape_of(self.vars[var]))]
        if len(results) == 1 and views:
            return f"{left} = {call}{views[0][1]}"
        return "\n".join([f"{left} = {call}", *(f"{self.names[v]} = {self.names[v]}{view}" for v, view in views)])

    def _graph(self, lines: list[tuple[str, set[str], tuple[str, ...]]], folded: dict[str, Any], outputs: list[str],
               counts: dict[str, int]) -> OuterGraph:
        read = {r for _, reads, _ in lines for r in reads} | set(outputs)
        given = [s.name for s in self.imported.inputs if s.kind == "user"]
        if self.within is not None:
            given = [self.within.inputs[t.name] for t in self.within.cascade.inputs]
        inputs = tuple(f"{self.names[n]}{'_' * given[:i].count(n)}" for i, n in enumerate(given))
        weights = {self.names[s.name]: s.name for s in self.imported.inputs if s.kind != "user" and s.name in read
                   and s.name not in given}
        tables = {n: v for n, v in self.constants.items() if n in read}
        tables.update({self.names[k]: v for k, v in folded.items() if k in read})
        constants = {**{n: self.imported.weights[k] for n, k in weights.items()}, **dict(sorted(tables.items()))}
        text = [f"{self.names[n]} = {self.names[n]}.reshape({shape_text(shape_of(self.vars[n]))})"
                for n in dict.fromkeys(given)] if self.within is not None else []
        last = {r: i for i, (_, reads, _) in enumerate(lines) for r in reads}
        big = {d for _, _, defs in lines for d in defs if d not in outputs and _bytes(self.vars.get(d)) >= FREE_BYTES}
        for i, (line, reads, _) in enumerate(lines):
            text += line.split("\n")
            gone = sorted(self.names[r] for r in reads & big if last[r] == i)
            if gone:
                text.append(f"del {', '.join(gone)}")
        results = tuple(self.names[o] for o in outputs)
        text.append(f"return ({', '.join(results)}{',' if len(results) == 1 else ''})")
        source = f"def forward({', '.join(inputs)}):\n" + "".join(f"    {t}\n" for t in text)
        kernels = {n: n for n in dict.fromkeys(self.kernel_names)}
        opaque = tuple(sorted({s.target for s in self.opaque.values()}))
        return OuterGraph(source, inputs, results, constants, weights, kernels, dict(sorted(counts.items())), opaque)


def _postfix(text: str) -> bool:
    """Whether a method can be called on the expression as it stands."""
    return isinstance(ast.parse(text, mode="eval").body, (ast.Call, ast.Subscript, ast.Name))


def _occurrences(step: Step, name: str) -> int:
    """How often a step reads a variable: ``x * x`` reads x twice."""
    if step.region >= 0:
        return 2
    return variables(step.expr).count(name)


def _output_shape(cascade: Any, name: str) -> tuple[int, ...] | None:
    try:
        stmt = cascade.stmt(name)
    except StopIteration:
        return None
    shape = tuple(cascade.extent(a) for a in stmt.axes)
    return shape if all(isinstance(n, int) for n in shape) else None


def _bytes(var: Any) -> int:
    if var is None or not hasattr(var.struct_info, "dtype"):
        return 0
    size = 1
    for n in shape_of(var):
        size *= n
    return size * (int(re.sub(r"\D", "", dtype_of(var).replace("float8", "8_").split("_")[0]) or 8) // 8 or 1)
