"""What an ExportedProgram must be, how far it is decomposed, where its nodes come from, and in whose memory its results lie."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._decomp import get_decompositions
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind

from redfuser.errors import InputError, UnsupportedError
from redfuser.frontend import autocast, fast_path, in_memory, instead, quantized
from redfuser.frontend.dtypes import supported
from redfuser.frontend.imported import Provenance, refuse_inputs
from redfuser.frontend.named_once import named_once
from redfuser.users import quiet, unlogged

KEPT = frozenset({
    "aten.scaled_dot_product_attention.default", "aten.matmul.default", "aten.linear.default",
    "aten.rms_norm.default", "aten.layer_norm.default", "aten.group_norm.default", "aten.silu.default",
    "aten.logsumexp.default", "aten.repeat_interleave.self_int", "aten._safe_softmax.default",
    "aten.softplus.default", "aten.log_sigmoid.default", "aten.log_sigmoid_forward.default", "aten.special_log_ndtr.default",
    "aten.leaky_relu.default", "aten.hardtanh.default", "aten.xlogy.Tensor", "aten.multilabel_margin_loss_forward.default",
    "aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input",
})
"""Composite operators that are not decomposed: their converters say more than their parts."""

DROPPED = frozenset({
    "aten._assert_tensor_metadata.default", "aten._assert_async.msg", "aten._assert_async.default",
    "aten._assert_scalar.default", "aten.sym_constrain_range.default", "aten.sym_constrain_range_for_size.default",
})
"""Assertions: the export itself has already established those on its static shapes; those on data are not made."""


def asserted(graph: fx.Graph) -> frozenset[fx.Node]:
    """What is computed for assertions alone."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "call_function" and (str(node.target) in DROPPED or (node.users and found.issuperset(node.users))):
            found.add(node)
    return frozenset(found)


def unmade(graph: fx.Graph) -> dict[str, None]:
    """What the report says of assertions on data."""
    places = [provenance_of(n).source for n in graph.nodes
              if str(n.target).startswith(("aten._assert_scalar", "aten._assert_async")) and n.all_input_nodes]
    return dict.fromkeys("an assertion on data is not made" + (f" ({at})" if at else "") for at in places)


def decompose(program: ExportedProgram) -> ExportedProgram:
    """Functional core ATen, except for the operators in :data:`KEPT`."""
    with named_once():
        return _decomposed(program)


def _decomposed(program: ExportedProgram) -> ExportedProgram:
    table = torch.export.default_decompositions()
    for key in [k for k in table if str(k) in KEPT]:
        table.pop(key)
    table.update(get_decompositions([torch.ops.aten.elu]))  # as expm1, which torch's table keeps
    table.update(fast_path.DECOMPOSITIONS | in_memory.DECOMPOSITIONS | instead.DECOMPOSITIONS)
    program = with_free_names(program)
    blocks = [m for m in program.graph_module.modules() if isinstance(m, fx.GraphModule)]
    known = instead.REPLACED | quantized.replaced()
    replaced = [(n, n.target, m) for m in blocks for target in known
                for n in m.graph.find_nodes(op="call_function", target=target)]
    for node, target, _ in replaced:
        node.target = known[target]
    for node, block, dtype in autocast.taken_apart(program.graph_module):
        replaced.append((node, node.target, block))
        node.target = autocast.lowered(node.target, dtype)
    changed = [m for m in blocks if any(m is b for _, _, b in replaced)]
    for block in changed:
        block.recompile()
    try:
        with quiet(), unlogged():
            return with_lines(program.run_decompositions(table), lines_inside(program))
    except Exception as error:  # a tensor that the model keeps as an attribute and changes: torch sees it here only
        lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
        raise InputError("RF118", "torch.export could not make the model functional",
                         why=f"{type(error).__name__}: {lines[0] if lines else ''}",
                         help="return what the model changes: state in an attribute, or a tensor that shares memory with "
                              "another") from error
    finally:
        for node, target, _ in replaced:  # the program is the user's
            node.target = target
        for block in changed:
            block.recompile()


def with_free_names(program: ExportedProgram) -> ExportedProgram:
    """``program`` with other names for tensors of the model that are called as something of torch's own graph modules is
    (``code``, ``graph``, ``meta``), of which torch makes one to decompose it: it has no second attribute of that name."""
    taken = frozenset(dir(fx.GraphModule({}, fx.Graph())))
    signature = program.graph_signature
    names = {s.target for s in signature.input_specs if s.target in taken}
    if not names:
        return program
    known = {*taken, *program.state_dict, *program.constants}
    new = {n: next(m for k in itertools.count() if (m := f"{n}_{k}") not in known) for n in names}
    inputs = [replace(s, target=new[s.target]) if s.target in names else s for s in signature.input_specs]
    outputs = [replace(s, target=new[s.target]) if s.target in names else s for s in signature.output_specs]
    return ExportedProgram(
        root=program.graph_module, graph=program.graph, graph_signature=ExportGraphSignature(inputs, outputs),
        state_dict={new.get(n, n): t for n, t in program.state_dict.items()}, range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph, example_inputs=program.example_inputs,
        constants={new.get(n, n): t for n, t in program.constants.items()}, verifiers=program.verifiers)


INSIDE = re.compile(r'File "<eval_with_key>[^"]*", line \d+, in .*\n    (\w+) = ')
"""A node that a block of autocast held: its place is one in the text that torch made of the block."""


def lines_inside(program: ExportedProgram) -> dict[str, str]:
    """The user's lines of operators in such blocks, by the nodes' names, which all blocks share."""
    blocks = [m for m in program.graph_module.modules() if m is not program.graph_module and isinstance(m, fx.GraphModule)]
    return {n.name: n.meta.get("stack_trace") or "" for m in blocks for n in m.graph.nodes if n.op == "call_function"}


def with_lines(program: ExportedProgram, lines: Mapping[str, str]) -> ExportedProgram:
    """``program`` with these places for those in texts that torch made."""
    for node in program.graph.nodes:
        if made := INSIDE.search(node.meta.get("stack_trace") or ""):
            node.meta["stack_trace"] = lines.get(made[1]) or node.meta["stack_trace"]
    return program


Origin = Callable[[str], tuple[str, str]]
"""The user's operator and place for a module path of the export (empty where torch recorded none)."""


def provenance_of(node: fx.Node, origin: Origin | None = None) -> Provenance:
    """The operator, the innermost line of the user's own code, and the module."""
    if origin is not None:
        return Provenance(*origin(_path(node)))
    target = str(node.target) if node.op == "call_function" else node.op
    frames = re.findall(r'File "([^"]+)", line (\d+), in .*(?:\n    (.+))?', node.meta.get("stack_trace") or "")
    others = ("/torch/", "/redfuser/frontend/", "<eval_with_key>")
    own = [f for f in frames if not any(p in f[0].replace("\\", "/") for p in others)]
    if not own:
        return Provenance(target, "", module=module_of(node))
    path, line, code = own[-1]
    return Provenance(target, f"{path.replace(chr(92), '/').rsplit('/', 1)[-1]}:{line}", code.strip(), module_of(node))


def module_of(node: fx.Node) -> str:
    """The path of the module that ran it: ``layers.0.norm``, also where torch.compile says ``L['self'].layers.0.norm``. In
    signs that a file of torch.export holds."""
    return re.sub(r"[^\w.@]", "_", re.sub(r"^[LG]\['\w+'\]\.?", "", _path(node)))


def _path(node: fx.Node) -> str:
    return str(list((node.meta.get("nn_module_stack") or {"": ("", "")}).values())[-1][0])


def check_signature(program: ExportedProgram) -> None:
    """Refuse what cannot be right later: dynamic dimensions, state that the call would change, odd inputs."""
    dynamic, odd = [], []
    for node in program.graph.nodes:
        if node.op != "placeholder":
            continue
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor):
            if any(not isinstance(s, int) for s in val.shape):
                dynamic.append(f"{node.name}: {list(map(str, val.shape))}")
            elif not supported(val.dtype) or val.layout is not torch.strided:
                odd.append(f"{node.name}: {str(val.dtype).removeprefix('torch.')}, {val.layout}")
        elif isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            dynamic.append(f"{node.name}: {val}")
    refuse_inputs(dynamic, odd, "export without dynamic_shapes, once per shape that you run",
                  "convert these tensors before the call (complex numbers: torch.view_as_real)",
                  "the model was exported with Dim(...) for these inputs; kernels are generated per shape")
    mutated = [f"{s.target or s.arg.name}" for s in program.graph_signature.output_specs
               if s.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION)]
    if mutated:
        raise InputError("RF114", "the model changes tensors in place", where=", ".join(mutated),
                         why="a compiled model is a function of its inputs; these updates would be lost",
                         help="return the updated tensors (KV caches) as outputs, or call .eval() if this is a "
                              "normalisation layer in training mode")
    other = [s for s in program.graph_signature.output_specs
             if s.kind not in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)]
    strange = [s for s in program.graph_signature.input_specs if s.kind in (InputKind.CUSTOM_OBJ, InputKind.TOKEN)]
    if other or strange:
        effects = [f"{n.args[1]}" + (f" ({at})" if (at := provenance_of(n).source) else "")
                   for n in program.graph.nodes if getattr(n.target, "__name__", "") == "with_effects"]
        odd = {s.arg.name for s in strange}
        users = [f"{n.target} ({provenance_of(n).source})" for n in program.graph.nodes
                 if any(i.name in odd for i in n.all_input_nodes)]
        names = ", ".join(effects or users or [str(s.arg) for s in other] + [str(s.target) for s in strange])
        raise UnsupportedError("RF113", "inputs or outputs that are not tensors", where=names,
                               why="torch objects and effect tokens have no place in a compiled model",
                               help="move the code that uses them out of the exported part")


MOVING = frozenset(f"aten.{n}" for n in (
    "view.default", "reshape.default", "permute.default", "transpose.int", "unsqueeze.default", "squeeze.default",
    "squeeze.dim", "clone.default", "contiguous.default", "cat.default", "stack.default", "select.int", "slice.Tensor",
    "expand.default"))
"""Operators that only move what they are given."""


def returned(graph: fx.Graph) -> frozenset[str]:
    """Names of the nodes that a program returns, moved elsewhere at most (updated caches, stacked)."""
    found: set[fx.Node] = set()
    todo = [n for o in graph.nodes if o.op == "output" for n in o.all_input_nodes]
    while todo:
        if (node := todo.pop()) not in found:
            found.add(node)
            todo += node.all_input_nodes if str(node.target) in MOVING else []
    return frozenset(n.name for n in found)


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """Every argument of an operator's call by its schema name, defaults filled in."""
    schema = node.target._schema  # type: ignore[union-attr]
    values: dict[str, Any] = {}
    for i, argument in enumerate(schema.arguments):
        if i < len(node.args):
            values[argument.name] = node.args[i]
        elif argument.name in node.kwargs:
            values[argument.name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            values[argument.name] = argument.default_value
    return values


def roots(results: Sequence[fx.Node]) -> tuple[str, ...]:
    """For each result the node that made its memory, where torch runs the model before anything is simplified: an input, a
    weight, or what computes it. Of operators that may give a view or a copy (``reshape``, ``to``), what they gave in the
    export."""
    found = []
    for node in results:
        while (source := _viewed(node)) is not None:
            node = source
        found.append(node.name)
    return tuple(found)


UNTOLD = frozenset({"aten.dropout.default", "aten.type_as.default"})
"""Operators that may give their operand itself, whose schemas do not say so."""


def _viewed(node: Any) -> fx.Node | None:
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    if node.target is operator.getitem:  # one of split's
        return node.args[0] if node.args[0].op == "call_function" and _viewed(node.args[0]) is not None else None
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    aliases = [r.alias_info for r in node.target._schema.returns if r.alias_info is not None]
    may = aliases or str(node.target) in UNTOLD
    return node.args[0] if may and (any(a.is_write for a in aliases) or _in_place(node)) else None


def _in_place(node: fx.Node) -> bool:
    """Whether torch's result lies where the operand lies, as far as tensors without elements tell."""
    given: Any = node.args[0]
    try:
        with torch.no_grad():
            result = node.target(*fx.node.map_arg(node.args, lambda n: n.meta["val"]),  # type: ignore[operator]
                                 **fx.node.map_arg(node.kwargs, lambda n: n.meta["val"]))
        first = result if isinstance(result, torch.Tensor) else result[0]
        return bool(first.untyped_storage()._cdata == given.meta["val"].untyped_storage()._cdata)
    except Exception:
        return True
