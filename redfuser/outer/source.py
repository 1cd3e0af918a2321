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
from redfuser.outer.graph import OuterGraph
from redfuser.outer.layout import SAME, Layouts, copied
from redfuser.outer.order import Step, schedule
from redfuser.outer.scope import python_name, shape_text
from redfuser.outer.spelling import Speller
from redfuser.tvm_compat import TupleStructInfo, bytes_of, op_name, relax, results, shape_of, variables

FOLD_BYTES = 1 << 20
"""Largest result of a computation on constants that is kept instead of computed anew in every call."""
FREE_BYTES = 1 << 20
"""Intermediates from this size on are released after their last use."""


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


class _Emitter(Speller):
    """The text of the bindings in order, and the calls of kernels among them."""

    def run(self) -> OuterGraph:
        outputs = [f.name_hint for f in results(self.main)]
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
            text = "" if step.region >= 0 else self.binding(step.expr)
            reads = set(step.reads) if step.region >= 0 else self.reads
            self.needed |= reads
            texts[i] = (text, reads)
        if self.missing:
            listed = "; ".join(f"{op} ({why})" if why else op for op, why in sorted(self.missing.items()))
            raise UnsupportedError("RF471", f"no torch spelling for {listed}",
                                   help="leave the model's own operator in place, or report the model")
        return self._assemble(steps, texts, outputs)

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
        attended: list[str] = []
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
                attended.append(step.defines[0])
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
        told = {s.name: (True, True) for s in self.imported.inputs if s.kind == "user"}  # as the example was
        told |= {d: layouts.known[d] for d in attended}
        as_given = Layouts(self.value, self._known_layouts() | told)
        loose = [o for o, lined in zip(outputs, self.imported.lined) if lined and not as_given.of(self.vars[o])[0]]
        return self._graph(lines, folded, outputs, counts, loose)

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
               counts: dict[str, int], loose: list[str]) -> OuterGraph:
        """loose: results of which it is not known that they lie row by row, as torch's do."""
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
        infos = {d: self.vars[d].struct_info for _, _, defs in lines for d in defs if d not in outputs}
        big = {d for d, info in infos.items() if not isinstance(info, TupleStructInfo) and bytes_of(info) >= FREE_BYTES}
        for i, (line, reads, _) in enumerate(lines):
            text += line.split("\n")
            gone = sorted(self.names[r] for r in reads & big if last[r] == i)
            if gone:
                text.append(f"del {', '.join(gone)}")
        results = tuple(self.names[o] for o in outputs)
        if self.within is None:
            results = self._own(outputs, folded, text, loose)
        text.append(f"return ({', '.join(results)}{',' if len(results) == 1 else ''})")
        source = f"def forward({', '.join(inputs)}):\n" + "".join(f"    {t}\n" for t in text)
        kernels = {n: n for n in dict.fromkeys(self.kernel_names)}
        opaque = tuple(sorted({s.target for s in self.opaque.values()}))
        return OuterGraph(source, inputs, results, constants, weights, kernels, dict(sorted(counts.items())), opaque)

    def _own(self, outputs: list[str], folded: dict[str, Any], text: list[str], loose: list[str]) -> tuple[str, ...]:
        """The results' names; those that would lie in another's memory are copied in ``text``, once: a reshape of what is laid
        out otherwise would copy too, so the copy comes before it. ``loose`` ones are laid row by row where they are not."""
        held = [s.name for s in self.imported.inputs]
        results = [self.names[o] for o in outputs]
        copy = ".clone(memory_format=torch.contiguous_format)"
        lent = copied([self.vars[o] for o in outputs], self.imported.roots, held, list(folded), self.value, self.opaque)
        for i in (i for i, o in enumerate(outputs) if o in loose and i not in lent):
            results[i] = python_name(f"{results[i]}_{i}_rows", self.taken)
            self.taken.add(results[i])
            text.append(f"{results[i]} = {self.names[outputs[i]]}.contiguous()")
        for i in lent:
            name, view = results[i], f".reshape({shape_text(shape_of(self.vars[outputs[i]]))})"
            at = next((n for n, line in enumerate(text) if line.startswith(f"{name} = ") and line.endswith(view)), None)
            if at is not None and self.uses[outputs[i]] == 2:  # it is this result, and nothing else reads it
                text[at] = text[at].removesuffix(view) + copy + view
                continue
            results[i] = python_name(f"{name}_{i}_own", self.taken)
            self.taken.add(results[i])
            text.append(f"{results[i]} = {name}{copy}")
        return tuple(results)


def _occurrences(step: Step, name: str) -> int:
    """How often a step reads a variable: ``x * x`` reads x twice."""
    return 2 if step.region >= 0 else variables(step.expr).count(name)


def _output_shape(cascade: Any, name: str) -> tuple[int, ...] | None:
    try:
        stmt = cascade.stmt(name)
    except StopIteration:
        return None
    shape = tuple(cascade.extent(a) for a in stmt.axes)
    return shape if all(isinstance(n, int) for n in shape) else None
