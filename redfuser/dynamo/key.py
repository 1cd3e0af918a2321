"""The keys of a graph in the store: everything that its recipe, and that what is compiled of it, depends on.

    the graph node by node, its inputs (kind, dtype, shape, strides, device, wants gradients), the modes it is called in,
    options, architecture, and the versions and sources of the compiler

Names of nodes are no part of it, nor are values of tensors: parameters, buffers and constants of the graph are inputs. What
cannot be named (a function that is not torch's, an object as an argument) makes a graph that is compiled in every process.
"""

from __future__ import annotations

import enum
import hashlib
import os
import types
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import fx

import redfuser
from redfuser import verdicts
from redfuser.cache import key_of
from redfuser.target import cpu_levels

SCHEMA = 2
PACKAGES = ("torch", "apache-tvm", "apache-tvm-ffi", "tilelang", "triton")
OWNERS = ("torch", "_operator", "operator", "math", "builtins", "_VariableFunctions", "_TensorBase", "TensorBase")
"""First words of the modules whose functions are what they are called."""

NAMESPACES = ("aten", "prim", "prims")
"""Of torch's own operators."""


class Unnamed(Exception):
    """Something in a graph has no name that means it."""


def key(gm: fx.GraphModule, inputs: Sequence[Any], arch: str, options: Sequence[Any]) -> str:
    """The key, or nothing where the graph cannot be named or the compiler's sources changed under this process."""
    compiler = _compiler()
    if not compiler:
        return ""
    try:
        graph = _graph(gm)
    except Unnamed:
        return ""
    given = [described(x) for x in inputs]
    return key_of("dynamo", SCHEMA, graph, given, modes(inputs), arch, _levels(arch), list(options), compiler)


def key_of_program(program: Any, inputs: Sequence[Any], arch: str, options: Sequence[Any]) -> str:
    """The key of what is compiled of a graph, once it was captured as a function without effects (an ExportedProgram): it knows
    nothing of its inputs' strides unless its text does, so calls that differ in these alone share it. Nothing where
    :func:`key` has none, or where the function holds what is no tensor."""
    compiler = _compiler()
    if not compiler or program.state_dict:
        return ""
    try:
        graph = _graph(program.graph_module)
        held = [[name, *_elements(value)] for name, value in sorted(program.constants.items())]
    except Unnamed:
        return ""
    signature = program.graph_signature
    roles = [[s.kind.name, str(s.target)] for s in (*signature.input_specs, *signature.output_specs)]
    takes = [_kind(n.meta["val"]) for n in program.graph.nodes if n.op == "placeholder"]
    what = (graph, roles, takes, held, modes(inputs))
    return key_of("dynamo program", SCHEMA, *what, arch, _levels(arch), list(options), compiler)


def _kind(value: Any) -> list[Any]:
    return described(value) if not isinstance(value, torch.Tensor) else [str(value.dtype), list(value.shape), value.device.type]


def _levels(arch: str) -> list[str]:
    return list(cpu_levels()) if arch == "cpu" else []


def _elements(value: Any) -> list[Any]:
    if type(value) is not torch.Tensor or value.layout is not torch.strided:
        raise Unnamed(f"a {type(value).__name__}")
    flat = value.detach().cpu().contiguous().reshape(-1)
    return [*_kind(value), hashlib.sha256(flat.view(torch.uint8).numpy()).hexdigest() if flat.numel() else ""]


def described(value: Any) -> Any:
    """What is known of an input: of a tensor everything but its elements."""
    if not isinstance(value, torch.Tensor):
        return [type(value).__name__, repr(value)]
    return [str(value.dtype), list(value.shape), list(value.stride()), value.device.type, bool(value.requires_grad)]


def modes(inputs: Sequence[Any]) -> list[Any]:
    """What a call's result depends on besides the graph and its inputs."""
    kinds = sorted({x.device.type for x in inputs if isinstance(x, torch.Tensor)})
    return [torch.is_grad_enabled(), str(torch.get_default_dtype()),
            [[k, str(torch.get_autocast_dtype(k))] for k in kinds if torch.is_autocast_enabled(k)]]


def _graph(gm: fx.GraphModule) -> list[Any]:
    number: dict[fx.Node, int] = {}

    def value(x: Any) -> Any:
        if isinstance(x, fx.Node):
            return ["%", number[x]]
        if isinstance(x, torch.Size):
            return ["size", [value(v) for v in x]]
        if isinstance(x, (tuple, list)):
            return [type(x).__name__ if type(x) in (tuple, list) else "list", [value(v) for v in x]]
        if isinstance(x, dict):
            return ["dict", [[value(k), value(v)] for k, v in x.items()]]
        if isinstance(x, slice):
            return ["slice", value(x.start), value(x.stop), value(x.step)]
        if x is None or x is Ellipsis or type(x) in (bool, int, float, complex, str) or isinstance(
                x, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
            return [type(x).__name__, repr(x)]
        if isinstance(x, enum.Enum):
            return ["enum", type(x).__qualname__, x.name]
        raise Unnamed(f"a {type(x).__name__}")

    nodes = []
    for i, node in enumerate(gm.graph.nodes):
        number[node] = i
        target: Any = ""
        if node.op == "get_attr":
            found = attribute(gm, node.target)
            if isinstance(found, fx.GraphModule):
                target = _graph(found)
            elif isinstance(found, torch.Tensor):
                target = described(found)
            else:
                raise Unnamed(f"an attribute that is a {type(found).__name__}")
        elif node.op == "call_method":
            target = node.target
        elif node.op == "call_function":
            target = _name(node.target)
        elif node.op == "call_module":
            raise Unnamed("a module")
        nodes.append([node.op, target, value(node.args) if node.op != "placeholder" else 0, value(node.kwargs)])
    return nodes


def attribute(gm: fx.GraphModule, target: str) -> Any:
    """``gm.a.b`` of ``a.b``."""
    found: Any = gm
    for part in target.split("."):
        found = getattr(found, part)
    return found


def _name(function: Callable[..., Any]) -> str:
    if isinstance(function, torch._ops.OpOverload):
        found, owner = str(function), function.namespace
        if owner not in NAMESPACES:
            raise Unnamed(f"the operator {found}")
        return found
    if isinstance(function, torch._ops.HigherOrderOperator):
        return f"higher {function.name()}"
    module = getattr(function, "__module__", None) or getattr(type(function), "__module__", "")
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", "")
    owner = str(module).split(".")[0]
    if not name or "<" in name or (owner not in OWNERS and not isinstance(function, (types.BuiltinFunctionType,
                                                                                     types.MethodDescriptorType))):
        raise Unnamed(f"the function {module}.{name}")
    return f"{module}.{name}"


def _compiler() -> list[Any]:
    """What compiles: versions, and the package's sources; empty where these changed since they were read."""
    try:
        sources = verdicts.digest("redfuser")
    except metadata.PackageNotFoundError:  # a machine that cannot compile
        sources = _plain()
    return [sources, *_versions()] if sources else []


@lru_cache(maxsize=1)
def _versions() -> tuple[str, ...]:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            found.append(f"{package} none")
    return tuple(found)


def _plain() -> str:
    root = Path(redfuser.__file__).parent
    return key_of([[p.relative_to(root).as_posix(), os.stat(p).st_size] for p in sorted(root.rglob("*.py"))])
