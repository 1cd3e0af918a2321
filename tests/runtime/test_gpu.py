"""The runtime on a real GPU: streams, graphs, workspaces, devices, tracers, trials, and the cost of a call.

Needs torch, what the base package brings and pytest; no TVM, TileLang, ml_dtypes or nvcc (the kernels are prebuilt, or NVRTC's
of torch's wheels):

    python -m pytest -m gpu tests/runtime/test_gpu.py
    REDFUSER_GPU_ARTIFACTS=DIR python -m pytest -m gpu tests/runtime/test_gpu.py      # and every artifact of DIR

DIR is what ``redfuser bench correctness --build DIR --target sm_90a`` wrote on another machine.
"""

from __future__ import annotations

import dataclasses
import gzip
import multiprocessing
import os
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cubin import ENDLESS, compile_cubin

from redfuser.artifact import ArgSpec, KernelSpec, LaunchSpec, ParamSpec
from redfuser.errors import ArtifactError, InputError
from redfuser.numerics import tensors
from redfuser.report import Report
from redfuser.runtime import launcher, ops, patience, trial
from redfuser.runtime.model import CompiledModel
from redfuser.runtime.parts import Graph
from redfuser.runtime.signature import Signature, TensorSpec

pytestmark = pytest.mark.gpu
N = 1024


@pytest.fixture(scope="module")
def spec() -> KernelSpec:
    """out = 2 x + y and x + out, in two launches with a workspace between them."""
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    args = (ArgSpec("x", "f32", (N,), "in"), ArgSpec("partial", "f32", (N,), "workspace"), ArgSpec("y", "f32", (N,), "in"),
            ArgSpec("out", "f32", (N,), "out"), ArgSpec("sum", "f32", (N,), "out"))
    grid, block = (N // 256, 1, 1), (256, 1, 1)
    launches = (LaunchSpec("scale", 0, grid, block, 0, (ParamSpec("ptr", "x"), ParamSpec("ptr", "partial"))),
                LaunchSpec("shift", 0, grid, block, 1024, tuple(ParamSpec("ptr", n) for n in ("partial", "y", "out", "sum"))))
    return KernelSpec("gpu_toy", "cuda", arch, args, launches, (compile_cubin(arch),), resources=({}, {}))


@pytest.fixture
def data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(N).cuda(), torch.randn(N).cuda()  # drawn on the CPU: a capture leaves its mark on the GPU's generator


def expected(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return 2 * x + y, x + 2 * x + y


@pytest.mark.parametrize("native", [True, False])
def test_result(spec: KernelSpec, data: Any, native: bool) -> None:
    kernel = launcher(spec, native_route=native)
    assert kernel.route == ("native" if native else "ctypes")
    torch.testing.assert_close(kernel(*data), expected(*data))
    outputs = tuple(torch.zeros(N, device="cuda") for _ in range(2))
    kernel.into(*data, *outputs)
    torch.testing.assert_close(outputs, expected(*data))


def test_current_stream(spec: KernelSpec, data: Any) -> None:
    """Work goes behind what the current stream already holds, not beside it."""
    kernel, stream, x = launcher(spec), torch.cuda.Stream(), torch.zeros(N, device="cuda")
    kernel(*data)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.copy_(data[0])
        found = kernel(x, data[1])
        assert not stream.query(), "the call did not wait"
    stream.synchronize()
    torch.testing.assert_close(found, expected(*data))


@pytest.mark.parametrize("native", [True, False])
def test_graph_capture(spec: KernelSpec, data: Any, native: bool) -> None:
    """Also when the very first call is the captured one: loading the module is allowed during capture."""
    kernel, (x, y) = launcher(spec, native_route=native), data
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = kernel(x, y)
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(found, expected(x, y))


def test_many_calls_reuse_workspaces_safely(spec: KernelSpec) -> None:
    kernel, pairs = launcher(spec), [(torch.randn(N, device="cuda"), torch.randn(N, device="cuda")) for _ in range(200)]
    streams, found = [torch.cuda.Stream() for _ in range(4)], []
    torch.cuda.synchronize()
    for i, pair in enumerate(pairs):
        with torch.cuda.stream(streams[i % 4]):
            found.append(kernel(*pair))
    torch.cuda.synchronize()
    for pair, result in zip(pairs, found, strict=True):
        torch.testing.assert_close(result, expected(*pair))


def test_errors(spec: KernelSpec, data: Any) -> None:
    kernel, (x, y) = launcher(spec), data
    for code, args in (("RF503", (x.cpu(), y)), ("RF503", (x, y.cpu())), ("RF504", (x.half(), y)), ("RF505", (x[:-1], y)),
                       ("RF501", (x,)), ("RF502", (x, 1)), ("RF507", (torch.zeros(N + 1, device="cuda")[1:], y)),
                       ("RF506", (torch.zeros(2 * N, device="cuda")[::2], y))):
        with pytest.raises(InputError, match=code):
            kernel(*args)
    torch.testing.assert_close(kernel.tolerant(torch.zeros(N + 1, device="cuda")[1:], y)[0], y)
    for binary in (compile_cubin("sm_75"), b"not a cubin" * 100):
        with pytest.raises(InputError, match=r"RF510|RF508"):
            launcher(dataclasses.replace(spec, binaries=(binary,)))(x, y)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_second_device(spec: KernelSpec) -> None:
    kernel = launcher(spec)
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        pair = torch.randn(N, device=device), torch.randn(N, device=device)
        found = kernel(*pair)
        assert found[0].device == pair[0].device
        torch.testing.assert_close(found, expected(*pair))


def model(spec: KernelSpec, reference: str = "") -> CompiledModel:
    source = "def forward(x, y):\n    v = x * w\n    a, b = k(v, y)\n    return (a, F.relu(b))\n"
    tensors = (TensorSpec("x", "float32", (N,)), TensorSpec("y", "float32", (N,)))
    references = {spec.name: reference} if reference else {}
    return CompiledModel(Graph(source, ("x", "y"), 2, {"k": spec.name}, references), {"w": torch.tensor(3.0)}, {spec.name: spec},
                         Signature(tensors, (0, 1), (0, 1)), Report("toy", spec.arch))


def test_model_graph_compile_and_file(spec: KernelSpec, data: Any, tmp_path: Any) -> None:
    made, (x, y) = model(spec), data
    with pytest.raises(InputError, match="RF503"):
        made(x.cpu(), y.cpu())
    a, b = expected(3 * x, y)
    wanted = a, torch.relu(b)
    torch.testing.assert_close(made(x, y), wanted, msg="constants follow the inputs to where the kernels run")
    assert all(buffer.is_cuda for buffer in made.buffers())
    torch.testing.assert_close(made(x, y), wanted)
    torch.testing.assert_close(torch.compile(made, fullgraph=True)(x, y), wanted)
    captured = made.cuda_graph(x, y)
    for _ in range(2):
        x.normal_()
        torch.testing.assert_close(captured(x, y), made(x, y))
    with pytest.raises(InputError, match="RF505"):
        captured(x[:-1], y)
    first = captured(x, y)
    captured(torch.zeros_like(x), y)
    torch.testing.assert_close(first, made(x, y), msg="results are copies")
    made.save(tmp_path / "m.rf")
    torch.testing.assert_close(CompiledModel.load(tmp_path / "m.rf")(x, y), made(x, y))
    with pytest.raises(ArtifactError, match="RF605"):
        CompiledModel.load(tmp_path / "m.rf", device="cpu")


def test_a_kernel_is_tried_before_its_first_use(spec: KernelSpec, data: Any, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """Held to the torch code it stands for; one that is wrong is not used, and one that was right is not tried again."""
    monkeypatch.setenv("REDFUSER_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("REDFUSER_VERIFY", raising=False)
    right = "def forward(x, y):\n    out = x * 2.0 + y\n    return (out, x + out)\n"
    wanted = expected(3 * data[0], data[1])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="RF807")
        torch.testing.assert_close(model(spec, right)(*data)[0], wanted[0])
    monkeypatch.setattr(trial, "outcome", None)
    model(spec, right)(*data)
    monkeypatch.undo()
    monkeypatch.setenv("REDFUSER_CACHE_DIR", str(tmp_path))
    made = model(spec, right.replace("2.0", "2.5"))
    with pytest.warns(RuntimeWarning, match="RF807"):
        found = made(*data)
    torch.testing.assert_close(found[0], 2.5 * 3 * data[0] + data[1])
    assert [verdict for _, verdict, _ in trial.all_of(made)] == ["wrong"]


def hanging(spec: KernelSpec, reference: str, folder: str) -> None:
    """In a process of its own: what is asked of it never comes."""
    os.environ["REDFUSER_CACHE_DIR"] = folder
    os.environ.pop("REDFUSER_VERIFY", None)
    patience.LIMIT_S = 3.0
    try:
        model(spec, reference)(torch.randn(N).cuda(), torch.randn(N).cuda())
    except ArtifactError as error:
        os._exit(8 if error.code == "RF808" else 1)
    os._exit(2)


def test_a_kernel_that_does_not_end(spec: KernelSpec, data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that tries it is told so and can end; the next one runs torch's code."""
    endless = dataclasses.replace(spec, binaries=(compile_cubin(spec.arch, ENDLESS),))
    reference = "def forward(x, y):\n    out = x * 2.0 + y\n    return (out, x + out)\n"
    child = multiprocessing.get_context("spawn").Process(target=hanging, args=(endless, reference, str(tmp_path)))
    child.start()
    child.join(90)
    ended = child.exitcode
    if ended is None:
        child.kill()
    assert ended == 8
    monkeypatch.setenv("REDFUSER_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("REDFUSER_VERIFY", raising=False)
    with pytest.warns(RuntimeWarning, match="did not end"):
        found = model(endless, reference)(*data)
    torch.testing.assert_close(found[0], expected(3 * data[0], data[1])[0])


PREBUILT = sorted(Path(os.environ.get("REDFUSER_GPU_ARTIFACTS") or os.devnull).glob("*.rf.gz"))


@pytest.mark.parametrize("path", PREBUILT, ids=[p.name.removesuffix(".rf.gz") for p in PREBUILT])
def test_a_prebuilt_artifact(path: Path, tmp_path: Path) -> None:
    """Right by the trial, on its own stream, in a graph and under torch.compile, all with the same bits."""
    (tmp_path / "model.rf").write_bytes(gzip.decompress(path.read_bytes()))
    made = CompiledModel.load(tmp_path / "model.rf")
    assert not [(name, why) for name, verdict, why in trial.all_of(made) if verdict == "wrong"]
    args = [torch.randn(t.shape).to(dtype).cuda() if dtype.is_floating_point else
            torch.full(t.shape, dtype == torch.bool, dtype=dtype).cuda()
            for t in made._signature.inputs for dtype in [getattr(torch, t.dtype)]]
    wanted = tensors(made(*args))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        beside = tensors(made(*args))
    stream.synchronize()
    for other in (beside, tensors(made.cuda_graph(*args)(*args)), tensors(torch.compile(made, backend="eager")(*args))):
        for a, b in zip(wanted, other, strict=True):
            torch.testing.assert_close(b.float(), a.float(), rtol=0, atol=0, equal_nan=True)


def test_what_cannot_be_captured(spec: KernelSpec, data: Any) -> None:
    source = "def forward(x, y):\n    v = torch.ops.aten.nonzero.default(x)\n    return (v,)\n"
    tensors = (TensorSpec("x", "float32", (N,)), TensorSpec("y", "float32", (N,)))
    made = CompiledModel(Graph(source, ("x", "y"), 1), {}, {}, Signature(tensors, (0, 1), (0,)))
    with pytest.raises(InputError, match="RF512"):
        made.cuda_graph(*data)


def cost(call: Callable[[], Any]) -> float:
    """Microseconds of host time per call: the best of many short rounds."""
    times = []
    for _ in range(60):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(50):
            call()
        times.append((time.perf_counter() - start) / 50 * 1e6)
    torch.cuda.synchronize()
    return statistics.quantiles(times, n=10)[0]


def test_host_cost(spec: KernelSpec, data: Any) -> None:
    """One launch, two tensors: at most 6 microseconds, or what torch's own addition costs where the host is slower than
    that. (``benchmarks/launch_overhead.py`` prints the parts.)"""
    one = dataclasses.replace(
        spec, args=(ArgSpec("x", "f32", (N,), "in"), ArgSpec("partial", "f32", (N,), "out")), launches=spec.launches[:1])
    kernel, x = launcher(one), data[0]
    call = kernel.call
    out = torch.empty_like(x)
    assert cost(lambda: call(x)) <= max(6.0, cost(lambda: torch.add(x, x, out=out)))
    op = ops.register(one)
    torch.testing.assert_close(op(x), 2 * x)
