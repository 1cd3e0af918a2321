"""What an outer graph may contain, checked on its syntax before it is executed.

A graph is one function of straight-line tensor code::

    module    ::= "def forward(" NAME {"," NAME} "):" {statement} "return" expr
    statement ::= NAME {"," NAME} "=" expr | "del" NAME {"," NAME}
    expr      ::= NAME | literal | operator call | method call | expr "[" index "]" | arithmetic | comparison | tuple | list

A name is a parameter, an earlier result, a constant, a kernel, ``torch``, ``F`` (torch.nn.functional) or ``device``. A
function is a kernel, an operator of torch that takes and returns tensors, or a method of a tensor that is such an
operator. So a graph from a file can compute, and nothing else: it cannot import, open, evaluate, or reach an attribute
that begins with an underscore. (The binaries beside it are native code: an artifact as a whole is trusted like a wheel.)
"""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Collection

import torch

from redfuser.errors import ArtifactError

MAX_SOURCE_BYTES = 64 << 20

_OPERATOR_NAMESPACES = frozenset({"aten", "prims", "torchvision"})
# Strings that choose a variant of a computation. Any other string argument (a file name) disqualifies an operator.
_WORDS = frozenset({"rounding_mode", "equation", "reduction", "reduce", "indexing", "mode", "padding_mode", "approximate",
                    "UPLO", "ord", "driver", "norm", "side", "interpolation", "p", "compute_mode", "cudnn_enable",
                    "activation"})
_TORCH_EXTRA = frozenset({"tensor", "einsum", "split", "chunk", "where", "Size", "device", "finfo", "iinfo"})
_METHOD_EXTRA = frozenset({"to", "contiguous", "size", "dim", "float", "half", "bfloat16", "double", "bool", "int", "long",
                           "type_as", "new_empty", "new_zeros", "new_ones", "new_full", "split", "numel", "item", "stride"})
_PROPERTIES = frozenset({"shape", "dtype", "device", "ndim", "T", "mT", "H", "mH", "real", "imag", "values", "indices",
                         "min", "max"})
_BUILTINS = frozenset({"float", "int", "bool", "len"})
_NODES = (ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Assign, ast.Delete, ast.Expr, ast.Name,
          ast.Load, ast.Store, ast.Del, ast.Constant, ast.Call, ast.keyword, ast.Attribute, ast.Subscript, ast.Slice,
          ast.Tuple, ast.List, ast.BinOp, ast.UnaryOp, ast.Compare, ast.operator, ast.unaryop, ast.cmpop)


def check_graph(source: str, names: Collection[str]) -> ast.Module:
    """Parse ``source`` and hold it to the grammar; ``names`` are the constants and kernels it may use.

    Raises :class:`ArtifactError` RF606, which names the line and what is wrong with it."""
    if len(source) > MAX_SOURCE_BYTES:
        raise _refuse(0, "it is larger than any graph")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _refuse(getattr(error, "lineno", 0) or 0, f"it is not Python: {error}") from error
    body = [node for node in tree.body if not _is_docstring(node)]
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef) or body[0].name != "forward":
        raise _refuse(1, "it is not one function named forward")
    _check_function(body[0], set(names))
    return tree


def _refuse(line: int, why: str) -> ArtifactError:
    return ArtifactError("RF606", "the graph is refused", where=f"line {line}", why=why,
                         help="do not use this file unless you know where it is from; compile the model again")


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _check_function(function: ast.FunctionDef, names: set[str]) -> None:
    args = function.args
    if function.decorator_list or args.vararg or args.kwarg or args.defaults or args.kw_defaults or args.posonlyargs or \
            args.kwonlyargs or function.returns or any(a.annotation for a in args.args):
        raise _refuse(function.lineno, "forward takes plain parameters")
    try:
        for node in ast.walk(function):
            if not isinstance(node, _NODES) or (isinstance(node, ast.FunctionDef) and node is not function):
                raise _refuse(getattr(node, "lineno", 0), f"{type(node).__name__} is not part of a graph")
        known = names | {a.arg for a in args.args}
        reserved = names | {"torch", "F", "device", *_BUILTINS}
        for parameter in args.args:
            if parameter.arg in reserved or parameter.arg.startswith("__"):
                raise _refuse(function.lineno, f"parameter {parameter.arg} hides another name")
        for statement in function.body:
            _check_statement(statement, known, reserved)
    except RecursionError as error:
        raise _refuse(function.lineno, "an expression is nested too deeply") from error


def _check_statement(statement: ast.stmt, known: set[str], reserved: set[str]) -> None:
    if isinstance(statement, ast.Return):
        if statement.value is None:
            raise _refuse(statement.lineno, "return without a value")
        _check(statement.value, known)
    elif isinstance(statement, ast.Assign):
        _check(statement.value, known)
        for target in statement.targets:
            for leaf in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
                if not isinstance(leaf, ast.Name) or leaf.id in reserved or leaf.id.startswith("__"):
                    raise _refuse(statement.lineno, "only results get names, and none that means something else")
                known.add(leaf.id)
    elif isinstance(statement, ast.Delete):
        if not all(isinstance(t, ast.Name) and t.id in known and t.id not in reserved for t in statement.targets):
            raise _refuse(statement.lineno, "only results can be deleted")
    elif not _is_docstring(statement):
        raise _refuse(statement.lineno, f"{type(statement).__name__} is not part of a graph")


def _check(node: ast.expr, known: set[str]) -> None:
    if isinstance(node, ast.Call):
        _check_callee(node.func, known)
        for arg in node.args:
            _check(arg, known)
        for keyword in node.keywords:
            if keyword.arg is None:
                raise _refuse(node.lineno, "** is not part of a graph")
            _check(keyword.value, known)
    elif isinstance(node, ast.Name):
        if node.id not in known and node.id != "device":
            raise _refuse(node.lineno, f"unknown name {node.id}")
    elif isinstance(node, ast.Attribute):
        _check_value(node, known)
    else:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                _check(child, known)


def _path(node: ast.expr) -> list[str] | None:
    """``torch.nn.functional.linear`` as its parts, when it begins with a plain name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else None


def _check_callee(node: ast.expr, known: set[str]) -> None:
    path = _path(node)
    if path is not None and path[0] in ("torch", "F"):
        if not _allowed_function(tuple(path)):
            raise _refuse(node.lineno, f"{'.'.join(path)} is not a tensor operator")
    elif isinstance(node, ast.Name):
        if node.id not in known and node.id not in _BUILTINS:
            raise _refuse(node.lineno, f"unknown function {node.id}")
    elif isinstance(node, ast.Attribute):
        if node.attr.startswith("_") or not _allowed_method(node.attr):
            raise _refuse(node.lineno, f".{node.attr}() is not a tensor operator")
        _check(node.value, known)
    else:
        raise _refuse(node.lineno, "only named functions are called")


def _check_value(node: ast.Attribute, known: set[str]) -> None:
    path = _path(node)
    if path is not None and path[0] in ("torch", "F"):
        found = getattr(torch, path[1], None) if len(path) == 2 and path[0] == "torch" else None
        if not isinstance(found, (torch.dtype, torch.memory_format, torch.layout)) and path[1:] not in (["inf"], ["nan"]):
            raise _refuse(node.lineno, f"{'.'.join(path)} is not a dtype, layout or memory format")
        return
    if node.attr not in _PROPERTIES:
        raise _refuse(node.lineno, f".{node.attr} is not a property of a tensor")
    _check(node.value, known)


@functools.cache
def _allowed_function(path: tuple[str, ...]) -> bool:
    if any(part.startswith("_") for part in path):
        return path[:2] == ("torch", "ops") and len(path) in (4, 5) and path[2] in _OPERATOR_NAMESPACES and \
            not any(part.startswith("__") for part in path) and _is_tensor_operator(path[2], path[3])
    if path[0] == "F":
        path = ("torch", "nn", "functional", *path[1:])
    if path[:2] == ("torch", "ops"):
        return len(path) in (4, 5) and path[2] in _OPERATOR_NAMESPACES and _is_tensor_operator(path[2], path[3])
    if path[:3] == ("torch", "nn", "functional") and len(path) == 4:
        found = getattr(torch.nn.functional, path[3], None)
        if path[3] == "boolean_dispatch" or path[3].startswith("has_torch_function"):
            return False
        return isinstance(found, types.BuiltinFunctionType) or (
            isinstance(found, types.FunctionType) and found.__module__ in ("torch.nn.functional", "torch._jit_internal"))
    if path[0] == "torch" and len(path) == 3 and path[1] in ("special", "linalg", "fft"):
        return _is_tensor_operator("aten", f"{path[1]}_{path[2]}")
    if path[0] == "torch" and len(path) == 2:
        return path[1] in _TORCH_EXTRA or (hasattr(torch, path[1]) and _is_tensor_operator("aten", path[1]))
    return False


@functools.cache
def _allowed_method(name: str) -> bool:
    return name in _METHOD_EXTRA or (hasattr(torch.Tensor, name) and _is_tensor_operator("aten", name))


@functools.cache
def _is_tensor_operator(namespace: str, name: str) -> bool:
    """Whether the operator is a computation on tensors: the overloads that return one take no string but those that
    choose a variant. (A few names also have overloads on lists of strings, which touch nothing; overloads for named
    dimensions, which torch 2.11 still has, take strings that are dimensions.)"""
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return False
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads() if "name" not in overload.lower()]
    schemas = [s for s in schemas if any(str(r.type) in ("Tensor", "List[Tensor]") for r in s.returns)]
    return bool(schemas) and not any("str" in str(a.type) and a.name not in _WORDS for s in schemas for a in s.arguments)
