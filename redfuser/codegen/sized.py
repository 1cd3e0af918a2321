"""Kernels of many sizes, built: one binary, and its launch data as sizes of the kernel's symbols.

TileLang gives launch data as expressions of the variables that the text calls ``T.dynamic``. They are evaluated at numbers of
these and merged (:mod:`redfuser.sizes`), and what was merged is held against them at others, multiples of tiles among these.
A build has a process of its own, which is this module run as a program: the worker with another reading of launch data. What
it makes is kept like any other kernel.
"""

from __future__ import annotations

import hashlib
import json
import operator
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from redfuser import bounded, sizes
from redfuser.artifact import KernelSpec
from redfuser.cache import Cache, key_of
from redfuser.codegen import build, worker
from redfuser.codegen.pool import BuildFailure, Built, _read, worker_environment
from redfuser.codegen.toolchain import find_nvcc
from redfuser.errors import RedFuserError
from redfuser.fitted import merged, samples
from redfuser.sizes import Binding, Symbol

OTHERS = (1, 2, 3, 7, 8, 16, 31, 64, 127, 128, 192, 256, 384, 500, 512, 640, 1000, 1024, 4096)
"""Numbers at which merged launch data are held against TileLang's own."""
_READ = worker.describe
_BINARY: dict[str, Callable[[int, int], int]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "FloorDiv": operator.floordiv, "FloorMod": operator.mod,
    "Div": lambda a, b: int(a / b), "Min": min, "Max": max}
_CALLS: dict[str, Callable[[int, int], int]] = {"tirx.shift_right": operator.rshift, "tirx.shift_left": operator.lshift,
                                                "tirx.bitwise_and": operator.and_}


def evaluated(e: Any, binding: Binding) -> int:
    """An expression of TVM's where its variables are known."""
    kind = type(e).__name__
    if isinstance(e, int) or kind == "IntImm":
        return int(e)
    if kind == "Var" and str(e.name) in binding:
        return binding[str(e.name)]
    if kind == "Cast":
        return evaluated(e.value, binding)
    if kind in _BINARY:
        return _BINARY[kind](evaluated(e.a, binding), evaluated(e.b, binding))
    if kind == "Call" and str(e.op.name) in _CALLS:
        return _CALLS[str(e.op.name)](*(evaluated(a, binding) for a in e.args))
    raise worker.StageError("metadata", f"launch data have the expression {e}, which is no number of the symbols")


def describe(artifact: Any, binary: int, symbols: tuple[Symbol, ...]) -> list[dict[str, Any]]:
    """Launch data of every device function of one lowered prim_func, as sizes of the symbols."""
    found = samples(symbols)
    launches = merged([_described(artifact, binary, b) for b in found], found)
    for n in OTHERS:
        at = {s.name: n + k for k, s in enumerate(symbols)}
        if _numbers(launches, at) != _described(artifact, binary, at):
            raise worker.StageError("metadata", f"the launch of {n} is not that of other numbers")
    return [_plain(launch) for launch in launches]


def _described(artifact: Any, binary: int, binding: Binding) -> list[dict[str, Any]]:
    """What the worker reads of launch data in which every variable is a number; a variable that is passed is a parameter."""
    def device(func: Any) -> Any:
        extent = {str(k): evaluated(v, binding) for k, v in func.attrs["thread_extent"].items()}
        attrs = {"global_symbol": func.attrs["global_symbol"], "thread_extent": extent,
                 "dyn_shared_memory_buf": func.attrs.get("dyn_shared_memory_buf")}
        params = [SimpleNamespace(name=p.name, dtype="handle") if str(p.name) in binding else p for p in func.params]
        return SimpleNamespace(attrs=attrs, params=params)

    def host(func: Any) -> Any:
        maps = func.attrs.get("tma_descriptor_args") if func.attrs else None
        known = {key: [*list(args)[:5], *(evaluated(v, binding) for v in list(args)[5:])] for key, args in maps.items()} \
            if maps is not None else None
        return SimpleNamespace(attrs={"tma_descriptor_args": known}, body=func.body)

    def module(of: Any, read: Callable[[Any], Any]) -> Any:
        return SimpleNamespace(functions={k: read(f) for k, f in of.functions.items()})

    launches = _READ(SimpleNamespace(host_mod=module(artifact.host_mod, host),
                                     device_mod=module(artifact.device_mod, device)), binary)
    for launch in launches:
        for param in launch["params"]:
            param["kind"] = "int" if param["arg"] in binding else param["kind"]
    return launches


def _numbers(x: Any, binding: Binding) -> Any:
    if isinstance(x, sizes.Size):
        return x.at(binding)
    if isinstance(x, dict):
        return {k: _numbers(v, binding) for k, v in x.items()}
    return [_numbers(v, binding) for v in x] if isinstance(x, list) else x


def _plain(x: Any) -> Any:
    """As JSON."""
    if isinstance(x, sizes.Size):
        return asdict(x)
    if isinstance(x, dict):
        return {k: _plain(v) for k, v in x.items()}
    return [_plain(v) for v in x] if isinstance(x, list) else x


# -- the side that asks ------------------------------------------------------------------------------------------------


def try_build_sizes(request: build.Request, symbols: tuple[Symbol, ...],
                    cache: Cache | None = None) -> KernelSpec | BuildFailure:
    """As :func:`redfuser.codegen.build.try_build`, of a kernel with symbols."""
    cache = cache if cache is not None else Cache()
    own = hashlib.sha256(b"".join(Path(str(m.__file__)).read_bytes() for m in (sizes, sys.modules[__name__]))).hexdigest()
    key = key_of("sized kernel", build.cache_key(request), list(map(str, symbols)), own)
    with cache.lock(key):
        found = build._from_cache(cache, key)
        if found is not None:
            return found
        built = _compiled(build._job(request), symbols)
        result = built if isinstance(built, BuildFailure) else _to_spec(request, symbols, built)
        if isinstance(result, KernelSpec):
            cache.put(key, build._pack(result))
        return result


def _compiled(job: Any, symbols: tuple[Symbol, ...]) -> Built | BuildFailure:
    nvcc = find_nvcc()
    with tempfile.TemporaryDirectory(prefix="redfuser-") as folder:
        asked, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        declared = {"inputs": [*job.declared[0], *(s.name for s in symbols)], "outputs": list(job.declared[1])}
        asked.write_text(json.dumps({
            "id": 0, "source": job.source, "arch": job.arch, "flags": list(job.flags), "pass_configs": dict(job.pass_configs),
            "nvcc": {**asdict(nvcc), "environment": nvcc.environment}, "shared_limit": job.shared_limit, "declared": declared,
            "symbols": [asdict(s) for s in symbols]}), encoding="utf-8")
        command = [sys.executable, "-m", "redfuser.codegen.sized", str(asked), str(answer)]
        status, log = bounded.run(command, worker_environment(), job.limit_s)
        if not answer.is_file():
            return BuildFailure("RF455", "crash", f"the worker died (status {status})", log, job.source)
        return _read(json.loads(answer.read_text(encoding="utf-8")), job)


def _to_spec(request: build.Request, symbols: tuple[Symbol, ...], built: Built) -> KernelSpec | BuildFailure:
    ends = [{s.name: getattr(s, end) for s in symbols} for end in ("low", "high")]
    try:
        spec = KernelSpec.from_json({
            "name": request.name, "kind": "cuda", "arch": request.arch, "config": request.config,
            "args": [asdict(a) for a in request.args], "launches": built.launches, "symbols": [asdict(s) for s in symbols],
            "resources": [entry["resources"] for entry in built.launches]}, built.cubins, request.source)
        static = [spec.at(b) for b in ends]
    except RedFuserError as error:
        return BuildFailure("RF457", "metadata", f"{error.what}: {error.why}", built.log, request.source)
    if wrong := unlaunchable(spec, static):
        return BuildFailure("RF457", "metadata", wrong, built.log, request.source)
    if request.config.get("schedule", "auto") != "auto" and (slow := build._slowed(spec, built.log)):
        return BuildFailure("RF461", "resources", slow, built.log, request.source)
    fault = build._fault(spec)
    return BuildFailure("RF460", "binary", fault, built.log, request.source) if fault else spec


def unlaunchable(spec: KernelSpec, static: list[KernelSpec]) -> str:
    """Why some size has no launch; a tensor map's rows must be whole 16 bytes for every number."""
    for launch in (launch for s in static for launch in s.launches):
        if not build._launchable(launch):
            return f"{launch.entry} has an impossible launch: grid {launch.grid}, block {launch.block}"
    for stride in (n for launch in spec.launches for p in launch.params if p.tma is not None for n in p.tma.strides):
        steps = [stride.plus, *(t.times for t in stride.terms)] if isinstance(stride, sizes.Size) else [stride]
        if any(step % 16 for step in steps):
            return f"rows of {stride} bytes, which the copy engine cannot move for every size"
    return ""


def main(asked: str, answer: str) -> None:
    request: Mapping[str, Any] = json.loads(Path(asked).read_text(encoding="utf-8"))
    symbols = tuple(Symbol(**s) for s in request["symbols"])
    worker.describe = lambda artifact, binary: describe(artifact, binary, symbols)  # in this process, which does nothing else
    try:
        found = worker.handle(dict(request))
    except ValueError as error:  # launch data that are no sizes
        found = {"id": request["id"], "ok": False, "stage": "metadata", "error": str(error), "log": ""}
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
