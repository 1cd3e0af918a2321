"""HIP text under g++: a kernel's launches on NumPy arrays, by the headers in ``hip_host``."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np

from redfuser.artifact import KernelSpec
from redfuser.runtime.native import find_cxx

HOST = Path(__file__).with_name("hip_host")
REAL = ("common.h", "reduce.h", "threadblock_swizzle.h")
"""TileLang's own headers that kernels of ours take something from."""
_SECTION = re.compile(r"// (\w+\.h) of TileLang\n(?:(?!// \w+\.h of TileLang\n).)*?// end of \1\n", re.S)


def host_text(text: str, launches: list[tuple[str, tuple[int, ...], int, int, int]]) -> str:
    """One translation unit: TileLang's headers that count, the kernels, and a function that runs each launch."""
    kept = ""
    while found := _SECTION.search(text):
        kept += found[0].replace(" of TileLang", "", 1) if found[1] in REAL else ""
        text = text[:found.start()] + text[found.end():]
    calls = [f'extern "C" void run_{name}(void** p) {{ host::run({{{grid[0]}, {grid[1]}, {grid[2]}}}, {threads}, buf_dyn_shmem, '
             f"{shared}, [=] {{ {name}({', '.join(f'(decltype(nth<{i}>({name})))p[{i}]' for i in range(count))}); }}); }}"
             for name, grid, threads, shared, count in launches]
    nth = "template <int N, typename... A> auto nth(void (*)(A...)) -> std::tuple_element_t<N, std::tuple<A...>>;\n"
    return "#include <tuple>\n" + kept + text + "\nalignas(1024) unsigned char buf_dyn_shmem[1 << 16];\n" + nth + "\n".join(calls)


def run(spec: KernelSpec, memory: dict[str, np.ndarray], folder: Path, sizes: dict[str, int] | None = None) -> None:
    """All launches in order, on ``memory`` by argument name, with numbers for the symbols of one that has some."""
    cxx = find_cxx()
    assert cxx is not None
    loaded = []
    for index, text in enumerate(spec.binaries):
        own = [(x.entry, x.grid, x.block[0], x.shared_bytes, len(x.params)) for x in spec.launches if x.binary == index]
        source, library = folder / f"{spec.name}_{index}.cc", folder / f"{spec.name}_{index}.so"
        source.write_text(host_text(text.decode(), own))  # type: ignore[arg-type]
        done = subprocess.run([cxx, "-std=c++17", "-O2", "-fno-strict-aliasing", "-ffp-contract=off", "-w", "-fpermissive", "-shared",
                               "-fPIC", f"-I{HOST}", str(source), "-o", str(library)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if "error" in line)[:4000]
        loaded.append(ctypes.CDLL(str(library)))
    for launch in spec.launches:
        pointers = (ctypes.c_void_p * len(launch.params))(*(memory[p.arg].ctypes.data if p.kind == "ptr" else (sizes or {})[p.arg]
                                                              for p in launch.params))
        getattr(loaded[launch.binary], f"run_{launch.entry}")(pointers)
