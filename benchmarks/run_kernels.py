"""Check and time stored kernels on a GPU: ``python benchmarks/run_kernels.py FOLDER...``

Each folder was written by :func:`redfuser.artifact.save_kernel`. A ``reference.py`` beside its ``spec.json`` may define
``reference(*inputs)``, which returns the output or a tuple of outputs (float64 is best), and ``inputs(generator)``, which
returns the input tensors; without them inputs are normal and the check is that two calls and a CUDA graph agree.
Needs torch and tvm-ffi; neither TVM, tilelang nor a CUDA compiler. Prints one JSON line per kernel; times are in
microseconds per call. The exit status is 1 when a check failed.
"""

from __future__ import annotations

import argparse
import json
import runpy
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from redfuser.artifact import KernelSpec, load_kernel
from redfuser.runtime import Kernel, launcher
from redfuser.runtime.check import TORCH_DTYPE, inputs_of


def make_inputs(spec: KernelSpec, given: dict[str, Any], device: torch.device) -> list[torch.Tensor]:
    generator = torch.Generator(device=device).manual_seed(0)
    if "inputs" in given:
        return [tensor.to(device) for tensor in given["inputs"](generator)]
    made = []
    for arg in inputs_of(spec):
        dtype = TORCH_DTYPE[arg.dtype]
        if dtype.is_floating_point:
            made.append(torch.randn(arg.shape, device=device, generator=generator).to(dtype))
        else:
            made.append(torch.randint(0, 2, arg.shape, device=device, generator=generator).to(dtype))
    return made


def as_tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def host_time(call: Any, calls: int = 200, rounds: int = 15) -> float:
    times = []
    for _ in range(50):
        call()
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls * 1e6)
    torch.cuda.synchronize()
    return statistics.median(times)


def captured(call: Any, calls: int) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph


def device_time(call: Any, calls: int = 20, rounds: int = 20) -> float:
    """Time of back-to-back launches replayed from a graph: no host time in it."""
    graph, times = captured(call, calls), []
    graph.replay()
    for _ in range(rounds):
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / calls * 1e3)
    return statistics.median(times)


def errors(found: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> list[dict[str, float]]:
    out = []
    for a, b in zip(found, wanted, strict=True):
        difference = (a.double() - b.double()).abs()
        scale = b.double().abs().max().clamp_min(1e-30)
        out.append({"max_error": difference.max().item(), "rms_error": difference.square().mean().sqrt().item(),
                    "relative_to_max": (difference.max() / scale).item()})
    return out


def run(folder: Path, tolerance: float, native: bool) -> tuple[dict[str, Any], bool]:
    spec, device = load_kernel(folder), torch.device("cuda")
    given = runpy.run_path(str(folder / "reference.py")) if (folder / "reference.py").is_file() else {}
    kernel: Kernel = launcher(spec, native_route=native)
    inputs = make_inputs(spec, given, device)
    found = as_tuple(kernel(*inputs))
    torch.cuda.synchronize()
    again = as_tuple(kernel(*inputs))
    static: list[Any] = [None]

    def call() -> None:
        static[0] = as_tuple(kernel(*inputs))

    graph = captured(call, 1)
    for tensor in static[0]:
        tensor.zero_()
    graph.replay()
    torch.cuda.synchronize()
    result: dict[str, Any] = {
        "kernel": spec.name, "arch": spec.arch, "route": kernel.route, "resources": list(spec.resources),
        "repeatable": all(torch.equal(a, b) for a, b in zip(found, again, strict=True)),
        "graph_agrees": all(torch.equal(a, b) for a, b in zip(found, static[0], strict=True)),
        "finite": all(bool(torch.isfinite(a.float()).all()) for a in found)}
    good = result["graph_agrees"]
    if "reference" in given:
        result["errors"] = errors(found, as_tuple(given["reference"](*inputs)))
        good = good and all(entry["relative_to_max"] <= tolerance for entry in result["errors"])
    result.update(host_us=round(host_time(lambda: kernel.call(*inputs)), 2),
                  device_us=round(device_time(lambda: kernel.call(*inputs)), 2), ok=good)
    return result, good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--tolerance", type=float, default=2e-3, help="largest error relative to the reference's maximum")
    parser.add_argument("--ctypes", action="store_true", help="launch without the native library")
    options = parser.parse_args()
    failed = False
    for folder in options.folders:
        try:
            result, good = run(folder, options.tolerance, not options.ctypes)
        except Exception as error:
            result, good = {"kernel": folder.name, "ok": False, "error": f"{type(error).__name__}: {error}"}, False
        failed |= not good
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
