"""From an ExportedProgram to the normal form."""

from __future__ import annotations

import contextlib
import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, TensorArgument

from redfuser.errors import InputError, RedFuserError, UnsupportedError
from redfuser.frontend import complexes, flex, substitution
from redfuser.frontend.aten import CONVERTERS, Context, Decline
from redfuser.frontend.aten.context import FUNCTION
from redfuser.frontend.builder import Builder
from redfuser.frontend.dtypes import relax_dtype
from redfuser.frontend.imported import Imported, InputSpec, Leaf, OpaqueCall, Static
from redfuser.frontend.levels import derivatives
from redfuser.frontend.opaque import describe, runnable
from redfuser.frontend.program import (
    DROPPED,
    Origin,
    arguments_of,
    asserted,
    check_signature,
    decompose,
    provenance_of,
    returned,
    roots,
    unmade,
)
from redfuser.frontend.static import INDEX_ARITHMETIC, Statics, written_down
from redfuser.tvm_compat import call_dps_packed, dtype_of, packed_symbols, relax, shape_of, tensor_info, without_params

op = relax.op


def import_program(program: ExportedProgram, origin: Origin | None = None) -> Imported:
    """Import; raises InputError (RF111, RF112, RF114, RF116) and UnsupportedError (RF113, RF115)."""
    held = [t for t in program.constants.values() if isinstance(t, torch.Tensor)]
    if derivatives(program.graph_module) or any(map(torch._C._functorch.is_functorch_wrapped_tensor, held)):
        raise UnsupportedError("RF115", "operators that can neither be compiled nor run as torch calls", where="torch.func",
                               why="the model takes derivatives (grad, vjp, jvp or what is made of them)",
                               help="move them out of the exported part, or write the derivative out")
    program = complexes.written_out(flex.written_out(program))
    check_signature(program)
    direct = _Import(program, origin)
    if direct.understood():
        # torch's decomposition costs ten times our own work; most models need none of it
        with contextlib.suppress(UnsupportedError):
            imported = direct.run()
            if not imported.opaque:
                return imported
    program, notes = substitution.written_out(complexes.written_out(decompose(program)))
    check_signature(program)
    imported = _Import(program, origin).run()
    return replace(imported, notes=(*imported.notes, *notes))


class _Import:
    def __init__(self, program: ExportedProgram, origin: Origin | None = None) -> None:
        self.program, self.origin = program, origin
        self.graph: fx.Graph = program.graph
        self.env: dict[fx.Node, Any] = {}
        self.opaque: dict[str, OpaqueCall] = {}
        self.declined: dict[fx.Node, str] = {}
        self.unsupported: list[str] = []
        self.weights: dict[str, torch.Tensor] = {}
        self.specs: dict[str, InputSpec] = {}
        literals = self._inputs()
        self.statics = Statics(self.graph, literals)
        params = [relax.Var(s.name, tensor_info(s.shape, s.dtype)) for s in self.specs.values()]
        self.builder = Builder(params, returned(self.graph))
        self.params = {p.name_hint: p for p in params}
        for node in self.graph.nodes:
            if node.op == "placeholder" and node.name in self.params and node.name not in literals:
                self.env[node] = self.params[node.name]

    # -- inputs --------------------------------------------------------------------------------------------------------

    def _inputs(self) -> dict[str, torch.Tensor]:
        """Fill ``specs`` (user inputs first) and ``weights``; the literals of the program are returned."""
        program = self.program
        vals = {n.name: n.meta.get("val") for n in self.graph.nodes if n.op == "placeholder"}
        tensors: dict[str, tuple[str, torch.Tensor]] = {}
        literals: dict[str, torch.Tensor] = {}
        self.in_leaves: list[Leaf] = []
        for spec in program.graph_signature.input_specs:
            name = spec.arg.name
            if spec.kind is InputKind.USER_INPUT:
                val = spec.arg.value if isinstance(spec.arg, ConstantArgument) else vals[name]
                if not isinstance(val, torch.Tensor):  # a number, None, a member of an enumeration
                    self.in_leaves.append(Static(val))
                    continue
                self.in_leaves.append(name)
                self.specs[name] = InputSpec(name, relax_dtype(val.dtype), tuple(val.shape), "user")
            elif spec.kind is InputKind.CONSTANT_TENSOR:
                value = program.constants[spec.target]
                literals[name] = value.detach().cpu()
                if value.numel() != 1:
                    tensors[name] = ("constant", value)
            else:
                source = program.state_dict if spec.target in program.state_dict else program.constants
                tensors[name] = ("weight", source[spec.target])
        for name, (kind, value) in tensors.items():
            self.weights[name] = value.detach()
            self.specs[name] = InputSpec(name, relax_dtype(value.dtype), tuple(value.shape), kind)  # type: ignore[arg-type]
        return literals

    # -- the graph -----------------------------------------------------------------------------------------------------

    def run(self) -> Imported:
        idle = asserted(self.graph)
        for node in self.graph.nodes:
            if node.op == "call_function" and node not in self.statics and node not in idle:
                self._call(node)
            elif node.op == "get_attr":
                self._attribute(node)
        outputs, out_leaves, made = self._outputs()
        if self.unsupported:
            raise UnsupportedError("RF115", "operators that can neither be compiled nor run as torch calls",
                                   where="; ".join(dict.fromkeys(self.unsupported)),
                                   why="data-dependent shapes, control flow, complex and non-tensor results have no form",
                                   help="move these operators out of the exported part, or replace them")
        mod = self.builder.finish(outputs)
        used = self.builder.used_params(outputs)
        unread = {n for n, s in self.specs.items() if s.kind != "user" and n not in used}
        if unread:
            mod = without_params(mod, unread)
        packed = packed_symbols(mod)
        live = {s: c for s, c in self.opaque.items() if s in packed}
        told = [c for c in live.values() if c.why not in ("", FUNCTION)]  # a function may be in a kernel, as any map may
        notes = dict.fromkeys(f"{c.target} stays a torch call: {c.why}" for c in told) | unmade(self.graph)
        spec = self.program.call_spec
        return Imported(
            mod=mod,
            inputs=tuple(s for n, s in self.specs.items() if n not in unread),
            weights={n: w for n, w in self.weights.items() if n not in unread},
            opaque=live,
            provenance=self.builder.provenance,
            source="torch.export",
            in_spec=spec.in_spec, out_spec=spec.out_spec,
            in_leaves=tuple(self.in_leaves), out_leaves=tuple(out_leaves),
            notes=tuple(notes), once=tuple(self.builder.once.items()), roots=roots(made),
            lined=tuple(isinstance(v := n.meta.get("val"), torch.Tensor) and v.is_contiguous() for n in made),
        )

    def understood(self) -> bool:
        """Whether every node has a converter or depends on no input, so that the graph need not be decomposed (in-place
        operators and control flow have none)."""
        return all(n.op in ("placeholder", "output") or n in self.statics or n.target is operator.getitem
                   or str(n.target) in CONVERTERS or str(n.target) in DROPPED for n in self.graph.nodes)

    def _outputs(self) -> tuple[list[Any], list[Leaf], list[fx.Node]]:
        values, leaves, made = [], [], []
        nodes = {n.name: n for n in self.graph.nodes}
        for spec in self.program.graph_signature.output_specs:
            if isinstance(spec.arg, TensorArgument):
                node = nodes[spec.arg.name]
                values.append(self.value(node))
                made.append(node)
                leaves.append(spec.arg.name)
            elif isinstance(spec.arg, ConstantArgument):
                leaves.append(Static(spec.arg.value))
            else:
                self.unsupported.append(f"output {spec.arg} (not a tensor)")
        if not values and not self.unsupported:
            raise InputError("RF116", "the model returns no tensor", help="return at least one tensor")
        return [v for v in values if v is not None], leaves, made

    def value(self, node: fx.Node) -> Any:
        """The Relax value of a node; a static one is written down where it is first needed."""
        if node not in self.env and node in self.statics:
            self.env[node] = self._write_static(node)
        return self.env.get(node)

    def _write_static(self, node: fx.Node) -> Any:
        value = self.statics[node]
        if not isinstance(value, torch.Tensor):
            return None
        self.builder.begin(node.name, provenance_of(node, self.origin))
        if (written := written_down(self.builder, value)) is not None:
            return written
        if node.op == "placeholder":
            return self.params[node.name]
        if str(node.target) in INDEX_ARITHMETIC:
            result = self._convert(node)
            if result is not None:
                return result
        return self._table(node.name, value.contiguous())

    def _table(self, stem: str, value: torch.Tensor) -> Any:
        """A table of numbers is an input of ``main`` that never changes: operators are looked into, with tensors as
        operands only."""
        var = self.builder.parameter(stem, tensor_info(value.shape, relax_dtype(value.dtype)))
        name = var.name_hint
        self.weights[name], self.params[name] = value, var
        self.specs[name] = InputSpec(name, relax_dtype(value.dtype), tuple(value.shape), "constant")
        return var

    def _call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            source = self.env.get(node.args[0])
            item = source[node.args[1]] if isinstance(source, tuple) else None
            if item is None and not self.unsupported:
                self.unsupported.append(f"{node.name} (a result that is not computed)")
            self.env[node] = item
            return
        result = self._convert(node)
        if result is None:
            result = self._opaque(node)
        self.env[node] = result

    def _convert(self, node: fx.Node) -> Any:
        converter = CONVERTERS.get(str(node.target))
        if converter is None:
            return None
        raw = arguments_of(node)
        missing = [n for n in node.all_input_nodes if n not in self.statics and self.env.get(n) is None]
        if missing:
            return None
        self.builder.begin(node.name, provenance_of(node, self.origin))
        context = Context(self.builder, node, raw, self.statics, self._symbol)
        try:
            converted = {k: fx.node.map_arg(v, self._operand) for k, v in raw.items()}
            self.builder.begin(node.name, provenance_of(node, self.origin))
            result = converter(context, **converted)
        except Decline as e:
            return self._declined(node, str(e))
        except RedFuserError:
            raise
        except (TypeError, ValueError, KeyError, IndexError) as e:
            return self._declined(node, f"its arguments were not understood ({e})")
        except Exception as e:  # TVM refuses a call with an error type of its own; the torch call still runs
            return self._declined(node, f"Relax refuses it ({str(e).strip().splitlines()[-1]})")
        return result if self._matches(node, result) else None

    def _symbol(self, call: OpaqueCall) -> str:
        symbol = f"torchop.{call.target}.{len(self.opaque)}"
        self.opaque[symbol] = call
        return symbol

    def _declined(self, node: fx.Node, why: str) -> None:
        self.declined[node] = why

    def _operand(self, node: fx.Node) -> Any:
        value = self.value(node)
        if value is None or isinstance(value, tuple):
            raise Decline(f"the argument {node.name} is not a tensor")
        return value

    def _matches(self, node: fx.Node, result: Any) -> bool:
        """Whether the converter's result has the shape and dtype that torch recorded."""
        val = node.meta["val"]
        pairs = zip(val, result, strict=True) if isinstance(val, (list, tuple)) else [(val, result)]
        for v, r in pairs:
            if r is None:
                continue
            if tuple(v.shape) != shape_of(r) or relax_dtype(v.dtype) != dtype_of(r):
                self._declined(node, f"its result would be {dtype_of(r)}{shape_of(r)}, "
                                     f"torch has {relax_dtype(v.dtype)}{tuple(v.shape)}")
                return False
        return True

    def _attribute(self, node: fx.Node) -> None:
        """What the graph holds beside parameters: branches and bodies of control flow, whose operator is refused, or a tensor
        that nothing registered."""
        if not isinstance(getattr(self.graph.owning_module, str(node.target), None), fx.GraphModule):
            self.unsupported.append(f"{node.name} (a submodule or tensor attribute)")

    def _opaque(self, node: fx.Node) -> Any:
        origin = provenance_of(node, self.origin)
        why = runnable(node)
        operands = [] if why else [self.value(n) for n in describe(node, origin)[1]]
        if not why and any(o is None or isinstance(o, tuple) for o in operands):
            if not self.unsupported:
                self.unsupported.append(f"{node.target} (an operand has no value)")
            return None  # an operator before it is already listed
        if why:
            self.unsupported.append(f"{node.target} ({origin.source + ': ' if origin.source else ''}{why})")
            return None
        call = replace(describe(node, origin)[0], why=self.declined.pop(node, ""))
        val = node.meta["val"]
        values = [val] if call.single else [val[i] for i in call.results]
        infos = [tensor_info(v.shape, relax_dtype(v.dtype)) for v in values]
        self.builder.begin(node.name, origin)
        symbol = self._symbol(call)
        if call.single:
            return self.builder.emit(call_dps_packed(symbol, operands, infos[0]))
        if len(infos) == 1:
            only = self.builder.emit(call_dps_packed(symbol, operands, infos[0]))
            return tuple(only if i in call.results else None for i in range(call.outputs))
        together = self.builder.emit(call_dps_packed(symbol, operands, infos))
        items = {i: self.builder.emit(relax.TupleGetItem(together, k), str(i)) for k, i in enumerate(call.results)}
        return tuple(items.get(i) for i in range(call.outputs))
