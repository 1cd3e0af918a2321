"""The native launcher: ``launcher.cc`` built once by the machine's C++ compiler, and shared objects loaded from bytes.

The library depends on the C++ source, tvm-ffi's version and the compiler, and lives in the cache. Without a compiler
:func:`make_kernel` is None and kernels are launched through ctypes (:mod:`redfuser.runtime.driver`), which is slower.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redfuser import bounded
from redfuser.cache import Cache, key_of
from redfuser.elf import library_fault

logger = logging.getLogger("redfuser.runtime")

_SOURCE = Path(__file__).with_name("launcher.cc")


def find_cxx() -> str | None:
    """A C++17 compiler (``CXX``, g++, clang++ or c++), or None."""
    names = [os.environ.get("CXX", ""), "g++", "clang++", "c++"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


def load_module(data: bytes, cache: Cache | None = None) -> Any:
    """Load a tvm-ffi shared object from its bytes, once in a process: what is loaded is never unloaded. The file it is loaded
    through does not outlive the call; where the store cannot be written, is full, or must not be executed from, it lies among
    the temporary files."""
    digest = hashlib.sha256(data).digest()
    with _loading:
        if digest not in _loaded:
            store = (cache or Cache()).root / "loading"
            try:
                store.mkdir(parents=True, exist_ok=True)
                _loaded[digest] = _through(store, data)
            except (OSError, RuntimeError):  # the latter of dlopen
                _loaded[digest] = _through(Path(tempfile.gettempdir()), data)
        return _loaded[digest]


_loading = threading.Lock()
_loaded: dict[bytes, Any] = {}
os.register_at_fork(after_in_child=lambda: globals().update(_loading=threading.Lock()))


def _through(folder: Path, data: bytes) -> Any:
    import tvm_ffi

    descriptor, path = tempfile.mkstemp(suffix=".so", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        return tvm_ffi.load_module(path)
    finally:
        os.unlink(path)


def _compile(cxx: str) -> bytes:
    from tvm_ffi import libinfo

    with tempfile.TemporaryDirectory(prefix="redfuser-") as folder:
        target = Path(folder) / "launcher.so"
        library = Path(libinfo.find_libtvm_ffi())
        command = [cxx, "-std=c++17", "-O2", "-shared", "-fPIC", f"-I{libinfo.find_include_path()}",
                   f"-I{libinfo.find_dlpack_include_path()}", str(_SOURCE), "-o", str(target), f"-L{library.parent}",
                   "-ltvm_ffi", "-ldl"]
        status, said = bounded.run(command, limit_s=300)
        if status != 0:
            raise OSError(f"{cxx} ended with status {status}:\n{said[-2000:]}")
        data = target.read_bytes()
        if sys.platform == "linux" and (fault := library_fault(data, "__tvm_ffi_make_kernel")):
            raise OSError(f"{cxx} ended with status 0 and left {fault}")
        return data


@functools.lru_cache(maxsize=1)
def make_kernel() -> Callable[..., Any] | None:
    """The library's ``make_kernel(spec JSON, binaries, driver path) -> [call, prepare]``, or None where it cannot be
    built or loaded; the reason is logged once."""
    try:
        import tvm_ffi
    except ImportError as error:
        logger.warning("launching through ctypes: tvm-ffi cannot be imported (%s)", error)
        return None
    cache = Cache()
    key = key_of("launcher", _SOURCE.read_text(encoding="utf-8"), tvm_ffi.__version__, platform.machine())
    try:
        data = cache.get(key)
        if data is None:
            cxx = find_cxx()
            if cxx is None:
                logger.warning("launching through ctypes: no C++ compiler (install g++ for faster launches)")
                return None
            data = cache.get_or_build(key, lambda: _compile(cxx))
        return load_module(data, cache).make_kernel
    except (OSError, RuntimeError, AttributeError) as error:
        logger.warning("launching through ctypes: the native launcher is unusable (%s)", error)
        return None
