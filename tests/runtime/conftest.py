"""Fixtures for launches without a GPU."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded import StubDriver

from redfuser.artifact import ArgSpec, KernelSpec, LaunchSpec
from redfuser.runtime.native import find_cxx


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> StubDriver:
    cxx = find_cxx()
    if cxx is None:
        pytest.skip("no C++ compiler")
    target = tmp_path_factory.mktemp("stub") / "libstubcuda.so"
    source = Path(__file__).with_name("stub_driver.cc")
    subprocess.run([cxx, "-std=c++17", "-O1", "-shared", "-fPIC", str(source), "-o", str(target)], check=True)
    return StubDriver(target)


@pytest.fixture
def stub(stub_library: StubDriver) -> Iterator[StubDriver]:
    stub_library.library.stub_reset()
    yield stub_library
    stub_library.library.stub_reset()


@pytest.fixture(scope="session")
def cpu_spec(tmp_path_factory: pytest.TempPathFactory) -> KernelSpec:
    """exp(x) / sum exp(x) over rows of f32[4, 8], and the sums: two outputs and a workspace."""
    from tvm_ffi import libinfo

    cxx = find_cxx()
    if cxx is None:
        pytest.skip("no C++ compiler")
    target = tmp_path_factory.mktemp("cpu") / "softmax.so"
    source = Path(__file__).with_name("softmax_kernel.cc")
    library = Path(libinfo.find_libtvm_ffi()).parent
    subprocess.run([cxx, "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{libinfo.find_include_path()}",
                    f"-I{libinfo.find_dlpack_include_path()}", str(source), "-o", str(target), f"-L{library}",
                    "-ltvm_ffi"], check=True)
    args = (ArgSpec("x", "f32", (4, 8), "in", 4), ArgSpec("y", "f32", (4, 8), "out", 4),
            ArgSpec("scratch", "f32", (8,), "workspace", 4), ArgSpec("total", "f32", (4,), "out", 4))
    return KernelSpec("softmax", "cpu", "cpu", args, (LaunchSpec("softmax", 0, (1, 1, 1), (1, 1, 1), 0, ()),),
                      (target.read_bytes(),), source="# scalar TIR of softmax", resources=({},))
