"""What this machine's processor and GPU can run: architecture names, best first."""

from __future__ import annotations

import torch

from redfuser.target import cpu_levels


def cpu_architectures() -> tuple[str, ...]:
    """Names a CPU kernel that this processor runs may carry: its x86-64 levels, and ``cpu`` for none in particular."""
    return (*cpu_levels(), "cpu")


def gpu_architectures() -> tuple[str, ...]:
    """Names of architectures whose binaries the current GPU runs: its own, then lower ones of the same generation. An
    ``a`` architecture runs nowhere but on its own, nor does one of AMD's. Empty without a GPU."""
    if not torch.cuda.is_available():
        return ()
    if torch.version.hip:
        return (gpu_architecture(),)
    major, minor = torch.cuda.get_device_capability()
    return (f"sm_{major}{minor}a", *(f"sm_{major}{lower}" for lower in range(minor, -1, -1)))


def gpu_architecture() -> str:
    """The architecture that kernels for the current GPU are built for."""
    if torch.version.hip:
        return str(torch.cuda.get_device_properties(torch.cuda.current_device()).gcnArchName).partition(":")[0]
    major, minor = torch.cuda.get_device_capability()
    return "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


def gpu_software() -> dict[str, str]:
    """The release of what torch reaches the GPU by: ``{"cuda": "13.0"}``, ``{"rocm": "6.4"}``."""
    return {"rocm": str(torch.version.hip)} if torch.version.hip else {"cuda": str(torch.version.cuda)}
