"""What this machine has: versions against the tested matrix, compilers, GPU, effective settings. Imports nothing heavy
but torch, and that only to ask for the GPU."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from redfuser import settings
from redfuser.errors import BuildError

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
    out = []
    cc = next((p for n in ("g++", "c++", "clang++") if (p := shutil.which(n))), None)
    missing = Finding("C++ compiler", "none", "wrong", "needed for the CPU target: g++, or ziglang from pip (`make setup`)")
    out.append(Finding("C++ compiler", cc) if cc else missing)
    nvcc = shutil.which("nvcc")
    if nvcc:
        out.append(Finding("nvcc", f"{nvcc}  {_last_line([nvcc, '--version'])}"))
    elif _has("nvidia-cuda-nvcc"):
        out.append(Finding("nvcc", f"from pip, {metadata.version('nvidia-cuda-nvcc')}"))
    else:
        out.append(Finding("nvcc", "none", "note", "needed to build CUDA kernels: pip install 'redfuser[cuda]'"))
    out.append(_disassembler())
    try:
        from redfuser.codegen.toolchain import find_hipcc

        hipcc = find_hipcc()
        out.append(Finding("hipcc", f"{hipcc.path}  {hipcc.version}"))
    except BuildError as error:
        needed = "needed to finish kernels for AMD's GPUs (text without it)"
        out.append(Finding("hipcc", "none", "note", f"{needed}: {error.why}; {error.help}"))
    return out


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
    return [Finding(f.variable, f"{_plain(values[f.name])}  ({s.sources[f.name]})") for f in settings.FIELDS]


def _plain(value: Any) -> str:
    return {"": "-", "None": "-", "True": "1", "False": "0"}.get(str(value), str(value))


def _has(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _last_line(command: list[str]) -> str:
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return out.splitlines()[-1].strip() if out else ""
