"""Builds the normal form: every importer emits its Relax calls through one :class:`Builder`.

Normal form of ``main``:

* one dataflow block of flat calls, each bound to a variable whose name is unique and is derived from the user's op;
* accumulation explicit: a half-precision contraction or reduction is computed in float32 and cast back, and so is a
  half-precision transcendental function; a cast is a rounding of the source program and is never dropped unless exact;
* no identity ``reshape broadcast_to permute_dims astype strided_slice repeat``; views collapse into one
  ``reshape``, or ``expand_dims`` / ``squeeze`` where only unit dimensions come or go; permutations collapse;
* an operand of an elementwise op is neither an explicit ``broadcast_to`` nor a ``full`` where numpy broadcasting says
  the same; ``where`` and logical ops on constant masks are gone;
* reductions and slices of a row with a few appended columns are those of its pieces;
* a total over several axes of rows that were normalised is a total over the rows first;
* equal results of the program's operations are one (:mod:`redfuser.frontend.equal`);
* no dead bindings, no aliases.

The simplifications are in :mod:`redfuser.frontend.local`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from redfuser.acrf.cascade import Provenance
from redfuser.frontend.equal import equal
from redfuser.frontend.local import Simplifier
from redfuser.tvm_compat import relax, variables


class Builder(Simplifier):
    """Collects bindings in normal form. ``params`` are the parameters of ``main``, in order; ``kept`` names what the program
    returns, as far as that is known beforehand."""

    def __init__(self, params: Sequence[Any], kept: Collection[str] = ()) -> None:
        super().__init__(kept)
        self.params = list(params)
        self.provenance: dict[str, Provenance] = {}
        self._bindings: list[tuple[Any, Any]] = []
        self._values: dict[str, Any] = {}
        self._names: set[str] = {p.name_hint for p in params}
        self._whole: set[str] = set()
        self.once: dict[Provenance, int] = {}
        """Operations whose result stands for those of further ones too, and for how many, when it is finished."""
        self.called: dict[tuple[Any, ...], Any] = {}
        """Results of torch calls without effects, by target and arguments."""
        self._prefix, self.origin = "v", Provenance()

    # -- emitting ------------------------------------------------------------------------------------------------------

    def begin(self, prefix: str, origin: Provenance) -> None:
        """Name and attribute what is emitted from now on after one op of the source program. What is emitted without a suffix
        is that op's result."""
        self._prefix, self.origin = prefix, origin

    def part(self) -> None:
        """What is emitted from now on is an operation of its own of the same op: torch starts a kernel for each."""
        self.origin = replace(self.origin)

    def emit(self, expr: Any, suffix: str = "") -> Any:
        if not isinstance(expr, relax.Call) and not isinstance(expr, relax.TupleGetItem):
            return expr
        expr = self._simplify(self._blocks.normalize(expr))
        if not isinstance(expr, (relax.Call, relax.TupleGetItem)):
            return expr
        var = relax.DataflowVar(self._fresh(f"{self._prefix}_{suffix}" if suffix else self._prefix), expr.struct_info)
        self._bindings.append((var, expr))
        self._values[var.name_hint] = expr
        if not suffix:
            self._whole.add(var.name_hint)
        self.provenance[var.name_hint] = self.origin
        return var

    def parameter(self, stem: str, info: Any) -> Any:
        """One more parameter of ``main``."""
        self.params.append(relax.Var(self._fresh(stem), info))
        return self.params[-1]

    def value(self, expr: Any) -> Any:
        return self._values.get(expr.name_hint, expr) if isinstance(expr, relax.Var) else expr

    def finish(self, outputs: Sequence[Any], attrs: dict[str, Any] | None = None) -> Any:
        """The module: live bindings only, outputs bound to (non-dataflow) variables."""
        wanted = {o.name_hint for o in outputs if isinstance(o, relax.Var)}
        self._share(outputs, wanted)
        live = self._live(outputs)
        results: dict[str, Any] = {}
        bindings: list[Any] = []
        now: dict[str, Any] = {}
        for var, expr in self._bindings:
            if var.name_hint not in live:
                self.provenance.pop(var.name_hint, None)
                continue
            expr = renamed(expr, now)
            if var.name_hint in wanted:
                out = relax.Var(var.name_hint, var.struct_info)
                now[var.name_hint] = out
                results[var.name_hint] = out
                var = out
            bindings.append(relax.VarBinding(var, expr))
        fields = []
        for output in outputs:
            if not isinstance(output, relax.Var) or output.name_hint not in results:
                # a parameter or a constant returned as it is: bind it, so that every output is a variable of the block
                alias = relax.Var(self._fresh("out"), output.struct_info)
                bindings.append(relax.VarBinding(alias, output))
                fields.append(alias)
            else:
                fields.append(results[output.name_hint])
        body = fields[0] if len(fields) == 1 else relax.Tuple(fields)
        body = self._blocks.normalize(body)
        seq = self._blocks.normalize(relax.SeqExpr([relax.DataflowBlock(bindings)], body))
        func = relax.Function(self.params, seq, body.struct_info, is_pure=True)
        func = func.with_attr("global_symbol", "main")
        for key, value in (attrs or {}).items():
            func = func.with_attr(key, value)
        # add_func, and not IRModule({...}), gives the global variable its struct info
        blocks = relax.BlockBuilder()
        blocks.add_func(func, "main")
        return blocks.get()

    def _share(self, outputs: Sequence[Any], wanted: set[str]) -> None:
        """Let equal values be computed once."""
        live = self._live(outputs)
        found = equal([b for b in self._bindings if b[0].name_hint in live], self._whole, wanted)
        moved = {v.name_hint for v in found.first.values()}
        gone = moved | found.instead.keys() - found.first.keys()
        self._bindings = [(found.first.get(v.name_hint, v), renamed(e, found.instead)) for v, e in self._bindings
                          if v.name_hint not in gone]
        for kept in found.spared:
            origin = self.provenance[kept]
            self.once[origin] = self.once.get(origin, 0) + 1

    def used_params(self, outputs: Sequence[Any]) -> set[str]:
        """The names of the parameters that some output depends on."""
        live = self._live(outputs)
        return {p.name_hint for p in self.params if p.name_hint in live}

    def _live(self, outputs: Sequence[Any]) -> set[str]:
        live = {o.name_hint for o in outputs if isinstance(o, relax.Var)}
        for var, expr in reversed(self._bindings):
            if var.name_hint in live:
                live.update(variables(expr))
        return live

    def _fresh(self, name: str) -> str:
        name = re.sub(r"\W", "_", name)
        if not name or name[0].isdigit():
            name = f"v{name}"
        candidate, count = name, 0
        while candidate in self._names:
            count += 1
            candidate = f"{name}_{count}"
        self._names.add(candidate)
        return candidate


class Again(Builder):
    """Main once more: what is equal in it was found when it was imported."""

    def _share(self, outputs: Sequence[Any], wanted: set[str]) -> None:
        return None


def triangle(b: Any, shape: Sequence[int], diagonal: int | None, name: str, lower: bool = True) -> Any:
    """Where a matrix lies below a diagonal, or above it; ``b`` emits."""
    i, j = (b.emit(relax.op.expand_dims(b.emit(relax.op.arange(0, n, 1, "int64"), f"{of}s"), [axis]), of)
            for n, of, axis in ((shape[-2], "row", 1), (shape[-1], "column", 0)))
    edge = i if diagonal is None else b.emit(relax.op.add(i, relax.const(diagonal, "int64")), "edge")
    return b.emit((relax.op.less_equal if lower else relax.op.greater_equal)(j, edge), name)


def renamed(expr: Any, by: Mapping[str, Any]) -> Any:
    """The expression with other values in variables' places."""
    if by.keys().isdisjoint(variables(expr)):
        return expr

    def go(e: Any) -> Any:
        if isinstance(e, relax.Tuple):
            return relax.Tuple([go(f) for f in e.fields])
        return by.get(e.name_hint, e) if isinstance(e, relax.Var) else e

    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(go(expr.tuple_value), expr.index)
    if not isinstance(expr, relax.Call):
        return go(expr)
    return relax.Call(expr.op, [go(a) for a in expr.args], expr.attrs, expr.sinfo_args)
