"""How a compiled model is called: which tensors it takes, and how arguments and results are packed.

A call's arguments are flattened with torch's pytree, as ``torch.export`` does; leaves that are no tensors (``None``,
``use_cache=False``) must have the value the model was compiled with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import torch
from torch.utils import _pytree as pytree

from redfuser.errors import ArtifactError, InputError
from redfuser.runtime import structure
from redfuser.runtime.shapes import Refused, Shaped, need, shaped

DTYPES = frozenset({"float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
                    "float8_e5m2fnuz", "int64", "int32", "int16", "int8", "uint8", "bool"})


def torch_dtype(name: str) -> torch.dtype:
    """``float16`` as torch's object; raises :class:`ArtifactError` RF601 for any other word."""
    if not isinstance(name, str) or name not in DTYPES:
        raise ArtifactError("RF601", f"unknown dtype {name!r}")
    return getattr(torch, name)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input: its name, torch's long dtype name, its static shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A leaf that is not a tensor of the graph."""

    value: Any


Leaf = Union[int, Value]
"""A leaf of the arguments (index into ``inputs``) or of the result (index into the graph's outputs), or a value."""


@dataclass(frozen=True, slots=True)
class Signature:
    """``in_spec`` / ``out_spec`` are torch pytree specs of ``(args, kwargs)`` and of the result; without them inputs are
    positional and the result is one tensor or a tuple. Read from a file they hold tuples, lists and dicts only
    (:mod:`redfuser.runtime.structure`)."""

    inputs: tuple[TensorSpec, ...]
    in_leaves: tuple[Leaf, ...]
    out_leaves: tuple[Leaf, ...]
    in_spec: Any = None
    out_spec: Any = None

    @property
    def positional(self) -> bool:
        """Whether ``f(*tensors)`` in the order of ``inputs`` is the whole story."""
        if self.in_leaves != tuple(range(len(self.inputs))):
            return False
        if self.in_spec is None:
            return True
        args, kwargs = structure.children(self.in_spec)
        return bool(kwargs.num_leaves == 0 and all(child.is_leaf() for child in structure.children(args)))

    @property
    def result_is_outputs(self) -> bool:
        """Whether the graph's tuple of outputs is the result as it is."""
        if self.out_leaves != tuple(range(len(self.out_leaves))) or (self.out_spec is None and len(self.out_leaves) == 1):
            return False
        return self.out_spec is None or bool(self.out_spec.type is tuple and
                                             self.out_spec.num_children == self.out_spec.num_leaves)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The tensors of a call, in the order of ``inputs``. Raises :class:`InputError` RF511 for another structure and
        RF514 for a leaf that is no tensor and has another value than at compile time."""
        leaves = self._flatten(tuple(args), dict(kwargs))
        tensors: list[Any] = [None] * len(self.inputs)
        for leaf, given in zip(self.in_leaves, leaves, strict=True):
            if isinstance(leaf, int):
                tensors[leaf] = given
            elif isinstance(given, torch.Tensor) or not _same(given, leaf.value):
                raise InputError("RF514", f"an argument is {_short(given)}, compiled for {_short(leaf.value)}",
                                 why="values other than tensors are built into a compiled model",
                                 help="compile again with this value")
        return tensors

    def _flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        if self.in_spec is None:
            args, kwargs = self._placed(args, kwargs)
            if kwargs or len(args) != len(self.inputs):
                raise InputError("RF511", f"expected {len(self.inputs)} positional tensors, got {len(args)}"
                                 + (f" and keywords {sorted(kwargs)}" if kwargs else ""), help=self.describe())
            return list(args)
        wanted = structure.children(self.in_spec)[1]
        names = list(wanted.context) if wanted.type is dict else []
        if set(kwargs) == set(names):
            kwargs = {name: kwargs[name] for name in names}
        else:
            args, kwargs = self._placed(args, kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self.in_spec:
            ordered = structure.arranged(spec, leaves, self.in_spec)
            if ordered is not None and len(ordered) == len(self.in_leaves):
                return ordered
            given = _call(spec, ["tensor" if isinstance(leaf, torch.Tensor) else _short(leaf) for leaf in leaves])
            asked = _call(self.in_spec, [self.inputs[leaf].name if isinstance(leaf, int) else _short(leaf.value)
                                         for leaf in self.in_leaves])
            raise InputError("RF511", "the arguments are not structured as at compile time",
                             why=f"called with {given}, compiled for {asked}", help=self.describe())
        return leaves

    def _placed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments that were given by position at compile time and are given by their names now, by position."""
        for name in self._names()[len(args):]:
            if name not in kwargs:
                break
            args = (*args, kwargs.pop(name))
        return args, kwargs

    def _names(self) -> list[str]:
        """The names of the arguments by position; none for one that is not a tensor by itself."""
        if self.in_spec is None:
            return [spec.name for spec in self.inputs]
        args, kwargs = structure.children(self.in_spec)
        leaves, names = iter(self.in_leaves), []
        for child in structure.children(args):
            found = [next(leaves) for _ in range(child.num_leaves)]
            alone = found[0] if child.is_leaf() else None
            names.append(self.inputs[alone].name if isinstance(alone, int) else "")
        own = set(kwargs.context or ())
        return ["" if name in own else name for name in names]

    def unbind(self, outputs: Sequence[torch.Tensor]) -> Any:
        """The result as the original model returns it."""
        leaves = [outputs[leaf] if isinstance(leaf, int) else leaf.value for leaf in self.out_leaves]
        if self.out_spec is None:
            return leaves[0] if len(leaves) == 1 else tuple(leaves)
        if self.out_spec.is_leaf():
            return leaves[0]
        if self.out_spec.type is tuple and self.out_spec.num_children == len(leaves) == self.out_spec.num_leaves:
            return tuple(leaves)
        return pytree.tree_unflatten(leaves, self.out_spec)

    def check(self, tensors: Sequence[Any], device: torch.device | None) -> None:
        """Raise :class:`InputError` RF502 to RF505, which names the first input that is not as compiled for."""
        for spec, tensor in zip(self.inputs, tensors, strict=True):
            here = f"input '{spec.name}'"
            if not isinstance(tensor, torch.Tensor):
                raise InputError("RF502", f"{here} is not a tensor but a {type(tensor).__name__}")
            if tensor.dtype != torch_dtype(spec.dtype):
                raise InputError("RF504", f"{here} is {tensor.dtype}, compiled for torch.{spec.dtype}",
                                 help="convert it, or compile again with this dtype")
            if tuple(tensor.shape) != spec.shape:
                raise InputError("RF505", f"{here} has shape {list(tensor.shape)}, compiled for {list(spec.shape)}",
                                 help="shapes are static: compile again with this one")
            if device is not None and tensor.device != device:
                raise InputError("RF503", f"{here} is on {tensor.device}, the model is on {device}",
                                 help=f"move the input, or the model: .to('{tensor.device}')")

    def describe(self) -> str:
        """The inputs in words."""
        return "inputs: " + ", ".join(f"{s.name}: {s.dtype}{list(s.shape)}" for s in self.inputs)

    def to_json(self) -> dict[str, Any]:
        """Plain data. Raises :class:`ArtifactError` RF607 for structures or values that have no text."""
        try:
            data: dict[str, Any] = {"inputs": [[s.name, s.dtype, list(s.shape)] for s in self.inputs]}
            for name, spec, leaves in (("in", self.in_spec, self.in_leaves), ("out", self.out_spec, self.out_leaves)):
                packed, found = (None, list(leaves)) if spec is None else structure.to_json(spec, leaves, Value(None))
                data[f"{name}_structure"], data[f"{name}_leaves"] = packed, [_leaf_json(leaf) for leaf in found]
            return data
        except ValueError as error:
            raise ArtifactError("RF607", "the model's arguments or results cannot be written to a file", why=str(error),
                                help="take and return tensors, tuples, lists, dicts with string keys, or records of these"
                                ) from error

    @staticmethod
    def from_json(data: Any) -> Signature:
        """The inverse. Raises :class:`ArtifactError` RF601 for anything that :meth:`to_json` does not write."""
        try:
            inputs = tuple(_input(entry) for entry in _list(data["inputs"]))
            in_leaves, out_leaves = (tuple(map(_leaf, _list(data[k]))) for k in ("in_leaves", "out_leaves"))
            in_spec, out_spec = (None if data[k] is None else structure.from_json(data[k])
                                 for k in ("in_structure", "out_structure"))
            need(in_spec is None or (in_spec.num_leaves == len(in_leaves) and in_spec.type is tuple and [
                c.type for c in structure.children(in_spec)] == [tuple, dict]), "its arguments do not add up")
            need(out_spec is None or out_spec.num_leaves == len(out_leaves), "its results do not add up")
            need(sorted(leaf for leaf in in_leaves if isinstance(leaf, int)) == list(range(len(inputs))) and
                 (in_spec is not None or in_leaves == tuple(range(len(inputs)))), "its inputs do not add up")
            need(len({spec.name for spec in inputs}) == len(inputs), "two inputs have one name")
        except (KeyError, TypeError, ValueError, Refused, RecursionError) as error:
            raise ArtifactError("RF601", "the artifact's signature is damaged", why=str(error)) from error
        return Signature(inputs, in_leaves, out_leaves, in_spec, out_spec)

    def shapes(self) -> list[Shaped]:
        """The inputs without elements."""
        return [Shaped(torch_dtype(spec.dtype), spec.shape) for spec in self.inputs]


def of_imported(imported: Any, outputs: int) -> Signature:
    """The signature of a :class:`redfuser.frontend.imported.Imported` whose graph returns ``outputs`` tensors."""
    inputs = tuple(TensorSpec(i.name, i.dtype, tuple(i.shape)) for i in imported.user_inputs)
    position = {spec.name: index for index, spec in enumerate(inputs)}
    if imported.in_spec is None:
        return Signature(inputs, tuple(range(len(inputs))), tuple(range(outputs)))
    in_leaves: tuple[Leaf, ...] = tuple(position[leaf] if isinstance(leaf, str) else Value(leaf.value)
                                        for leaf in imported.in_leaves)
    names = [leaf for leaf in imported.out_leaves if isinstance(leaf, str)]
    one_each = len(names) == outputs  # else a tensor that is returned twice is one output of the graph
    order = {name: index for index, name in enumerate(dict.fromkeys(names))}
    out_leaves: list[Leaf] = []
    count = 0
    for leaf in imported.out_leaves:
        if isinstance(leaf, str):
            out_leaves.append(count if one_each else order[leaf])
            count += 1
        else:
            out_leaves.append(Value(leaf.value))
    return Signature(inputs, in_leaves, tuple(out_leaves), imported.in_spec, imported.out_spec)


def _leaf_json(leaf: Leaf) -> Any:
    if isinstance(leaf, int):
        return leaf
    if leaf.value is not None and not isinstance(leaf.value, (bool, int, float, str)):
        raise ValueError(f"a {type(leaf.value).__name__} among the arguments or results")
    return {"value": leaf.value}


def _leaf(data: Any) -> Leaf:
    if isinstance(data, int) and not isinstance(data, bool) and data >= 0:
        return data
    if isinstance(data, dict) and set(data) == {"value"} and isinstance(data["value"], (bool, int, float, str, type(None))):
        return Value(data["value"])
    raise ValueError("a leaf is an index or a value")


def _list(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise ValueError("a list is something else")
    return data


def _input(data: Any) -> TensorSpec:
    name, dtype, shape = _list(data)
    if not isinstance(name, str) or not all(type(n) is int for n in _list(shape)):
        raise ValueError("an input is a name, a dtype and a shape")
    return TensorSpec(name, dtype, shaped(torch_dtype(dtype), shape).shape)


def _call(spec: Any, words: Sequence[str], limit: int = 300) -> str:
    """``(x, mask=tensor)``: the arguments of a call."""
    left = iter(words)
    args, kwargs = structure.children(spec)
    parts = [structure.shown(child, left) for child in structure.children(args)]
    parts += [f"{name}={structure.shown(child, left)}" for name, child in
              zip(kwargs.context or (), structure.children(kwargs), strict=True)]
    text = f"({', '.join(parts)})"
    return text if len(text) <= limit else text[:limit] + "..."


def _same(given: Any, value: Any) -> bool:
    """Also of nan with itself; -0.0 is another number than 0.0."""
    return type(given) is type(value) and (repr(given) == repr(value) if isinstance(value, float) else bool(given == value))


def _short(value: Any) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else repr(value)[:80]
