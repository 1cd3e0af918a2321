"""What this machine has: versions against the tested matrix, compilers, GPU, effective settings. Imports nothing heavy
but torch, and that only to ask for the GPU."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from redfuser import settings
from redfuser.errors import BuildError, InputError

PACKAGES = ("torch", "apache-tvm", "tilelang", "apache-tvm-ffi", "triton", "transformers", "onnx", "onnxscript",
            "onnxruntime", "sympy", "z3-solver", "numpy", "click", "rich")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor: ``fine``, ``note`` (something optional is missing) or ``wrong``, with how to mend it."""

    topic: str
    what: str
    status: Literal["fine", "note", "wrong"] = "fine"
    help: str = ""


def matrix() -> dict[str, Any]:
    """The tested versions, redfuser/matrix.json."""
    data: dict[str, Any] = json.loads((Path(__file__).parent / "matrix.json").read_text())
    return data


def installed() -> dict[str, str]:
    """Version of Python and of each package of ours that is here; a missing one has no entry."""
    found = {"python": platform.python_version()}
    for name in ("redfuser", *PACKAGES):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def examine() -> list[Finding]:
    """Everything, in the order it is printed."""
    return [*_versions(), *_compilers(), *_gpu(), *_settings()]


def _versions() -> list[Finding]:
    have, tested = installed(), matrix()
    out = []
    minor = ".".join(have["python"].split(".")[:2])
    out.append(Finding("python", have["python"], "fine" if minor in tested["python"] else "note",
                       "" if minor in tested["python"] else f"tested with {', '.join(tested['python'])}"))
    for name, want in tested["compile"].items():
        got = have.get(name)
        if got is None:
            runtime = name in tested["run"]
            out.append(Finding(name, "not installed", "wrong" if runtime else "note",
                               f"pip install {name}=={want}" + ("" if runtime else " (needed to compile, not to run)")))
        elif got != want:
            out.append(Finding(name, got, "wrong", f"pip install {name}=={want} (the three are tested only together)"))
        else:
            out.append(Finding(name, got))
    for name, want in tested["tested"].items():
        got = have.get(name)
        if got is None:
            out.append(Finding(name, "not installed", "note", f"tested with {want}"))
            continue
        lines = tested["run"].get(name)
        fits = any(got.startswith(v) for v in lines) if lines else True
        out.append(Finding(name, got, "fine" if fits else "note", "" if fits else f"tested with {want}"))
    return out


def _compilers() -> list[Finding]:
    from redfuser.codegen.toolchain import find_hipcc

    out = [*_host_compilers(), _nvcc(), _disassembler()]
    try:
        hipcc = find_hipcc()
        out.append(Finding("hipcc", f"{hipcc.path}  {hipcc.version}"))
    except BuildError as error:
        needed = "needed to finish kernels for AMD's GPUs (text without it)"
        out.append(Finding("hipcc", "none", "note", f"{needed}: {error.why}; {error.help}"))
    return out


def _host_compilers() -> list[Finding]:
    """Those that are looked for where they are used."""
    from redfuser.strategies.cpu import compiler

    try:
        from redfuser.runtime.native import find_cxx
    except ImportError:  # without torch, which is told below
        return []
    cc, cxx = compiler(), find_cxx()
    needed = "needed for the CPU target: gcc or clang, or ziglang from pip (`make setup`)"
    return [Finding("C compiler", " ".join(cc)) if cc else Finding("C compiler", "none", "wrong", needed),
            Finding("C++ compiler", cxx) if cxx else
            Finding("C++ compiler", "none", "note", "without one kernels for GPUs are launched through ctypes, slower: g++")]


def _nvcc() -> Finding:
    """As the build finds it, and whether it has the compiler that it calls for the host's half of a file."""
    from redfuser.codegen.toolchain import find_nvcc

    try:
        nvcc = find_nvcc()
    except BuildError:
        return Finding("nvcc", "none", "note", "needed to build CUDA kernels: pip install 'redfuser[cuda]'")
    what = f"{nvcc.path}  {nvcc.version}"
    if shutil.which("gcc") or os.environ.get("NVCC_CCBIN"):
        return Finding("nvcc", what)
    return Finding("nvcc", what, "note", "it cannot build without a host compiler (RF453): gcc on the PATH, or NVCC_CCBIN")


def _disassembler() -> Finding:
    from redfuser.codegen.toolchain import find_nvcc

    try:
        path = find_nvcc().disassembler
    except BuildError:
        return Finding("nvdisasm", "not looked for without nvcc", "note")
    if path:
        return Finding("nvdisasm", path)
    return Finding("nvdisasm", "none of nvcc's release or later", "note", "without it nobody looks whether machine code for "
                   "Hopper keeps its waits (RF463): pip install nvidia-cuda-nvdisasm")


def _gpu() -> list[Finding]:
    try:
        import torch
    except ImportError:
        return [Finding("GPU", "torch is not installed", "wrong", "pip install torch")]
    if not torch.cuda.is_available():
        return [Finding("GPU", "none", "note", "the CPU target, explain and cross-compiling work without one")]
    out = []
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        arch = p.gcnArchName.partition(":")[0] if torch.version.hip else f"sm_{p.major}{p.minor}"
        out.append(Finding(f"GPU {i}", f"{p.name}, {arch}, {p.total_memory >> 30} GiB, "
                                       f"{p.multi_processor_count} multiprocessors"))
    if torch.version.hip:
        return [*out, Finding("driver", f"ROCm {torch.version.hip}")]
    driver = _last_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    out.append(Finding("driver", f"{driver or 'unknown'}, CUDA {torch.version.cuda}"))
    return out


def _settings() -> list[Finding]:
    s = settings.current()
    values = {f.name: getattr(s, f.name) for f in settings.FIELDS}
    odd = {"cache_dir": _store(s.cache_dir), "target": _target(s.target)}
    if s.trace is not None and s.trace.exists() and not s.trace.is_dir():
        odd["trace"] = "it is no folder (RF191)"
    if s.tuning_records is not None and not s.tuning_records.exists():
        odd["tuning_records"] = "there is no such file or folder (RF702)"
    return [Finding(f.variable, f"{_plain(values[f.name])}  ({s.sources[f.name]})", "wrong" if odd.get(f.name) else "fine",
                    odd.get(f.name, "")) for f in settings.FIELDS]


def _store(folder: Path) -> str:
    """Why nothing could be kept there; empty where it can, also where the folder is yet to be made."""
    there = next((p for p in (folder, *folder.parents) if p.exists()), folder)
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return ""
    return f"{there} is no folder that can be written: everything is built anew in every process"


def _target(target: str) -> str:
    """Why it is none; empty where it is one, or several with commas between."""
    from redfuser.target import target as known

    try:
        for name in map(str.strip, target.split(",")):
            if name not in ("cpu", "cuda"):
                known(name)
    except InputError as error:
        return f"{error.code} {error.what}; {error.help}"
    return ""


def _plain(value: Any) -> str:
    return {"": "-", "None": "-", "True": "1", "False": "0"}.get(str(value), str(value))


def _last_line(command: list[str]) -> str:
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return out.splitlines()[-1].strip() if out else ""
