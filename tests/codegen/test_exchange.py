"""What row kernels say in C: a quotient by a value of the row, compiled for the host, and who exchanges how."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from redfuser.acrf.expr import Index, Load, Op
from redfuser.codegen.dialects import CUDA
from redfuser.codegen.exchange import DIVIDED
from redfuser.codegen.tilelang import print_program
from redfuser.runtime.native import find_cxx
from redfuser.tensorize.ir.nodes import Assign, Parallel, ReduceTile, TensorArg, TileKernel, TileProgram
from redfuser.tensorize.ir.parts import Buffer, Param

HOST = """#include <cmath>
#include <cstring>
static int __float_as_int(float x) { int y; std::memcpy(&y, &x, 4); return y; }
static float __int_as_float(int x) { float y; std::memcpy(&y, &x, 4); return y; }
static float divided(%s) { %s }
extern "C" void run(int n, const float *x, const float *t, float *y) { for (int i = 0; i < n; ++i) y[i] = divided(x[i], t[i]); }
"""


def _host(folder: Path) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The function, compiled for this machine."""
    (folder / "q.cpp").write_text(HOST % DIVIDED[1:])
    subprocess.run([str(find_cxx()), "-O2", "-ffp-contract=off", "-shared", "-fPIC", "q.cpp", "-o", "q.so"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "q.so"))

    def divided(x: np.ndarray, t: np.ndarray) -> np.ndarray:
        y = np.empty_like(x)
        library.run(len(x), *(ctypes.c_void_p(a.ctypes.data) for a in (x, t, y)))
        return y

    return divided


@pytest.mark.skipif(find_cxx() is None, reason="no C++ compiler")
def test_a_quotient_by_a_value_of_the_row_is_one(tmp_path: Path) -> None:
    """To a unit in the last place of a number that is no subnormal, and where IEEE's is no number at all."""
    divided = _host(tmp_path)
    draw = np.random.default_rng(5)
    bits = draw.integers(0, 1 << 32, (2, 1 << 19), dtype=np.uint32)
    x, t = bits.view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -3.0, 1e-45, -1e-40, 2.0**-126, 3.4e38, 2.0**127, 2.0**-149, 1e-38],
                       np.float32)
    pairs = np.array(np.meshgrid(special, special), np.float32).reshape(2, -1)
    near = np.float32(1.0) + draw.random((2, 1 << 18), dtype=np.float32)
    x, t = (np.ascontiguousarray(np.concatenate(p)) for p in zip((x, t), pairs, near, strict=True))
    y = divided(x, t)
    with np.errstate(all="ignore"):
        want = x / t
    assert np.array_equal(np.isnan(y), np.isnan(want))
    assert np.all(np.abs(y[np.isinf(want)]) >= np.finfo(np.float32).max) and np.all(np.abs(y[want == 0]) <= 2.0**-149)
    assert np.array_equal(np.signbit(want[~np.isnan(want)]), np.signbit(y[~np.isnan(want)]))
    plain = np.isfinite(want) & (want != 0)
    away = np.abs(y[plain].astype(np.float64) - want[plain].astype(np.float64))
    assert np.all(away <= np.maximum(np.spacing(np.abs(want[plain])).astype(np.float64), 2.0**-148))
    assert np.mean(y[-len(near[0]):] != want[-len(near[0]):]) < 1e-3


@pytest.mark.skipif(find_cxx() is None, reason="no C++ compiler")
def test_a_quotient_of_halves_is_ieees(tmp_path: Path) -> None:
    """What is rounded to few values may be divided so: a quotient that is a number of 24 bits is that number, so that what lies
    on an edge stays there, and of numbers with few digits every quotient above 2^-100 is IEEE's."""
    divided = _host(tmp_path)
    draw = np.random.default_rng(6)
    x, t = (draw.integers(0x0080, 0x7F80, 1 << 20, dtype=np.uint32).astype(np.uint32) << 16 for _ in range(2))
    with np.errstate(all="ignore"):
        x, t = x.view(np.float32) * np.float32(448.0), t.view(np.float32)
        want = x / t
    plain = np.isfinite(x) & np.isfinite(want) & (want >= 2.0**-100)
    assert plain.mean() > 0.6 and np.array_equal(divided(x, t)[plain], want[plain])
    q = draw.integers(1, 1 << 8, 1 << 18).astype(np.float32)  # ties and whole numbers times a divisor of 16 bits
    t = draw.integers(1 << 15, 1 << 16, 1 << 18).astype(np.float32) * np.float32(2.0) ** draw.integers(-60, 60, 1 << 18).astype(np.float32)
    assert np.array_equal(divided(q * t, t), q)


def _kernel(threads: int) -> TileKernel:
    whole, row = (Index("i"), Index("j")), (Index("i"),)
    quotient = Op("div", (Load("x_tile", whole, "f32"), Load("t", row, "f32")), "f32")
    return TileKernel("k", (Param("x", "f32", (8, 256)), Param("out_y", "f32", (8,), True)), (("b", 8),), threads, (), (
        Buffer("x_tile", "fragment", "f32", (1, 256)), Buffer("t", "fragment", "f32", (1,))), (
        Parallel(("i", "j"), (1, 256), (Assign("x_tile", whole, Load("x", (Index("b"), Index("j")), "f32")),)),
        ReduceTile("sum", "x_tile", "t"), Parallel(("i", "j"), (1, 256), (Assign("x_tile", whole, quotient),)),
        ReduceTile("sum", "x_tile", "t"),
        Parallel(("i",), (1,), (Assign("out_y", (Index("b"),), Load("t", row, "f32")),))))


@pytest.mark.parametrize(("threads", "exact", "dialect", "own", "divides"), [
    (128, "", "cuda", True, True), (32, "", "cuda", False, True), (128, "all", "cuda", True, True), (128, "", "hip", False, False)])
def test_who_says_what(threads: int, exact: str, dialect: str, own: bool, divides: bool) -> None:
    """One warp exchanges by shuffles as it is; what is rounded to few values is divided like all else; ROCm has TileLang's."""
    kernel = replace(_kernel(threads), exact=exact)
    args = (TensorArg("x", "f32", (8, 256), "in"), TensorArg("out_y", "f32", (8,), "out"))
    text = print_program(TileProgram("k", args, (kernel,), (("y", "out_y"),)), dialect)
    assert ("struct AllReduce" in text, "divided" in text) == (own, divides)
    assert CUDA.prelude["divided"][2] in text or not divides
