"""Before a kernel is first used on a GPU it is tried there, against the torch code it stands for.

What the compiler checked is the tile program; what runs is a binary that other compilers made of it, on a device nobody
may have seen. So each kernel is run once on drawn inputs and held to the numerics rule (:mod:`redfuser.numerics`) beside
the unfused region. A verdict is remembered under a key over the binary, the torch code, the device, the driver and torch. A
kernel that fails is not used: its region runs as torch code, with a warning (RF807). ``REDFUSER_VERIFY=0`` tries nothing.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from redfuser import numerics
from redfuser.artifact import KernelSpec
from redfuser.cache import Cache, key_of
from redfuser.runtime.check import TORCH_DTYPE, inputs_of, outputs_of
from redfuser.runtime.guard import check_graph
from redfuser.runtime.launcher import launcher
from redfuser.runtime.ops import op_name

HOLDS = b"holds"
DRAWS = ("normal", "positive", "ties", "small", "large", "spread", "masked")


@dataclass(frozen=True, slots=True)
class Trusted:
    """What to call for a kernel: itself, or where it was tried and found wrong (``why``), the torch code it stands for."""

    call: Callable[..., Any]
    why: str = ""


def trusted(kernel: Any, reference: str | None, device: torch.device) -> Trusted:
    """Try a kernel on ``device``, unless it was tried before, nothing says what it stands for, or nobody wants it."""
    from redfuser import settings

    if reference is None or device.type != "cuda" or settings.current().verify == "0":
        return Trusted(kernel.tolerant)
    unfused = function(reference)
    store, key = Cache(), _key(kernel.spec, reference, device)
    if store.get(key) == HOLDS:
        return Trusted(kernel.tolerant)
    if (why := failure(kernel.spec, kernel.tolerant, unfused, device)) is None:
        store.put(key, HOLDS)
        return Trusted(kernel.tolerant)
    warnings.warn(f"RF807 the kernel {kernel.spec.name} is not used on {torch.cuda.get_device_name(device)}: {why}. Its "
                  "operations run as torch has them", RuntimeWarning, stacklevel=2)
    outputs = [tuple(o.shape) for o in outputs_of(kernel.spec)]

    def instead(*tensors: torch.Tensor) -> Any:
        found = tuple(t.reshape(shape) for t, shape in zip(unfused(device, *tensors), outputs, strict=True))
        return found[0] if len(found) == 1 else found

    return Trusted(instead, why)


def all_of(model: Any, device: str | None = None) -> Iterator[tuple[str, str, str]]:
    """(kernel, verdict, why) of every kernel of a loaded model, tried now: right, wrong, or not tried."""
    where = torch.device(device or ("cuda" if any(s.kind == "cuda" for s in model.kernels.values()) else "cpu"))
    for name, spec in model.kernels.items():
        reference = model.reference_of(name)
        if reference is None:
            yield name, "not tried", "the file holds no torch code for it"
            continue
        kernel = launcher(spec)
        kernel.prepare(where)
        why = failure(spec, kernel.tolerant, function(reference), where)
        yield name, "wrong" if why else "right", why or ""


def function(source: str) -> Callable[..., Any]:
    """The torch code of a region as a function of the device and the kernel's inputs; a tuple of results."""
    tree = check_graph(source, (), any_operator=True)
    (defined,) = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    defined.args.args = [ast.arg("device"), *defined.args.args]
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional,
                             "__builtins__": {"float": float, "__import__": builtins.__import__}}
    exec(compile(ast.fix_missing_locations(tree), "<redfuser region>", "exec"), scope)
    return scope["forward"]


def failure(spec: KernelSpec, kernel: Callable[..., Any], unfused: Callable[..., Any], device: torch.device) -> str | None:
    """What is wrong with a kernel on this device: the first draw on which it is outside the numerics rule. None when nothing
    is, or when the unfused region does not fit the device (then there is nothing to hold it to)."""
    for what, args in _draws(spec, device):
        try:
            with torch.no_grad():
                want = unfused(device, *args)
                exact = numerics.reference(unfused, (device, *args))
                got = kernel(*args)
            ours = got if isinstance(got, (tuple, list)) else (got,)
            for mine, theirs, truth in zip(ours, want, exact, strict=True):
                why = _outside(mine.reshape(theirs.shape), theirs, truth)
                if why:
                    return f"{what} inputs: {why}"
        except torch.OutOfMemoryError:
            return None
    return None


def _outside(ours: torch.Tensor, theirs: torch.Tensor, truth: torch.Tensor) -> str:
    if not ours.dtype.is_floating_point:
        return ""  # places among equals are free; values beside them are held to the rule
    if ours.dtype.itemsize == 1:
        mine, other = int((ours.double() != truth).sum()), int((theirs.double() != truth).sum())
        return f"{mine} results differ, {other} unfused" if mine > 2 * other + 1 + ours.numel() // 2000 else ""
    check = numerics.compare(ours, theirs, truth)
    return "" if check.passed else str(check)


def _draws(spec: KernelSpec, device: torch.device) -> Iterator[tuple[str, tuple[torch.Tensor, ...]]]:
    args = inputs_of(spec)
    for what in DRAWS:
        if what == "masked" and not any(a.dtype == "bool" for a in args):
            continue
        g = torch.Generator(device).manual_seed(int(hashlib.sha256(f"{spec.name} {what}".encode()).hexdigest()[:8], 16))
        yield what, tuple(_draw(TORCH_DTYPE[a.dtype], tuple(a.shape), what, g, device) for a in args)


def _draw(dtype: torch.dtype, shape: tuple[int, ...], what: str, g: torch.Generator, device: torch.device) -> torch.Tensor:
    if dtype == torch.bool:
        keep = torch.rand(shape, generator=g, device=device) < 0.7
        if what == "masked" and keep.dim() > 1:
            keep[..., ::7, :] = False
        return keep
    if not dtype.is_floating_point:
        return torch.zeros(shape, dtype=dtype, device=device)  # a place that every tensor has
    x = torch.randn(shape, generator=g, device=device)
    narrow = dtype in (torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
    match what:
        case "positive":
            x = x.abs() + 0.3
        case "ties":
            x = x.round()
        case "small":
            x = x * 3.7e-3
        case "large":
            x = x * (8.0 if narrow else 300.0)
        case "spread":
            x = x * 10.0 ** (torch.rand(shape, generator=g, device=device) * 3 - (2 if narrow else 1))
    return (x.clamp(-448, 448) if dtype.itemsize == 1 else x).to(dtype)


def _key(spec: KernelSpec, reference: str, device: torch.device) -> str:
    found = torch.cuda.get_device_properties(device)
    driver = getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)()
    return key_of("binary", op_name(spec), reference, found.name, [found.major, found.minor], driver, str(torch.__version__))


__all__ = ["Trusted", "all_of", "failure", "function", "trusted"]
