"""The launchers on HIP's module API, against the recording driver by HIP's names."""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import StubDriver, fake, split_spec

from redfuser import doctor
from redfuser.artifact import ArgSpec, KernelSpec, LaunchSpec, ParamSpec
from redfuser.autotune import measure
from redfuser.autotune.device import part_of
from redfuser.bench import provenance
from redfuser.errors import InputError
from redfuser.runtime import driver, host, launcher
from redfuser.runtime.native import find_cxx, make_kernel
from redfuser.sizes import Quotient, Size, Symbol, Term

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


STREAM = 0x77
SIZES = Size((Term(1, (Quotient("n"),)),))


class Given:
    """What the route without a compiler asks of a tensor and of torch's stream."""

    shape, cuda_stream = (), STREAM

    def __init__(self, address: int = 0) -> None:
        self.data_ptr = lambda: address


def by_ctypes(spec: KernelSpec, amd: StubDriver, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setattr(driver, "check_tensors", lambda *_: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: Given())
    call, _prepare = driver.make_kernel(spec, amd.path)
    return lambda: call(*map(Given, (0x10000, 0x20000, 0x30000)))


def native(spec: KernelSpec, amd: StubDriver) -> Callable[..., None]:
    """A call on the stream that the framework has made current, as torch's ROCm build does through tvm-ffi."""
    import tvm_ffi

    inner = make_kernel()(json.dumps(spec.to_json()), list(spec.binaries), amd.path)[0]

    def call() -> None:
        with tvm_ffi.use_raw_stream(tvm_ffi.device("rocm", 0), STREAM):
            inner(*tensors())

    return call


@pytest.fixture(params=["native", "ctypes"])
def call(request: pytest.FixtureRequest, amd: StubDriver, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return native(hip_spec(), amd) if request.param == "native" else by_ctypes(hip_spec(), amd, monkeypatch)


def test_both_routes_ask_the_same(amd: StubDriver, call: Callable[..., None]) -> None:
    """Grid, block, shared memory, stream and every argument in its place, pointers in the order of the kernel's own parameters."""
    amd.library.stub_parameters(b"part", b"pp")
    amd.library.stub_parameters(b"combine", b"p")
    call()
    assert amd.lines("attribute") == [] and len(amd.lines("load")) == 2
    assert amd.lines("launch") == [
        "launch grid 2,3,1 block 128,1,1 shared 60000 stream 77 ctx 1000 of part 20000 10000",
        "launch grid 4,1,1 block 64,1,1 shared 0 stream 77 ctx 1000 of combine 30000"]


def test_sizes_are_arguments_of_four_bytes(amd: StubDriver) -> None:
    args = (ArgSpec("q", "f16", (SIZES, 64), "in"), ArgSpec("o", "f32", (SIZES, 4), "out"))
    rows = LaunchSpec("rows", 0, (SIZES, 1, 1), (64, 1, 1), 512, (ParamSpec("ptr", "o"), ParamSpec("int", "n"), ParamSpec("ptr", "q")))
    spec = KernelSpec("sized", "hip", "gfx942", args, (rows,), OBJECTS[:1], "text", symbols=(Symbol("n", 1, 1000),))
    kernel = driver.CtypesKernel(spec, amd.path)
    amd.library.stub_parameters(b"rows", b"pip")
    plan = kernel._plan((torch.empty(130, 64, dtype=torch.float16, device="meta"),))
    _context, functions = kernel.prepare(0)
    kernel._launch(plan, 0, plan.spec.launches[0], functions[0], ctypes.c_void_p(STREAM), {"q": 0x10000, "o": 0x20000})
    assert amd.lines("launch")[0].endswith("grid 130,1,1 block 64,1,1 shared 512 stream 77 ctx 0 of rows 20000 130 10000")


def test_a_captured_stream_gets_nodes_and_nothing_else(amd: StubDriver, call: Callable[..., None]) -> None:
    """Loaded before or not: what is asked of the driver while a stream is captured breaks no capture. What allocates, copies or
    waits is no call of the stand-in's, so that a launcher which asked for it would end with RF509."""
    amd.library.stub_capture(ctypes.c_uint64(STREAM))
    call()  # modules are loaded in here, by a thread that is relaxed for as long
    call()
    amd.library.stub_capture(ctypes.c_uint64(0))
    call()
    assert amd.lines("capture") == ["capture begins", "capture ends"] and len(amd.lines("load")) == 2
    assert [line.split(" stream ")[1][:2] for line in amd.lines("node")] == ["77"] * 4
    assert [line.split(" block")[0] for line in amd.lines("launch")] == ["launch grid 2,3,1", "launch grid 4,1,1"]
    again = [line for line in amd.lines() if line != "init"]  # the library's own, once a process
    assert again[again.index("capture begins") + 7:again.index("capture ends")] == amd.lines("node")[2:], "a loaded kernel only launches"


def test_a_capture_that_breaks_is_an_error(amd: StubDriver) -> None:
    """The default stream, which is what a launcher that asked nobody for the stream would take."""
    spec = hip_spec()
    call, prepare = make_kernel()(json.dumps(spec.to_json()), list(spec.binaries), amd.path)
    prepare(0)
    amd.library.stub_capture(ctypes.c_uint64(STREAM))
    with pytest.raises(ValueError, match=r"RF508.*hipModuleLaunchKernel.*906"):
        call(*tensors())
    assert amd.lines("capture broken") == ["capture broken by a launch on the default stream"] and not amd.lines("node")


def test_a_launch_that_fails_is_named(amd: StubDriver, call: Callable[..., None]) -> None:
    amd.library.stub_fail_launch(719)
    with pytest.raises((ValueError, InputError), match=r"RF508.*hipModuleLaunchKernel.*719"):
        call()


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
        name, gcnArchName, total_memory, multi_processor_count = "AMD Instinct MI308X", "gfx942:sramecc+:xnack-", 192 << 30, 80

    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: Properties.name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _i: Properties())
    assert host.gpu_architectures() == ("gfx942",) and host.gpu_architecture() == "gfx942"
    from redfuser.api import architecture

    assert architecture("cuda") == "gfx942"
    assert measure.machine()["rocm"] == "6.4" and measure.for_device("gfx942") == "AMD Instinct MI308X"
    facts = provenance.machine("cuda")
    assert facts["versions"]["rocm"] == "6.4" and "cuda" not in facts["versions"] and part_of(facts["device"]) == "MI308X"
    (gpu, software) = [f for f in doctor.examine() if f.topic in ("GPU 0", "driver")]
    assert gpu.what == "AMD Instinct MI308X, gfx942, 192 GiB, 80 multiprocessors" and software.what == "ROCm 6.4"
