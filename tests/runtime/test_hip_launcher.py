"""The launchers on HIP's module API, against the recording driver by HIP's names."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import StubDriver, fake, split_spec

from redfuser.artifact import KernelSpec, ParamSpec
from redfuser.errors import InputError
from redfuser.runtime import driver, host, launcher
from redfuser.runtime.native import find_cxx, make_kernel

ROCM = 10
OBJECTS = (b"\x7fELFA0 object\0", b"\x7fELFB1 object\0")


def hip_spec(workspace: bool = False) -> KernelSpec:
    spec = split_spec(workspace)
    part = replace(spec.launches[0], params=(ParamSpec("ptr", "k"), ParamSpec("ptr", "q")), shared_bytes=60_000)
    return replace(spec, kind="hip", arch="gfx942", binaries=OBJECTS, launches=(part, spec.launches[1]))


@pytest.fixture(scope="session")
def amd_library(tmp_path_factory: pytest.TempPathFactory) -> StubDriver:
    cxx = find_cxx()
    if cxx is None or make_kernel() is None:
        pytest.skip("no C++ compiler")
    target = tmp_path_factory.mktemp("stub") / "libstubamd.so"
    names = [f"-D{cuda}={hip}" for cuda, hip in {**driver.HIP, "cuCtxGetCurrent": "hipCtxGetCurrent"}.items()]
    source = Path(__file__).with_name("stub_driver.cc")
    subprocess.run([cxx, "-std=c++17", "-O1", "-shared", "-fPIC", *names, str(source), "-o", str(target)], check=True)
    return StubDriver(target)


@pytest.fixture
def amd(amd_library: StubDriver) -> StubDriver:
    amd_library.library.stub_reset()
    return amd_library


def tensors(kind: int = ROCM, **override: Any) -> list[Any]:
    made = {"q": fake((4, 64), address=0x10000, device_type=kind), "k": fake((128, 64), address=0x20000, device_type=kind),
            "o": fake((4, 64), "f32", address=0x30000, device_type=kind)}
    return [*{**made, **override}.values()]


def test_launches_in_order_through_hip(amd: StubDriver) -> None:
    kernel = launcher(hip_spec(), driver_path=amd.path)
    assert kernel.route == "native"
    kernel.into(*tensors())
    assert [line.split()[-1] for line in amd.lines("load")] == ["1000", "1000"]
    assert [line.split(" of ")[0] for line in amd.lines("function")] == ["function part", "function combine"]
    assert amd.lines("attribute") == [], "a block has all 64 KiB without asking"
    assert amd.lines("launch") == [
        "launch grid 2,3,1 block 128,1,1 shared 60000 stream 0 ctx 1000 first 20000",
        "launch grid 4,1,1 block 64,1,1 shared 0 stream 0 ctx 1000 first 30000"]


def test_the_route_without_a_compiler_asks_the_same(amd: StubDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        cuda_stream = 0x77

    class Tensor:
        def __init__(self, address: int) -> None:
            self.address, self.shape = address, ()

        def data_ptr(self) -> int:
            return self.address

    monkeypatch.setattr(driver, "check_tensors", lambda *_: torch.device("cuda", 1))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: Stream())
    call, _prepare = driver.make_kernel(hip_spec(), amd.path)
    call(*map(Tensor, (0x10000, 0x20000, 0x30000)))
    assert amd.lines("attribute") == [] and len(amd.lines("load")) == 2
    assert amd.lines("launch") == [
        "launch grid 2,3,1 block 128,1,1 shared 60000 stream 77 ctx 1001 first 20000",
        "launch grid 4,1,1 block 64,1,1 shared 0 stream 77 ctx 1001 first 30000"]


def test_errors_are_hip_s_and_coded(amd: StubDriver) -> None:
    spec = hip_spec()
    call = make_kernel()(json.dumps(spec.to_json()), list(spec.binaries), amd.path)[0]  # the library itself
    with pytest.raises(ValueError, match=r"RF503.*one ROCm device"):
        call(*tensors(kind=2))
    for status, said in ((209, r"RF510.*gfx942"), (1, r"RF508.*hipModuleLoadData")):
        amd.library.stub_fail_load(status)
        with pytest.raises(InputError, match=said):
            launcher(spec, driver_path=amd.path).prepare(0)
    with pytest.raises(InputError, match="RF509"):
        launcher(spec, driver_path="libamdhip64-of-nobody.so").prepare(0)


def test_text_is_not_launched() -> None:
    with pytest.raises(InputError, match="RF521") as caught:
        launcher(replace(hip_spec(), binaries=(b'extern "C" ...', b"")))
    assert "redfuser build" in str(caught.value)


def test_torch_for_rocm_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        gcnArchName = "gfx942:sramecc+:xnack-"

    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _i: Properties())
    assert host.gpu_architectures() == ("gfx942",) and host.gpu_architecture() == "gfx942"
    from redfuser.api import architecture

    assert architecture("cuda") == "gfx942"
