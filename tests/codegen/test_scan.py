"""The scan of a tile, as the C that the device runs, on threads of the host in its place."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from redfuser.codegen.scan import FUNCTIONS

HOST = """#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
#define __device__
#define __forceinline__ inline
#define __shared__ static
struct { unsigned x; } thread_local threadIdx;
static std::barrier<> *meet;
static char slots[1024][16];
static void __syncthreads() { meet->arrive_and_wait(); }
template <class T> static T exchanged(T v, int from) {
  memcpy(slots[threadIdx.x], &v, sizeof v);
  meet->arrive_and_wait();
  T y;
  memcpy(&y, slots[from], sizeof y);
  meet->arrive_and_wait();
  return y;
}
template <class T> static T __shfl_sync(unsigned, T v, int k, int lanes) {
  return exchanged(v, (int)threadIdx.x / lanes * lanes + k);
}
"""
ONE = """
static int case_%(at)d() {
  constexpr int threads = %(threads)d, rows = %(rows)d, n = %(n)d, stride = n + %(spare)d, tiles = %(tiles)d;
  std::barrier<> all(threads);
  meet = &all;
  alignas(16) static %(type)s x[rows * stride], carry[rows];
  for (auto &c : carry) c = %(none)s;  // as the kernel fills it
  for (int k = 0; k < tiles; ++k) {
    if (fread(x, sizeof x, 1, stdin) != 1) return 1;
    std::vector<std::jthread> crew;
    for (int t = 0; t < threads; ++t)
      crew.emplace_back([t] { threadIdx.x = t; scan_rows<scan_%(op)s, threads, rows, n, stride, (tiles > 1)>(x, x, carry); });
    crew.clear();
    fwrite(x, sizeof x, 1, stdout);
  }
  return 0;
}
"""
TYPES = {"float": np.float32, "int64_t": np.int64}
NONE = {"sum": "0", "prod": "1", "max": "-INFINITY", "min": "INFINITY"}
RUNNING = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
SIZES = [(64, 1, 1024, 3, "float", "sum"), (64, 4, 128, 1, "float", "sum"), (32, 32, 32, 2, "float", "prod"),
         (128, 2, 512, 2, "int64_t", "sum"), (64, 64, 16, 1, "int64_t", "sum"), (32, 1, 64, 2, "int64_t", "sum"),
         (64, 2, 256, 2, "float", "max"), (64, 1, 512, 2, "float", "min")]
ADDED = [(32, 1, 256, 1), (128, 1, 2048, 3), (64, 4, 128, 2), (64, 64, 16, 1)]
CASES = [*SIZES, *((*sizes, "float", "sum") for sizes in ADDED)]


def spare(rows: int, kind: str) -> int:
    """Rows are written side by side, with so many elements between them."""
    return 0 if rows == 1 else 16 // np.dtype(TYPES[kind]).itemsize


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases, compiled together; the program is given the number of one."""
    folder = tmp_path_factory.mktemp("scan")
    made = [ONE % {"at": at, "threads": threads, "rows": rows, "n": n, "spare": spare(rows, kind), "tiles": tiles, "type": kind,
                   "op": op, "none": NONE[op]} for at, (threads, rows, n, tiles, kind, op) in enumerate(CASES)]
    chosen = "".join(f"    case {at}: return case_{at}();\n" for at in range(len(CASES)))
    main = f"int main(int, char **given) {{\n  switch (atoi(given[1])) {{\n{chosen}  }}\n  return 1;\n}}\n"
    (folder / "scan.cc").write_text("".join((HOST, FUNCTIONS, *made, main)))
    subprocess.run(["g++", "-std=c++20", "-O1", "-pthread", "scan.cc", "-o", "scan"], cwd=folder, check=True, timeout=120)
    return folder / "scan"


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize(("threads", "rows", "n", "tiles", "kind", "op"), SIZES)
def test_it_is_the_running_reduction(scan: Path, threads: int, rows: int, n: int, tiles: int, kind: str, op: str) -> None:
    rng = np.random.default_rng(n)
    x = rng.standard_normal((rows, tiles * n)) if kind == "float" else rng.integers(-9, 9, (rows, tiles * n))
    x = (1 + x / 64 if op == "prod" else x).astype(TYPES[kind])
    if kind == "float" and op != "prod":
        x[0, n // 2], x[-1, n // 3] = np.nan, np.inf
    got = scanned(scan, x, threads, tiles, kind, op)
    wide = x.astype(np.float64) if kind == "float" else x
    want = RUNNING[op].accumulate(wide, -1)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4) if kind == "float" else np.testing.assert_array_equal(got, want)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize(("threads", "rows", "n", "tiles"), ADDED)
def test_nothing_added_changes_nothing_and_sums_of_what_is_not_negative_never_fall(
        scan: Path, threads: int, rows: int, n: int, tiles: int) -> None:
    rng = np.random.default_rng(7)
    shape = (rows, tiles * n)
    x = (rng.lognormal(0, 6, shape) * (rng.random(shape) < 0.4)).astype(np.float32)
    for signed in (x, x * rng.choice([-1, 1], shape).astype(np.float32)):
        got = scanned(scan, signed, threads, tiles, "float", "sum")
        same = signed[:, 1:] == 0
        assert same.any() and np.array_equal(got[:, 1:][same], got[:, :-1][same])
        assert (signed < 0).any() or (np.diff(got, axis=-1) >= 0).all()


def scanned(scan: Path, x: np.ndarray, threads: int, tiles: int, kind: str, op: str) -> np.ndarray:
    """Rows in ``tiles`` steps, what is carried between them."""
    rows, n = len(x), x.shape[1] // tiles
    given = np.zeros((tiles, rows, n + spare(rows, kind)), x.dtype)
    given[..., :n] = x.reshape(rows, tiles, n).swapaxes(0, 1)
    given[..., n:] = 99  # what lies there is neither read nor carried
    at = CASES.index((threads, rows, n, tiles, kind, op))
    done = subprocess.run([scan, str(at)], input=given.tobytes(), capture_output=True, check=True, timeout=120).stdout
    return np.frombuffer(done, TYPES[kind]).reshape(given.shape)[..., :n].swapaxes(0, 1).reshape(rows, -1)
