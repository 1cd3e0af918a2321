"""An ONNX graph as a torch module, and its import."""

from __future__ import annotations

import inspect
import keyword
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from redfuser.errors import UnsupportedError
from redfuser.frontend.imported import Imported, refuse_inputs
from redfuser.frontend.onnx import ops_math, ops_nn, ops_shape  # noqa: F401  (they fill OPS)
from redfuser.frontend.onnx.node import KNOWN_OPERANDS, OPS, WIDER, Call, Unsupported, Value, array, onnx_dtype, tensor
from redfuser.frontend.onnx.read import held, is_known, load, unreadable

SILENT = frozenset({"stash_type", "softmax_precision", "momentum", "is_test", "consumed_inputs", "seed", "kernel_shape"})
"""Attributes that do not say what is computed: at least which precision, training, memory, the shape of a weight."""

WIDENED = frozenset({"Cast", "DequantizeLinear"})
"""What takes numbers of less than a byte and makes no others of them."""


def is_onnx(model: Any) -> bool:
    """A ``ModelProto``, its bytes, or a path that ends in ``.onnx``."""
    if isinstance(model, (str, os.PathLike)):
        return Path(model).suffix.lower() == ".onnx"
    return isinstance(model, (bytes, bytearray)) or type(model).__name__ == "ModelProto"


def import_onnx(model: Any) -> Imported:
    """Import at the graph's static input shapes. Raises InputError RF111, RF112, RF119 and UnsupportedError RF115."""
    from redfuser.frontend.module import export, sign
    from redfuser.frontend.torch_export import import_program

    proto = load(model)
    module = Graph(proto)
    example = module.example()
    module.learn(example)
    sign(module, module.signature())
    program, _ = export(module, example, None)
    imported = import_program(program, module.provenance)
    return replace(imported, source="onnx", in_spec=None, out_spec=None, in_leaves=(), out_leaves=())


class _Node(nn.Module):
    """One node. That it is a module gives every ATen call in the export the node's name."""

    def __init__(self, call: Call, kind: str) -> None:
        super().__init__()
        self.call, self.kind = call, kind

    def forward(self, *operands: Any) -> Any:
        return OPS[self.kind](self.call, *operands)


class Graph(nn.Module):
    """The main graph. ``forward`` takes the graph's inputs in order and returns its outputs as a tuple, or the only
    one."""

    def __init__(self, proto: Any) -> None:
        super().__init__()
        self.graph = proto.graph
        self.opsets = {_domain(o.domain): o.version for o in proto.opset_import}
        self.known: dict[str, np.ndarray] = {}
        self.nodes = nn.ModuleList()
        self.results: list[str] = [o.name for o in self.graph.output]
        weights = {}
        for initializer in (*self.graph.initializer, *self.graph.sparse_initializer):
            name, value = getattr(initializer, "values", initializer).name, held(initializer)
            if is_known(value):
                self.known[name] = value
            else:
                weights[name] = value
        self.inputs = [i for i in self.graph.input if i.name not in self.known and i.name not in weights]
        self.narrow = {name for name, value in weights.items() if value.dtype.name in WIDER}
        self.names: dict[str, str] = {}
        for name, value in weights.items():
            attribute = "w_" + "".join(c if c.isalnum() else "_" for c in name)
            while hasattr(self, attribute):
                attribute += "_"
            self.names[name] = attribute
            self.register_buffer(attribute, tensor(value))
        self._check({*self.known, *weights, *(i.name for i in self.inputs)})
        used = {name for node in self.graph.node for name in node.input} | set(self.results)
        for node in self.graph.node:
            asked = [i + 1 for i, name in enumerate(node.output) if name in used]
            self.nodes.append(_Node(Call(_attributes(node), self.opsets.get(_domain(node.domain), 1), max(asked, default=1),
                                         len(node.output)), _kind(node)))

    def example(self) -> tuple[torch.Tensor, ...]:
        """Zeros of the declared shapes."""
        dynamic, odd, examples = [], [], []
        for i in self.inputs:
            if not i.type.HasField("tensor_type"):
                odd.append(f"{i.name}: not a tensor")
                continue
            declared = i.type.tensor_type
            dims = [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or "?"
                    for d in declared.shape.dim]
            if any(not isinstance(d, int) for d in dims) or not declared.HasField("shape"):
                dynamic.append(f"{i.name}: {dims if declared.HasField('shape') else 'no shape'}")
                continue
            try:
                examples.append(torch.zeros(dims, dtype=onnx_dtype(declared.elem_type), device="cpu"))
            except (Unsupported, RuntimeError) as error:
                odd.append(f"{i.name}: {error}")
        refuse_inputs(dynamic, odd, "export without dynamic axes, or fix the dimensions with "
                      "onnx.tools.update_model_dims.update_inputs_outputs_dims", "convert these inputs before the call")
        return tuple(examples)

    def signature(self) -> inspect.Signature:
        """The graph's inputs by their names, made identifiers."""
        names: list[str] = []
        for i in self.inputs:
            name = re.sub(r"\W", "_", i.name)
            name = f"x_{name}" if not name.isidentifier() or keyword.iskeyword(name) else name
            while name in names:
                name += "_"
            names.append(name)
        return inspect.Signature([inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names])

    def _check(self, made: set[str]) -> None:
        """``made``: what there is before the first node."""
        missing = sorted({f"{_kind(n)} ({n.name or n.output[0]})" for n in self.graph.node
                          if _kind(n) not in OPS and n.op_type not in ("Constant", "Range", "ConstantOfShape")})
        if missing:
            raise _unsupported("; ".join(missing), "there is no rule for these ONNX operators; what branches, loops or"
                               " has a shape that depends on data can have none",
                               "compile the torch module itself, redfuser.compile(module, args): torch.export goes further,"
                               " and what has no rule there runs as torch code")

        help = "check it with onnx.checker.check_model"
        for node in self.graph.node:
            lacks = [f"nothing before it makes its operand {name}" for name in node.input if name and name not in made]
            lacks += self._lacking(node)
            if lacks:
                raise unreadable(f"{_kind(node)} ({node.name or node.output[0]})", "; ".join(lacks), help)
            made.update(node.output)
        for name in self.results:
            if name not in made:
                raise unreadable(f"the result {name}", "no operator makes it", help)

    def _lacking(self, node: Any) -> list[str]:
        """What the operator's definition asks for and the node has not."""
        import onnx

        domain = _domain(node.domain)
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opsets.get(domain, 1), domain)
        except onnx.defs.SchemaError:  # an operator of a vendor
            return []
        lacks = [f"it has no attribute {a}" for a in sorted(schema.attributes)
                 if schema.attributes[a].required and all(a != given.name for given in node.attribute)]
        if len(node.input) < schema.min_input:
            lacks.append(f"it has {len(node.input)} operands of at least {schema.min_input}")
        return lacks

    def forward(self, *inputs: torch.Tensor) -> Any:
        env: dict[str, Value] = dict(self.known)
        env.update({name: getattr(self, attribute) for name, attribute in self.names.items()})
        env.update({i.name: value for i, value in zip(self.inputs, inputs, strict=True)})
        for node, module in zip(self.graph.node, self.nodes, strict=True):
            self._run(node, module, env)
        outputs = tuple(tensor(env[name]) for name in self.results)
        return outputs if len(outputs) > 1 else outputs[0]

    def learn(self, example: tuple[torch.Tensor, ...]) -> None:
        """Compute everything that depends on shapes and constants alone: a walk with tensors that have no data."""
        env: dict[str, Value] = dict(self.known)
        env.update({name: getattr(self, attribute).to("meta") for name, attribute in self.names.items()})
        env.update({i.name: value.to("meta") for i, value in zip(self.inputs, example, strict=True)})
        for node, module in zip(self.graph.node, self.nodes, strict=True):
            self._run(node, module, env, "meta")
            self.known.update({n: env[n] for n in node.output if n and isinstance(env.get(n), np.ndarray)})

    def _run(self, node: Any, module: Any, env: dict[str, Value], device: str | None = None) -> None:
        if all(name in self.known for name in node.output if name):
            return
        operands = [env[name] if name else None for name in node.input]
        known = all(isinstance(o, np.ndarray) for o in operands if o is not None)
        kind = _kind(node)
        try:
            if kind not in OPS and not known:
                raise Unsupported("a shape, axis or size depends on data")
            if kind not in OPS:
                results: Any = _evaluate(node, operands, self.opsets)
            else:
                if kind not in WIDENED and any(n in self.narrow or (isinstance(o, np.ndarray) and o.dtype.name in WIDER)
                                               for n, o in zip(node.input, operands, strict=True)):
                    raise Unsupported("an operand of less than a byte each")
                keep = KNOWN_OPERANDS.get(kind, ())
                prepared = [o if i in keep else _operand(o, None if known else device) for i, o in enumerate(operands)]
                results = module(*prepared)
                _all_asked(node, module.call)
            results = results if isinstance(results, (tuple, list)) else (results,)
            if len(results) < module.call.outputs:
                raise ValueError(f"it has {len(results)} results, and {module.call.outputs} are used")
        except Unsupported as error:
            raise _unsupported(f"{kind} ({node.name or node.output[0]})", str(error)) from error
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError) as error:
            if device is None:
                raise
            raise unreadable(f"{kind} ({node.name or node.output[0]})",
                             str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__,
                             "check it with onnx.checker.check_model(model, full_check=True)") from error
        for name, value in zip(node.output, results, strict=False):
            env[name] = array(value) if known and isinstance(value, torch.Tensor) else value

    def provenance(self, path: str) -> tuple[str, str]:
        """Operator and node name for a module path of the export; constants have no node of their own."""
        prefix, _, index = path.partition("nodes.")
        if prefix or not index.isdigit():
            return "Constant (onnx)", ""
        node = self.graph.node[int(index)]
        return f"{node.op_type} (onnx)", node.name or node.output[0]


def _all_asked(node: Any, call: Call) -> None:
    """Raises Unsupported for an attribute that nobody asked for and that says other than the operator's default: a later opset
    has attributes that an implementation does not know."""
    import onnx

    unknown = call.attributes.keys() - call.asked - SILENT
    if not unknown:
        return
    try:
        known = onnx.defs.get_schema(node.op_type, call.opset, _domain(node.domain)).attributes
    except onnx.defs.SchemaError:  # an operator of a vendor
        known = {}
    for name in sorted(unknown):
        default = known[name].default_value if name in known else None
        if default is None or not default.name or onnx.helper.get_attribute_value(default) != call.attributes[name]:
            raise Unsupported(f"the attribute {name}")


def _unsupported(where: str, why: str,
                 help: str = "export with another opset, or without vendor-specific optimisation") -> UnsupportedError:
    return UnsupportedError("RF115", "operators that can neither be compiled nor run as torch calls", where=where, why=why,
                            help=help)


def _operand(value: Any, device: str | None) -> Any:
    value = tensor(value)
    return value.to(device) if device and isinstance(value, torch.Tensor) else value


def _domain(name: str) -> str:
    """ONNX's own domain has two names."""
    return "" if name == "ai.onnx" else name


def _kind(node: Any) -> str:
    domain = _domain(node.domain)
    return f"{domain}::{node.op_type}" if domain else node.op_type


def _attributes(node: Any) -> dict[str, Any]:
    import onnx

    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def _evaluate(node: Any, operands: list[Any], opsets: dict[str, int]) -> tuple[np.ndarray, ...]:
    """A node of known operands that is no computation on tensors, by ONNX's reference implementation."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    if node.op_type == "Constant":
        (attribute,) = node.attribute
        value = onnx.helper.get_attribute_value(attribute)
        if attribute.name in ("value", "sparse_value"):
            return (held(value),)
        if "string" in attribute.name:
            raise Unsupported("text")
        return (np.array(value, dtype=np.float32 if "float" in attribute.name else np.int64),)
    names = [f"i{k}" if o is not None else "" for k, o in enumerate(operands)]
    single = onnx.NodeProto()
    single.CopyFrom(node)
    single.domain = _domain(node.domain)
    del single.input[:]
    single.input.extend(names)
    inputs = [onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(o.dtype), o.shape)
              for n, o in zip(names, operands, strict=True) if n]
    outputs = [onnx.helper.make_empty_tensor_value_info(n) for n in node.output if n]
    graph = onnx.helper.make_graph([single], "constant", inputs, outputs)
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in opsets.items()])
    feeds = {n: o for n, o in zip(names, operands, strict=True) if n}
    computed = iter(ReferenceEvaluator(proto).run(None, feeds))
    return tuple(np.asarray(next(computed)) if n else None for n in node.output)  # type: ignore[misc]
