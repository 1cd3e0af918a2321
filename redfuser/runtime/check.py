"""Argument checks in Python: for the CPU target, for launches through ctypes, and to explain a call that failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from redfuser.artifact import ArgSpec, KernelSpec
from redfuser.dtypes import LONG
from redfuser.errors import InputError
from redfuser.sizes import Binding, Unfit, shape_text, solved

TORCH_DTYPE: dict[str, torch.dtype] = {**{name: getattr(torch, long) for name, long in LONG.items()},
                                       "e4m3fnuz": torch.float8_e4m3fnuz}
"""The expression IR's dtype names as torch has them."""


def inputs_of(spec: KernelSpec) -> list[ArgSpec]:
    return [arg for arg in spec.args if arg.role == "in"]


def outputs_of(spec: KernelSpec) -> list[ArgSpec]:
    return [arg for arg in spec.args if arg.role == "out"]


def binding_of(spec: KernelSpec, tensors: Sequence[Any]) -> Binding:
    """What the shapes of a kernel's inputs (the first of ``tensors``) say its symbols are. Raises :class:`InputError` RF501,
    RF502, RF505."""
    args = inputs_of(spec)
    if len(tensors) < len(args):
        raise InputError("RF501", f"kernel {spec.name} takes {len(args)} tensors, got {len(tensors)}")
    for arg, tensor in zip(args, tensors, strict=False):
        if not isinstance(tensor, torch.Tensor):
            raise InputError("RF502", f"argument '{arg.name}' of kernel {spec.name} is not a tensor but a "
                             f"{type(tensor).__name__}")
    try:
        return solved([(f"argument '{a.name}' of kernel {spec.name}", a.shape, tuple(t.shape))
                       for a, t in zip(args, tensors, strict=False)], spec.symbols)
    except Unfit as error:
        raise InputError("RF505", str(error), help="; ".join(map(str, spec.symbols))) from error


def check_tensors(spec: KernelSpec, tensors: tuple[Any, ...], args: list[ArgSpec] | None = None) -> torch.device:
    """Raise :class:`InputError` RF501 to RF507 naming the first tensor that is not as ``args`` (default: the kernel's
    inputs) declare it; returns the device they are on."""
    args = inputs_of(spec) if args is None else args
    if spec.symbols:
        spec = spec.at(binding_of(spec, tensors))
        known = {a.name: a for a in spec.args}
        args = [known[a.name] for a in args]
    if len(tensors) != len(args):
        raise InputError("RF501", f"kernel {spec.name} takes {len(args)} tensors, got {len(tensors)}",
                         help="its inputs are " + ", ".join(f"{a.name}: {a.dtype}{shape_text(a.shape)}" for a in args))
    wanted = "cpu" if spec.kind == "cpu" else "cuda"
    device: torch.device | None = None
    for arg, tensor in zip(args, tensors, strict=True):
        here = f"argument '{arg.name}' of kernel {spec.name}"
        if not isinstance(tensor, torch.Tensor):
            raise InputError("RF502", f"{here} is not a tensor but a {type(tensor).__name__}")
        if tensor.device.type != wanted or (device is not None and tensor.device != device):
            raise InputError("RF503", f"{here} is on {tensor.device}", why=f"all tensors must be on one {wanted} device"
                             + (f", and the first is on {device}" if device is not None else ""),
                             help=f"move it: .to('{device or wanted}')")
        device = tensor.device
        _declared(here, tensor, arg)
        if not tensor.is_contiguous():
            raise InputError("RF506", f"{here} has strides {list(tensor.stride())}", why="it must be contiguous",
                             help="call .contiguous() on it")
        if tensor.data_ptr() % max(arg.align, 1):
            raise InputError("RF507", f"{here} is not aligned to {arg.align} bytes",
                             why="it is a view that starts inside a larger tensor", help="clone it")
    assert device is not None or not args
    return device if device is not None else torch.device(wanted)


def check_meta(spec: KernelSpec, tensors: tuple[torch.Tensor, ...]) -> None:
    """What can be said of tensors without data (a tracer's): count, dtype and shape."""
    spec = spec.at(binding_of(spec, tensors)) if spec.symbols else spec
    args = inputs_of(spec)
    if len(tensors) != len(args):
        raise InputError("RF501", f"kernel {spec.name} takes {len(args)} tensors, got {len(tensors)}")
    for arg, tensor in zip(args, tensors, strict=True):
        _declared(f"argument '{arg.name}' of kernel {spec.name}", tensor, arg)


def _declared(here: str, tensor: torch.Tensor, arg: ArgSpec) -> None:
    if tensor.dtype != TORCH_DTYPE[arg.dtype]:
        raise InputError("RF504", f"{here} is {tensor.dtype}, expected {TORCH_DTYPE[arg.dtype]}",
                         help="kernels are compiled for fixed dtypes; convert the input or compile again")
    if tuple(tensor.shape) != arg.shape:
        raise InputError("RF505", f"{here} has shape {list(tensor.shape)}, expected {list(arg.shape)}",
                         help="kernels are compiled for fixed shapes; compile again for this one")
