"""Where compilers are found, and what is made of what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from redfuser.artifact import KernelSpec
from redfuser.codegen import toolchain
from redfuser.codegen.build import _slowed
from redfuser.codegen.pool import BuildFailure


def test_a_pip_toolchain_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip splits the toolkit over folders: the binary is in one, headers in others."""
    nvcc = tmp_path / "nvidia" / "cu13" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    nvcc.chmod(0o755)
    (tmp_path / "nvidia" / "cuda_cccl" / "include").mkdir(parents=True)
    monkeypatch.setattr(toolchain, "_pip_roots", lambda: iter(sorted((tmp_path / "nvidia").iterdir())))
    monkeypatch.setattr(toolchain, "_candidates", lambda name: iter([nvcc] if name == "nvcc" else []))
    toolchain._find_nvcc.cache_clear()
    try:
        found = toolchain.find_nvcc()
        assert (found.path, found.version) == (str(nvcc), "13.0.88")
        assert str(tmp_path / "nvidia" / "cuda_cccl" / "include") in found.includes
    finally:
        toolchain._find_nvcc.cache_clear()


@pytest.mark.parametrize("log, why", [
    ("ptxas info    : (C7514) Potential Performance Loss: wgmma.mma_async instructions are serialized due to non wgmma instructions "
     "reading accumulator registers of  a wgmma between start and end of the pipeline stage in the function 'k'\n", "C7514"),
    ("ptxas info    : (C7508) setmaxnreg ignored to maintain minimum register requirements.\n", ""),
])
def test_products_one_after_another_are_no_candidate(log: str, why: str) -> None:
    """Whatever the reason that ptxas gives."""
    said = _slowed(KernelSpec("k", "cuda", "sm_90a", (), ()), log)
    assert (why in said) if why else not said


@pytest.mark.parametrize("log", ["gcc: No such file or directory\nnvcc fatal   : Failed to preprocess host compiler properties.",
                                 "ptxas fatal : write error: Disk quota exceeded", "sh: 1: cicc: command not found"])
def test_what_the_machine_lacks_today_is_not_remembered(log: str) -> None:
    assert not BuildFailure("RF453", "nvcc", "nvcc ended with status 1", log).lasting
    assert BuildFailure("RF453", "nvcc", "nvcc ended with status 1", 'error: identifier "x" is undefined').lasting


def test_which_failures_would_come_again() -> None:
    def died(*statuses: int) -> BuildFailure:
        return BuildFailure("RF455", "crash", "; ".join(f"the worker died (status {s})" for s in statuses))

    assert died(-11, -6).lasting and not died(-9, -9).lasting and not died(-11, -9).lasting
    assert not BuildFailure("RF455", "crash", "the worker died (answer)").lasting
    assert BuildFailure("RF453", "nvcc", "nvcc ended with status 2", "error: expected a ;").lasting
    assert not BuildFailure("RF453", "nvcc", "nvcc ended with status 1", "fatal: No space left on device").lasting
    assert not any(BuildFailure("RF454", stage, "").lasting for stage in ("timeout", "start", "binary"))
