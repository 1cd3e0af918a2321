"""What row kernels say in C rather than as TileLang does: a reduction among the threads of a block, and the quotient of an
element by a value of its row. Kernels with products keep TileLang's: their rows meet inside of a warp, and a quotient there is
one of hundreds of operations.

TileLang joins 256 threads half with half, and each half that is further apart than a warp costs two barriers and a trip through
shared memory, one after the other: six barriers for 256 threads, ten for 1024. Here each warp reduces by shuffles, leaves its
number, and every thread reads what all warps of the row have left: one barrier. (That no number of the reduction before is
overwritten TileLang sees to, which knows who reads and writes the room that it gives.) All threads join the numbers in one
order, so that they have the same bits.

Where rows lie side by side a warp has elements of several, a thread some of one or two. All rows of a thread meet at once then
(``T.reduce``'s ``batch``): lanes halve rows among themselves as they join them, and each warp leaves one number a row, which
every thread of the row reads, or neighbouring lanes join and leave in turn. One barrier or two where TileLang has eight for
each row of 512 threads: five statistics of 4 x 1024 rows of 512 halves 5.7 us on an H200, by TileLang's 15.6 (by 256 threads
5.3 and 10.5).

An IEEE quotient is a dozen instructions and a branch. A row has one divisor, or a whole tensor has, whose reciprocal in two
numbers ``r + z`` is 46 bits; ``fma(x, r, x * z)`` is then the quotient to 1/2 + 2^-20 units of the last place. A power of two
takes divisors to [1/2, 1), or as near as exponents go, and with it the dividend: nothing overflows or vanishes that the
quotient does not. ``r`` is rounded towards zero, so that ``z`` has its sign and an infinite ``x`` stays one. What is reckoned
of the divisor alone is reckoned once: the compiler sees that it is the same for all elements of a thread.

What is rounded to few values behind it (8 bits, whole numbers) is divided so as well: a quotient that is a number of 24 bits is
that number, so that what lies on an edge between two values stays there; and of numbers with few digits, as halves are, every
quotient from 2^-100 on is IEEE's: none comes within 2^-36 of the middle of two numbers, and these are within 2^-44.
"""

from __future__ import annotations

from redfuser.acrf.expr import Expr, Load, indices_of, walk
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import Gemm, ReduceTile, TileKernel

EXCHANGE = """#include <tl_templates/cuda/reduce.h>
namespace tl {
template <class Op, int threads, int offset, class Barrier, int stride> requires(threads > 32)
struct AllReduce<Op, threads, 1, offset, Barrier, 1, stride> {
  template <class T> static TL_DEVICE T run(T x, T *left = nullptr) {
    constexpr int warps = threads / 32;
    const int own = threadIdx.x - offset, first = own / threads * warps;
    x = AllReduce<Op, 32, 1, offset, Barrier>::run(x);
    if (own % 32 == 0) left[own / 32] = x;
    Barrier::template sync<2>();
    if constexpr (warps > 8) {
      x = left[first + own % warps];
      return AllReduce<Op, warps, 1, offset, Barrier>::run(x);
    } else {
      T all[warps];
#pragma unroll
      for (int i = 0; i < warps; ++i) all[i] = left[first + i];
#pragma unroll
      for (int n = warps / 2; n; n /= 2)
#pragma unroll
        for (int i = 0; i < n; ++i) all[i] = Op()(all[i], all[i + n]);
      return all[0];
    }
  }
};
}"""
EXCHANGE_LINES = """#include <tl_templates/cuda/reduce.h>
namespace tl {
template <class Op, int threads, int scale, int offset, class Barrier, int batch, int stride>
requires(threads > 32 && scale * batch > 1)
struct AllReduce<Op, threads, scale, offset, Barrier, batch, stride> {
  static constexpr int wide = scale < 32 ? 32 : scale, parts = threads / wide, rows = scale * batch, room = rows + (scale < 32);
  static constexpr TL_DEVICE int kept() {
    int n = batch;
    for (int far = 16; far >= scale; far /= 2) n = n % 2 ? n : n / 2;
    return n;
  }
  template <int far, int n, class T> static TL_DEVICE void within(T *x, int own, int &row, bool &first) {
    if constexpr (far >= scale) {
      constexpr int half = n % 2 ? n : n / 2;
      const bool upper = own & far;
#pragma unroll
      for (int i = 0; i < half; ++i) {
        T give = x[i];
        if constexpr (n % 2 == 0) {
          give = upper ? x[i] : x[i + half];
          x[i] = upper ? x[i + half] : x[i];
        }
        x[i] = Op()(x[i], tl::shfl_xor_sync(uint32_t(-1), give, far));
      }
      if constexpr (n % 2) first = first && !upper;
      else row += upper ? half : 0;
      within<far / 2, half>(x, own, row, first);
    }
  }
  template <class T> static TL_DEVICE T run(T x, T *left = nullptr) {
    run_batch(&x, left);
    return x;
  }
  template <class T> static TL_DEVICE void run_batch(T *x, T *left = nullptr) {
    const int own = threadIdx.x - offset, group = own / threads, column = own % scale * batch;
    int row = column;
    bool first = true;
    within<16, batch>(x, own, row, first);
    T *all = left + group * parts * room;
    if (first)
#pragma unroll
      for (int i = 0; i < kept(); ++i) all[own % threads / wide * room + row + i] = x[i];
    Barrier::template sync<2>();
    if constexpr (scale >= 32 || parts * batch <= 8) {
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        T some[parts];
#pragma unroll
        for (int k = 0; k < parts; ++k) some[k] = all[k * room + column + i];
#pragma unroll
        for (int n = parts / 2; n; n /= 2)
#pragma unroll
          for (int k = 0; k < n; ++k) some[k] = Op()(some[k], some[k + n]);
        x[i] = some[0];
      }
    } else {
      T *whole = left + blockDim.x / wide * room + group * rows;
#pragma unroll
      for (int from = 0; from < rows; from += wide) {
        const int at = from + own % threads / parts;
        T one = all[own % parts * room + (at < rows ? at : 0)];
#pragma unroll
        for (int far = parts / 2; far; far /= 2) one = Op()(one, tl::shfl_xor_sync(uint32_t(-1), one, far));
        if (own % parts == 0 && at < rows) whole[at] = one;
      }
      Barrier::template sync<2>();
#pragma unroll
      for (int i = 0; i < batch; ++i) x[i] = whole[column + i];
    }
  }
};
}"""
"""Specialisations of TileLang's own template: its kernels call it as they are printed. Of rows by themselves, and of such as
lie side by side."""

DIVIDED = ("float", "float x, float t",
           "int e = __float_as_int(t) >> 23 & 255; float s = __int_as_float((253 - (e < 252 ? e : 252)) << 23), u = t * s, "
           "y = 1.0f / u, r = __int_as_float(__float_as_int(y) - 1), z = fmaf(-u, r, 1.0f) * r; "
           "if (!(fabsf(y) > 0.0f && fabsf(y) < __int_as_float(0x7f800000))) r = z = y; x *= s; return fmaf(x, r, x * z);")
"""Result, parameters and body of ``divided(x, t)``."""


def of_rows(kernel: TileKernel) -> bool:
    """Are there no products in it?"""
    return not any(isinstance(s, Gemm) for s in every(kernel.body))


def exchanges(kernel: TileKernel) -> bool:
    """May some of its reductions be among several warps?"""
    return kernel.threads > 32 and of_rows(kernel) and any(isinstance(s, ReduceTile) for s in every(kernel.body))


def by_row(x: Expr, t: Expr) -> bool:
    """Is ``x`` an element of a tile, and ``t`` a value of its row? Or one of memory, and ``t`` one for all beside it (a scale
    of a whole tensor)?"""
    if not isinstance(t, Load):
        return False
    alike = frozenset().union(*map(indices_of, t.indices))
    return any((len(y.indices), len(t.indices)) == (2, 1) or indices_of(y.indices[-1]) - alike
               for y in walk(x) if isinstance(y, Load) and y.indices)
