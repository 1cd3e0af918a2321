"""Kernels of many sizes: what is launched for each, and what is refused."""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from recorded import StubDriver

from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.text import parse_cascade
from redfuser.artifact import ArgSpec, KernelSpec, LaunchSpec, ParamSpec, TmaSpec, from_files, to_files
from redfuser.errors import ArtifactError, InputError
from redfuser.kernels import produce
from redfuser.runtime import launcher
from redfuser.runtime.check import check_meta
from redfuser.runtime.driver import CtypesKernel
from redfuser.sizes import Quotient, Size, Symbol, Term

N = Size((Term(1, (Quotient("n"),)),))
ROWS = Size((Term(2, (Quotient("n", 63, 64),)),), 1)


def sized() -> KernelSpec:
    """q: f16[2, n, 64] through a tensor map, n itself, and 256 bytes of scratch for each element of n."""
    tma = TmaSpec("q", 6, 3, (64, N, 2), (128, Size((Term(128, (Quotient("n"),)),))), (64, 64, 1), (1, 1, 1), 0, 3, 2, 0)
    args = (ArgSpec("q", "f16", (2, N, 64), "in"), ArgSpec("o", "f32", (N, 4), "out"),
            ArgSpec("part", "f32", (N, 64), "workspace"))
    params = (ParamSpec("ptr", "o"), ParamSpec("tma", "q", tma), ParamSpec("int", "n"))
    launch = LaunchSpec("rows", 0, (ROWS, 2, 1), (128, 1, 1), 4096, params)
    return KernelSpec("sized", "cuda", "sm_90a", args, (launch,), (b"A0 cubin",), "text", symbols=(Symbol("n", 1, 1000),))


@pytest.mark.parametrize("n", [1, 64, 65, 1000])
def test_grids_maps_and_scalars_are_evaluated_at_each_call(stub: StubDriver, n: int) -> None:
    assert launcher(sized(), driver_path=stub.path).route == "ctypes"
    kernel = CtypesKernel(sized(), stub.path)
    plan = kernel._plan((torch.empty(2, n, 64, dtype=torch.float16, device="meta"),))
    assert plan.binding == {"n": n} and plan.bytes == 256 * n
    for _ in range(2):
        kernel._launch(plan, 0, plan.spec.launches[0], ctypes.c_void_p(5), ctypes.c_void_p(0), {"q": 0x10000, "o": 0x20000})
    (one, two) = stub.lines("launch")
    assert one == two and one.startswith(f"launch grid {2 * -(-n // 64) + 1},2,1 block 128,1,1 shared 4096 stream 0")
    assert one.endswith("first 20000")
    assert stub.lines("encode") == [f"encode dtype 6 dims 64,{n},2 strides 128,{128 * n} box 64,64,1 element 1,1,1 0 3 2 0"]


def test_sizes_outside_the_range_and_shapes_that_do_not_fit() -> None:
    spec = sized()
    bound = spec.at({"n": 130})
    assert [a.shape for a in bound.args] == [(2, 130, 64), (130, 4), (130, 64)] and bound.launches[0].grid == (7, 2, 1)
    for n in (0, 1001):
        with pytest.raises(InputError, match=f"RF519 kernel sized takes n in 1 .. 1000, got {n}"):
            spec.at({"n": n})
    check_meta(spec, (torch.empty(2, 77, 64, dtype=torch.float16, device="meta"),))
    for shape, code in (((2, 1001, 64), "RF519"), ((3, 7, 64), "RF505"), ((2, 7), "RF505")):
        with pytest.raises(InputError, match=code):
            check_meta(spec, (torch.empty(shape, dtype=torch.float16, device="meta"),))


def test_a_cpu_kernel_has_indices_of_32_bits() -> None:
    wide = replace(sized(), args=(replace(sized().args[0], shape=(2, N, 1 << 22)), *sized().args[1:]))
    cpu = replace(wide, kind="cpu", arch="", launches=(replace(wide.launches[0], params=()),))
    assert cpu.at({"n": 255}).symbols == () and wide.at({"n": 256}).symbols == ()
    assert from_files(to_files(cpu)) == cpu  # only what is called asks
    with pytest.raises(InputError, match="RF519"):
        cpu.at({"n": 256})


class _Cleared(dict[Any, Any]):
    """What another thread clears as soon as it is written."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


def test_what_a_call_has_made_is_its_own(stub: StubDriver) -> None:
    kernel = CtypesKernel(sized(), stub.path)
    kernel._known, kernel._maps = _Cleared(), _Cleared()
    plan = kernel._plan((torch.empty(2, 7, 64, dtype=torch.float16, device="meta"),))
    kernel._launch(plan, 0, plan.spec.launches[0], ctypes.c_void_p(5), ctypes.c_void_p(0), {"q": 0x10000, "o": 0x20000})
    assert plan.binding == {"n": 7} and len(stub.lines("launch")) == 1


def test_a_stored_kernel_keeps_its_sizes_and_damage_is_found() -> None:
    spec = sized()
    files = to_files(spec)
    assert from_files(files) == spec
    header = json.loads(files["spec.json"])

    def damaged(change: str, value: object) -> dict[str, bytes]:
        data = json.loads(json.dumps(header))
        kernel = data["kernel"]
        grid = kernel["launches"][0]["grid"]
        match change:
            case "grid":
                grid[0] = value
            case "factor":
                grid[0]["terms"][0]["factors"][0].update(value)
            case "symbols":
                kernel["symbols"] = value
            case "param":
                kernel["launches"][0]["params"][2]["arg"] = value
            case "shape":
                kernel["args"][0]["shape"][1] = value
        return {**files, "spec.json": json.dumps(data).encode()}

    text = "__import__('os').getpid()"
    for change, value in (("grid", text), ("grid", {"terms": [], "plus": 4}), ("grid", {"plus": 4}), ("grid", 1.5),
                          ("factor", {"over": 0}), ("factor", {"over": -1}), ("factor", {"symbol": "m"}),
                          ("factor", {"symbol": text}), ("factor", {"plus": 1 << 62}), ("factor", {"plus": "1"}),
                          ("symbols", []), ("symbols", [{"name": "n", "low": 0, "high": 4}]), ("symbols", "n"),
                          ("symbols", [{"name": "n", "low": 1, "high": 1 << 40}]), ("param", "m"), ("param", "q"),
                          ("shape", {"terms": [{"times": -1, "factors": [{"symbol": "n", "plus": 0, "over": 1}]}], "plus": 3})):
        with pytest.raises(ArtifactError, match="RF601"):
            from_files(damaged(change, value))


def test_a_static_kernel_is_written_as_before() -> None:
    assert "symbols" not in replace(sized().at({"n": 3})).to_json()


@pytest.mark.parametrize("text", [
    "cascade softmax(x: f32[n, 40]) over l\n  m[i] = max[l] x[i, l]\n  t[i] = sum[l] exp(x[i, l] - m[i])\n"
    "  o[i, l] = exp(x[i, l] - m[i]) / t[i]\n  return o",
    "cascade softmax(x: f32[3, n]) over l\n  m[i] = max[l] x[i, l]\n  t[i] = sum[l] exp(x[i, l] - m[i])\n"
    "  o[i, l] = exp(x[i, l] - m[i]) / t[i]\n  return o"])
def test_a_cpu_kernel_of_any_number_of_rows_and_of_any_length(text: str) -> None:
    made = produce("softmax", fuse(parse_cascade(text)), "cpu", symbols=(Symbol("n", 1, 200),))  # type: ignore[arg-type]
    assert made.spec is not None, made.reason
    kernel = launcher(from_files(to_files(made.spec)))
    for n in (1, 15, 64, 65, 80, 200):
        x = torch.randn((n, 40) if "[n," in text else (3, n), generator=torch.Generator().manual_seed(n))
        torch.testing.assert_close(kernel(x), x.softmax(-1))
    with pytest.raises(InputError, match="RF519"):
        kernel(torch.zeros((201, 40) if "[n," in text else (3, 201)))
    with pytest.raises(InputError, match="RF505"):
        kernel(torch.zeros(4, 41))


def test_symbols_are_those_of_the_extents() -> None:
    fused = fuse(parse_cascade("cascade c(x: f32[n, 8]) over l\n  m[i] = max[l] x[i, l]\n"
                               "  t[i] = sum[l] exp(x[i, l] - m[i])\n  return t"))
    for symbols in ((), (Symbol("m", 1, 4),), (Symbol("n", 1, 4), Symbol("m", 1, 4))):
        made = produce("c", fused, "cpu", symbols=symbols)  # type: ignore[arg-type]
        assert made.reason is not None and made.reason.code == "RF520"
