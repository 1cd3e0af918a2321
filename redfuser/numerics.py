"""The numerics rule: how far a fused program may be from the truth.

:mod:`redfuser.rule`, applied to torch tensors. NaN and infinities must stand where the reference has them, unless the
unfused program itself has something else there. Places (argmax, topk) are compared by the values that they are places of.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from redfuser.errors import InputError, NumericsError, RedFuserError
from redfuser.places import Ranking, Recorder, astray
from redfuser.reported import Numerics
from redfuser.rule import FACTOR, limit
from redfuser.users import quiet

PROMOTED = (torch.float16, torch.bfloat16, torch.float32)
WIDE = dict.fromkeys(PROMOTED, torch.float64) | {torch.complex64: torch.complex128}
"""What the reference computes in."""
FILLED = (torch.ops.aten.full.default, torch.ops.aten.scalar_tensor.default)
"""What makes tensors of a number, in torch's default type where none is named."""
ROUNDINGS = tuple(getattr(torch.ops.aten, name).default for name in ("round", "floor", "ceil", "trunc"))
"""What makes whole numbers of floats."""
NAMES = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
         torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
"""What the rule calls the floating dtypes; any other has no rounding of its own."""
PLACES = (torch.int64, torch.int32)
CHUNK = 1 << 24  # elements compared at a time: a float64 copy of a large output need not fit beside it


@dataclass(frozen=True, slots=True)
class Error:
    """Distance from the reference: maximum and RMS of the absolute difference over finite elements, and the number of
    elements whose class (finite, NaN, +inf, -inf) differs from the reference's."""

    maximum: float
    rms: float
    misplaced: int = 0

    def __str__(self) -> str:
        return f"max {self.maximum:.3g} rms {self.rms:.3g}" + (f" misplaced {self.misplaced}" if self.misplaced else "")


@dataclass(frozen=True, slots=True)
class Check:
    """The rule applied to one output. ``limit`` is what ``ours`` had to stay within."""

    name: str
    ours: Error
    unfused: Error
    limit: Error

    @property
    def passed(self) -> bool:
        o, m = self.ours, self.limit
        return o.maximum <= m.maximum and o.rms <= m.rms and o.misplaced <= m.misplaced

    @property
    def ratio(self) -> float:
        """Our error over the unfused program's, the worse of maximum and RMS; infinite for misplaced NaN or infinities."""
        if self.ours.misplaced > self.limit.misplaced:
            return math.inf
        pairs = ((self.ours.maximum, self.unfused.maximum), (self.ours.rms, self.unfused.rms))
        return max(a / b if b else (0.0 if a == 0 else math.inf) for a, b in pairs)

    def __str__(self) -> str:
        verdict = "ok" if self.passed else "FAILED"
        return f"{self.name}: {verdict}  ours {self.ours}  unfused {self.unfused}  limit {self.limit}"

    def numerics(self) -> Numerics:
        """The same as the report stores it."""
        return Numerics(self.ratio, self.ours.maximum, self.ours.rms, self.passed)


# -- comparing ---------------------------------------------------------------------------------------------------------


def error(x: torch.Tensor, reference: torch.Tensor) -> Error:
    """Distance of ``x`` (any dtype) from ``reference`` (float64), both of one shape. Raises ValueError otherwise."""
    if x.shape != reference.shape:
        raise ValueError(f"shape {tuple(x.shape)} against a reference of {tuple(reference.shape)}")
    worst, squares, count, misplaced = 0.0, 0.0, 0, 0
    for a, b in zip(_chunks(x), _chunks(reference), strict=True):
        a, b = a.to(b.device, torch.float64), b.to(torch.float64)
        finite = a.isfinite() & b.isfinite()
        same = finite | (a == b) | (a.isnan() & b.isnan())
        misplaced += int((~same).sum())
        gap = (a - b)[finite].abs()
        if gap.numel():
            worst = max(worst, float(gap.max()))
            squares += float((gap * gap).sum())
            count += gap.numel()
    return Error(worst, math.sqrt(squares / count) if count else 0.0, misplaced)


def compare(ours: torch.Tensor, unfused: torch.Tensor, reference: torch.Tensor, name: str = "output",
            factor: float = FACTOR, chosen: tuple[Ranking, Ranking] | None = None) -> Check:
    """Apply the rule to one output. ``unfused`` is the same program run unfused in its own precision. Results of integer
    or bool dtype have no rounding: they must equal the unfused program's wherever that is right. ``chosen``: of places, what
    the unfused program and the reference chose them from; places of equal values are as good (:mod:`redfuser.places`)."""
    if chosen is not None and ours.shape == unfused.shape:
        wrong = int(astray(ours.to(unfused.device), unfused, *chosen).sum())
        return Check(name, Error(0.0, 0.0, wrong), Error(0.0, 0.0), Error(0.0, 0.0))
    reference = reference.to(torch.float64)
    a, b = error(ours, reference), error(unfused, reference)
    size = error(torch.where(reference.isfinite(), reference, 0.0), torch.zeros(
        (), dtype=torch.float64, device=reference.device).expand(reference.shape))
    dtype = NAMES.get(ours.dtype, str(ours.dtype))
    allowed = limit(b.maximum, b.rms, size.maximum, size.rms, dtype, factor)
    return Check(name, a, b, Error(*allowed, b.misplaced))


def compare_all(ours: Any, unfused: Any, reference: Any, factor: float = FACTOR,
                chosen: Sequence[tuple[Ranking, Ranking] | None] = ()) -> list[Check]:
    """Apply the rule to every tensor of three results of one structure (tensors, tuples, dicts, model outputs). ``chosen``:
    per tensor, of places."""
    a, b, r = (tensors(t) for t in (ours, unfused, reference))
    if not len(a) == len(b) == len(r):
        raise ValueError(f"{len(a)} results of ours, {len(b)} unfused, {len(r)} in the reference")
    among = chosen or [None] * len(a)
    return [compare(x, y, z, f"output {i}", factor, c) for i, (x, y, z, c) in enumerate(zip(a, b, r, among, strict=True))]


def pooled(checks: Sequence[Check]) -> Check:
    """The rule on several draws of one kind at once, each divided by the largest error that its limit allows for storing the
    result (what the limit has beyond twice the unfused error), so that no draw counts by its size."""
    scaled = []
    for c in checks:
        unit = c.limit.maximum - FACTOR * c.unfused.maximum or 1.0
        scaled.append([(e.maximum / unit, e.rms / unit, e.misplaced) for e in (c.ours, c.unfused, c.limit)])
    ours, unfused, limit_ = (Error(max(s[k][0] for s in scaled), math.sqrt(sum(s[k][1] ** 2 for s in scaled) / len(scaled)),
                                   sum(s[k][2] for s in scaled)) for k in range(3))
    return Check(checks[0].name, ours, unfused, limit_)


def require(checks: Sequence[Check], where: str = "") -> None:
    """Raise NumericsError RF801 when any check failed, with all of them in the message."""
    bad = [c for c in checks if not c.passed]
    if bad:
        raise NumericsError("RF801", f"{len(bad)} of {len(checks)} results outside the numerics rule", where=where,
                            why="; ".join(map(str, bad)),
                            help="switch cascades off one by one (REDFUSER_DISABLE=1 switches all off) and report it")


def worst(checks: Sequence[Check]) -> Numerics | None:
    """The check with the largest ratio, as the report stores it."""
    return max(checks, key=lambda c: c.ratio).numerics() if checks else None


def tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors of a result, in order."""
    return [t for t in tree_flatten(tree)[0] if isinstance(t, torch.Tensor)]


# -- the reference -----------------------------------------------------------------------------------------------------


class Float64Mode(TorchDispatchMode):
    """Run any torch program in float64: half, bfloat16 and float32 operands are promoted, and so are the dtypes the
    program asks for itself (``x.float()``, ``softmax(..., dtype=torch.float32)``). Conversions to fp8 and to integers
    are part of the program (they choose among few values) and stay. moved: how far, relatively, what they are given is
    moved before."""

    def __init__(self, moved: float = 0.0) -> None:
        super().__init__()
        self.moved = moved

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._grouped_mm.default and args[0].dim() == 2 and args[1].dim() == 3 and len(args) > 2:
            return _grouped(*args[:3])
        if func in FILLED and kwargs.get("dtype") is None and isinstance(args[-1], float):
            kwargs = {**kwargs, "dtype": torch.float64}  # of torch.finfo(scores.dtype).min, which is float64's here
        schema = func._schema.arguments
        written = {i for i, a in enumerate(schema) if a.alias_info is not None and a.alias_info.is_write}
        reads = [a if i in written else tree_map(_promote, a) for i, a in enumerate(args)]  # a promoted copy takes no write
        if self.moved and _chooses(func, args, kwargs):
            reads[0] = reads[0] * (1.0 + self.moved)
        out = func(*reads, **{k: tree_map(_promote, v) for k, v in kwargs.items()})
        return out if written else tree_map(_promote, out)


def _chooses(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Does an operator make few values of a float? Not a conversion of what is whole already."""
    if func in ROUNDINGS:
        return args[0].is_floating_point()
    to = kwargs.get("dtype") if func is torch.ops.aten._to_copy.default and args[0].is_floating_point() else None
    if to is None or to.is_floating_point or to.is_complex or to is torch.bool:
        return to is not None and to.is_floating_point and to.itemsize == 1
    return not bool((args[0] == args[0].round()).all())


def _grouped(rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The grouped product [T, K] x [E, K, N], which torch has in low precision only: rows up to ``ends[e]`` meet expert e."""
    parts = torch.tensor_split(rows.to(torch.float64), ends.cpu().long())
    tail = torch.zeros(parts[-1].shape[0], weights.shape[-1], dtype=torch.float64, device=rows.device)
    return torch.cat([*(p @ w for p, w in zip(parts, weights.to(torch.float64))), tail])


def _promote(a: Any) -> Any:
    if isinstance(a, torch.Tensor):
        return a.to(WIDE[a.dtype]) if a.dtype in WIDE else a
    return WIDE.get(a, a) if isinstance(a, torch.dtype) else a


def reference(fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
              recorder: Recorder | None = None, moved: float = 0.0) -> Any:
    """``fn(*args, **kwargs)`` in float64 from the same low-precision inputs. A module is copied and its parameters and
    buffers upcast; the original is left as it is. Gradients are off. ``recorder`` remembers what places are chosen from;
    ``moved``: as :class:`Float64Mode` has it."""
    if isinstance(fn, torch.nn.Module):
        with quiet():
            fn = copy.deepcopy(fn).eval().double()

    args, kwargs = tree_map(_promote, tuple(args)), tree_map(_promote, dict(kwargs or {}))
    with torch.no_grad(), Float64Mode(moved), recorder or contextlib.nullcontext():
        return fn(*args, **kwargs)


def check(ours: Callable[..., Any], model: Callable[..., Any], args: Sequence[Any] = (),
          kwargs: Mapping[str, Any] | None = None, factor: float = FACTOR) -> list[Check]:
    """Run ``ours``, the unfused ``model`` and its float64 reference on the same inputs and apply the rule to every
    result. Raises InputError RF516 for a model that does not run in float64."""
    kwargs = dict(kwargs or {})
    with torch.no_grad():
        mine = ours(*args, **kwargs)
    plain, truth, chosen = references(model, args, kwargs)
    return compare_all(mine, plain, truth, factor, chosen)


def references(model: Callable[..., Any], args: Sequence[Any] = (),
               kwargs: Mapping[str, Any] | None = None) -> tuple[Any, Any, list[tuple[Ranking, Ranking] | None]]:
    """The results of ``model`` as it is and in float64, and per tensor of them, of places, what they were chosen from. Raises
    InputError RF516 for a model that runs as it is, and not in float64."""
    own, exact = Recorder(), Recorder()
    with torch.no_grad():
        plain = model(*args, **dict(kwargs or {}))
        if any(t.dtype in PLACES for t in tensors(plain)):
            with own:
                plain = model(*args, **dict(kwargs or {}))
    try:
        truth = reference(model, args, kwargs, exact)
    except (RedFuserError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise InputError("RF516", "the model does not run in float64, which it is held against",
                         why=f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}",
                         help="name no type where the program computes, but the one that a tensor has: x.dtype") from error
    pairs = [(own.of(a), exact.of(b)) for a, b in zip(tensors(plain), tensors(truth), strict=False)]
    return plain, truth, [(a, b) if a is not None and b is not None else None for a, b in pairs]


def _chunks(x: torch.Tensor) -> Iterator[torch.Tensor]:
    flat = x.reshape(-1)
    for start in range(0, max(flat.numel(), 1), CHUNK):
        yield flat[start:start + CHUNK]
