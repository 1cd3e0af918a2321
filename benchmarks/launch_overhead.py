"""Host time of one kernel call, on a GPU: ``python benchmarks/launch_overhead.py FOLDER``

FOLDER holds a stored kernel (:func:`redfuser.artifact.save_kernel`), best a small one, so that the queue never fills.
Prints microseconds per call of each way to call it, and of the parts: what torch's allocation and what an empty launch
through torch cost, so that our own share is visible. The budget (architecture.md section 9): at most 6 in all, at most 2
of them ours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from redfuser.artifact import load_kernel
from redfuser.runtime import launcher, ops
from redfuser.runtime.check import TORCH_DTYPE, inputs_of


def measure(call: Callable[[], Any], calls: int = 200, rounds: int = 25) -> dict[str, float]:
    for _ in range(50):
        call()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls * 1e6)
    torch.cuda.synchronize()
    return {"median_us": round(statistics.median(times), 2), "best_us": round(min(times), 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    spec = load_kernel(parser.parse_args().folder)
    device = torch.device("cuda", torch.cuda.current_device())
    inputs = [torch.zeros(arg.shape, dtype=TORCH_DTYPE[arg.dtype], device=device) for arg in inputs_of(spec)]
    native, slow = launcher(spec), launcher(spec, native_route=False)
    outputs = native(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    everything = [*inputs, *outputs]
    call, into, op = native.call, native.into, ops.register(spec)
    out, small, other = outputs[0], torch.zeros(64, device=device), torch.zeros(64, device=device)
    with torch.no_grad():
        rows = {
            f"kernel.call ({native.route})": measure(lambda: call(*inputs)),
            f"kernel.into, outputs given ({native.route})": measure(lambda: into(*everything)),
            "torch.ops op": measure(lambda: op(*inputs)),
            "kernel.call (ctypes)": measure(lambda: slow.call(*inputs)),
            "torch.empty for one output": measure(lambda: torch.empty(out.shape, dtype=out.dtype, device=device)),
            "torch.empty_like": measure(lambda: torch.empty_like(out)),
            "torch.add(out=), one small launch": measure(lambda: torch.add(small, small, out=other)),
        }
    report = {"kernel": spec.name, "launches": len(spec.launches), "tensors": len(everything),
              "device": torch.cuda.get_device_name(), "torch": torch.__version__, "host_us_per_call": rows}
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
