"""The kernel artifact: what a build leaves behind and what the launcher needs, as plain JSON plus binaries.

A :class:`KernelSpec` describes one fused cascade as the outer graph calls it: typed tensor arguments and one or more
launches. It names no compiler; a machine with only torch and the launcher can run it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from redfuser import strict
from redfuser.dtypes import TABLE
from redfuser.errors import ArtifactError, InputError
from redfuser.sizes import Binding, Number, Size, Symbol, numbers

FORMAT = 1
"""Version of a stored kernel's layout; a reader refuses a higher one."""

DTYPES = frozenset({*TABLE, "e4m3fnuz"})
"""dtypes that an argument may have (:data:`redfuser.runtime.check.TORCH_DTYPE` has torch's)."""

_MAX_RANK, _MAX_ELEMENTS, _MAX_NAME, _MAX_TERMS = 16, 1 << 48, 256, 8
_MAX_THREADS, _MAX_SHARED_BYTES = 1024, 1 << 20
_ALIGNMENTS = frozenset(1 << k for k in range(13))
_SUFFIX = {"cuda": "cubin", "hip": "hsaco", "cpu": "so"}


@dataclass(frozen=True, slots=True)
class ArgSpec:
    """A tensor argument. Shapes are ints, or sizes where a kernel has symbols; tensors must be contiguous unless ``strides`` is
    given, and aligned to ``align`` bytes. dtype is a short name as in :mod:`redfuser.acrf.expr`. role ``workspace`` is
    allocated by the launcher through torch; ``out`` arguments are allocated by the launcher and returned in order."""

    name: str
    dtype: str
    shape: tuple[Number, ...]
    role: Literal["in", "out", "workspace"]
    align: int = 16


@dataclass(frozen=True, slots=True)
class TmaSpec:
    """A Hopper tensor-map, in cuTensorMapEncodeTiled's own order and units (strides in bytes, rank-1 of them)."""

    arg: str
    dtype: int
    rank: int
    dims: tuple[Number, ...]
    strides: tuple[Number, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int
    swizzle: int
    l2: int
    oob: int


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """One kernel parameter, in the entry's own order: a pointer to ``arg``, a tensor-map, or the symbol ``arg`` (``int``, of 32
    bits)."""

    kind: Literal["ptr", "tma", "int"]
    arg: str = ""
    tma: TmaSpec | None = None


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One launch. ``binary`` indexes KernelSpec.binaries; units: threads, blocks, bytes. ``waits``: it may start while the one
    before is at work, since it waits for that itself before it reads or writes. What older files call ``early`` did not always,
    and starts behind it."""

    entry: str
    binary: int
    grid: tuple[Number, Number, Number]
    block: tuple[int, int, int]
    shared_bytes: int
    params: tuple[ParamSpec, ...]
    waits: bool = False


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One fused cascade, ready to launch. ``binaries`` are cubin / hsaco (or HIP text, see ``finished``) /
    shared-object bytes; ``kind`` ``cpu`` means binaries[0] is a shared object whose tvm-ffi function ``entry`` takes
    the arguments in order (workspaces last). ``resources`` carries registers, spill bytes and shared memory per launch
    as the build reported them. ``symbols``: what is known when it is called, and the ranges that it was made and
    checked for."""

    name: str
    kind: Literal["cuda", "hip", "cpu"]
    arch: str
    args: tuple[ArgSpec, ...]
    launches: tuple[LaunchSpec, ...]
    binaries: tuple[bytes, ...] = field(repr=False, default=())
    source: str = field(repr=False, default="")
    config: dict[str, Any] = field(default_factory=dict)
    resources: tuple[dict[str, int], ...] = ()
    symbols: tuple[Symbol, ...] = ()

    @property
    def finished(self) -> bool:
        """Is it binaries? A HIP kernel may be text that no ROCm toolchain has compiled yet (``redfuser build``)."""
        return self.kind != "hip" or all(b[:4] == b"\x7fELF" for b in self.binaries)

    def to_json(self) -> dict[str, Any]:
        """Everything but the binaries and the source, which the artifact stores as files of their own."""
        data = asdict(self)
        del data["binaries"], data["source"]
        if not self.symbols:
            del data["symbols"]
        for launch in data["launches"]:
            if not launch["waits"]:
                del launch["waits"]
        return data

    def at(self, binding: Binding) -> KernelSpec:
        """The kernel where its symbols are numbers; its launches still take them. Raises InputError RF519 for a number outside
        its range, and where a launch of such numbers is none."""
        for s in self.symbols:
            if not s.low <= binding[s.name] <= s.high:
                raise InputError("RF519", f"kernel {self.name} takes {s}, got {binding[s.name]}",
                                 why="it was made and checked for these sizes", help="compile for a range that has this one")
        try:
            found = _bound(self, binding)
            if self.kind == "cpu" and self.symbols and any(math.prod(a.shape) >= 1 << 31 for a in found.args):
                raise ValueError("its indices have 32 bits")  # of numbers, the compiler asks that itself
            return found
        except ValueError as error:
            raise InputError("RF519", f"kernel {self.name} has no launch for " +
                             ", ".join(f"{s} = {n}" for s, n in binding.items()), why=str(error)) from error

    @classmethod
    def from_json(cls, data: Any, binaries: tuple[bytes, ...] = (), source: str = "") -> KernelSpec:
        """The inverse of :meth:`to_json`; raises :class:`ArtifactError` RF601 on anything that is not such data."""
        try:
            return replace(strict.read(cls, _as_now(data)), binaries=binaries, source=source)
        except ValueError as error:
            raise ArtifactError("RF601", "a kernel's description is damaged", why=str(error),
                                help="build the kernel again") from error


def _as_now(data: Any) -> Any:
    """The description of an older file without what is not trusted any more."""
    launches = data.get("launches") if isinstance(data, dict) else None
    if not isinstance(launches, list):
        return data
    return {**data, "launches": [{k: v for k, v in x.items() if k != "early"} if isinstance(x, dict) else x for x in launches]}


def _bound(spec: KernelSpec, binding: Binding) -> KernelSpec:
    """Every size a number. Raises ValueError for numbers that no launch has."""
    def param(p: ParamSpec) -> ParamSpec:
        return p if p.tma is None else replace(p, tma=replace(p.tma, dims=numbers(p.tma.dims, binding),
                                                              strides=numbers(p.tma.strides, binding)))

    def launch(of: LaunchSpec) -> LaunchSpec:
        x, y, z = numbers(of.grid, binding)
        return replace(of, grid=(x, y, z), params=tuple(map(param, of.params)))

    args = tuple(replace(a, shape=numbers(a.shape, binding)) for a in spec.args)
    found = replace(spec, symbols=(), args=args, launches=tuple(map(launch, spec.launches)))
    _check_numbers(found, tuple(s.name for s in spec.symbols))
    return found


def _sizes(spec: KernelSpec) -> Iterator[Number]:
    for arg in spec.args:
        yield from arg.shape
    for launch in spec.launches:
        yield from launch.grid
        for param in launch.params:
            yield from (*param.tma.dims, *param.tma.strides) if param.tma is not None else ()


def _check(spec: KernelSpec) -> None:
    """Raise ValueError for a kernel that no build makes: what the launchers take on trust. One with symbols is looked at again
    when they are known."""
    names = [s.name for s in spec.symbols]
    if len(set(names)) != len(names) or len(names) > _MAX_RANK:
        raise ValueError("symbols that no kernel has")
    for size in _sizes(spec):
        if isinstance(size, Size) and not (size.symbols <= set(names) and 1 <= len(size.terms) <= _MAX_TERMS and all(
                1 <= len(t.factors) <= _MAX_TERMS and all(f.over > 0 and f.symbol.isidentifier() for f in t.factors)
                for t in size.terms)):
            raise ValueError("a size that is none of the symbols'")
    if names and spec.kind == "hip":
        raise ValueError("symbols of a kernel that cannot have them")
    for ends in (("low", "high") if names else ("",)):
        _bound(spec, {s.name: getattr(s, ends) for s in spec.symbols})


def _check_numbers(spec: KernelSpec, symbols: tuple[str, ...]) -> None:
    """The same of a kernel whose sizes are numbers."""
    names = [arg.name for arg in spec.args]
    if not spec.name or max(map(len, (spec.name, spec.arch, *names))) > _MAX_NAME:
        raise ValueError("a name that is empty, or longer than any")
    options = spec.config.get("pass_configs", {}), spec.config.get("nvcc_flags", [])
    if not isinstance(options[0], dict) or not isinstance(options[1], list):
        raise ValueError("options of a build that no compiler takes")
    if len(set(names)) != len(names):
        raise ValueError("two arguments have one name")
    for arg in spec.args:
        if arg.dtype not in DTYPES:
            raise ValueError(f"argument {arg.name} is of an unknown dtype")
        if len(arg.shape) > _MAX_RANK or min(arg.shape, default=0) < 0 or math.prod(arg.shape) >= _MAX_ELEMENTS:
            raise ValueError(f"argument {arg.name} has a shape that no tensor has")
        if arg.align not in _ALIGNMENTS:
            raise ValueError(f"argument {arg.name} is aligned to {arg.align} bytes")
    if not spec.launches or (spec.kind == "cpu" and len(spec.launches) != 1):
        raise ValueError(f"{len(spec.launches)} launches")
    for launch in spec.launches:
        whole = (*launch.grid, *launch.block)
        if min(whole) < 1 or max(whole) >= 1 << 31 or math.prod(launch.block) > _MAX_THREADS or \
                not 0 <= launch.shared_bytes <= _MAX_SHARED_BYTES:
            raise ValueError(f"launch {launch.entry} is of a size that no GPU has")
        if not 0 <= launch.binary < len(spec.binaries) or not launch.entry.isidentifier():
            raise ValueError(f"launch {launch.entry} is of a binary that is not there")
        for param in launch.params:
            tma = param.tma
            known = symbols if param.kind == "int" else names
            if param.arg not in known or (param.kind == "tma") != (tma is not None):
                raise ValueError(f"a parameter of launch {launch.entry} is no argument")
            if tma is not None and (not 1 <= tma.rank <= 5 or [len(v) for v in (tma.dims, tma.box, tma.element_strides)] !=
                                    [tma.rank] * 3 or len(tma.strides) != tma.rank - 1 or tma.arg not in names or
                                    min(*tma.dims, *tma.strides, *tma.box, *tma.element_strides) < 0):
                raise ValueError(f"a tensor-map of launch {launch.entry} does not add up")


def to_files(spec: KernelSpec) -> dict[str, bytes]:
    """A kernel as files: ``spec.json`` (with a hash per binary), the binaries and ``source.txt``. The same kernel gives
    the same bytes."""
    suffix = _SUFFIX[spec.kind] if spec.finished else "hip"
    binaries = {f"kernel_{i}.{suffix}": data for i, data in enumerate(spec.binaries)}
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
        version = strict.whole(header["format"], 0, 1 << 31)
        if version > FORMAT:
            raise ArtifactError("RF602", f"stored kernel of format {version}", why=f"this RedFuser reads up to {FORMAT}",
                                help="upgrade RedFuser, or build the kernel again")
        names, hashes = [strict.text(name) for name in strict.items(header["binaries"])], strict.texts(header["sha256"])
        kernel = header["kernel"]
        for name in [*names, "source.txt"]:
            if hashlib.sha256(file(name)).hexdigest() != hashes.get(name):
                raise ArtifactError("RF603", f"{name} of a stored kernel does not match its hash", help="build it again")
        source = files["source.txt"].decode("utf-8")
        spec = KernelSpec.from_json(kernel, tuple(files[name] for name in names), source)
        _check(spec)
        return spec
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError("RF601", "a stored kernel's spec.json is damaged", why=str(error),
                            help="build the kernel again") from error


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
