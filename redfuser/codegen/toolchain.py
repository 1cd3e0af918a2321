"""Where the compilers of GPUs are.

nvcc is looked for in ``CUDA_HOME`` / ``CUDA_PATH``, on the ``PATH``, in ``/usr/local/cuda`` and in the packages that pip
installs (``nvidia-cuda-nvcc`` and what it needs), nvdisasm beside nvcc and there; hipcc in ``ROCM_PATH`` / ``HIP_PATH``, on
the ``PATH`` and in ``/opt/rocm``. None of this needs a GPU or a driver.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from redfuser.errors import BuildError

INSTALL_NVCC = (
    "install the CUDA toolkit and put nvcc on the PATH (or set CUDA_HOME), or: "
    "pip install 'nvidia-cuda-nvcc<13.1' 'nvidia-nvvm<13.1' 'nvidia-cuda-crt<13.1' 'nvidia-cuda-runtime<13.1' "
    "'nvidia-cuda-cccl<13.1' (nvcc, nvvm and crt must be of one release)"
)


@dataclass(frozen=True, slots=True)
class Nvcc:
    """A usable nvcc: its path, its release (``13.0.88``) and include directories it would not find by itself; an nvdisasm of
    its release or a later one (empty without: machine code is not looked at)."""

    path: str
    version: str
    includes: tuple[str, ...] = ()
    disassembler: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """Variables to add when running it."""
        return {"CUDA_HOME": str(Path(self.path).parent.parent), "LC_ALL": "C"}


def _pip_roots() -> Iterator[Path]:
    """The ``nvidia/<component>`` folders of the installed pip packages."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return
    for base in (spec.submodule_search_locations or []) if spec else []:
        yield from sorted(p for p in Path(base).iterdir() if p.is_dir())


def _candidates(name: str) -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "bin" / name
    on_path = shutil.which(name)
    if on_path:
        yield Path(on_path)
    yield Path("/usr/local/cuda/bin") / name
    for root in _pip_roots():
        yield root / "bin" / name


def _disassembler(nvcc: Path, version: str) -> str:
    """The first nvdisasm that knows what an nvcc of ``version`` writes; empty without one."""
    for path in (nvcc.resolve().parent / "nvdisasm", *_candidates("nvdisasm")):
        found = _release(path) if path.is_file() else None
        if found and _numbers(found) >= _numbers(version):
            return str(path)
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    """A release without its last number."""
    return tuple(map(int, version.split(".")[:2]))


def _release(path: Path) -> str | None:
    try:
        done = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"V(\d+\.\d+\.\d+)", done.stdout)
    return found.group(1) if done.returncode == 0 and found else None


@functools.lru_cache(maxsize=4)
def _find_nvcc(_environment: tuple[str, ...]) -> Nvcc | None:
    for path in _candidates("nvcc"):
        version = _release(path) if path.is_file() else None
        if version is None:
            continue
        # A toolkit has its headers beside it; pip splits them over packages, so name those that hold what kernels need.
        own = path.resolve().parent.parent / "include"
        wanted = () if (own / "cuda_runtime.h").is_file() and (own / "cccl").is_dir() else tuple(_pip_roots())
        includes: list[str] = []
        for root in wanted:
            for folder in (root / "include", root / "include" / "cccl"):
                if folder.is_dir() and folder != own:
                    includes.append(str(folder))
        return Nvcc(str(path), version, tuple(includes), _disassembler(path, version))
    return None


def find_nvcc() -> Nvcc:
    """The first nvcc that answers; raises :class:`BuildError` RF450, which says what to install."""
    found = _find_nvcc(tuple(os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH", "PATH")))
    if found is None:
        raise BuildError("RF450", "no CUDA compiler found", why="looked for nvcc in CUDA_HOME, on the PATH, in "
                         "/usr/local/cuda and among the installed nvidia-* packages", help=INSTALL_NVCC)
    return found


@dataclass(frozen=True, slots=True)
class Hipcc:
    """A usable compiler of HIP: its path, its release, and what makes it write a code object."""

    path: str
    version: str
    flags: tuple[str, ...] = ("--genco",)


WANTED = {"the HIP headers": "include/hip/hip_runtime.h", "the rocwmma headers": "include/rocwmma/rocwmma.hpp",
          "the device libraries": "amdgcn/bitcode/ocml.bc"}
"""What clang needs of ROCm, by where it lies there."""
CLANGS = ("clang++", *(f"clang++-{n}" for n in range(23, 16, -1)))
"""Those that know gfx942 are of release 17 and later."""


@functools.lru_cache(maxsize=4)
def _find_hipcc(environment: tuple[str, ...]) -> Hipcc | None:
    homes = _rocm_homes(environment)
    for path in (*(h / "bin" / "hipcc" for h in homes), Path(shutil.which("hipcc") or "/opt/rocm/bin/hipcc")):
        found = re.search(r"HIP version:\s*(\S+)", _says(path))
        if found:
            return Hipcc(str(path), found[1])
    for home in homes:
        if all((home / place).is_file() for place in WANTED.values()):
            for path in (home / "llvm" / "bin" / "clang++", *(Path(p) for n in CLANGS if (p := shutil.which(n)))):
                found = re.search(r"clang version (\d+)\S*", _says(path))
                if found and int(found[1]) >= 17:
                    return Hipcc(str(path), f"{found[0]} with ROCm in {home}", (
                        "--cuda-device-only", "--no-gpu-bundle-output", f"--rocm-path={home}"))
    return None


def _rocm_homes(environment: tuple[str, ...]) -> list[Path]:
    *homes, _path = environment
    return [*(Path(h) for h in homes if h), Path("/opt/rocm")]


def _says(path: Path) -> str:
    """What a compiler says of its version; nothing where it does not run."""
    try:
        done = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def find_hipcc() -> Hipcc:
    """The first hipcc that answers, else a clang with what it needs of ROCm; raises :class:`BuildError` RF462, which says what
    is missing."""
    environment = tuple(os.environ.get(name, "") for name in ("ROCM_PATH", "HIP_PATH", "PATH"))
    found = _find_hipcc(environment)
    if found is None:
        home = _rocm_homes(environment)[0]
        missing = [f"{what} ({home / place})" for what, place in WANTED.items() if not (home / place).is_file()]
        raise BuildError("RF462", "no ROCm compiler found", why="looked for hipcc in ROCM_PATH, in HIP_PATH, on the PATH and "
                         "in /opt/rocm, and for clang++ 17 or later with what it needs of ROCm: "
                         + (f"{', '.join(missing)} not there" if missing else "no such clang++ on the PATH"),
                         help="install ROCm 6 with its rocwmma headers (the package rocwmma-dev), or run "
                         "`redfuser build FILE` on a machine that has it")
    return found
