"""The CPU target: a segment program as a shared object, scheduled and built with LLVM, that loads without TVM.

The shared object exports one tvm-ffi function and needs libtvm_ffi and the C library only: scratch lives on the stack and
there are no parallel loops, so nothing of TVM's runtime is called. Linking takes the system's C compiler.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from redfuser.artifact import ArgSpec, KernelSpec, LaunchSpec, ParamSpec
from redfuser.errors import BuildError, InternalError
from redfuser.strategies import tir
from redfuser.strategies.check import check
from redfuser.strategies.program import Program
from redfuser.target import cpu_levels

LANES = 16
"""Partial results of a reduction: two AVX2 registers of float32."""


def source(program: Program) -> str:
    """The scheduled TIR as text (TVMScript): what the CPU kernel is."""
    return tir.entry_script(program, _entry_name(program), LANES)


def build(program: Program) -> KernelSpec:
    """Compile and link ``program``. One launch, whose entry takes inputs, outputs and workspaces in order.

    Raises BuildError: RF440 without a C compiler, RF441 when LLVM or the linker fails; LoweringError RF430 to RF434 for
    what the CPU target cannot express; InternalError RF351 for a malformed program."""
    found = check(program)
    if found:
        raise InternalError("RF351", f"the segment program of {program.fused.cascade.name} is malformed",
                            why="; ".join(found))
    name = _entry_name(program)
    text = tir.entry_script(program, name, LANES)
    level = cpu_level()
    binary = _compile(text, name, level)
    inputs, outputs = len(program.fused.cascade.inputs), len(program.fused.cascade.outputs)
    roles = ["in"] * inputs + ["out"] * outputs + ["workspace"] * len(program.workspaces)
    args = tuple(ArgSpec(t.name, t.dtype, tuple(int(n) for n in t.shape), role, tir.ALIGN)  # type: ignore[arg-type]
                 for t, role in zip(tir.parameters(program), roles, strict=True))
    launch = LaunchSpec(name, 0, (1, 1, 1), (1, 1, 1), 0, tuple(ParamSpec("ptr", a.name) for a in args))
    config = {"strategy": program.strategy, "splits": program.splits, "segment": program.segment, "lanes": LANES}
    return KernelSpec(name, "cpu", level, args, (launch,), (binary,), text, config)


def _entry_name(program: Program) -> str:
    return re.sub(r"\W", "_", program.fused.cascade.name)


@lru_cache(maxsize=1)
def compiler() -> tuple[str, ...] | None:
    """The command of a C compiler: $CC, the system's, or pip's ziglang; None when there is none."""
    asked = os.environ.get("CC", "").split()
    if asked and shutil.which(asked[0]):
        return tuple(asked)
    found = next((path for c in ("cc", "gcc", "clang") if (path := shutil.which(c))), None)
    if found is not None:
        return (found,)
    return (sys.executable, "-m", "ziglang", "cc") if importlib.util.find_spec("ziglang") else None


def cpu_level() -> str:
    """The architecture that kernels are built for: the best of this machine's levels up to x86-64-v3, whose kernels were
    measured faster than x86-64-v4's and run on more machines."""
    return next(level for level in cpu_levels() if level != "x86-64-v4")


def _compile(text: str, name: str, level: str) -> bytes:
    from redfuser.tvm_compat import build_scalar, tvm

    cc = compiler()
    if cc is None:
        raise BuildError("RF440", "no C compiler to link a CPU kernel with",
                         why="neither $CC, cc, gcc, clang nor the package ziglang was found",
                         help="install gcc or clang, or `pip install ziglang`; without one the regions run as torch operators")
    try:
        module = tvm.IRModule({name: tir.parse(text)})
        built = build_scalar(module, "" if level == "generic" else level)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.so"
            built.export_library(str(path), fcompile=_link(cc))
            return path.read_bytes()
    except BuildError:
        raise
    except Exception as error:
        raise BuildError("RF441", f"the CPU kernel {name} did not build", why=_tail(str(error)),
                         help="a report of this text is welcome; the region runs as torch operators") from error


def _link(cc: tuple[str, ...]) -> Any:
    """What export_library calls with the object files: link them with the C compiler and the maths library."""

    def link(output: str, objects: list[str], options: list[str] | None = None, **_: Any) -> None:
        done = subprocess.run([*cc, "-shared", "-fPIC", "-o", output, *objects, *(options or []), "-lm"],
                              capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError("RF441", f"{cc[0]} could not link the CPU kernel", why=_tail(done.stderr))

    link.output_format = "so"  # type: ignore[attr-defined]
    return link


def _tail(text: str, lines: int = 6) -> str:
    return "\n".join([x for x in text.strip().splitlines() if x.strip()][-lines:])


__all__ = ["LANES", "build", "compiler", "cpu_level", "source"]
