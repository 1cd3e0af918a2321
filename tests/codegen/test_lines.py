"""Rows that lie side by side in memory: where their elements are, and how the warps of a block meet for them. The template is
compiled for the host, a thread for each of a block's."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.state import Fused
from redfuser.codegen.exchange import EXCHANGE_LINES
from redfuser.codegen.tilelang import print_program
from redfuser.runtime.native import find_cxx
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import TileConfig, tensorize
from redfuser.tensorize.ir.nodes import ReduceTile, TileProgram
from redfuser.tensorize.ir.parse import parse
from redfuser.tensorize.model.told import by_lines, told

H200 = target("sm_90a")
NORM = """cascade norm(x: {dtype}[{n}, {rows}]) over l
  t[i] = sum[l] f32(x[l, i]) * f32(x[l, i])
  y[l, i] = {out}(f32(x[l, i]) / sqrt(t))
  return y
"""
TURNED = """cascade turned(x: f32[{n}, {rows}]) over l
  m[i] = max[l] x[l, i]
  t[i] = sum[l] exp(x[l, i] - m)
  y[i, l] = exp(x[l, i] - m) / t
  return y
"""
HOST = r"""
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>
#define TL_DEVICE inline
struct Dim { int x; };
static thread_local Dim threadIdx;
static Dim blockDim;
static std::unique_ptr<std::barrier<>> block, warps[32];
static double slots[1024];
namespace tl {
template <class T> T shfl_xor_sync(uint32_t, T x, int far) {
  auto &warp = *warps[threadIdx.x / 32];
  slots[threadIdx.x] = x; warp.arrive_and_wait();
  T y = slots[threadIdx.x ^ far]; warp.arrive_and_wait();
  return y;
}
template <class Op, int threads, int scale, int offset, class Barrier, int batch = 1, int stride = 0> struct AllReduce;
}
struct Sync { template <int> static void sync() { block->arrive_and_wait(); } };
struct Sum { template <class T> T operator()(T x, T y) { return x + y; } };
%s
template <int all, int threads, int scale, int batch> int held() {
  blockDim.x = all; block = std::make_unique<std::barrier<>>(all);
  for (int w = 0; w < all / 32; ++w) warps[w] = std::make_unique<std::barrier<>>(32);
  std::vector<double> left(batch * all), x(batch * all), y(batch * all);
  for (auto &v : x) v = rand() %% 4096;
  std::vector<std::thread> team;
  for (int t = 0; t < all; ++t) team.emplace_back([&, t] {
    threadIdx.x = t;
    double mine[batch];
    for (int i = 0; i < batch; ++i) mine[i] = x[t * batch + i];
    tl::AllReduce<Sum, threads, scale, 0, Sync, batch, all>::run_batch(mine, left.data());
    for (int i = 0; i < batch; ++i) y[t * batch + i] = mine[i];
  });
  for (auto &t : team) t.join();
  int wrong = 0;
  for (int t = 0; t < all; ++t)
    for (int i = 0; i < batch; ++i) {
      double want = 0;
      for (int k = t / threads * threads + t %% scale; k < (t / threads + 1) * threads; k += scale) want += x[k * batch + i];
      wrong += y[t * batch + i] != want;
    }
  return wrong;
}
int main(int, char **given) {
  switch (std::atoi(given[1])) {
%s
  }
}
"""
GROUPS = [
    [(64, 64, 8, 4), (64, 64, 16, 1), (128, 128, 1, 4), (128, 64, 8, 2)], [(256, 256, 16, 2), (256, 256, 4, 8)],
    [(256, 256, 32, 1), (256, 128, 64, 1), (256, 256, 1, 16), (128, 128, 2, 3)]]


def _norm(text: str, rows: int, n: int, c: TileConfig, dtype: str = "f32", out: str = "f32") -> TileProgram:
    fused = fuse(parse_cascade(text.format(dtype=dtype, out=out, rows=rows, n=n)))
    assert isinstance(fused, Fused)
    return tensorize(realise(fused, "resident"), c, H200)


def _config(rows: int, n: int, threads: int) -> TileConfig:
    return TileConfig(rows, n, threads, 0, "registers", False)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All groups of cases, compiled together; the program is given the number of one, and says how many values are wrong."""
    folder = tmp_path_factory.mktemp("lines")
    sums = (" + ".join(f"held<{', '.join(map(str, c))}>()" for c in cases) for cases in GROUPS)
    chosen = "\n".join(f'    case {at}: std::printf("%d\\n", {wrong}); break;' for at, wrong in enumerate(sums))
    (folder / "lines.cpp").write_text(HOST % (EXCHANGE_LINES.partition("\n")[2], chosen))
    subprocess.run([str(find_cxx()), "-std=c++20", "-O1", "-w", "-pthread", "lines.cpp", "-o", "lines"], cwd=folder, check=True)
    return folder / "lines"


@pytest.mark.skipif(find_cxx() is None, reason="no C++ compiler")
@pytest.mark.parametrize("cases", GROUPS)
def test_every_thread_has_what_its_rows_come_to(cases: list[tuple[int, int, int, int]], lines: Path) -> None:
    """Whatever the threads of a block, those of a group of rows, their distance in a row, and the rows of each."""
    done = subprocess.run([lines, str(GROUPS.index(cases))], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "0\n"


@pytest.mark.parametrize(("rows", "n", "threads", "dtype", "out", "side"), [
    (32, 64, 128, "f32", "f32", 1), (32, 256, 128, "f16", "f16", 2), (16, 512, 128, "bf16", "bf16", 2),
    (16, 256, 256, "f32", "f32", 1), (16, 1024, 256, "f32", "f32", 4), (32, 256, 128, "f16", "f32", 4),
    (8, 2048, 256, "f32", "f16", 2)])
def test_a_warp_has_a_word_of_each_row(rows: int, n: int, threads: int, dtype: str, out: str, side: int) -> None:
    """Every element has a place of its own, a thread as many as any other, and neighbours in memory are a warp's. For a float32
    result a thread adds 16 elements in turn at most: equal ones are all rounded to one side."""
    made = _norm(NORM, 4096, n, _config(rows, n, threads), dtype, out)
    (kernel,) = made.kernels
    assert {d.beside for d in told(kernel).values()} == {side} and by_lines(kernel)
    text = print_program(made)
    (lying,) = {t for t in re.findall(rf"Fragment\(\({n}, {rows}\), forward_fn=lambda i, j: (\(.*?\))\)", text)}
    (upright,) = {t for t in re.findall(rf"Fragment\(\({rows}, {n}\), forward_fn=lambda i, j: (\(.*?\))\)", text)}
    place = [[eval(lying, {"i": i, "j": j}) for j in range(rows)] for i in range(n)]
    assert {p for row in place for p in row} == {(t, k) for t in range(threads) for k in range(rows * n // threads)}
    assert [t for t, _ in place[0]] == [j // side for j in range(rows)] and place[1][0][0] == rows // side
    assert all(eval(upright, {"i": j, "j": i}) == place[i][j] for i in (0, 1, n - 1) for j in range(rows))
    met = [s for s in kernel.body if isinstance(s, ReduceTile)]
    assert {s.at_once for s in met} == {side} and text.count(f", batch={side})") == len(met) * (side > 1)
    assert parse(str(made)) == made


def test_what_leaves_along_its_rows_is_laid_out_by_tilelang() -> None:
    """A softmax of columns that is written turned, on an H200 18.1 us, by lines 52.3."""
    (kernel,) = _norm(TURNED, 4096, 128, _config(16, 128, 128)).kernels
    assert not by_lines(kernel) and not any(s.at_once > 1 for s in kernel.body if isinstance(s, ReduceTile))


def test_rocm_meets_row_by_row() -> None:
    fused = fuse(parse_cascade(NORM.format(dtype="f16", out="f16", rows=4096, n=256)))
    assert isinstance(fused, Fused)
    made = tensorize(realise(fused, "resident"), _config(32, 256, 256), target("gfx942"))
    text = print_program(made, "hip")
    assert "batch" not in text and "Fragment" not in text and "AllReduce" not in text
