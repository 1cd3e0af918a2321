"""Kernels for AMD's GPUs: text on any machine, code objects where there is a ROCm toolchain.

TileLang lowers a tile program to HIP without ROCm (:mod:`redfuser.codegen.hip_worker`). What compiles that text is hipcc, or a
clang with ROCm's headers and device libraries, which may be on another machine than the one that compiled the model: a kernel
whose binaries are text yet is complete but for that, goes into a file like any other, and ``redfuser build FILE`` finishes it
(:func:`finish`).
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from redfuser import bounded, sizes
from redfuser.artifact import KernelSpec, from_files
from redfuser.cache import Cache, key_of
from redfuser.codegen import build, hip_worker, reread, sized, worker
from redfuser.codegen.build import Request
from redfuser.codegen.pool import _CODE_OF_STAGE, BuildFailure, worker_environment
from redfuser.codegen.toolchain import Hipcc, find_hipcc
from redfuser.elf import MAX_BYTES, code_object_fault
from redfuser.errors import BuildError, RedFuserError
from redfuser.sizes import Symbol
from redfuser.target import target

LIMIT_S = 300.0
_COUNTS = {"VGPRs": "registers", "AGPRs": "accumulator_registers", "SGPRs": "scalar_registers", "VGPRs Spill": "vector_spills",
           "SGPRs Spill": "scalar_spills", "ScratchSize": "spill_bytes", "LDS Size": "static_shared_bytes"}
"""What the compiler's remarks say of a kernel, by our names; registers are of a lane, sizes in bytes."""


def try_build(request: Request, cache: Cache | None = None, symbols: tuple[Symbol, ...] = ()) -> KernelSpec | BuildFailure:
    """As :func:`redfuser.codegen.build.try_build`: the kernel as text, and finished where hipcc is here. symbols: of a kernel
    of many sizes, as :func:`redfuser.codegen.sized.try_build_sizes` has them."""
    (built,) = try_build_many([request], cache, symbols)
    return built


def try_build_many(requests: Sequence[Request], cache: Cache | None = None,
                   symbols: tuple[Symbol, ...] = ()) -> list[KernelSpec | BuildFailure]:
    """All of ``requests`` in one process of TileLang; answers in order."""
    cache = cache if cache is not None else build._default_cache()
    done = _as_text(requests, cache, symbols)
    try:
        compiler = find_hipcc()
    except BuildError:
        return done
    return [_finished(spec, compiler, cache) for spec in done]


def _as_text(requests: Sequence[Request], cache: Cache, symbols: tuple[Symbol, ...]) -> list[KernelSpec | BuildFailure]:
    keys = [cache_key(r, symbols) for r in requests]
    found: list[KernelSpec | BuildFailure | None] = [_stored(cache, key) for key in keys]
    missing = [i for i, spec in enumerate(found) if spec is None]
    for i, answer in zip(missing, _lowered([requests[i] for i in missing], symbols), strict=True):
        found[i] = made = answer if isinstance(answer, BuildFailure) else _to_spec(requests[i], symbols, answer)
        if isinstance(made, KernelSpec):
            cache.put(keys[i], build._pack(made))
    return [spec for spec in found if spec is not None]


def texts(requests: Sequence[Request], cache: Cache | None = None) -> list[str]:
    """The kernels of each request as HIP, without TileLang's headers; empty for one that does not lower."""
    cache = cache if cache is not None else build._default_cache()
    return ["\n".join(_kernels(t.decode("utf-8")) for t in spec.binaries) if isinstance(spec, KernelSpec) else ""
            for spec in _as_text(requests, cache, ())]


def _kernels(text: str) -> str:
    """From the first kernel on."""
    at = text.find('extern "C" __global__')
    return text[max(0, at):].strip()


def finish(spec: KernelSpec, cache: Cache | None = None) -> KernelSpec:
    """``spec`` with code objects in place of its text. Raises BuildError: RF462 without hipcc, RF453, RF456 and RF460 for what
    it says of the text."""
    if spec.finished:
        return spec
    made = _finished(spec, find_hipcc(), cache if cache is not None else build._default_cache())
    if isinstance(made, BuildFailure):
        raise made.to_error(spec.name)
    return made


def cache_key(request: Request, symbols: tuple[Symbol, ...] = ()) -> str:
    """Everything the text of a kernel depends on."""
    own = [Path(str(m.__file__)).read_bytes() for m in (hip_worker, worker, reread, sized, sizes, sys.modules[__name__])]
    args = [asdict(a) for a in request.args]
    return key_of("hip text", list(map(str, symbols)), build.canonical_source(request.source), args, request.name, request.arch,
                  dict(request.config), build._version("tilelang"), hashlib.sha256(b"".join(own)).hexdigest())


def _stored(cache: Cache, key: str) -> KernelSpec | None:
    packed = cache.get(key)
    if packed is None:
        return None
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            return from_files({name: archive.read(name) for name in archive.namelist()})
    except (zipfile.BadZipFile, KeyError, RedFuserError):
        cache.drop(key)
        return None


def _lowered(requests: list[Request], symbols: tuple[Symbol, ...]) -> list[dict[str, Any] | BuildFailure]:
    if not requests:
        return []
    asked = [{"source": r.source, "arch": r.arch, "pass_configs": build._pass_configs(r.config),
              "shared_limit": target(r.arch).shared_bytes, "symbols": [asdict(s) for s in symbols],
              "declared": {"inputs": [*(a.name for a in r.args if a.role != "out"), *(s.name for s in symbols)],
                           "outputs": [a.name for a in r.args if a.role == "out"]}}
             for r in requests]
    with tempfile.TemporaryDirectory(prefix="redfuser-") as folder:
        question, answer = Path(folder) / "asked.json", Path(folder) / "answer.json"
        question.write_text(json.dumps(asked), encoding="utf-8")
        command = [sys.executable, "-m", "redfuser.codegen.hip_worker", str(question), str(answer)]
        status, log = bounded.run(command, worker_environment(), sum(r.limit_s for r in requests))
        if not answer.is_file():
            stage = "start" if "ModuleNotFoundError" in log else "crash"
            why = "tilelang cannot be imported: pip install 'redfuser[compile]'" if stage == "start" else \
                f"the worker died (status {status})"
            return [BuildFailure(_CODE_OF_STAGE[stage], stage, why, log, r.source) for r in requests]
        said = json.loads(answer.read_text(encoding="utf-8"))
    return [a if a["ok"] else BuildFailure(_CODE_OF_STAGE[a["stage"]], a["stage"], a["error"], a["log"], r.source)
            for a, r in zip(said, requests, strict=True)]


def _to_spec(request: Request, symbols: tuple[Symbol, ...], answer: dict[str, Any]) -> KernelSpec | BuildFailure:
    try:
        spec = KernelSpec.from_json(
            {"name": request.name, "kind": "hip", "arch": request.arch, "config": request.config,
             "args": [asdict(a) for a in request.args], "launches": answer["launches"], "resources": [],
             "symbols": [asdict(s) for s in symbols]}, tuple(t.encode("utf-8") for t in answer["texts"]), request.source)
        static = [spec.at({s.name: getattr(s, end) for s in symbols}) for end in ("low", "high")] if symbols else [spec]
    except RedFuserError as error:
        return BuildFailure("RF457", "metadata", f"{error.what}: {error.why}", "", request.source)
    wrong = sized.unlaunchable(spec, static)
    return BuildFailure("RF457", "metadata", wrong, "", request.source) if wrong else spec


def _finished(spec: KernelSpec | BuildFailure, compiler: Hipcc, cache: Cache) -> KernelSpec | BuildFailure:
    if isinstance(spec, BuildFailure) or spec.finished:
        return spec
    key = key_of("code objects", spec.to_json(), spec.source, [t.decode("utf-8") for t in spec.binaries], compiler.version)
    if (known := _stored(cache, key)) is not None:
        return known
    objects, logs = [], []
    for index, text in enumerate(spec.binaries):
        entries = [x.entry for x in spec.launches if x.binary == index]
        made = _compiled(text, spec.arch, compiler)
        if isinstance(made, BuildFailure):
            return made
        if fault := code_object_fault(made[0], spec.arch, entries):
            return BuildFailure("RF460", "binary", f"{Path(compiler.path).name} left {fault}", made[1], spec.source)
        objects.append(made[0])
        logs.append(made[1])
    said = remarks("\n".join(logs))
    resources = tuple(said.get(x.entry, {}) for x in spec.launches)
    limit = target(spec.arch).shared_bytes
    for launch, r in zip(spec.launches, resources, strict=True):
        if (total := launch.shared_bytes + r.get("static_shared_bytes", 0)) > limit:
            return BuildFailure("RF456", "resources", f"{launch.entry} needs {total} bytes of shared memory, {spec.arch} has "
                                f"{limit}", logs[launch.binary], spec.source)
    done = replace(spec, binaries=tuple(objects), resources=resources)
    cache.put(key, build._pack(done))
    return done


def _compiled(text: bytes, arch: str, compiler: Hipcc) -> tuple[bytes, str] | BuildFailure:
    """The text to a code object; returned with what it says of registers."""
    with tempfile.TemporaryDirectory(prefix="redfuser-") as folder:
        source, out = Path(folder) / "kernel.hip", Path(folder) / "kernel.hsaco"
        source.write_bytes(text)
        command = [compiler.path, *compiler.flags, f"--offload-arch={arch}", "-O3", "-std=c++17", "-w", "-x", "hip",
                   "-Rpass-analysis=kernel-resource-usage", str(source), "-o", str(out)]
        status, log = bounded.run(command, None, LIMIT_S)
        if status or not out.is_file() or not 0 < out.stat().st_size <= MAX_BYTES:
            return BuildFailure("RF453", "nvcc", f"{Path(compiler.path).name} ended with status {status}", log)
        return unbundled(out.read_bytes(), arch), log


def unbundled(data: bytes, arch: str) -> bytes:
    """The code object inside a bundle of clang's, or what is none as it is."""
    magic = b"__CLANG_OFFLOAD_BUNDLE__"
    if not data.startswith(magic):
        return data
    at, count = len(magic) + 8, int.from_bytes(data[len(magic):len(magic) + 8], "little")
    for _ in range(min(count, 64)):
        start, size, length = (int.from_bytes(data[at + 8 * k:at + 8 * k + 8], "little") for k in range(3))
        name = data[at + 24:at + 24 + length].decode("ascii", "replace")
        at += 24 + length
        if name.startswith("hip") and name.partition("--")[2].partition(":")[0] == arch:
            return data[start:start + size]
    return data


def remarks(log: str) -> dict[str, dict[str, int]]:
    """Resources by kernel, from ``-Rpass-analysis=kernel-resource-usage``."""
    found: dict[str, dict[str, int]] = {}
    own: dict[str, int] = {}
    for name, value in re.findall(r"remark:\s+([A-Z][\w ]*?)(?: \[[^\]]*\])?: (\S+)", log):
        if name == "Function Name":
            own = found.setdefault(value, {})
        elif name in _COUNTS and value.isdigit():
            own[_COUNTS[name]] = int(value)
    return found
