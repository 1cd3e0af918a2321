"""The kernel artifact: what a build leaves behind and what the launcher needs, as plain JSON plus binaries.

A :class:`KernelSpec` describes one fused cascade as the outer graph calls it: typed tensor arguments and one or more
launches. It names no compiler; a machine with only torch and the launcher can run it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from redfuser.errors import ArtifactError

FORMAT = 1
"""Version of a stored kernel's layout; a reader refuses a higher one."""

_SUFFIX = {"cuda": "cubin", "hip": "hsaco", "cpu": "so"}


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

    @classmethod
    def from_json(cls, data: Mapping[str, Any], binaries: tuple[bytes, ...] = (), source: str = "") -> KernelSpec:
        """The inverse of :meth:`to_json`; raises :class:`ArtifactError` RF601 on anything that is not such data."""
        try:
            return cls(
                name=str(data["name"]), kind=data["kind"], arch=str(data["arch"]),
                args=tuple(ArgSpec(**{**a, "shape": tuple(map(int, a["shape"]))}) for a in data["args"]),
                launches=tuple(_launch_from_json(entry) for entry in data["launches"]),
                binaries=binaries, source=source, config=dict(data["config"]),
                resources=tuple({str(k): int(v) for k, v in entry.items()} for entry in data["resources"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError("RF601", "a kernel's description is damaged", why=f"{type(error).__name__}: {error}",
                                help="build the kernel again") from error


def _launch_from_json(data: Mapping[str, Any]) -> LaunchSpec:
    params = []
    for param in data["params"]:
        tma = None
        if param.get("tma") is not None:
            fields: dict[str, Any] = {k: tuple(map(int, v)) if isinstance(v, (list, tuple)) else v
                                      for k, v in param["tma"].items()}
            tma = TmaSpec(**fields)
        params.append(ParamSpec(kind=param["kind"], arg=param["arg"], tma=tma))
    grid, block = tuple(map(int, data["grid"])), tuple(map(int, data["block"]))
    if len(grid) != 3 or len(block) != 3:
        raise ValueError("grid and block have three dimensions")
    return LaunchSpec(entry=str(data["entry"]), binary=int(data["binary"]), grid=grid, block=block,
                      shared_bytes=int(data["shared_bytes"]), params=tuple(params))


def to_files(spec: KernelSpec) -> dict[str, bytes]:
    """A kernel as files: ``spec.json`` (with a hash per binary), the binaries and ``source.txt``. The same kernel gives
    the same bytes."""
    binaries = {f"kernel_{i}.{_SUFFIX[spec.kind]}": data for i, data in enumerate(spec.binaries)}
    files = {**binaries, "source.txt": spec.source.encode("utf-8")}
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    header = {"format": FORMAT, "kernel": spec.to_json(), "binaries": list(binaries), "sha256": hashes}
    return {"spec.json": json.dumps(header, indent=1, sort_keys=True).encode("utf-8"), **files}


def from_files(files: Mapping[str, bytes]) -> KernelSpec:
    """The inverse of :func:`to_files`; raises :class:`ArtifactError` RF601 to RF604 for a damaged or too new kernel."""
    def file(name: str) -> bytes:
        if name not in files:
            raise ArtifactError("RF604", f"{name} is missing from a stored kernel", help="build the kernel again")
        return files[name]

    try:
        header = json.loads(file("spec.json"))
        version, names, hashes = int(header["format"]), list(header["binaries"]), dict(header["sha256"])
        kernel = header["kernel"]
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError("RF601", "a stored kernel's spec.json is damaged", why=str(error),
                            help="build the kernel again") from error
    if version > FORMAT:
        raise ArtifactError("RF602", f"stored kernel of format {version}", why=f"this RedFuser reads up to {FORMAT}",
                            help="upgrade RedFuser, or build the kernel again")
    for name in [*names, "source.txt"]:
        if hashlib.sha256(file(name)).hexdigest() != hashes.get(name):
            raise ArtifactError("RF603", f"{name} of a stored kernel does not match its hash", help="build it again")
    return KernelSpec.from_json(kernel, tuple(files[name] for name in names), files["source.txt"].decode("utf-8"))


def save_kernel(spec: KernelSpec, folder: Path | str) -> None:
    """Write a kernel as a folder of files."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in to_files(spec).items():
        (folder / name).write_bytes(data)


def load_kernel(folder: Path | str) -> KernelSpec:
    """Read what :func:`save_kernel` wrote; raises :class:`ArtifactError`."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ArtifactError("RF604", f"no stored kernel at {folder}")
    return from_files({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})
