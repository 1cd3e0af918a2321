"""What row kernels say in C rather than as TileLang does: a reduction among the threads of a block, and the quotient of an
element by a value of its row. Kernels with products keep TileLang's: their rows meet inside of a warp, and a quotient there is
one of hundreds of operations.

TileLang joins 256 threads half with half, and each half that is further apart than a warp costs two barriers and a trip through
shared memory, one after the other: six barriers for 256 threads, ten for 1024. Here each warp reduces by shuffles, leaves its
number, and every thread reads what all warps of the row have left: one barrier. (That no number of the reduction before is
overwritten TileLang sees to, which knows who reads and writes the room that it gives.) All threads join the numbers in one
order, so that they have the same bits.

An IEEE quotient is a dozen instructions and a branch. A row has one divisor, whose reciprocal in two numbers ``r + z`` is 46
bits; ``fma(x, r, x * z)`` is then the quotient to 1/2 + 2^-20 units of the last place. A power of two takes divisors to
[1/2, 1), or as near as exponents go, and with it the dividend: nothing overflows or vanishes that the quotient does not. ``r``
is rounded towards zero, so that ``z`` has its sign and an infinite ``x`` stays one. What is reckoned of the divisor alone is
reckoned once: the compiler sees that it is the same for all elements of a thread.

What is rounded to few values behind it (8 bits, whole numbers) is divided so as well: a quotient that is a number of 24 bits is
that number, so that what lies on an edge between two values stays there; and of numbers with few digits, as halves are, every
quotient from 2^-100 on is IEEE's: none comes within 2^-36 of the middle of two numbers, and these are within 2^-44.
"""

from __future__ import annotations

from redfuser.acrf.expr import Expr, Load, walk
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
"""A specialisation of TileLang's own template: its kernels call it as they are printed."""

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
    """Is ``x`` an element of a tile, and ``t`` a value of its row?"""
    return isinstance(t, Load) and len(t.indices) == 1 and any(
        isinstance(y, Load) and len(y.indices) == 2 for y in walk(x))
