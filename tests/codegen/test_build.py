"""Building kernels in worker processes, without a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from redfuser.artifact import ArgSpec, KernelSpec
from redfuser.cache import Cache
from redfuser.codegen import toolchain
from redfuser.codegen.build import Request, build, build_many, cache_key, canonical_source, try_build
from redfuser.codegen.overlap import LET_ON, WAIT, overlapped
from redfuser.codegen.pool import BuildFailure, BuildFailureError, Built, Job, Pool
from redfuser.errors import BuildError

needs_compilers = pytest.mark.skipif(
    importlib.util.find_spec("tilelang") is None or toolchain._find_nvcc(("", "", os.environ.get("PATH", ""))) is None,
    reason="tilelang or nvcc is not installed")

# Two prim_funcs in launch order: a row maximum, then a sum of all rows.
ROWS = '''
import tilelang.language as T

def make():
    @T.prim_func
    def rows(X: T.Tensor((64, 128), "float16"), M: T.Tensor((64,), "float32")):
        with T.Kernel(4, threads=128) as bx:
            x = T.alloc_fragment((16, 128), "float32")
            m = T.alloc_fragment((16,), "float32")
            T.copy(X[bx * 16, 0], x)
            T.reduce_max(x, m, dim=1)
            T.copy(m, M[bx * 16])

    @T.prim_func
    def total(M: T.Tensor((64,), "float32"), Y: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=32) as bx:
            m = T.alloc_fragment((1, 64), "float32")
            s = T.alloc_fragment((1,), "float32")
            T.copy(M[0:64], m[0, 0:64])
            T.reduce_sum(m, s, dim=1)
            T.copy(s, Y)

    return {"rows": rows, "total": total}
'''
ARGS = (ArgSpec("X", "f16", (64, 128), "in"), ArgSpec("Y", "f32", (1,), "out"), ArgSpec("M", "f32", (64,), "workspace"))

# The first alone: one launch, one run of nvcc.
ONE = ROWS.replace('return {"rows": rows, "total": total}', "return rows")
ONE_ARGS = (ARGS[0], ArgSpec("M", "f32", (64,), "out"))

# TMA loads through a pipelined loop of tensor-core products: what Hopper kernels look like.
GEMM = '''
import tilelang.language as T

def make():
    @T.prim_func
    def gemm(A: T.Tensor((128, 256), "float16"), B: T.Tensor((128, 256), "float16"), C: T.Tensor((128, 128), "float32")):
        with T.Kernel(1, threads=128) as bx:
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((128, 64), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[0, k * 64], a)
                T.copy(B[0, k * 64], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C)

    return gemm
'''
GEMM_ARGS = (ArgSpec("A", "f16", (128, 256), "in"), ArgSpec("B", "f16", (128, 256), "in"),
             ArgSpec("C", "f32", (128, 128), "out"))


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Two workers, of which the second is started where two are needed at once: whoever comes alone gets the last one used."""
    with Pool(2) as made:
        yield made


@pytest.fixture(scope="module")
def two_launches(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> KernelSpec:
    """``ROWS`` for an architecture before Hopper."""
    return build(ROWS, ARGS, "rows", "sm_86", {"tile": 16}, pool=pool, cache=Cache(tmp_path_factory.mktemp("two_launches")))


@needs_compilers
def test_two_launches(two_launches: KernelSpec) -> None:
    spec = two_launches
    first, second = spec.launches
    assert (first.entry, first.grid, first.block) == ("rows_kernel", (4, 1, 1), (128, 1, 1))
    assert (second.entry, second.grid, second.block, second.binary) == ("total_kernel", (1, 1, 1), (32, 1, 1), 1)
    assert [p.arg for p in first.params] == ["M", "X"] and [p.arg for p in second.params] == ["M", "Y"]
    assert all(binary[:4] == b"\x7fELF" for binary in spec.binaries) and spec.source == ROWS
    assert all(r["registers"] > 0 and r["spill_bytes"] == 0 for r in spec.resources) and spec.config == {"tile": 16}
    assert KernelSpec.from_json(spec.to_json(), spec.binaries, spec.source) == spec


@needs_compilers
def test_the_second_launch_starts_early_and_waits(pool: Pool, tmp_path: Path, two_launches: KernelSpec) -> None:
    """From Hopper on. The first, behind whatever the caller launched, does not."""
    spec = build(ROWS, ARGS, "rows", "sm_90a", pool=pool, cache=Cache(tmp_path))
    assert [launch.waits for launch in spec.launches] == [False, True]
    assert not any(launch.waits for launch in two_launches.launches), "from Hopper on"


def test_what_an_early_launch_says_first() -> None:
    text = 'extern "C" __global__ void k(float* x);\nextern "C" __global__ void __launch_bounds__(64, 1) k(float* x) {\n  x[0] = 1;\n}\n'
    head, tail = text.split("{\n")
    for first, last, said in ((True, True, ""), (True, False, LET_ON), (False, False, WAIT + LET_ON), (False, True, WAIT)):
        assert overlapped(text, "sm_90a", first, last) == head + "{\n" + said + tail, "once, in front of all else"
        assert overlapped(text, "sm_89", first, last) == text


def test_what_waits_is_not_told_that_nobody_else_writes() -> None:
    """`const float* __restrict__` is asked for in front of the wait: a log-sum-exp of 16 splits was .14 off on an H200."""
    text = 'extern "C" __global__ void k(const float* __restrict__ x, float* __restrict__ y);\n' \
           'extern "C" __global__ void __launch_bounds__(64, 1) k(const float* __restrict__ x, float* __restrict__ y) {\n' \
           "  const float* __restrict__ z = x;\n}\n"
    assert overlapped(text, "sm_90a", True, False).count("__restrict__") == 5
    for last in (True, False):
        behind = overlapped(text, "sm_90a", False, last)
        assert behind.count("__restrict__") == 1 and behind.count("k(const float* x, float* y)") == 2


GATHERED = """
import tilelang.language as T

def make():
    @T.prim_func
    def gathered(X: T.Tensor((8,), "bfloat16"), Y: T.Tensor((4096,), "bfloat16")):
        with T.Kernel(1, threads=128) as bx:
            y = T.alloc_fragment((4096,), "bfloat16")
            for i in T.Parallel(4096):
                y[i] = X[i // 500]
            T.copy(y, Y)

    return gathered
"""


@needs_compilers
def test_bfloat16_numbers_are_gathered_several_at_once(pool: Pool, tmp_path: Path) -> None:
    """By a name of TileLang's that its headers for CUDA lack."""
    arguments = (ArgSpec("X", "bf16", (8,), "in"), ArgSpec("Y", "bf16", (4096,), "out"))
    assert build(GATHERED, arguments, "gathered", "sm_90a", pool=pool, cache=Cache(tmp_path)).binaries


@needs_compilers
def test_hopper_tensor_maps(pool: Pool, tmp_path: Path) -> None:
    spec = build(GEMM, GEMM_ARGS, "gemm", "sm_90a", pool=pool, cache=Cache(tmp_path))
    launch = spec.launches[0]
    assert launch.block == (256, 1, 1), "a producer warp group was added"
    assert launch.shared_bytes >= 2 * 2 * 128 * 64 * 2
    maps = {p.arg: p.tma for p in launch.params if p.tma is not None}
    assert maps["A"].dims == (256, 128) and maps["A"].strides == (512,) and maps["A"].box == (64, 128)
    assert maps["A"].rank == 2 and maps["A"].element_strides == (1, 1) and maps["A"].swizzle == 3


@needs_compilers
def test_two_tiles_of_one_tensor_have_tensor_maps_of_their_own(pool: Pool, tmp_path: Path) -> None:
    """A packed projection, of which queries and keys are read in tiles of two shapes: under one descriptor a block waits for
    ever."""
    text = GEMM.replace('B: T.Tensor((128, 256), "float16"), C: T.Tensor((128, 128)', 'C: T.Tensor((128, 64)').replace(
        "b = T.alloc_shared((128, 64)", "b = T.alloc_shared((64, 64)").replace("(128, 128), \"float32\")", "(128, 64), \"float32\")").replace(
        "T.copy(B[0, k * 64], b)", "T.copy(A[0:64, k * 64:k * 64 + 64], b)")
    args = (GEMM_ARGS[0], ArgSpec("C", "f32", (128, 64), "out"))
    spec = build(text, args, "gemm", "sm_90a", pool=pool, cache=Cache(tmp_path))
    assert [p.tma.box for p in spec.launches[0].params if p.tma is not None and p.arg == "A"] == [(64, 128), (64, 64)]


@needs_compilers
def test_the_cache_answers_and_survives_damage(pool: Pool, tmp_path: Path) -> None:
    cache, request = Cache(tmp_path), Request(ONE, ONE_ARGS, "rows", "sm_80")
    spec = try_build(request, pool=pool, cache=cache)
    with Pool(1) as idle:
        assert try_build(request, pool=idle, cache=cache) == spec
        assert idle._workers[0].pid is None, "no worker was started"
    path = cache.path(cache_key(request))
    path.write_bytes(path.read_bytes()[:-100])
    assert try_build(request, pool=pool, cache=cache) == spec, "rebuilt, to the same bytes"
    assert cache.damaged == 1


def test_keys_follow_everything_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redfuser.codegen.build.find_nvcc", lambda: toolchain.Nvcc("nvcc", "13.0.1"))
    base = Request(ROWS, ARGS, "rows", "sm_80", {"tile": 16})
    same = Request(ROWS.replace("threads=128", "threads=128   ") + "\n\n", ARGS, "rows", "sm_80", {"tile": 16})
    others = [Request(ROWS.replace("128", "256"), ARGS, "rows", "sm_80", {"tile": 16}),
              Request(ROWS, ARGS[:2], "rows", "sm_80", {"tile": 16}), Request(ROWS, ARGS, "other", "sm_80", {"tile": 16}),
              Request(ROWS, ARGS, "rows", "sm_86", {"tile": 16}), Request(ROWS, ARGS, "rows", "sm_80", {"tile": 32}),
              Request(ROWS, ARGS, "rows", "sm_80", {"tile": 16, "pass_configs": {"tl.disable_warp_specialized": True}})]
    keys = {cache_key(r) for r in (base, *others)}
    assert len(keys) == 1 + len(others) and cache_key(same.__class__(ROWS + "\n\n", ARGS, "rows", "sm_80", {"tile": 16})) \
        == cache_key(base)
    assert canonical_source("a  \n b\n\n") == "a\n b\n"
    monkeypatch.setattr("redfuser.codegen.build.find_nvcc", lambda: toolchain.Nvcc("nvcc", "13.1.0"))
    assert cache_key(base) not in keys


BROKEN = {
    "RF451 source": "def make():\n    raise ValueError('no such tile')",
    "RF451 syntax": "def make(:",
    "RF451 empty": "def make():\n    return []",
    "RF452 lower": ROWS.replace("(16, 128)", "(16, 100)").replace("X: T.Tensor((64, 128)", "X: T.Tensor((64, 100)")
                       .replace("threads=128", "threads=96"),
    "RF454 hang": "import time\ndef make():\n    time.sleep(60)",
    "RF455 crash": "import os\ndef make():\n    os.abort()",
    "RF456 shared": ONE.replace("T.copy(X[bx * 16, 0], x)", "big = T.alloc_shared((64, 1024), 'float16')\n"
                                "            T.copy(X[0:64, 0:128], big[0:64, 0:128])\n"
                                "            T.copy(big[0:16, 0:128], x)"),
}


@needs_compilers
@pytest.mark.parametrize("name", BROKEN)
def test_broken_candidates_are_values(pool: Pool, tmp_path: Path, name: str) -> None:
    code, source = name.split()[0], BROKEN[name]
    args = ONE_ARGS if name == "RF456 shared" else ARGS
    limit = 1.0 if name == "RF454 hang" else 100.0
    started = time.monotonic()
    found = try_build(Request(source, args, "broken", "sm_86", limit_s=limit), pool=pool, cache=Cache(tmp_path))
    assert isinstance(found, BuildFailure) and found.code == code and found.source == source, found
    assert time.monotonic() - started < 60
    with pytest.raises(BuildFailureError, match=code):
        raise found.to_error("broken")
    stored = list((tmp_path / "v1").glob("*/*"))
    assert bool(stored) is found.lasting is (code != "RF454"), "remembered, unless time or memory may have been short"
    if found.lasting:
        with Pool(1) as idle:
            again = try_build(Request(source, args, "broken", "sm_86", limit_s=limit), pool=idle, cache=Cache(tmp_path))
            assert again == replace(found, log=again.log) and idle._workers[0].pid is None, "no worker was started"


def compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a shell script in nvcc's place; ``$out`` is where the cubin is expected."""
    path = folder / "nvcc"
    path.write_text('#!/bin/sh\nfor out; do :; done\n' + script)
    path.chmod(0o755)
    for module in ("build", "pool"):
        monkeypatch.setattr(f"redfuser.codegen.{module}.find_nvcc", lambda: toolchain.Nvcc(str(path), "13.0.1"))


# What stands in nvcc's place, ends with status 0 (or is killed), and must never become a kernel.
GARBAGE = {
    "RF460 nothing": "exit 0",
    "RF460 empty": ': > "$out"',
    "RF460 text": 'echo not a kernel > "$out"',
    "RF460 another architecture": '"$REAL" --cubin -arch=sm_80 "$SOURCE" -o "$out"',
    "RF460 another kernel": '"$REAL" --cubin -arch=sm_86 "$SOURCE" -o "$out"',
    "RF460 cut off": '"$REAL" --cubin -arch=sm_86 "$SOURCE" -o "$out"; truncate -s -700 "$out"',
    "RF455 killed": "kill -9 $$",
    "RF453 noise": "yes noise | head -c 50000000; exit 2",
}


@needs_compilers
@pytest.mark.parametrize("name", GARBAGE)
def test_what_a_compiler_leaves_is_looked_at(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    real = toolchain.find_nvcc().path
    source = tmp_path / "other.cu"
    source.write_text('extern "C" __global__ void other(float* x) { x[threadIdx.x] += 1; }')
    compiler(tmp_path, monkeypatch, GARBAGE[name].replace("$REAL", real).replace("$SOURCE", str(source)))
    found = try_build(Request(ONE, ONE_ARGS, "rows", "sm_86"), pool=pool, cache=Cache(tmp_path / "cache"))
    assert isinstance(found, BuildFailure) and found.code == name.split()[0], found
    assert len(found.log) < 2_000_000
    stored = [p.read_bytes() for p in (tmp_path / "cache" / "v1").glob("*/*")]
    assert len(stored) == found.lasting and all(b'"code"' in data for data in stored)


KILLED = """
import os, signal
if os.path.exists({once!r}):
    os.unlink({once!r})
    os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_compilers
def test_a_killed_worker_gets_the_same_candidate_again(pool: Pool, tmp_path: Path) -> None:
    once = tmp_path / "once"
    once.write_text("")
    found = pool.compile(Job(KILLED.format(once=str(once)) + ONE, "sm_86"))
    assert isinstance(found, Built) and not once.exists()


@needs_compilers
def test_the_compiler_says_why_and_the_pool_goes_on(pool: Pool) -> None:
    found = pool.compile(Job(ROWS, "sm_86", {}, ("--no-such-flag",)))
    assert isinstance(found, BuildFailure) and found.code == "RF453" and "no-such-flag" in found.log
    noisy = "import os\nprint('noise on stdout')\nos.write(1, b'{not json\\n')\n" + ONE
    assert isinstance(pool.compile(Job(noisy, "sm_86")), Built), "what a library prints does not disturb the protocol"


@needs_compilers
def test_parameters_must_be_declared(pool: Pool, tmp_path: Path) -> None:
    found = try_build(Request(ROWS, ARGS[:2], "rows", "sm_86"), pool=pool, cache=Cache(tmp_path))
    assert isinstance(found, BuildFailure) and found.code == "RF457" and "['M']" in found.message
    extra = (*ARGS, ArgSpec("Z", "f32", (1,), "out"))
    found = try_build(Request(ROWS, extra, "rows", "sm_86"), pool=pool, cache=Cache(tmp_path))
    assert isinstance(found, BuildFailure) and found.code == "RF457" and "never" in found.message


PARENT = '''
import sys
{first}
from redfuser.artifact import ArgSpec
from redfuser.cache import Cache
from redfuser.codegen.build import build
exec(open(sys.argv[1]).read())
spec = build(ONE, ARGS, "rows", "sm_86", cache=Cache(sys.argv[2]))
{last}
assert len(spec.launches) == 1
'''


@needs_compilers
@pytest.mark.parametrize(("first", "last"), [("import tvm", ""), ("import tilelang", "import tilelang")])
def test_whatever_the_parent_has_imported(tmp_path: Path, first: str, last: str) -> None:
    if "tvm" in first and importlib.util.find_spec("tvm") is None:
        pytest.skip("apache-tvm is not installed")
    inputs = tmp_path / "inputs.py"
    inputs.write_text(f"ONE = {ONE!r}\nARGS = {ONE_ARGS!r}\n")
    script = PARENT.format(first=first, last=last)
    done = subprocess.run([sys.executable, "-c", script, str(inputs), str(tmp_path / "cache")], capture_output=True,
                          text=True, timeout=240, check=False,
                          env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])})
    assert done.returncode == 0, done.stderr[-2000:]


ORPHAN = '''
import os, threading, time
from redfuser.codegen.pool import Job, Pool
from redfuser.codegen import pool as pools, toolchain
pools.find_nvcc = lambda: toolchain.Nvcc("nvcc", "13.0.1")
pool = Pool(1)
begun = os.environ["BEGUN"]
job = Job(f"import time\\ndef make():\\n    open({begun!r}, 'w').close()\\n    time.sleep(300)", "sm_80")
threading.Thread(target=pool.compile, args=(job,)).start()
while not (worker := pool._workers[0]).pid or not os.path.exists(begun if os.environ["WHEN"] == "job" else f"/proc/{worker.pid}"):
    time.sleep(0.05)
print(worker.pid, flush=True)
os.kill(os.getpid(), 9)
'''


@needs_compilers
@pytest.mark.parametrize("when", ["start", "job"])
def test_a_worker_does_not_outlive_its_parent(when: str, tmp_path: Path) -> None:
    """Neither while it starts nor in the middle of a job that never ends."""
    done = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "WHEN": when,
                               "BEGUN": str(tmp_path / "begun")})
    assert done.returncode == -9, done.stderr
    worker, deadline = Path(f"/proc/{int(done.stdout)}"), time.monotonic() + 30
    while worker.exists() and "State:\tZ" not in (worker / "status").read_text():
        assert time.monotonic() < deadline, "the worker is still there"
        time.sleep(0.2)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toolchain, "_candidates", lambda name: iter(()))
    toolchain._find_nvcc.cache_clear()
    try:
        with pytest.raises(BuildError, match="RF450 no CUDA compiler found") as caught:
            build(ROWS, ARGS, "rows", "sm_80", cache=Cache(tmp_path))
        assert "pip install" in str(caught.value)
    finally:
        toolchain._find_nvcc.cache_clear()


def test_unknown_architecture() -> None:
    for arch in ("sm_90", "sm_70", "gfx942", ""):
        with pytest.raises(BuildError, match="RF459"):
            build(ROWS, ARGS, "rows", arch)


def test_tilelang_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker answers that it cannot start; nothing hangs."""
    (tmp_path / "tilelang").mkdir()
    (tmp_path / "tilelang" / "__init__.py").write_text("raise ImportError('blocked')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("redfuser.codegen.pool.find_nvcc", lambda: toolchain.Nvcc("nvcc", "13.0.1"))
    with Pool(1) as fresh:
        found = fresh.compile(Job(ROWS, "sm_80"))
    assert isinstance(found, BuildFailure) and found.code == "RF458" and "pip install" in found.message
    (tmp_path / "tilelang" / "__init__.py").write_text("import os\nos.kill(os.getpid(), 9)")
    with Pool(1) as fresh:
        found = fresh.compile(Job(ROWS, "sm_80"))
    assert isinstance(found, BuildFailure) and found.code == "RF458" and found.message.startswith("twice: ")


@needs_compilers
def test_many_in_parallel_with_failures_among_them(pool: Pool, tmp_path: Path) -> None:
    requests = [Request(ONE, ONE_ARGS, "a", "sm_80"), Request(BROKEN["RF451 source"], ARGS, "b", "sm_80"),
                Request(ONE, ONE_ARGS, "c", "sm_80")]
    found = build_many(requests, pool=pool, cache=Cache(tmp_path))
    assert [type(f).__name__ for f in found] == ["KernelSpec", "BuildFailure", "KernelSpec"]
