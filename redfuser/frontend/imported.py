"""What an import yields: one normalised Relax function and everything needed to call it like the original model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Union

from redfuser.acrf.cascade import Provenance
from redfuser.errors import InputError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One parameter of ``main``. ``dtype`` is TVM's and torch's long name (``float16``, ``float8_e4m3fn``); ``shape``
    is static. ``user`` inputs come with every call, ``weight`` and ``constant`` ones from :attr:`Imported.weights`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: Literal["user", "weight", "constant"]


@dataclass(frozen=True, slots=True)
class Static:
    """A leaf of the call that is no tensor (``use_cache=False``, ``None``): the export specialised on this value."""

    value: Any


Leaf = Union[str, Static]
"""A leaf of the flattened inputs or outputs: the name of a tensor of ``main``, or a static value."""


@dataclass(frozen=True, slots=True)
class OpaqueCall:
    """A torch operator that stays a torch call.

    ``target`` names an overload (``aten.histc.default``). ``args`` and ``kwargs`` are JSON-able; a tensor is
    ``{"tensor": i}``, the i-th field of the Relax call's argument tuple, and ``{"dtype": "float16"}``,
    ``{"device": true}`` (wherever the model runs), ``{"layout": ...}``, ``{"memory_format": ...}`` stand for torch
    objects. ``outputs`` counts the results, ``single`` says that the operator returns a tensor and not a tuple. ``results``
    gives, for each result in the Relax call's struct info, its position among the operator's results (some operators return
    ``None`` in between). ``why`` says, for people, what kept it from being compiled.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: int
    single: bool
    results: tuple[int, ...] = (0,)
    provenance: Provenance = field(default=Provenance(), compare=False)
    why: str = field(default="", compare=False)

    @property
    def tensors(self) -> int:
        """How many tensors the call takes."""
        return sum(1 for _ in _tensor_leaves([list(self.args), self.kwargs]))


def _tensor_leaves(template: Any) -> Any:
    if isinstance(template, dict):
        if set(template) == {"tensor"}:
            yield template["tensor"]
        else:
            for value in template.values():
                yield from _tensor_leaves(value)
    elif isinstance(template, (list, tuple)):
        for value in template:
            yield from _tensor_leaves(value)


def refuse_inputs(dynamic: Sequence[str], odd: Sequence[str], static: str, convert: str,
                  why: str = "kernels are generated per shape") -> None:
    """Raises InputError RF111 for inputs (or weights) of dynamic shapes, RF112 for odd ones. static, convert: what helps."""
    if dynamic:
        raise InputError("RF111", "dynamic dimensions are not supported", where="; ".join(dynamic), why=why, help=static)
    if odd:
        raise InputError("RF112", "inputs of an unsupported dtype or layout", where="; ".join(odd),
                         why="tensors must be dense and of a floating, integer or boolean dtype", help=convert)


@dataclass(frozen=True)
class Imported:
    """A model as one Relax function ``main`` in the normal form described in :mod:`redfuser.frontend.builder`.

    ``mod["main"]`` takes ``inputs`` in order (user inputs first) and has one dataflow block; its body is the output
    variable, or a tuple of them when there are several. ``weights`` aliases the model's own tensors. ``opaque`` maps the
    symbol of every ``call_dps_packed`` to the torch call it stands for. ``provenance`` maps every variable's name to the
    user's op and source line. ``in_spec`` is the torch pytree spec of ``(args, kwargs)`` and ``in_leaves`` what each of
    its leaves is; ``out_spec`` and ``out_leaves`` the same for the result, where a string names the tensor and appears
    in the order of main's outputs. Both specs are ``None`` for ONNX and Relax models: a call then takes the user inputs
    positionally and returns one tensor or a tuple. ``notes`` says what was made opaque, dropped or approximated;
    ``remarks`` are warnings about the model itself, each with its code; ``once`` says which operations' results stand for those
    of how many further ones that compute the same. ``laid`` names weights that a library wants with channels last. ``roots``
    says of each output what made its memory (:mod:`redfuser.frontend.program`), ``lined`` whether torch's lies row by row.
    """

    mod: Any
    inputs: tuple[InputSpec, ...]
    weights: dict[str, torch.Tensor]
    opaque: dict[str, OpaqueCall]
    provenance: dict[str, Provenance]
    source: Literal["torch.export", "onnx", "relax"]
    in_spec: Any = None
    out_spec: Any = None
    in_leaves: tuple[Leaf, ...] = ()
    out_leaves: tuple[Leaf, ...] = ()
    notes: tuple[str, ...] = ()
    remarks: tuple[tuple[str, str], ...] = ()
    once: tuple[tuple[Provenance, int], ...] = ()
    laid: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    lined: tuple[bool, ...] = ()

    @property
    def user_inputs(self) -> tuple[InputSpec, ...]:
        return tuple(i for i in self.inputs if i.kind == "user")
