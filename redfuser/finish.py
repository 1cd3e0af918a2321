"""Kernels that are text yet (AMD's, made on a machine without ROCm), finished by the ROCm toolchain of the machine that uses
them. A kernel that is finished stays what it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from redfuser.artifact import KernelSpec


def kernel(spec: KernelSpec) -> KernelSpec:
    """``spec`` with code objects. Raises BuildError: RF462 without a toolchain, RF453, RF456 and RF460 for what it says."""
    from redfuser.codegen import hip

    return spec if spec.finished else hip.finish(spec)


def file(path: Path, output: Path | None = None) -> list[KernelSpec]:
    """Finish the kernels of an artifact, in place unless ``output`` says where; those that were text. Raises as above."""
    from redfuser.runtime import archive

    models = [archive.read(path, arch=arch, device="cpu") for arch in archive.architectures(path)]
    waiting = [spec for model in models for spec in model.kernels.values() if not spec.finished]
    done = {(spec.arch, spec.name): kernel(spec) for spec in waiting}
    if waiting or output is not None:
        archive.write(output or path, [replace(m, kernels={n: done.get((s.arch, s.name), s) for n, s in m.kernels.items()})
                                       for m in models])
    return list(done.values())
