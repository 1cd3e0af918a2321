"""The compile worker: ``python -m redfuser.codegen.worker``.

A long-lived process that imports tilelang (never apache-tvm: the two cannot share a process), reads one JSON request per
line from stdin and writes one JSON answer per line to stdout. It needs no GPU. It may crash or hang on a bad candidate:
:mod:`redfuser.codegen.pool` survives both.

Request::

    {"id": 7, "source": "...", "arch": "sm_90a", "pass_configs": {...}, "flags": [...], "nvcc": {...}, "limit_s": 120,
     "shared_limit": 232448, "declared": {"inputs": [...], "outputs": [...]}}

``shared_limit`` (bytes) and ``declared`` (names of the tensors; workspaces are inputs) may be null: no such check.
``source`` is a module that defines ``make()``, returning one prim_func, or a list or dict of them in launch order.

Answer: ``{"id": 7, "ok": true, "launches": [...], "cubins": [base64...], "cuda": [text...], "log": "...", "seconds":
{...}}`` or ``{"id": 7, "ok": false, "stage": "source" | "lower" | "metadata" |
"resources" | "nvcc" | "binary" | "waits" | "crash", "error": "...", "log": "..."}``.
Each launch holds ``entry, binary, grid, block, shared_bytes, params, resources``; units are blocks, threads and bytes.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

from redfuser import bounded
from redfuser.codegen.machine_code import lost_wait
from redfuser.codegen.overlap import WAIT, overlapped
from redfuser.codegen.ptxas import parse_resources
from redfuser.codegen.reread import reread
from redfuser.elf import MAX_BYTES, cubin_fault

_TMA_TILED = "__tvm_tensormap_create_tiled"
_PACKS = "__pack_bfloat162(", "__pack_nv_bfloat162("
"""How TileLang 0.1.15 packs two bfloat16 numbers that it gathers, and the name that its headers for CUDA have."""


class StageError(Exception):
    """A candidate failed at ``stage``; ``log`` is what the compiler said."""

    def __init__(self, stage: str, message: str, log: str = "") -> None:
        super().__init__(message)
        self.stage, self.log = stage, log


def load_prim_funcs(source: str, folder: Path) -> list[Any]:
    """Execute the generated module from a real file (its decorator reads the source back) and call its ``make()``."""
    path = folder / "kernel.py"
    path.write_text(source, encoding="utf-8")
    name = f"redfuser_generated_{folder.name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        made = module.make()
    except Exception as error:
        raise StageError("source", f"{type(error).__name__}: {error}", traceback.format_exc()) from error
    if isinstance(made, dict):
        made = list(made.values())
    return list(made) if isinstance(made, (list, tuple)) else [made]


def lower(func: Any, arch: str, pass_configs: dict[str, Any]) -> Any:
    """TileLang's lowering for an explicit target, which works without a GPU and without nvcc."""
    import tilelang
    from tilelang import tvm
    from tilelang.backend.target import determine_target

    target = determine_target({"kind": "cuda", "arch": arch}, return_object=True)
    try:
        with tvm.transform.PassContext(opt_level=3, config=pass_configs), target:
            return tilelang.lower(func, target=target)
    except Exception as error:
        raise StageError("lower", f"{type(error).__name__}: {error}", traceback.format_exc()) from error


def _static(value: Any, what: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise StageError("metadata", f"{what} is not a static integer: {value}") from error


def _tensor_maps(host_mod: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Tensor-map parameters of all launches of a prim_func, by descriptor, in the order of cuTensorMapEncodeTiled. Those of one
    tensor (tiles of two shapes) have one name."""
    maps: list[tuple[Any, dict[str, Any]]] = []
    for func in host_mod.functions.values():
        described = func.attrs.get("tma_descriptor_args") if func.attrs else None
        for key, args in (described.items() if described is not None else ()):
            kind = str(args[0]).strip('"')
            if kind != _TMA_TILED:
                raise StageError("metadata", f"tensor-map of kind {kind} is not supported by the launcher")
            dtype, rank, data = _static(args[2], "dtype"), _static(args[3], "rank"), args[4]
            rest = [_static(v, "tensor-map field") for v in list(args)[5:]]
            dims, strides, box, element = (rest[i * rank:(i + 1) * rank] for i in range(4))
            interleave, swizzle, l2, oob = rest[4 * rank:4 * rank + 4]
            maps.append((key, {
                "arg": str(data.name), "dtype": dtype, "rank": rank, "dims": dims, "strides": strides[1:], "box": box,
                "element_strides": element, "interleave": interleave, "swizzle": swizzle, "l2": l2, "oob": oob}))
    return maps


def _passed(host_mod: Any, entry: str) -> list[Any]:
    """What the host passes to a device function: its own descriptors, where the device function's have other names."""
    from tilelang import tvm

    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tvm.tirx.Call) and len(node.args) and isinstance(node.args[0], tvm.tirx.StringImm) \
                and str(node.args[0].value) == entry:
            found[:] = node.args[1:]

    for func in host_mod.functions.values():
        tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    return found


def _described(maps: list[tuple[Any, dict[str, Any]]], name: str, host_mod: Any, entry: str, at: int) -> dict[str, Any] | None:
    """The tensor map that a device function's parameter number ``at`` is; None for a parameter that is none."""
    named = [m for key, m in maps if str(key.name) == name]
    if len(maps) == len({str(key.name) for key, _ in maps}):
        return named[0] if named else None
    passed = _passed(host_mod, entry)
    return next((m for key, m in maps if at < len(passed) and key.same_as(passed[at])), named[0] if len(named) == 1 else None)


def _launch_order(functions: Any) -> list[Any]:
    """A prim_func with several ``T.Kernel`` blocks gives ``main_kernel``, ``main_kernel_1``, ... in launch order."""
    def position(func: Any) -> int:
        found = re.search(r"_kernel_(\d+)$", str(func.attrs["global_symbol"]))
        return int(found.group(1)) if found else 0
    return sorted(functions, key=position)


def describe(artifact: Any, binary: int) -> list[dict[str, Any]]:
    """Launch data of every device function of one lowered prim_func."""
    maps = _tensor_maps(artifact.host_mod)
    launches = []
    for func in _launch_order(list(artifact.device_mod.functions.values())):
        extent = {str(k): v for k, v in func.attrs["thread_extent"].items()}

        def dims(kind: str, extent: dict[str, Any] = extent) -> list[int]:
            return [_static(extent.get(f"{kind}.{axis}", 1), f"{kind}.{axis}") for axis in "xyz"]

        params = []
        for at, param in enumerate(func.params):
            name = str(param.name)
            if (tma := _described(maps, name, artifact.host_mod, str(func.attrs["global_symbol"]), at)) is not None:
                params.append({"kind": "tma", "arg": tma["arg"], "tma": tma})
            elif str(param.dtype) == "handle":
                params.append({"kind": "ptr", "arg": name, "tma": None})
            else:
                raise StageError("metadata", f"kernel parameter {name}: {param.dtype} is not a tensor; symbolic "
                                 "dimensions are not supported")
        shared = func.attrs.get("dyn_shared_memory_buf")
        launches.append({"entry": str(func.attrs["global_symbol"]), "binary": binary, "grid": dims("blockIdx"),
                         "block": dims("threadIdx"), "shared_bytes": 0 if shared is None else _static(shared, "shared"),
                         "params": params})
    return launches


def check_parameters(described: list[list[dict[str, Any]]], inputs: list[str], outputs: list[str]) -> None:
    """Kernels take the declared arguments and write every output."""
    used = {param["arg"] for group in described for launch in group for param in launch["params"]}
    if used - {*inputs, *outputs}:
        raise StageError("metadata", f"the kernel has parameters {sorted(used - {*inputs, *outputs})} that are not "
                         f"declared; declared: {sorted({*inputs, *outputs})}")
    if set(outputs) - used:
        raise StageError("metadata", f"outputs {sorted(set(outputs) - used)} are never passed to a kernel")


def compile_cuda(text: str, request: dict[str, Any], folder: Path, index: int) -> tuple[bytes, str]:
    """nvcc to cubin; returns it with ptxas' report."""
    from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

    number = request["arch"].removeprefix("sm_")
    source, cubin = folder / f"kernel_{index}.cu", folder / f"kernel_{index}.cubin"
    source.write_text(text, encoding="utf-8")
    nvcc, configs = request["nvcc"], request["pass_configs"]
    command = [nvcc["path"], "--cubin", "-O3", "-std=c++20", "-w", "-Xptxas", "-v", "-gencode",
               f"arch=compute_{number},code=sm_{number}", f"-I{TILELANG_TEMPLATE_PATH}", f"-I{CUTLASS_INCLUDE_DIR}",
               *(f"-I{path}" for path in nvcc["includes"])]
    level = configs.get("tl.ptxas_register_usage_level")
    if level is not None:
        command += ["-Xptxas", f"--register-usage-level={int(level)}"]
    command += [*request.get("flags", ()), str(source), "-o", str(cubin)]
    status, log = bounded.run(command, {**os.environ, **nvcc["environment"]})
    if status < 0 or 128 < status < 192 or "died due to signal" in log:  # killed, or fell over itself: not the kernel's fault
        raise StageError("crash", f"nvcc was ended by a signal (status {status})", log)
    if status != 0:
        raise StageError("nvcc", f"nvcc ended with status {status}", log)
    size = cubin.stat().st_size if cubin.is_file() else 0
    if not 0 < size <= MAX_BYTES:
        raise StageError("binary", f"nvcc ended with status 0 and left {size} bytes", log)
    return cubin.read_bytes(), log


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """One request to one answer. Raises nothing but what ends a process."""
    seconds = {"lower": 0.0, "nvcc": 0.0}
    launches: list[dict[str, Any]] = []
    cubins, texts, logs = [], [], []
    with tempfile.TemporaryDirectory(prefix="redfuser-") as temporary:
        folder = Path(temporary)
        try:
            clock = time.perf_counter()
            lowered = [lower(func, request["arch"], request["pass_configs"])
                       for func in load_prim_funcs(request["source"], folder)]
            seconds["lower"] = time.perf_counter() - clock
            if not lowered:
                raise StageError("source", "make() returned no prim_func")
            described = [describe(artifact, index) for index, artifact in enumerate(lowered)]
            if request.get("declared") is not None:
                check_parameters(described, **request["declared"])
            limit = request.get("shared_limit")
            for launch in (entry for group in described for entry in group):
                if limit is not None and launch["shared_bytes"] > limit:  # known before nvcc runs: save its time
                    raise StageError("resources", f"{launch['entry']} needs {launch['shared_bytes']} bytes of shared "
                                     f"memory, {request['arch']} has {limit}")
            clock = time.perf_counter()
            for index, artifact in enumerate(lowered):
                text = reread(str(artifact.kernel_source).replace(*_PACKS))
                text = overlapped(text, request["arch"], index == 0, index == len(lowered) - 1)
                cubin, log = compile_cuda(text, request, folder, index)
                if fault := cubin_fault(cubin, request["arch"], [launch["entry"] for launch in described[index]]):
                    raise StageError("binary", f"nvcc ended with status 0 and left {fault}", log)
                if request["nvcc"].get("disassembler"):
                    lost, hindered = lost_wait(cubin, request["nvcc"]["disassembler"], WAIT in text)
                    if lost:
                        raise StageError("waits", lost, log)
                    log += hindered
                resources = parse_resources(log)
                for launch in described[index]:
                    launches.append({**launch, "waits": WAIT in text, "resources": resources.get(launch["entry"], {})})
                cubins.append(base64.b64encode(cubin).decode("ascii"))
                texts.append(text)
                logs.append(log)
            seconds["nvcc"] = time.perf_counter() - clock
        except StageError as error:
            return {"id": request["id"], "ok": False, "stage": error.stage, "error": bounded.cut(str(error)),
                    "log": bounded.cut(error.log)}
    return {"id": request["id"], "ok": True, "launches": launches, "cubins": cubins, "cuda": texts,
            "log": "\n".join(logs), "seconds": seconds}


def _follow_parent(parent: int) -> None:
    """End with the parent, also in the middle of a job."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(os.getpgid(0), signal.SIGKILL) if os.getpgid(0) == os.getpid() else os._exit(1)


def _private_stdout() -> TextIO:
    """Keep the protocol's channel to ourselves: whatever a library prints goes to stderr."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    return channel


def main() -> int:
    channel = _private_stdout()
    threading.Thread(target=_follow_parent, args=(os.getppid(),), daemon=True).start()
    os.environ["TILELANG_PRINT_ON_COMPILATION"] = "0"
    try:
        import tilelang
    except Exception as error:
        channel.write(json.dumps({"ready": False, "error": f"{type(error).__name__}: {error}"}) + "\n")
        return 1
    channel.write(json.dumps({"ready": True, "tilelang": str(tilelang.__version__)}) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        # The default action of SIGALRM ends the process even inside native code: a backstop to the pool's own limit.
        signal.alarm(int(request.get("limit_s", 600)) + 10)
        try:
            answer = handle(request)
        except Exception as error:  # our own fault, e.g. metadata of a new TileLang release: still an answer
            answer = {"id": request["id"], "ok": False, "stage": "metadata", "error": f"{type(error).__name__}: {error}",
                      "log": traceback.format_exc()}
        signal.alarm(0)
        channel.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
