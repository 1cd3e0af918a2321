"""A graph from a file, gone through on shapes before it is executed: every argument fits, and nothing is too large.

Statement by statement, over :class:`redfuser.runtime.shapes.Shaped`: parameters have the signature's dtypes and shapes,
constants their own, a kernel takes what its description says, and every operator's rule accepts its arguments. Since
shapes are static and there is one path through a graph, what is found here is what will happen.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from redfuser.artifact import KernelSpec
from redfuser.errors import ArtifactError
from redfuser.runtime.check import TORCH_DTYPE, inputs_of, outputs_of
from redfuser.runtime.guard import opaque_target, path_of, refuse
from redfuser.runtime.moving import Device, item
from redfuser.runtime.operators import INFIX, OPERATORS, opaque_results
from redfuser.runtime.shapes import MAX_RANK, Ends, Pair, Refused, Shaped, need

FLOOR_BYTES = 256 << 20
"""Any graph may make values as large as this."""
GROWTH = 4096
"""A value may be so many times larger than the inputs and constants together, and all that are held at once 16 times that:
attention over 131072 keys of 64 makes scores of 700 times its operands."""


def rehearse(tree: ast.Module, names: Sequence[str], inputs: Sequence[Shaped], constants: Mapping[str, Shaped],
             kernels: Mapping[str, KernelSpec], outputs: int) -> tuple[Shaped, ...]:
    """What the graph returns. ``tree`` has passed :func:`redfuser.runtime.guard.check_graph`; ``names`` are its parameters
    and ``inputs`` what they are, ``kernels`` go by their name in the text.
    Raises :class:`ArtifactError` RF606, which names the line that does not fit."""
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    if [a.arg for a in function.args.args] != list(names) or len(names) != len(inputs):
        raise refuse(function.lineno, "its parameters are not the inputs of the signature")
    stage = _Stage(dict(zip(names, inputs, strict=True)), constants, kernels)
    for statement in function.body:
        try:
            if isinstance(statement, ast.Assign):
                stage.assign(statement.targets[0], stage.value(statement.value))
            elif isinstance(statement, ast.Delete):
                stage.delete([t.id for t in statement.targets if isinstance(t, ast.Name)])
            elif isinstance(statement, ast.Return):
                assert statement.value is not None
                found = stage.value(statement.value)
                need(len(found) == outputs and all(isinstance(v, Shaped) for v in found),
                     f"it does not return {outputs} tensors")
                return found
        except ArtifactError:
            raise
        except Refused as error:
            raise refuse(statement.lineno, str(error)) from error
        except RecursionError as error:
            raise refuse(statement.lineno, "an expression is nested too deeply") from error
        except Exception as error:  # a rule called with other arguments than it has; torch's shape function of an opaque call
            raise refuse(statement.lineno, f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
                         if str(error).strip() else type(error).__name__) from error
    raise refuse(function.lineno, "it returns nothing")


class _Stage:
    def __init__(self, inputs: Mapping[str, Shaped], constants: Mapping[str, Shaped],
                 kernels: Mapping[str, KernelSpec]) -> None:
        self.kernels = kernels
        self.names: dict[str, Any] = {"device": Device(), **constants, **inputs}
        given = sum(v.bytes for v in (*constants.values(), *inputs.values()))
        self.limit = max(FLOOR_BYTES, GROWTH * given)
        self.held = 0

    # -- statements ----------------------------------------------------------------------------------------------------

    def assign(self, target: ast.expr, value: Any) -> None:
        leaves = target.elts if isinstance(target, ast.Tuple) else [target]
        values = [value]
        if isinstance(target, ast.Tuple):
            values = [value.values, value.indices] if isinstance(value, Pair) else value
            need(isinstance(values, (tuple, list)) and len(values) == len(leaves), f"not {len(leaves)} results")
        for leaf, part in zip(leaves, values, strict=True):
            assert isinstance(leaf, ast.Name)
            need(_is_result(part), "a name for something that is no result")
            self.delete([leaf.id])
            self.names[leaf.id] = part
            self.held += _bytes(part)
        need(self.held <= 16 * self.limit, "more is kept than the graph's inputs account for")

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self.held -= _bytes(self.names.pop(name, None))

    # -- expressions ---------------------------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                need(node.id in self.names, f"{node.id} is not there any more")
                return self.names[node.id]
            case ast.UnaryOp(operand=ast.Constant(value=value)):
                return -value  # type: ignore[operator]
            case ast.Tuple():
                return tuple(self.value(v) for v in node.elts)
            case ast.List():
                return [self.value(v) for v in node.elts]
            case ast.BinOp():
                return self.sized(INFIX[type(node.op).__name__](self.value(node.left), self.value(node.right)))
            case ast.Compare():
                return self.sized(INFIX[type(node.ops[0]).__name__](self.value(node.left), self.value(node.comparators[0])))
            case ast.Subscript():
                return self.sized(item(self.value(node.value), self.key(node.slice)))
            case ast.Attribute():
                return self.attribute(node)
            case ast.Call():
                return self.sized(self.call(node))
        raise Refused(f"{type(node).__name__} is not part of a graph")

    def key(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Slice):
            return slice(*(None if v is None else self.value(v) for v in (node.lower, node.upper, node.step)))
        return tuple(self.key(v) for v in node.elts) if isinstance(node, ast.Tuple) else self.value(node)

    def attribute(self, node: ast.Attribute) -> Any:
        path = path_of(node)
        if path and path[0] == "torch":
            return getattr(torch, path[1])
        found = self.value(node.value)
        if not isinstance(found, Pair):
            raise Refused(f".{node.attr} of what has none")
        return found.values if node.attr == "values" else found.indices

    def call(self, node: ast.Call) -> Any:
        path = path_of(node.func)
        args = [self.value(a) for a in node.args]
        kwargs = {str(k.arg): self.value(k.value) for k in node.keywords}
        need(len(kwargs) == len(node.keywords), "an argument given twice")
        target = opaque_target(path)
        if target:
            return opaque_results(target, args, kwargs)
        if path and path[0] in ("torch", "F"):
            return OPERATORS[".".join(path)](*args, **kwargs)
        if isinstance(node.func, ast.Name):
            if node.func.id == "float":
                return float(args[0])
            need(not kwargs, "a kernel takes its operands in order")
            return self.kernel(node.func.id, args)
        assert isinstance(node.func, ast.Attribute)
        return OPERATORS[f".{node.func.attr}"](self.value(node.func.value), *args, **kwargs)

    def kernel(self, name: str, args: Sequence[Any]) -> Any:
        need(name in self.kernels, f"{name} is not a kernel")
        spec = self.kernels[name]
        wanted = inputs_of(spec)
        need(len(args) == len(wanted), f"kernel {spec.name} takes {len(wanted)} tensors, not {len(args)}")
        for arg, given in zip(wanted, args, strict=True):
            need(given == Shaped(TORCH_DTYPE[arg.dtype], arg.shape),
                 f"kernel {spec.name} takes {arg.name} as {arg.dtype}{list(arg.shape)}, not {_words(given)}")
        for arg in spec.args:
            self.sized(Shaped(TORCH_DTYPE[arg.dtype], arg.shape))
        results = tuple(Shaped(TORCH_DTYPE[arg.dtype], arg.shape) for arg in outputs_of(spec))
        return results[0] if len(results) == 1 else results

    def sized(self, value: Any) -> Any:
        """``value``, when no tensor in it is larger than any graph of these inputs needs."""
        for part in _parts(value):
            need(part.rank <= MAX_RANK, f"{part.rank} axes")
            need(part.bytes <= self.limit, f"a value of shape {list(part.shape)} is larger than the inputs account for")
        return value


def _parts(value: Any) -> list[Shaped]:
    if isinstance(value, Shaped):
        return [value]
    if isinstance(value, Pair):
        return [value.values, value.indices]
    if isinstance(value, Ends):
        return [Shaped(torch.int32, (value.groups,))]
    return [p for v in value for p in _parts(v)] if isinstance(value, (tuple, list)) else []


def _bytes(value: Any) -> int:
    return sum(p.bytes for p in _parts(value))


def _is_result(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(v is None or _is_result(v) for v in value)
    return isinstance(value, (Shaped, Pair, Ends))


def _words(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, Shaped) else "something that is no tensor"
