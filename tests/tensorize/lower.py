"""Lower printed kernels with TileLang, no GPU and no nvcc: a script, in a process of its own.

    python lower.py ARCH MODULE.py ...      prints a line per kernel: name, threads, bytes of shared memory; and another: name,
                                            questions whether an index is negative
"""

import importlib.util
import os
import sys

os.environ.setdefault("TILELANG_PRINT_ON_COMPILATION", "0")

import tilelang
from tilelang import tvm
from tilelang.backend.target import determine_target


def main(arch, paths):
    target = determine_target({"kind": "cuda", "arch": arch}, return_object=True)
    for path in paths:
        spec = importlib.util.spec_from_file_location("generated", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for func in module.make():
            with tvm.transform.PassContext(opt_level=3, config=module.PASS_CONFIGS), target:
                artifact = tilelang.lower(func, target=target)
            (device,) = artifact.device_mod.functions.values()
            threads = {str(k): int(v) for k, v in device.attrs["thread_extent"].items()}["threadIdx.x"]
            print(f"GUARDED {func.attrs['global_symbol']} {artifact.kernel_source.count('(0 <= ')}")
            print(f"LOWERED {func.attrs['global_symbol']} {threads} {int(device.attrs.get('dyn_shared_memory_buf') or 0)}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
