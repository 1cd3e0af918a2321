"""The kernel artifact: what a build leaves behind and what the launcher needs, as plain JSON plus binaries.

A :class:`KernelSpec` describes one fused cascade as the outer graph calls it: typed tensor arguments and one or more
launches. It names no compiler; a machine with only torch and the launcher can run it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class ArgSpec:
    """A tensor argument. Shapes are static ints; tensors must be contiguous unless ``strides`` is given, and aligned
    to ``align`` bytes. dtype is a short name as in :mod:`redfuser.acrf.expr`. role ``workspace`` is allocated by the
    launcher through torch; ``out`` arguments are allocated by the launcher and returned in order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: Literal["in", "out", "workspace"]
    align: int = 16


@dataclass(frozen=True, slots=True)
class TmaSpec:
    """A Hopper tensor-map, in cuTensorMapEncodeTiled's own order and units (strides in bytes, rank-1 of them)."""

    arg: str
    dtype: int
    rank: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int
    swizzle: int
    l2: int
    oob: int


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """One kernel parameter, in the entry's own order: a pointer to ``arg``, or a tensor-map."""

    kind: Literal["ptr", "tma"]
    arg: str = ""
    tma: TmaSpec | None = None


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One launch. ``binary`` indexes KernelSpec.binaries; units: threads, blocks, bytes."""

    entry: str
    binary: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    params: tuple[ParamSpec, ...]


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One fused cascade, ready to launch. ``binaries`` are cubin / hsaco / shared-object bytes; ``kind`` ``cpu`` means
    binaries[0] is a shared object whose tvm-ffi function ``entry`` takes the arguments in order (workspaces last).
    ``resources`` carries registers, spill bytes and shared memory per launch as the build reported them."""

    name: str
    kind: Literal["cuda", "hip", "cpu"]
    arch: str
    args: tuple[ArgSpec, ...]
    launches: tuple[LaunchSpec, ...]
    binaries: tuple[bytes, ...] = field(repr=False, default=())
    source: str = field(repr=False, default="")
    config: dict[str, Any] = field(default_factory=dict)
    resources: tuple[dict[str, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Everything but the binaries and the source, which the artifact stores as files of their own."""
        data = asdict(self)
        del data["binaries"], data["source"]
        return data
