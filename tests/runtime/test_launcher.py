"""The native launcher and its ctypes twin, against a recording driver."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import StubDriver, fake, split_spec

from redfuser.artifact import KernelSpec, ParamSpec
from redfuser.errors import ArtifactError, InputError
from redfuser.runtime import launcher
from redfuser.runtime.driver import CtypesKernel
from redfuser.runtime.native import make_kernel


@pytest.fixture(autouse=True)
def _native() -> None:
    if make_kernel() is None:
        pytest.skip("the native launcher cannot be built here")


def tensors(**override: Any) -> list[Any]:
    """q, k, o in call order: inputs, then outputs."""
    made = {"q": fake((4, 64), address=0x10000), "k": fake((128, 64), address=0x20000),
            "o": fake((4, 64), "f32", address=0x30000)}
    return [*{**made, **override}.values()]


def test_launches_in_order_with_maps_and_shared_memory(stub: StubDriver) -> None:
    kernel = launcher(split_spec(), driver_path=stub.path)
    assert kernel.route == "native"
    kernel.into(*tensors())
    assert stub.lines("load") == ["load A0 cubin ctx 1000", "load B1 cubin ctx 1000"]
    assert stub.lines("function") == ["function part of A0", "function combine of B1"]
    assert stub.lines("attribute") == ["attribute 8 = 100000"], "only the launch above 48 KiB asks for more"
    assert stub.lines("encode") == ["encode dtype 6 dims 64,128 strides 128 box 64,32 element 1,1 0 3 2 0"]
    assert stub.lines("launch") == [
        "launch grid 2,3,1 block 128,1,1 shared 100000 stream 0 ctx 1000 first 20000",
        "launch grid 4,1,1 block 64,1,1 shared 0 stream 0 ctx 1000 first 30000"]


def test_a_launch_that_waits_for_the_one_before_starts_early(stub: StubDriver, tmp_path: Path) -> None:
    """It alone is launched with CUDA's attribute 6, by drivers whose graphs know it; all else of it is as it would be, by either
    launcher. A spec without says nothing of it."""
    spec = split_spec()
    first, second = spec.launches
    early = dataclasses.replace(spec, launches=(first, dataclasses.replace(second, waits=True)))
    launcher(early, driver_path=stub.path).into(*tensors())
    assert stub.lines("launch") == [
        "launch grid 2,3,1 block 128,1,1 shared 100000 stream 0 ctx 1000 first 20000",
        "launch grid 4,1,1 block 64,1,1 shared 0 stream 0 ctx 1000 first 30000"]
    assert stub.lines("with") == ["with 6 = 1"]
    old = StubDriver(Path(shutil.copy(stub.path, tmp_path / "old.so")))
    old.library.stub_version(12020)
    launcher(early, driver_path=old.path).into(*tensors())
    assert old.lines("launch") == stub.lines("launch") and not old.lines("with")
    for driver, times in ((stub, 2), (old, 0)):
        other = CtypesKernel(early, driver.path)
        plan, (_, functions) = other._plan(()), other.prepare(0)
        for n, launch in enumerate(early.launches):
            other._launch(plan, n, launch, functions[n], ctypes.c_void_p(0), {"q": 0x10000, "k": 0x20000, "o": 0x30000})
        calls = [line.split(" ctx")[0] for line in driver.lines("launch")]
        assert calls[2:] == calls[:2] and driver.lines("with") == ["with 6 = 1"] * times
    assert "waits" not in json.dumps(spec.to_json()) and KernelSpec.from_json(early.to_json()).launches == early.launches
    older = json.loads(json.dumps(early.to_json()).replace('"waits"', '"early"'))
    assert KernelSpec.from_json(older).launches == spec.launches, "its wait is not to be trusted"


def test_tensor_maps_are_remembered_by_address(stub: StubDriver) -> None:
    kernel = launcher(split_spec(), driver_path=stub.path)
    other = fake((128, 64), address=0x40000)
    for k in (None, other, None, other):
        kernel.into(*(tensors() if k is None else tensors(k=k)))
    assert len(stub.lines("encode")) == 2
    firsts = [line.rsplit(" ", 1)[1] for line in stub.lines("launch grid 2,3,1")]
    assert firsts == ["20000", "40000", "20000", "40000"]
    for address in range(20):  # more addresses than are remembered: still the right one each time
        kernel.into(*tensors(k=fake((128, 64), address=0x100000 + 4096 * address)))
    assert stub.lines("launch grid 2,3,1")[-1].endswith(f"{0x100000 + 4096 * 19:x}")


def test_each_device_loads_its_own_module(stub: StubDriver) -> None:
    kernel = launcher(split_spec(), driver_path=stub.path)
    kernel.into(*tensors())
    kernel.into(fake((4, 64), device=1), fake((128, 64), device=1), fake((4, 64), "f32", device=1))
    kernel.into(*tensors())
    assert [line[-4:] for line in stub.lines("load")] == ["1000", "1000", "1001", "1001"]
    assert [line.split("ctx ")[1][:4] for line in stub.lines("launch grid 2,3,1")] == ["1000", "1001", "1000"]


@pytest.mark.parametrize(("code", "words", "override"), [
    ("RF503", "'k'", {"k": fake((128, 64), device=1)}),
    ("RF503", "'q'", {"q": fake((4, 64), device_type=1)}),
    ("RF504", "'q'", {"q": fake((4, 64), "bf16")}),
    ("RF505", "'k'", {"k": fake((64, 128))}),
    ("RF505", "'k'", {"k": fake((128, 64, 1))}),
    ("RF506", "'k'", {"k": fake((128, 64), strides=(128, 1))}),
    ("RF506", "'o'", {"o": fake((4, 64), "f32", strides=(1, 4))}),
    ("RF507", "'o'", {"o": fake((4, 64), "f32", address=0x30008)}),
    ("RF502", "'q'", {"q": 3.0}),
])
def test_bad_tensors_are_named(stub: StubDriver, code: str, words: str, override: dict[str, Any]) -> None:
    call = make_kernel()(  # the library itself: the Python side would look first
        json.dumps(split_spec().to_json()), list(split_spec().binaries), stub.path)[0]
    with pytest.raises(ValueError, match=code) as caught:
        call(*tensors(**override))
    assert words in str(caught.value)
    assert not stub.lines("launch")


def test_size_one_axes_may_have_any_stride(stub: StubDriver) -> None:
    kernel = launcher(split_spec(), driver_path=stub.path)
    kernel.into(*tensors())
    with pytest.raises(InputError):
        kernel.into(*tensors(q=fake((4, 64), strides=(64, 2))))


def test_wrong_count_and_wrong_architecture(stub: StubDriver) -> None:
    call = make_kernel()(json.dumps(split_spec().to_json()), list(split_spec().binaries), stub.path)[0]
    with pytest.raises(ValueError, match="RF501 kernel split takes 3 tensors, got 2"):
        call(*tensors()[:2])
    stub.library.stub_fail_load(209)
    with pytest.raises(ValueError, match="RF510 kernel split was built for sm_90a"):
        call(*tensors())


def test_no_driver() -> None:
    call = make_kernel()(json.dumps(split_spec().to_json()), list(split_spec().binaries), "libabsent.so.1")[0]
    with pytest.raises(ValueError, match="RF509"):
        call(*tensors())


@pytest.mark.parametrize("native", [True, False])
def test_torch_tensors_get_coded_errors(stub: StubDriver, native: bool) -> None:
    kernel = launcher(split_spec(), native_route=native, driver_path=stub.path)
    q, k = torch.zeros(4, 64, dtype=torch.float16), torch.zeros(128, 64, dtype=torch.float16)
    with pytest.raises(InputError, match=r"RF503 argument 'q' of kernel split is on cpu"):
        kernel(q, k)
    with pytest.raises(InputError, match="RF501"):
        kernel(q)
    with pytest.raises(InputError, match="RF501"):
        kernel()
    with pytest.raises(InputError, match="RF502"):
        kernel(1, 2)


def test_a_damaged_spec_is_refused(stub: StubDriver) -> None:
    spec = split_spec()
    bad = dataclasses.replace(spec.launches[1], params=(ParamSpec("ptr", "nothing"),))
    with pytest.raises(ArtifactError, match="RF601"):
        launcher(dataclasses.replace(spec, launches=(bad,)), driver_path=stub.path)
    bad = dataclasses.replace(spec.launches[0], binary=7)
    with pytest.raises(ArtifactError, match="RF601"):
        launcher(dataclasses.replace(spec, launches=(bad,)), driver_path=stub.path)
