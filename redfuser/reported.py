"""What a report says of one thing: an operation, a cascade, a refusal, a time, a note. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BOUNDS = {"bytes": "device memory", "port": "the way to the cache", "shared": "shared memory", "matrix": "the matrix units",
          "core": "the CUDA cores", "special": "the special function units", "launch": "launch and latency",
          "chain": "waits of one block"}
"""The terms of the model's roofline (:class:`redfuser.tensorize.model.Time`) in words."""


@dataclass(frozen=True, slots=True)
class OpRef:
    """An operation of the user's model: its name as imported (``aten.softmax.int``) and source line (``model.py:42``)."""

    name: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.source})" if self.source else self.name


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something was not fused: the code of docs/codes.md, the op and its source line, the condition that failed,
    why it failed, and the smallest change that would help."""

    code: str
    op: str = ""
    source: str = ""
    condition: str = ""
    why: str = ""
    help: str = ""

    def __str__(self) -> str:
        head = f"{self.code} not fused" + (f": {self.op}" if self.op else "")
        head += f"  ({self.source})" if self.source else ""
        parts = (("condition", self.condition), ("why", self.why), ("next", self.help))
        return "\n".join([head, *(f"  {k + ':':<10} {v}" for k, v in parts if v)])


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of device memory one call must move: predicted from shapes, not measured."""

    unfused: int
    fused: int

    @property
    def saved(self) -> int:
        return self.unfused - self.fused

    @property
    def ratio(self) -> float:
        """How many times less the fused form moves."""
        return self.unfused / self.fused if self.fused else 1.0


@dataclass(frozen=True, slots=True)
class Modelled:
    """What the model of resources says of one kernel of a cascade, measured by nobody: its seconds in one call, and the term of
    the roofline that is longest (``bytes``, ``port``, ``shared``, ``matrix``, ``core``, ``special``, ``launch``), or ``chain``
    where blocks wait for one thing after another."""

    kernel: str
    seconds: float
    bound: str

    def __str__(self) -> str:
        return f"{self.kernel} {in_words(self.seconds)}, bound by {BOUNDS.get(self.bound, self.bound)}"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a tuning record says of one cascade, in seconds of a call: the fastest fused kernel, the unfused region and the
    kernel that the model of resources would take, in turns on ``device``. source: whose record (``shipped``, ``user`` ...)."""

    fused: float
    unfused: float
    model: float
    device: str
    source: str

    def __str__(self) -> str:
        return f"{in_words(self.fused)} fused, {in_words(self.unfused)} unfused, measured on {self.device}"

    @property
    def whole(self) -> str:
        """The same with the model's choice and whose record it is."""
        return f"{self} ({self.source} record); the model's own choice {in_words(self.model)}"


@dataclass(frozen=True, slots=True)
class Numerics:
    """The numerical check of one cascade or of the model against float64, as in :mod:`redfuser.numerics`. ``ratio`` is
    our error over that of the unfused low-precision program, the worse of maximum and RMS."""

    ratio: float
    max_error: float
    rms_error: float
    passed: bool


@dataclass(frozen=True, slots=True)
class CascadeReport:
    """One cascade. ``fused`` says whether a fused kernel runs it; if not, ``reason`` says why.

    strategy: single, resident or multi (with ``splits``). kernel: its name, as ``compiled.source(name)`` takes it.
    config: the kernel's configuration and who chose it: ``cost model``, or whose record (``user record`` ...).
    cascade / fused_form: the texts of the cascade and of its mergeable state. prefix: statements that fuse although the
    whole does not. roundings: casts that moved, each with its bound. ops: what it replaces, in program order.
    certificate: of a derived fusion, what the checker said of it: ``re-checked now``, ``re-checked, from cache``,
    ``not re-checked``, ``violated`` (then it is not fused, RF901); a saved model says ``re-checked``. checks: the same of
    what was made of it (scalar program, tile program). modelled: of its kernels for a GPU, in the order they run. measured:
    where a tuning record decided, also that it stays unfused.
    """

    name: str
    ops: tuple[OpRef, ...]
    fused: bool
    reason: Reason | None = None
    strategy: str = ""
    splits: int = 1
    kernel: str = ""
    config: str = ""
    traffic: Traffic | None = None
    numerics: Numerics | None = None
    cascade: str = ""
    fused_form: str = ""
    prefix: tuple[str, ...] = ()
    roundings: tuple[str, ...] = ()
    certificate: str = ""
    checks: tuple[str, ...] = ()
    modelled: tuple[Modelled, ...] = ()
    measured: Measured | None = None

    @property
    def seconds(self) -> float | None:
        """The modelled time of a call; None where nothing was modelled."""
        return sum(m.seconds for m in self.modelled) if self.modelled else None

    def __post_init__(self) -> None:
        if self.fused == (self.reason is not None):
            raise ValueError(f"cascade {self.name}: a fused cascade has no reason, any other has one")


Kind = Literal["fused", "map", "library", "opaque", "torch"]


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of the model in the order it runs: the path of its module, its name, source line and the text of that line.

    kind: ``fused`` (in the cascade ``of``), ``map`` (in the group of maps ``of``), ``library`` (a product), ``opaque`` or
    ``torch``; of: for the last three, the cascade that was not fused and has it, if one has. moved, seconds: bytes that torch
    moves for it, and what that takes on the target, modelled; None where nothing is known of the target."""

    module: str
    op: str
    source: str = ""
    code: str = ""
    kind: Kind = "torch"
    of: str = ""
    moved: int = 0
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Opaque:
    """An operation the importer does not know: it runs as a torch call, unfused. ``count`` calls of it."""

    op: str
    source: str = ""
    count: int = 1
    why: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Something the user should know that is not a refusal: a fallback taken, a specialisation, a clamp."""

    text: str
    code: str = ""
    level: Literal["info", "warning"] = "info"


def in_words(t: float) -> str:
    """Seconds as ``1.23 ms`` or ``45 us``."""
    return f"{t * 1e3:.3g} ms" if t >= 1e-3 else f"{t * 1e6:.3g} us"
