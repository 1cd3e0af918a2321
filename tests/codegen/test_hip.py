"""gfx942: what is printed of every family, what TileLang makes of it without ROCm, and that the HIP text computes its cascade."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import hip_run
import numpy as np
import pytest
from click.testing import CliRunner
from hip_families import AMD, FAMILIES

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.expr import Const
from redfuser.acrf.state import Fused
from redfuser.artifact import KernelSpec, from_files, save_kernel, to_files
from redfuser.codegen import hip, hip_worker, tilelang, toolchain
from redfuser.codegen.build import Request
from redfuser.codegen.dialects import ROCM
from redfuser.elf import code_object_fault
from redfuser.errors import BuildError
from redfuser.kernels import produce
from redfuser.runtime.native import find_cxx
from redfuser.sizes import Symbol
from redfuser.target import target
from redfuser.tensorize import TileProgram, configs, spec_skeleton, tensorize
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.nodes import Fill, For, TileKernel
from redfuser.tensorize.ir.parse import parse
from redfuser.tensorize.ir.pointwise import NUMPY_DTYPES
from redfuser.tensorize.ir.verify import verify
from redfuser.tensorize.model import needs
from redfuser.tensorize.schedule import passes
from redfuser.tensorize.schedule.prefetch import Prefetch

needs_tilelang = pytest.mark.skipif(importlib.util.find_spec("tilelang") is None, reason="tilelang is not installed")
RUN = ("attention", "latent", "routing", "quant", "variance", "softmax")
"""Families whose HIP text is run by every test run, three seconds each; the others where REDFUSER_ALL_HIP is set."""


@pytest.fixture(scope="module")
def tiles() -> dict[str, TileProgram]:
    return {name: family.tiles for name, family in FAMILIES.items()}


def request(name: str, program: TileProgram) -> Request:
    return Request(tilelang.print_program(program, "hip"), spec_skeleton(program), name, "gfx942",
                   {"pass_configs": tilelang.pass_configs(program)})


@contextmanager
def no_rocm() -> Iterator[None]:
    """Text stays text, also where there is a toolchain."""
    with pytest.MonkeyPatch.context() as without:
        without.setattr(toolchain, "_find_hipcc", lambda _environment: None)
        yield


@pytest.fixture(scope="module")
def built(tiles: dict[str, TileProgram]) -> dict[str, Any]:
    with no_rocm():
        return dict(zip(RUN, hip.try_build_many([request(n, tiles[n]) for n in RUN]), strict=True))


@pytest.mark.parametrize("name", FAMILIES)
def test_golden(name: str, golden: Any, tiles: dict[str, TileProgram]) -> None:
    golden(f"kernels/gfx942/{name}.py.txt", tilelang.print_program(tiles[name], "hip"))


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_of_cuda_is_in_it(name: str, tiles: dict[str, TileProgram]) -> None:
    text = tilelang.print_program(tiles[name], "hip")
    assert not any(word in text for word in ("tilelang.language", "asm(", "T.Pipelined", "float8", "tma_", "wgmma", "T.exp(", "T.log("))
    for k in tiles[name].kernels:
        assert needs(k, AMD).shared <= 64 << 10 and not k.warp_specialized


@needs_tilelang
@pytest.mark.parametrize("name", RUN)
def test_golden_hip(name: str, golden: Any, built: dict[str, Any]) -> None:
    spec = built[name]
    assert isinstance(spec, KernelSpec), spec
    body = "\n".join(t.decode()[t.decode().index('extern "C" __global__'):] for t in spec.binaries)
    golden(f"kernels/gfx942/{name}.hip.txt", re.sub(r"\bworkspace(_\d+)?\b", "workspace", body))  # TileLang numbers them as it likes


@needs_tilelang
@pytest.mark.parametrize("name", RUN)
def test_shared_memory_is_what_the_model_says(name: str, built: dict[str, Any], tiles: dict[str, TileProgram]) -> None:
    said = [needs(k, AMD).shared for k in tiles[name].kernels]
    assert [x.shared_bytes for x in built[name].launches] == said


def run(program: TileProgram, spec: KernelSpec, folder: Path) -> None:
    """The HIP text on the host against the tile program in the interpreter, which the chain of checks holds to the cascade, and
    in the types as they are: equal but for a few units in the last place of what is summed in another order."""
    rng = np.random.default_rng(3)
    given = {a.name: rng.standard_normal(a.shape).astype(NUMPY_DTYPES[a.dtype]) for a in program.args if a.role == "in"}
    given |= {n: np.abs(x) for n, x in given.items() if n == "w" and x.dtype == np.float32}  # masses
    memory = {a.name: given[a.name].copy() if a.role == "in" else np.zeros(a.shape, NUMPY_DTYPES[a.dtype]) for a in program.args}
    hip_run.run(spec, memory, folder)
    exact = interpret.run(program, given, wide=True)
    held = interpret.run(program, given)
    for name, arg in program.outputs:
        got, want, also = memory[arg].astype(np.float64), exact[name].astype(np.float64), held[name].astype(np.float64)
        error, allowed = np.abs(got - want).max(), 2 * np.abs(also - want).max() + 1e-5 * np.abs(want).max()
        assert error <= allowed, (name, error, allowed)


@needs_tilelang
@pytest.mark.skipif(find_cxx() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", RUN)
def test_the_hip_text_computes_it(name: str, built: dict[str, Any], tiles: dict[str, TileProgram], tmp_path: Path) -> None:
    run(tiles[name], built[name], tmp_path)


@needs_tilelang
@pytest.mark.skipif("REDFUSER_ALL_HIP" not in os.environ, reason="half a minute: set REDFUSER_ALL_HIP to run it")
@pytest.mark.parametrize("name", [n for n in FAMILIES if n not in RUN])
def test_the_other_families_compute_it(name: str, tiles: dict[str, TileProgram], tmp_path: Path) -> None:
    with no_rocm():
        spec = hip.try_build(request(name, tiles[name]))
    assert isinstance(spec, KernelSpec), spec
    assert [x.shared_bytes for x in spec.launches] <= [needs(k, AMD).shared for k in tiles[name].kernels]
    run(tiles[name], spec, tmp_path)


@pytest.mark.skipif(find_cxx() is None, reason="no C++ compiler")
def test_bytes_of_eight_bits_are_numpy_s(tmp_path: Path) -> None:
    """Every byte to a number, and numbers of all magnitudes, ties and edges to bytes."""
    import ctypes

    lines = ["#include <hip/hip_runtime.h>", *ROCM.defined({"from_e4m3", "from_e5m2", "to_e4m3", "to_e5m2"})]
    for kind in ("e4m3", "e5m2"):
        lines.append(f'extern "C" void from_{kind}_all(const unsigned char* x, float* y, int n) {{ for (int i = 0; i < n; ++i) y[i] = '
                     f'from_{kind}(x[i]); }}\nextern "C" void to_{kind}_all(const float* x, unsigned char* y, int n) {{ for (int i = 0; '
                     f'i < n; ++i) y[i] = to_{kind}(x[i]); }}')
    source, library = tmp_path / "eight.cc", tmp_path / "eight.so"
    source.write_text("\n".join(lines))
    subprocess.run([str(find_cxx()), "-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"-I{hip_run.HOST}", str(source), "-o", str(library)],
                   check=True)
    shared, rng = ctypes.CDLL(str(library)), np.random.default_rng(0)
    for kind in ("e4m3", "e5m2"):
        codes, numbers = np.arange(256, dtype=np.uint8), np.empty(256, np.float32)
        getattr(shared, f"from_{kind}_all")(codes.ctypes.data_as(ctypes.c_void_p), numbers.ctypes.data_as(ctypes.c_void_p), 256)
        np.testing.assert_array_equal(numbers, codes.view(NUMPY_DTYPES[kind]).astype(np.float32))
        finite = np.sort(numbers[np.isfinite(numbers)])
        x = np.concatenate([numbers, (finite[1:] + finite[:-1]) / 2, (rng.standard_normal(4000) * 2.0**rng.integers(-20, 18, 4000)),
                            [464.0, 464.5, 480.0, 61439.0, 61440.0, 65000.0, 1e30, -1e30, np.inf, -np.inf]]).astype(np.float32)
        got = np.empty(len(x), np.uint8)
        getattr(shared, f"to_{kind}_all")(x.ctypes.data_as(ctypes.c_void_p), got.ctypes.data_as(ctypes.c_void_p), len(x))
        want = x.astype(NUMPY_DTYPES[kind])
        np.testing.assert_array_equal(got.view(NUMPY_DTYPES[kind]).astype(np.float32), want.astype(np.float32))


def test_an_ocp_number_is_twice_its_fnuz_reading() -> None:
    """What docs/decisions/0018 rests on: of e4m3, all bytes but -0 and NaN."""
    import ml_dtypes

    codes = np.arange(256, dtype=np.uint8)
    own, other = (codes.view(t).astype(np.float64) for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz))
    assert list(codes[own != 2 * other]) == [0x7F, 0x80, 0xFF]


def test_rows_meet_in_shared_memory() -> None:
    """Where a reduction of loads and a product want one row's value, and nowhere else; what is computed stays the same."""
    from redfuser.tensorize.schedule.history import History
    from redfuser.tensorize.schedule.share_rows import ShareRows

    for name, applies in (("normed", True), ("attention", False), ("softmax", False)):
        family, seen = FAMILIES[name], History()
        program = tensorize(family.program, family.config or configs(family.program, AMD)[0], AMD, seen)
        assert ("ShareRows" in str(seen)) == applies
        again = ShareRows()(program.kernels[0])
        assert hash(ShareRows()) is not None and "-->" in str(ShareRows.__doc__) and (applies or again == program.kernels[0])
        if applies:
            shared = [b.name for b in program.kernels[0].buffers if b.scope == "shared" and len(b.shape) == 1]
            assert shared and all(n.endswith("_shared") for n in shared)


def watched(name: str) -> tuple[TileProgram, dict[str, TileKernel]]:
    """A family's tiles, and its first kernel after each pass that changed it."""
    family = FAMILIES[name]
    seen: dict[str, TileKernel] = {}

    def watch(after: str, kernel: Any) -> None:
        if isinstance(kernel, TileKernel) and kernel.name == family.program.kernels[0].name:
            seen[after] = kernel

    return tensorize(family.program, family.config or configs(family.program, AMD)[0], AMD, watch), seen


@pytest.mark.parametrize("name", ["attention", "quant", "latent", "singles"])
def test_the_next_step_waits_in_registers(name: str) -> None:
    program, seen = watched(name)
    after, before = seen.pop("Prefetch"), list(seen.values())[-1]
    assert after == program.kernels[0] and "-->" in str(Prefetch.__doc__) and not verify(program)
    assert parse(str(program)).kernels == program.kernels
    rng = np.random.default_rng(5)
    given = {a.name: rng.standard_normal(a.shape).astype(NUMPY_DTYPES[a.dtype]) for a in program.args if a.role == "in"}
    now, then = (interpret.run(replace(program, kernels=(k, *program.kernels[1:])), given) for k in (after, before))
    assert all(np.array_equal(now[n], then[n], equal_nan=True) for n in now)


def test_what_does_not_wait_in_registers() -> None:
    """A loop that is pipelined, a tile that something else writes as well, and one that has no room; no products on CUDA."""
    _, seen = watched("attention")
    kernel = [k for after, k in seen.items() if after != "Prefetch"][-1]
    (loop,) = (s for s in kernel.body if isinstance(s, For))

    def with_loop(loop: For) -> TileKernel:
        return replace(kernel, body=tuple(loop if isinstance(s, For) else s for s in kernel.body))

    assert Prefetch(True)(kernel) != kernel
    for other in (with_loop(replace(loop, stages=2)), replace(kernel, threads=16)):
        assert Prefetch(True)(other) == other
    twice = with_loop(replace(loop, body=(*loop.body, Fill("k_shared", Const(0.0, "f16")))))
    assert "k_next" not in str(Prefetch(True)(twice)) and "v_next" in str(Prefetch(True)(twice))
    assert Prefetch(False)(kernel) == kernel and Prefetch(False) in passes("auto", target("sm_80"))


@needs_tilelang
@pytest.mark.skipif("REDFUSER_ALL_HIP" not in os.environ, reason="twenty seconds: set REDFUSER_ALL_HIP to run it")
def test_one_text_of_many_sizes(tmp_path: Path) -> None:
    text = FAMILIES["softmax"].text.replace("[5, 333]", "[n, 333]")
    fused = fuse(parse_cascade(text))
    assert isinstance(fused, Fused)
    with no_rocm():
        made = produce("softmax", fused, "gfx942", symbols=(Symbol("n", 1, 300),))
    assert made.reason is None and made.spec is not None, made.reason
    for n in (1, 7, 300):
        (folder := tmp_path / str(n)).mkdir()  # a library is loaded once for each path
        x = np.random.default_rng(n).standard_normal((n, 333)).astype(np.float16)
        memory = {a.name: x if a.role == "in" else np.zeros(a.shape, np.float16) for a in made.spec.at({"n": n}).args}
        hip_run.run(replace(made.spec.at({"n": n}), binaries=made.spec.binaries), memory, folder, {"n": n})
        (got,) = (v for k, v in memory.items() if v is not x)
        e = np.exp(x.astype(np.float64) - x.astype(np.float64).max(1, keepdims=True))
        np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=2e-3, atol=1e-6)


# -- what is not built yet, and building it ----------------------------------------------------------------------------------


def text_spec() -> KernelSpec:
    from redfuser.artifact import ArgSpec, LaunchSpec, ParamSpec

    return KernelSpec("k", "hip", "gfx942", (ArgSpec("x", "f32", (4,), "in"), ArgSpec("y", "f32", (4,), "out")),
                      (LaunchSpec("k_kernel", 0, (1, 1, 1), (64, 1, 1), 256, (ParamSpec("ptr", "x"), ParamSpec("ptr", "y"))),),
                      (b"// HIP\n",), "source", {}, ())


def code_object(entry: str = "k_kernel", machine: int = 224, flags: int = 0x4C) -> bytes:
    """The smallest ELF file that defines a function."""
    names = b"\0" + entry.encode() + b"\0"
    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0) + struct.pack("<IBBHQQ", 1, 0x12, 0, 1, 0, 8)
    head = 64
    table = head + len(names) + len(symbols)
    sections = [struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at, size, link, 0, 0, 0) for kind, at, size, link in (
        (0, 0, 0, 0), (3, head, len(names), 0), (2, head + len(names), len(symbols), 1))]
    header = struct.pack("<4sBBBBB7xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 64, 4, 3, machine, 1, 0, 0, table, flags, 64, 0, 0, 64, 3, 0)
    return header + names + symbols + b"".join(sections)


def test_text_survives_a_file_and_is_not_finished() -> None:
    spec = text_spec()
    files = to_files(spec)
    assert "kernel_0.hip" in files and from_files(files) == spec and not spec.finished
    assert replace(spec, binaries=(code_object(),)).finished


def test_a_code_object_is_looked_at() -> None:
    assert code_object_fault(code_object(), "gfx942", ["k_kernel"]) == ""
    assert "machine 190" in code_object_fault(code_object(machine=190), "gfx942", [])
    assert "not gfx942" in code_object_fault(code_object(flags=0x3F), "gfx942", [])
    assert "without other" in code_object_fault(code_object(), "gfx942", ["other"])


@pytest.fixture
def hipcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in: it writes the object that lies beside it, and says what clang says of registers."""
    home = tmp_path / "rocm" / "bin"
    home.mkdir(parents=True)
    (home / "object").write_bytes(code_object())
    remark = "k.hip:1:1: remark: {} [-Rpass-analysis=kernel-resource-usage]"
    said = [remark.format(x) for x in ("Function Name: k_kernel", "    VGPRs: 42", "    AGPRs: 16", "    ScratchSize [bytes/lane]: 8",
                                       "    LDS Size [bytes/block]: 128")]
    script = home / "hipcc"
    script.write_text("#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'HIP version: 6.4.1'; exit 0; fi\n" + "\n".join(
        f"echo '{s}' >&2" for s in said) + f'\nfor last; do :; done\ncp "{home}/object" "$last"\n')
    script.chmod(0o755)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    monkeypatch.setenv("REDFUSER_CACHE_DIR", str(tmp_path / "cache"))
    toolchain._find_hipcc.cache_clear()
    yield home
    toolchain._find_hipcc.cache_clear()


def test_finish(hipcc: Path) -> None:
    done = hip.finish(text_spec())
    assert done.finished and done.resources == ({"registers": 42, "accumulator_registers": 16, "spill_bytes": 8,
                                                 "static_shared_bytes": 128},)
    assert from_files(to_files(done)) == done


def test_finishing_takes_torch_and_rocm_alone(hipcc: Path, tmp_path: Path) -> None:
    """Neither TVM nor TileLang: a process in which they cannot be imported, with all that judges and measures on such a machine."""
    save_kernel(text_spec(), tmp_path / "k")
    away = "for n in ('tvm', 'tilelang', 'sympy', 'z3', 'onnx', 'rich', 'transformers', 'triton'): sys.modules[n] = None\n"
    code = ("import sys\n" + away + "import redfuser.autotune.measure, redfuser.autotune.child, redfuser.bench.correctness.run\n"
            f"from redfuser import finish\nfrom redfuser.artifact import load_kernel\nassert finish.kernel(load_kernel({str(tmp_path / 'k')!r})).finished")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


@pytest.mark.parametrize("left, code", [(code_object("other"), "RF460"), (code_object(flags=0x3F), "RF460"), (b"", "RF453")])
def test_what_the_compiler_leaves_is_looked_at(hipcc: Path, left: bytes, code: str) -> None:
    (hipcc / "object").write_bytes(left)
    with pytest.raises(BuildError, match=code):
        hip.finish(text_spec())


def test_clang_with_what_it_needs_of_rocm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No hipcc: a clang that knows gfx942, the headers and the device libraries; else the error names what is not there."""
    home, tools = tmp_path / "rocm", tmp_path / "bin"
    tools.mkdir()
    monkeypatch.setenv("ROCM_PATH", str(home))
    monkeypatch.delenv("HIP_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tools))

    def found(release: str) -> toolchain.Hipcc:
        (tools / "clang++").write_text(f"#!/bin/sh\necho 'Debian clang version {release}'\n")
        (tools / "clang++").chmod(0o755)
        toolchain._find_hipcc.cache_clear()
        return toolchain.find_hipcc()

    try:
        with pytest.raises(BuildError, match=r"the HIP headers .*hip_runtime.h.*, the rocwmma headers.*, the device libraries"):
            found("19.1.7")
        for place in toolchain.WANTED.values():
            (home / place).parent.mkdir(parents=True, exist_ok=True)
            (home / place).touch()
        done = found("19.1.7")
        assert done.path == str(tools / "clang++") and f"--rocm-path={home}" in done.flags and "19.1.7" in done.version
        with pytest.raises(BuildError, match="no such clang"):
            found("14.0.6")
    finally:
        toolchain._find_hipcc.cache_clear()


def test_without_a_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_find_hipcc", lambda _environment: None)
    with pytest.raises(BuildError, match="RF462"):
        hip.finish(text_spec())


def test_a_bundle_is_opened() -> None:
    inner, name = code_object(), b"hipv4-amdgcn-amd-amdhsa--gfx942:sramecc+"
    magic = b"__CLANG_OFFLOAD_BUNDLE__"
    start = len(magic) + 8 + 24 + len(name)
    bundle = magic + struct.pack("<QQQQ", 1, start, len(inner), len(name)) + name + inner
    assert hip.unbundled(bundle, "gfx942") == inner and hip.unbundled(inner, "gfx942") == inner


def test_headers_are_put_in_once(tmp_path: Path) -> None:
    folder = tmp_path / "tl_templates" / "hip"
    folder.mkdir(parents=True)
    (folder / "a.h").write_text('#pragma once\n#include "b.h"\n#include <hip/hip_runtime.h>\nint a;')
    (folder / "b.h").write_text("#pragma once\nint b;")
    text = hip_worker.alone("#include <tl_templates/hip/b.h>\n#include <tl_templates/hip/a.h>\nint k;", tmp_path)
    assert text.count("int b;") == text.count("int a;") == 1 and "tl_templates" not in text and "<hip/hip_runtime.h>" in text


@needs_tilelang
def test_compile_save_build(hipcc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way: text in the file, and what `redfuser build` makes of it."""
    import torch

    import redfuser
    from redfuser import finish
    from redfuser.bench.correctness.build import paths
    from redfuser.bench.correctness.run import loaded
    from redfuser.cli.main import cli
    from redfuser.runtime import archive
    from workloads.correctness import Program

    with monkeypatch.context() as without:
        without.setattr(toolchain, "_find_hipcc", lambda _environment: None)
        model = redfuser.compile(lambda x: torch.softmax(x, -1), (torch.randn(4, 64),), target="gfx942")
        (spec,) = model.kernels.values()
        assert not spec.finished and model.report.cascades[0].fused and "tilelang.rocm" in spec.source
        assert any("tile program" in c for c in model.report.cascades[0].checks)
        model.save(tmp_path / "m.rf")
        refused = CliRunner().invoke(cli, ["build", str(tmp_path / "m.rf")])
        assert refused.exit_code == 1 and "RF462" in refused.stderr
        left = (tmp_path / "m.rf").read_bytes()
    assert archive.architectures(tmp_path / "m.rf") == ("gfx942",)
    (hipcc / "object").write_bytes(code_object(spec.launches[0].entry))
    done = CliRunner().invoke(cli, ["build", str(tmp_path / "m.rf")])
    assert done.exit_code == 0, done.output
    program = Program("softmax", "rows", lambda x: x, ())
    paths(tmp_path, program.name)[0].write_bytes(gzip.compress(left))
    monkeypatch.setattr(redfuser, "load", lambda path: archive.read(Path(path), arch="gfx942", device="cpu"), raising=False)
    with loaded(program, tmp_path, "cpu") as judged:  # what the lane runs where the GPU is, and the tuner
        assert all(k.finished and finish.kernel(k) is k for k in judged.kernels.values())
    (finished,) = archive.read(tmp_path / "m.rf", arch="gfx942").kernels.values()
    assert finished.finished and json.dumps(finished.to_json()["launches"]) == json.dumps(spec.to_json()["launches"])
