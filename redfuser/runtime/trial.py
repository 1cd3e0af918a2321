"""Before a kernel is first used on a GPU it is tried there, against the torch code it stands for.

What the compiler checked is the tile program; what runs is a binary that other compilers made of it, on a device nobody
may have seen. So each kernel is run once on drawn inputs and held to the numerics rule (:mod:`redfuser.numerics`) beside
the unfused region. A verdict is remembered under a key over the binary, the torch code, the device, the driver and torch. A
kernel that fails is not used: its region runs as torch code, with a warning (RF807). One that does not end takes the device
with it: the process is told so (RF808), and the next one does not use it. ``REDFUSER_VERIFY=0`` tries nothing.
"""

from __future__ import annotations

import ast
import builtins
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from redfuser import numerics, perturbed
from redfuser.artifact import KernelSpec
from redfuser.cache import Cache, key_of
from redfuser.errors import ArtifactError
from redfuser.runtime import patience
from redfuser.runtime.check import TORCH_DTYPE, inputs_of, outputs_of
from redfuser.runtime.draws import DRAWS, LESS, NOTHING, SPECIAL, WIDE, Fixed, inputs
from redfuser.runtime.extents import Bounded, extents, fixed
from redfuser.runtime.guard import check_graph
from redfuser.runtime.launcher import launcher
from redfuser.runtime.ops import op_name
from redfuser.runtime.parts import Parts

HOLDS, HANGS = b"holds", b"hangs"
REACH = 1e30
"""A result that leaves room for a sum in a type with float32's exponents."""
AGAIN = 6
"""Further draws of a kind, over which the rule is held together, where one alone is outside it: one may be unlucky."""


@dataclass(frozen=True, slots=True)
class Trusted:
    """What to call for a kernel: itself, or where it was tried and found wrong (``why``), the torch code it stands for."""

    call: Callable[..., Any]
    why: str = ""


def each(kernels: Mapping[str, Any], parts: Parts, device: torch.device) -> dict[str, Trusted]:
    """What to call for each kernel of a model, by name."""
    known = fixed(parts)
    return {name: trusted(kernel, parts.graph.references.get(name), device, known.get(name, NOTHING))
            for name, kernel in kernels.items()}


def trusted(kernel: Any, reference: str | None, device: torch.device,
            fixed: Fixed = NOTHING) -> Trusted:
    """Try a kernel on ``device``, unless it was tried before, nothing says what it stands for, or nobody wants it. Raises
    ArtifactError RF808 when it does not end."""
    from redfuser import settings

    if reference is None or device.type != "cuda" or settings.current().verify == "0":
        return Trusted(kernel.tolerant)
    unfused = function(reference)
    store, key = Cache(), _key(kernel.spec, reference, device)
    known = store.get(key)
    if known == HOLDS:
        return Trusted(kernel.tolerant)
    try:
        found = outcome(kernel.spec, kernel.tolerant, unfused, device, fixed) if known != HANGS else Outcome(
            "wrong", "it did not end when it was tried before")
    except patience.Hang as hang:
        store.put(key, HANGS)
        raise ArtifactError("RF808", f"the kernel {kernel.spec.name} on {torch.cuda.get_device_name(device)}: {hang}",
                            why="what this process started on the device waits behind it",
                            help="start the process again: the kernel is not used there, and its operations run as torch has "
                            "them") from None
    if found.verdict != "wrong":
        if found.verdict == "right":
            store.put(key, HOLDS)
        return Trusted(kernel.tolerant)
    warnings.warn(f"RF807 the kernel {kernel.spec.name} is not used on {torch.cuda.get_device_name(device)}: {found.why}. Its "
                  "operations run as torch has them", RuntimeWarning, stacklevel=2)
    outputs = [tuple(o.shape) for o in outputs_of(kernel.spec)]

    def instead(*tensors: torch.Tensor) -> Any:
        results = tuple(t.reshape(shape) for t, shape in zip(unfused(device, *tensors), outputs, strict=True))
        return results[0] if len(results) == 1 else results

    return Trusted(instead, found.why)


def all_of(model: Any, device: str | None = None) -> Iterator[tuple[str, str, str]]:
    """(kernel, verdict, why) of every kernel of a loaded model, tried now: right, wrong, or not tried. Raises Hang behind the
    verdict of a kernel that does not end: nothing else can be tried by this process."""
    where = torch.device(device or ("cuda" if any(s.kind != "cpu" for s in model.kernels.values()) else "cpu"))
    known = fixed(model.parts())
    for name, spec in model.kernels.items():
        reference = model.reference_of(name)
        if reference is None:
            yield name, "not tried", "the file holds no torch code for it"
            continue
        kernel = launcher(spec)
        kernel.prepare(where)
        try:
            found = outcome(spec, kernel.tolerant, function(reference), where, known.get(name, NOTHING))
        except patience.Hang as hang:
            yield name, "wrong", str(hang)
            raise
        yield name, found.verdict, found.why


def function(source: str, constants: Collection[str] = (), kernels: Mapping[str, Callable[..., Any]] | None = None,
             what: str = "region") -> Callable[..., Any]:
    """The torch code of a region, or of a graph with kernels, as a function of the device, the inputs and the constants; a
    tuple of results. It is the checked text with the first and the last of these made parameters."""
    tree = check_graph(source, {*constants, *(kernels or {})}, any_operator=True)
    (defined,) = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    defined.args.args = [ast.arg("device"), *defined.args.args, *map(ast.arg, constants)]
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, **(kernels or {}),
                             "__builtins__": {"float": float, "__import__": builtins.__import__}}
    # __import__ is for torch: its native code imports through the builtins of the frame that called it. No name that
    # begins with two underscores is in the checked text.
    exec(compile(ast.fix_missing_locations(tree), f"<redfuser {what}>", "exec"), scope)
    return scope["forward"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial found: ``right``, ``wrong`` or ``not tried``, and why."""

    verdict: str
    why: str = ""


def outcome(spec: KernelSpec, kernel: Callable[..., Any], unfused: Callable[..., Any], device: torch.device,
            fixed: Fixed = NOTHING) -> Outcome:
    """Try a kernel on this device. Wrong is the first kind of draw on which it is outside the numerics rule, and if that is a
    matter of a few roundings, on further draws of the kind as well. Not tried: there is nothing to hold it to, since the
    unfused region does not run here or does not fit, or reads outside of a tensor whatever is drawn (places may be made of
    floats: ``x.floor().long()``). Raises Hang when the kernel does not end."""
    counts = extents(unfused, [(TORCH_DTYPE[a.dtype], tuple(a.shape)) for a in inputs_of(spec)])
    unfused = _bounded(unfused)
    outside, judged = "", False
    for what in DRAWS:
        if what == "masked" and not any(a.dtype == "bool" for a in inputs_of(spec)):
            continue
        checks: dict[int, list[numerics.Check]] = {}
        for seed in range(AGAIN + 1):
            try:
                args, found = _referred(spec, unfused, device, what, seed, counts, fixed)
            except Exception as error:  # out of memory, or an operator that this device does not have
                place = next((e for e in (error, error.__cause__) if isinstance(e, IndexError)), None)
                if place is not None:
                    outside = outside or f"{what} inputs: {_words(place)}"
                    break
                return Outcome("not tried", f"the torch code does not run: {_words(error)}")
            patience.settle(device)
            try:
                got = kernel(*args)
                patience.ended(device)
            except patience.Hang:
                raise
            except torch.OutOfMemoryError as error:
                return Outcome("not tried", _words(error))
            except Exception as error:
                return Outcome("wrong", f"{what} inputs: {_words(error)}")
            ours = got if isinstance(got, (tuple, list)) else (got,)
            alike = _numbers if what in SPECIAL else _one_class
            ours = tuple(alike(mine, theirs, truth) for mine, theirs, truth in zip(ours, *found[:2], strict=True))
            for n, (mine, theirs, truth, chosen) in enumerate(zip(ours, *found, strict=True)):
                near = _near(unfused, (device, *args), n, mine.dtype.itemsize == 1)
                checks.setdefault(n, []).append(_check(mine.reshape(theirs.shape), theirs, truth, chosen, near))
            bad = [c for c in map(numerics.pooled, checks.values()) if not c.passed]
            judged = True
            if not bad:
                break
            if seed == AGAIN or any(c.ours.misplaced > c.limit.misplaced for c in bad):
                return Outcome("wrong", f"{what} inputs: {next(c for cs in checks.values() for c in cs if not c.passed)}")
    return Outcome("right") if judged else Outcome("not tried", f"the torch code reads outside of a tensor: {outside}")


def _bounded(unfused: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with Bounded():
            return unfused(*args)

    return run


def _near(unfused: Callable[..., Any], args: tuple[Any, ...], n: int, few: bool) -> Iterator[torch.Tensor]:
    """Result n from moved inputs, until a place is moved out of its tensor."""
    with suppress(IndexError):
        for other in perturbed.moved(unfused, args, few):
            yield other[n]


def _numbers(mine: torch.Tensor, theirs: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """What is to be judged where an input is NaN or infinite: numbers where all three have one. Where a hidden element, or one
    whose weight is 0, may leave NaN and where not is a matter of docs/algebra.md; which place is named of equal ones, too."""
    mine = mine.reshape(theirs.shape)
    if mine.dtype.is_floating_point and mine.dtype.itemsize > 1:
        return torch.where(mine.isfinite() & theirs.isfinite() & truth.isfinite(), mine, theirs)
    return mine if mine.dtype == torch.bool else theirs


def _one_class(mine: torch.Tensor, theirs: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """What is to be judged of numbers: NaN and the infinities are one class where the unfused region itself has no number, as
    docs/algebra.md has it."""
    mine = mine.reshape(theirs.shape)
    floats = mine.dtype.is_floating_point and mine.dtype.itemsize > 1
    return torch.where(mine.isfinite() | theirs.isfinite(), mine, theirs) if floats else mine


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"


def _check(ours: torch.Tensor, theirs: torch.Tensor, truth: torch.Tensor, chosen: Any,
           near: Iterable[torch.Tensor]) -> numerics.Check:
    """The rule on one result. What the program itself loses by where its digits cancel is no defect of a kernel that sums in
    another order (:func:`perturbed.as_moved`), nor what it makes of none (:func:`perturbed.decided`). Results of few values
    have no rounding of their own: how many of them differ counts, but for ties (:func:`perturbed.astep`)."""
    if ours.dtype.itemsize > 1 or ours.dtype == torch.bool:
        found = numerics.compare(ours, theirs, truth, chosen=chosen)
        if found.passed or not ours.is_floating_point():
            return found
        moved = list(near)
        more = found.ours.misplaced > found.limit.misplaced
        return perturbed.decided(ours, theirs, truth, moved) if more else perturbed.as_moved(found, truth, moved)
    mine, other = (int((x.double() != truth.double()).sum()) for x in (ours, theirs))
    if mine > 2 * other + 1:
        moved = list(near)
        mine, other = (int(perturbed.astep(x, truth, moved).sum()) for x in (ours, theirs))
    return numerics.Check("output", *(numerics.Error(0.0, 0.0, n) for n in (mine, other, 2 * other + 1)))


def _referred(spec: KernelSpec, unfused: Callable[..., Any], device: torch.device, what: str, seed: int, counts: Sequence[int],
              fixed: Fixed) -> tuple[tuple[torch.Tensor, ...], tuple[Any, Any, Any]]:
    """The inputs of a draw, and what the unfused region makes of them: its results, the truth and what places chose from. Of a
    wide draw, the widest by which fewest results are out of range."""
    least, best = -1, None
    for by in LESS if what in WIDE else LESS[:1]:
        args = inputs(spec, device, what, seed, counts, fixed, by)
        found = numerics.references(unfused, (device, *args))
        beyond = sum(_beyond(t) for t in numerics.tensors(found[0]))
        if best is None or beyond < least:
            least, best = beyond, (args, found)
        if not beyond:
            break
    assert best is not None
    return best


def _beyond(t: torch.Tensor) -> int:
    """How many numbers are not in range, or nearly not."""
    if not t.is_floating_point() or t.dtype.itemsize == 1:
        return 0
    return t.numel() - int((t.abs() <= min(torch.finfo(t.dtype).max, REACH)).sum())


def _key(spec: KernelSpec, reference: str, device: torch.device) -> str:
    found = torch.cuda.get_device_properties(device)
    driver = getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)()
    return key_of("binary", op_name(spec), reference, found.name, [found.major, found.minor], driver, str(torch.__version__))
