"""The CPU target: a segment program as a shared object, scheduled and built with LLVM, that loads without TVM.

The shared object exports one tvm-ffi function and needs libtvm_ffi and the C library only: what TVM's runtime would give it
(scratch, threads) it brings itself. Linking takes the system's C compiler.

What was built is kept in the store (:mod:`redfuser.cache`) under a key over the text, the processor level it is built for, the
versions of LLVM's user and of the linker, and the code that lowers it; a text that LLVM refuses is remembered likewise.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import sys
import tempfile
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from redfuser import bounded
from redfuser.artifact import FORMAT, ArgSpec, KernelSpec, LaunchSpec, ParamSpec
from redfuser.cache import Cache, key_of
from redfuser.elf import library_fault
from redfuser.errors import BuildError, InternalError
from redfuser.sizes import Symbol
from redfuser.strategies import tir
from redfuser.strategies.check import check
from redfuser.strategies.program import Program
from redfuser.strategies.symbols import entry_script, shape
from redfuser.target import cpu_levels

LANES = 16
"""Partial results of a reduction: two AVX2 registers of float32."""


def source(program: Program, symbols: tuple[Symbol, ...] = ()) -> str:
    """The scheduled TIR as text (TVMScript): what the CPU kernel is."""
    return entry_script(program, symbols, _entry_name(program), LANES, threads=True)


def build(program: Program, symbols: tuple[Symbol, ...] = ()) -> KernelSpec:
    """Compile and link ``program``. One launch, whose entry takes inputs, outputs and workspaces in order.

    Raises BuildError: RF440 without a C compiler, RF441 when LLVM or the linker fails; LoweringError RF430 to RF434 for
    what the CPU target cannot express; InternalError RF351 for a malformed program."""
    found = check(program)
    if found:
        raise InternalError("RF351", f"the segment program of {program.fused.cascade.name} is malformed",
                            why="; ".join(found))
    name = _entry_name(program)
    text = entry_script(program, symbols, name, LANES, threads=True)
    level = cpu_level()
    binary = _stored(text, name, level)
    inputs, outputs = len(program.fused.cascade.inputs), len(program.fused.cascade.outputs)
    roles = ["in"] * inputs + ["out"] * outputs + ["workspace"] * len(program.workspaces)
    args = tuple(ArgSpec(t.name, t.dtype, shape(t), role, tir.ALIGN)  # type: ignore[arg-type]
                 for t, role in zip(tir.parameters(program), roles, strict=True))
    launch = LaunchSpec(name, 0, (1, 1, 1), (1, 1, 1), 0, tuple(ParamSpec("ptr", a.name) for a in args))
    config = {"strategy": program.strategy, "splits": program.splits, "segment": program.segment, "lanes": LANES}
    return KernelSpec(name, "cpu", level, args, (launch,), (binary,), text, config, symbols=symbols)


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


def _stored(text: str, name: str, level: str) -> bytes:
    """The shared object: from the store, or built now and stored. Raises BuildError RF440, RF441, RF460."""
    if compiler() is None:
        return _compile(text, name, level)  # which says what is missing
    store = Cache()
    key = store_key(text, name, level)
    failed = key_of("failed", key)
    if (refused := store.get(failed)) is not None:
        raise _refused(name, refused.decode("utf-8", "replace"))
    binary = store.get(key)
    if binary is not None and not _fault(binary, name):
        return binary
    try:
        binary = _compile(text, name, level)
    except _Llvm as error:
        store.put(failed, error.why.encode())
        raise
    if fault := _fault(binary, name):
        raise BuildError("RF460", f"the CPU kernel {name} is not what was asked for", why=f"the linker left {fault}",
                         help="look at the C compiler ($CC, cc on the PATH): it ended with status 0")
    store.put(key, binary)
    return binary


def store_key(text: str, name: str, level: str) -> str:
    """Everything that a shared object depends on."""
    return key_of("cpu kernel", FORMAT, text, name, level, platform.machine(), sys.platform, _tools(compiler() or ()))


def _fault(binary: bytes, name: str) -> str:
    return library_fault(binary, f"__tvm_ffi_{name}") if sys.platform == "linux" else ""


@lru_cache(maxsize=4)
def _tools(cc: tuple[str, ...]) -> str:
    """What makes a shared object out of a text, beside the text: versions, and the code that drives LLVM and the linker."""
    from redfuser import tvm_compat

    linker = ""
    with contextlib.suppress(OSError):
        linker = bounded.run([*cc, "--version"], limit_s=60)[1] if cc else ""
    digest = hashlib.sha256("\n".join([*cc, *linker.splitlines()[:1], metadata.version("apache-tvm"),
                                       metadata.version("apache-tvm-ffi")]).encode())
    for module in (tvm_compat.__file__, __file__):
        digest.update(Path(module).read_bytes())
    return digest.hexdigest()


class _Llvm(BuildError):
    """RF441 of TVM or LLVM: the same text fails again."""


def _refused(name: str, why: str) -> _Llvm:
    return _Llvm("RF441", f"the CPU kernel {name} did not build", why=why,
                 help="a report of this text is welcome; the region runs as torch operators")


ROOM = 4 << 20
"""Bytes of temporary files that a kernel's object and library never need."""


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
            if shutil.disk_usage(folder).free < ROOM:  # LLVM ends the process where it cannot write
                raise OSError(errno.ENOSPC, "No space left on device", folder)
            path = Path(folder) / f"{name}.so"
            built.export_library(str(path), fcompile=_link(cc))
            return path.read_bytes()
    except BuildError:
        raise
    except (OSError, MemoryError) as error:  # of this machine, now
        raise BuildError("RF441", f"the CPU kernel {name} did not build", why=f"{type(error).__name__}: {error}") from error
    except Exception as error:
        raise _refused(name, _tail(str(error))) from error


SCRATCH = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
extern void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) __attribute__((weak));
extern int (*__TVMBackendFreeWorkspace)(int, int, void *) __attribute__((weak));
static void *take(int type, int id, uint64_t bytes, int code, int bits) {
  void *found = 0;
  return posix_memalign(&found, 64, bytes ? bytes : 1) ? 0 : found;
}
static int give(int type, int id, void *what) { free(what); return 0; }

typedef struct { void *sync; int32_t count; } Share;
typedef int (*Body)(int, Share *, void *);
typedef struct { Body body; void *data; int failed; } Work;
extern int (*__TVMBackendParallelLaunch)(Body, void *, int) __attribute__((weak, visibility("hidden")));
static void (*spawn)(void (*)(void *), void *, unsigned, unsigned);
static int (*ask[4])(void);
static void part(void *given) {
  Work *work = given;
  Share share = {0, ask[2]()};
  if (work->body(ask[1](), &share, work->data)) work->failed = -1;
}
static int launch(Body body, void *data, int count) {
  Work work = {body, data, 0};
  Share alone = {0, 1};
  if (!spawn || ask[3]() || ask[0]() < 2) return body(0, &alone, data);
  spawn(part, &work, 0, 0);
  return work.failed;
}
__attribute__((constructor)) static void scratch(void) {
  const char *names[4] = {"omp_get_max_threads", "omp_get_thread_num", "omp_get_num_threads", "omp_in_parallel"};
  int found = 1;
  for (int i = 0; i < 4; i++) found &= !!(*(void **)&ask[i] = dlsym(RTLD_DEFAULT, names[i]));
  if (found) *(void **)&spawn = dlsym(RTLD_DEFAULT, "GOMP_parallel");
  if (&__TVMBackendParallelLaunch) __TVMBackendParallelLaunch = launch;
  if (&__TVMBackendAllocWorkspace) __TVMBackendAllocWorkspace = take;
  if (&__TVMBackendFreeWorkspace) __TVMBackendFreeWorkspace = give;
}
"""
"""What TVM's runtime would give a kernel, through pointers that it fills in as it loads one: where there is no TVM nobody
would, so each kernel brings its own. Scratch of more than a kilobyte lies on the heap. Threads are those of the process's
OpenMP, which is torch's: as many as ``torch.set_num_threads`` says, none beside them, and the caller's alone where there is
none or where it is one of many already. The pointer to them is hidden from TVM's runtime, which would put a pool of its own
in its place."""


def _link(cc: tuple[str, ...]) -> Any:
    """What export_library calls with the object files: link them with the C compiler and the maths library."""

    def link(output: str, objects: list[str], options: list[str] | None = None, **_: Any) -> None:
        scratch = Path(output).with_suffix(".scratch.c")
        scratch.write_text(SCRATCH)
        status, said = bounded.run([*cc, "-shared", "-fPIC", "-O2", "-o", output, *objects, str(scratch), *(options or []),
                                    "-lm", "-ldl"])
        if status:
            raise BuildError("RF441", f"{cc[0]} could not link the CPU kernel", why=_tail(said))

    link.output_format = "so"  # type: ignore[attr-defined]
    return link


def _tail(text: str, lines: int = 6) -> str:
    return "\n".join([x for x in text.strip().splitlines() if x.strip()][-lines:])
