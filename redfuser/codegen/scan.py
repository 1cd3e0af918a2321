"""A scan of a tile's rows, in C: TileLang's own has one warp a row go through it, 32 elements at a time.

Neighbouring threads, as many of them for every row of the tile, have a row, and each warp a stretch of it, of which its threads
read 16 bytes at a time, side by side. Each thread scans what it has read, the warp scans what its threads come to by shuffles
(of all its readings at once, which wait for nothing of each other), and what warps come to meets in shared memory: one barrier,
beside the two that keep the tile from who writes it before and reads it after.

An element is joined to what lies before it and never to what comes after: NaN and infinities stay behind the element that they
come from. It is joined from inside out: to its thread, then to blocks of 2, 4, ... threads that end before it (Sklansky), to
readings, warps and what is carried. So the next element's result is this one's with one number more, innermost: where that is 0
both are the same, and sums of numbers that are not negative never fall, as they do where every element has its own tree (a
difference of two results, exponentiated, is 1 for nothing between them).
"""

from __future__ import annotations

from redfuser.tensorize.ir.nodes import ScanTile, TileKernel

SCAN = "scan"
"""The name of the functions below among a dialect's."""
FUNCTIONS = """struct scan_sum { template <class T> static __device__ __forceinline__ T of(T x, T y) { return x + y; } };
struct scan_prod { template <class T> static __device__ __forceinline__ T of(T x, T y) { return x * y; } };
struct scan_max { template <class T> static __device__ __forceinline__ T of(T x, T y) { return x != x || x > y ? x : y; } };
struct scan_min { template <class T> static __device__ __forceinline__ T of(T x, T y) { return x != x || x < y ? x : y; } };
template <class Op, int threads, int rows, int n, int stride, bool carried, class T>
static __device__ __forceinline__ void scan_rows(const T *src, T *dst, T *carry) {
  constexpr int across = threads / rows, lanes = across < 32 ? across : 32, warps = across / lanes;
  constexpr int most = 16 / sizeof(T), each = n / across < most ? n / across : most, parts = n / (across * each);
  static_assert(across * rows == threads && parts * each * across == n, "threads share a row evenly");
  struct alignas(each * sizeof(T)) Vector { T at[each]; };
  __shared__ T left[threads / 32 + 1];
  const int own = threadIdx.x, row = own / across, lane = own % lanes, warp = own % across / lanes;
  const int first = row * stride + warp * (n / warps) + lane * each;
  Vector x[parts];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < parts; ++k) x[k] = *(const Vector *)(src + first + k * lanes * each);
#pragma unroll
  for (int k = 0; k < parts; ++k)
#pragma unroll
    for (int i = 1; i < each; ++i) x[k].at[i] = Op::of(x[k].at[i - 1], x[k].at[i]);
#pragma unroll
  for (int d = 1; d < lanes; d *= 2)
#pragma unroll
    for (int k = 0; k < parts; ++k) {
      const T y = __shfl_sync(0xffffffffu, x[k].at[each - 1], (lane & ~(2 * d - 1)) + d - 1, lanes);
      if (lane & d) {
#pragma unroll
        for (int i = 0; i < each; ++i) x[k].at[i] = Op::of(y, x[k].at[i]);
      }
    }
  T total = T();
#pragma unroll
  for (int k = 0; k < parts; ++k) {
    const T end = __shfl_sync(0xffffffffu, x[k].at[each - 1], lanes - 1, lanes);
    if (k) {
#pragma unroll
      for (int i = 0; i < each; ++i) x[k].at[i] = Op::of(total, x[k].at[i]);
    }
    total = k ? Op::of(total, end) : end;
  }
  if constexpr (warps > 1) {
    if (lane == 0) left[own / 32] = total;
    __syncthreads();
    const T *all = left + own / 32 - warp;
    T before = all[0];
    total = all[0];
#pragma unroll
    for (int w = 1; w < warps; ++w) {
      if (w == warp) before = total;
      total = Op::of(total, all[w]);
    }
    if (warp) {
#pragma unroll
      for (int k = 0; k < parts; ++k)
#pragma unroll
        for (int i = 0; i < each; ++i) x[k].at[i] = Op::of(before, x[k].at[i]);
    }
  }
  if constexpr (carried) {
    const T so_far = carry[row];
#pragma unroll
    for (int k = 0; k < parts; ++k)
#pragma unroll
      for (int i = 0; i < each; ++i) x[k].at[i] = Op::of(so_far, x[k].at[i]);
    total = Op::of(so_far, total);
  }
#pragma unroll
  for (int k = 0; k < parts; ++k) *(Vector *)(dst + first + k * lanes * each) = x[k];
  __syncthreads();
  if (carried && own % across == 0) carry[row] = total;
}"""
"""A tile and what is carried lie in shared memory. Lanes of a warp may be of several rows: shuffles stay inside one."""


def called(kernel: TileKernel, s: ScanTile, shapes: dict[str, tuple[int, ...]]) -> str:
    """A scan as a statement of TileLang's."""
    rows, width = shapes[s.src]
    names = (s.src, s.dst, s.carry or s.dst)
    first = ", ".join(f"T.address_of({n}[{', '.join('0' * len(shapes[n]))}])" for n in names)
    how = f"scan_{s.op}, {kernel.threads}, {rows}, {s.n or width}, {width}, {'true' if s.carry else 'false'}"
    return f'T.call_extern("void", "scan_rows<{how}>", {first})'
