"""Fixtures for launches without a GPU."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded import StubDriver

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
