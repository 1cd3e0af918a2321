"""From generated TileLang source to a :class:`~redfuser.artifact.KernelSpec`, through the worker pool and the cache.

``build`` raises; ``try_build`` and ``build_many`` return a :class:`~redfuser.codegen.pool.BuildFailure` for a candidate
that does not build, which is what a tuner wants. What was built is looked at (:mod:`redfuser.elf`) before it is stored and
when it is read; what would fail again is remembered as a failure, under the same key.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import logging
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from redfuser.artifact import FORMAT, ArgSpec, KernelSpec, LaunchSpec, from_files, to_files
from redfuser.cache import Cache, key_of
from redfuser.codegen.pool import BuildFailure, Built, Job, Pool, default_pool
from redfuser.codegen.toolchain import find_nvcc
from redfuser.elf import cubin_fault
from redfuser.errors import ArtifactError, BuildError
from redfuser.target import TARGETS

logger = logging.getLogger("redfuser.codegen")

SHARED_LIMIT = {name: machine.shared_bytes for name, machine in TARGETS.items() if machine.kind == "cuda"}
"""Most shared memory one block may use, static and dynamic together, in bytes. The keys are the architectures this module
builds for; Hopper needs the ``a``: sm_90 has no setmaxnreg."""


@dataclass(frozen=True, slots=True)
class Request:
    """One kernel to build. ``source`` defines ``make()``, which returns one prim_func, or a list or dict of them in
    launch order; their parameters are named as ``args``. ``config`` is what tuning decided; it is recorded and its
    ``pass_configs`` and ``nvcc_flags``, where present, go to the compilers."""

    source: str
    args: tuple[ArgSpec, ...]
    name: str
    arch: str
    config: Mapping[str, Any] = field(default_factory=dict)
    limit_s: float = 120.0


def build(source: str, args: tuple[ArgSpec, ...], name: str, arch: str, config: Mapping[str, Any] | None = None, *,
          limit_s: float = 120.0, pool: Pool | None = None, cache: Cache | None = None) -> KernelSpec:
    """Build one kernel for ``arch`` (a CUDA one of :data:`redfuser.target.TARGETS`); no GPU is needed.

    Raises :class:`~redfuser.errors.BuildError`: RF450 without nvcc, RF459 for another architecture, RF451 to RF463 when
    the kernel does not build (the error's ``.failure`` has the log and the source).
    """
    built = try_build(Request(source, args, name, arch, config or {}, limit_s), pool=pool, cache=cache)
    if isinstance(built, BuildFailure):
        raise built.to_error(name)
    return built


def try_build(request: Request, *, pool: Pool | None = None, cache: Cache | None = None) -> KernelSpec | BuildFailure:
    """As :func:`build`, with a failed candidate as a value. A failure that is :attr:`BuildFailure.lasting` is remembered;
    others are not: a machine may have been short of time or memory."""
    if request.arch not in SHARED_LIMIT:
        raise BuildError("RF459", f"cannot build for {request.arch!r}", why=f"built for: {', '.join(SHARED_LIMIT)}",
                         help="sm_90a is Hopper's name here; sm_90 lacks the warp-specialisation instructions")
    cache = cache if cache is not None else _default_cache()
    key = cache_key(request)
    found = _from_cache(cache, key) or _remembered(cache, key, request)
    if found is not None:
        return found
    with cache.lock(key):
        found = _from_cache(cache, key) or _remembered(cache, key, request)
        if found is not None:
            return found
        built = (pool if pool is not None else default_pool()).compile(_job(request))
        result = built if isinstance(built, BuildFailure) else _to_spec(request, built)
        if isinstance(result, KernelSpec):
            cache.put(key, _pack(result))
            logger.info("built %s for %s: %s", request.name, request.arch, "; ".join(
                f"{r.get('registers', 0)} registers, {r.get('spill_bytes', 0)} B spilled, {launch.shared_bytes} B shared"
                for launch, r in zip(result.launches, result.resources, strict=True)))
        else:
            logger.info("%s %s for %s did not build: %s", result.code, request.name, request.arch, result.message)
            if result.lasting:
                stored = {"code": result.code, "stage": result.stage, "message": result.message, "log": result.log[-_LOG:]}
                cache.put(key_of("failed", key), json.dumps(stored).encode())
        return result


_LOG = 1 << 14
"""Characters of a failed build's log that are remembered."""


def _remembered(cache: Cache, key: str, request: Request) -> BuildFailure | None:
    """An earlier failure of the same build."""
    stored = cache.get(key_of("failed", key))
    if stored is None:
        return None
    try:
        found = json.loads(stored)
        code, stage, message, log = (str(found[name]) for name in ("code", "stage", "message", "log"))
        return BuildFailure(code, stage, message, log, request.source)
    except (ValueError, KeyError, TypeError):
        cache.drop(key_of("failed", key))
        return None


def build_many(requests: Sequence[Request], *, pool: Pool | None = None,
               cache: Cache | None = None) -> list[KernelSpec | BuildFailure]:
    """Build in parallel, one job per worker; answers in order."""
    from concurrent.futures import ThreadPoolExecutor

    pool = pool if pool is not None else default_pool()
    with ThreadPoolExecutor(max(1, min(pool.size, len(requests)))) as threads:
        return list(threads.map(lambda request: try_build(request, pool=pool, cache=cache), requests))


@functools.lru_cache(maxsize=1)
def _cache_at(_root: str) -> Cache:
    return Cache(_root)


def _default_cache() -> Cache:
    from redfuser.cache import default_root

    return _cache_at(str(default_root()))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def canonical_source(source: str) -> str:
    """The text that decides the kernel: comments at line ends stay (they cost nothing), trailing blanks do not."""
    return "\n".join(line.rstrip() for line in source.strip().splitlines()) + "\n"


def cache_key(request: Request) -> str:
    """Everything the KernelSpec depends on: text, arguments, architecture, configuration, compiler versions; and whether its
    machine code is looked at."""
    return key_of("kernel", FORMAT, canonical_source(request.source), [asdict(arg) for arg in request.args],
                  request.name, request.arch, dict(request.config), _pass_configs(request.config),
                  _version("tilelang"), _version("apache-tvm-ffi"), find_nvcc().version, bool(find_nvcc().disassembler),
                  _own_text())


@functools.lru_cache(maxsize=1)
def _own_text() -> str:
    """A digest of our own part in a build: how the worker calls the compilers and reads what they made."""
    digest = hashlib.sha256()
    for name in ("worker.py", "overlap.py", "reread.py", "ptxas.py", "build.py", "machine_code.py"):
        with contextlib.suppress(OSError):
            digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()


def _pass_configs(config: Mapping[str, Any]) -> dict[str, Any]:
    return dict(config.get("pass_configs", {}))


def _job(request: Request) -> Job:
    outputs = tuple(arg.name for arg in request.args if arg.role == "out")
    others = tuple(arg.name for arg in request.args if arg.role != "out")
    return Job(request.source, request.arch, _pass_configs(request.config), tuple(request.config.get("nvcc_flags", ())),
               SHARED_LIMIT[request.arch], (others, outputs), request.limit_s)


def _to_spec(request: Request, built: Built) -> KernelSpec | BuildFailure:
    def refuse(code: str, stage: str, message: str) -> BuildFailure:
        return BuildFailure(code, stage, message, built.log, request.source)

    draft = KernelSpec.from_json({"name": request.name, "kind": "cuda", "arch": request.arch, "config": request.config,
                                  "args": [asdict(arg) for arg in request.args], "launches": built.launches,
                                  "resources": [entry["resources"] for entry in built.launches]})
    for launch, resources in zip(draft.launches, draft.resources, strict=True):
        total, limit = launch.shared_bytes + resources.get("static_shared_bytes", 0), SHARED_LIMIT[request.arch]
        if total > limit:
            return refuse("RF456", "resources", f"{launch.entry} needs {total} bytes of shared memory, {request.arch} "
                          f"has {limit}")
        if not _launchable(launch):
            return refuse("RF457", "metadata", f"{launch.entry} has an impossible launch: grid {launch.grid}, block "
                          f"{launch.block}")
    if request.config.get("schedule", "auto") != "auto" and (slow := _slowed(draft, built.log)):
        return refuse("RF461", "resources", slow)
    spec = replace(draft, binaries=built.cubins, source=request.source)
    fault = _fault(spec)
    return refuse("RF460", "binary", fault) if fault else spec


def _slowed(spec: KernelSpec, log: str) -> str:
    """What ptxas did to a kernel whose waits are written by hand, so that they no longer wait for what they say: values in
    memory, or products one after another. Such a candidate is no better than TileLang's own pipeline."""
    spilled = max((r.get("spill_bytes", 0) for r in spec.resources), default=0)
    if spilled:
        return f"{spilled} bytes of registers are kept in memory"
    said = re.search(r"\((C\d+)\)[^\n]*wgmma\.mma_async instructions are serialized", log)
    return f"ptxas runs its products one after another ({said[1]})" if said else ""


def _fault(spec: KernelSpec) -> str:
    """Why the binaries are not the kernels that the launches name; empty when they are."""
    for index, binary in enumerate(spec.binaries):
        if fault := cubin_fault(binary, spec.arch, [launch.entry for launch in spec.launches if launch.binary == index]):
            return f"the compiler's output is {fault}"
    if any(not 0 <= launch.binary < len(spec.binaries) for launch in spec.launches) or not spec.launches:
        return "the compiler's output has no binary for a launch"
    return ""


def _launchable(launch: LaunchSpec) -> bool:
    """CUDA's own limits on grid and block."""
    x, y, z = launch.block
    return all(v > 0 for v in (*launch.grid, *launch.block)) and x * y * z <= 1024 and z <= 64 and \
        launch.grid[0] < 1 << 31 and launch.grid[1] < 1 << 16 and launch.grid[2] < 1 << 16


def _pack(spec: KernelSpec) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in to_files(spec).items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


def _from_cache(cache: Cache, key: str) -> KernelSpec | None:
    packed = cache.get(key)
    if packed is None:
        return None
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            spec = from_files({name: archive.read(name) for name in archive.namelist()})
        if not _fault(spec):
            return spec
        cache.drop(key)
        return None
    except (zipfile.BadZipFile, KeyError, ArtifactError):
        cache.drop(key)
        return None
