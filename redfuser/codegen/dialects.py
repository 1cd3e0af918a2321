"""What TileLang's dialects spell differently, as data: CUDA's and ROCm's.

``tilelang.rocm`` lacks what CUDA alone has, prints the hardware's rough logarithms and sines where a program says ``log``, and
takes a byte of float8 for AMD's own format. So there a function is called by its C name, and a number of 8 bits is a byte that
is converted where it is used: never read as something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from redfuser.codegen.exchange import DIVIDED, EXCHANGE, EXCHANGE_LINES
from redfuser.codegen.scan import FUNCTIONS, SCAN
from redfuser.dtypes import LONG
from redfuser.tensorize.ir.pointwise import NUMPY_DTYPES

DTYPES = {**LONG, "bool": "uint8"}
"""TileLang's element types; a boolean tensor is read as bytes."""
EIGHT = ("e4m3", "e5m2")
HALVES = "halves"
"""Extrema of two halves, which a reduction calls by their bare names: HIP has them of other types alone."""
WARPS, LINES = "warps", "lines"
"""A reduction among the warps of a block (:mod:`redfuser.codegen.exchange`)."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """imports: of the module's ``T``. prelude: by name, result, parameters and body of a function of ours in C; head: what
    stands before them. functions: how a function of ``f32`` is called, where not as TileLang spells it. bytes: 8-bit floats
    are bytes. pack: matrix instructions that one access to shared memory feeds."""

    imports: str
    prelude: Mapping[str, tuple[str, str, str]]
    head: str = ""
    functions: Mapping[str, str] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=lambda: DTYPES)
    bytes: bool = False
    pack: int = 1

    def defined(self, called: set[str]) -> list[str]:
        """The functions of ours that kernels call."""
        return [f"static __device__ __forceinline__ {result} {name}({given}) {{ {body} }}" if result else body
                for name, (result, given, body) in self.prelude.items() if name in called]


BY_NAME = {"erfc": "erfcf", "lgamma": "lgammaf", "atan2": "atan2f", "mod": "floor_mod"}
"""Functions that TileLang has no spelling of, by C's names."""
FLOOR_MOD = "float r = fmodf(x, y); return (r < 0.0f && y > 0.0f) || (r > 0.0f && y < 0.0f) ? r + y : r;"


def _floats(bodies: Mapping[str, str]) -> dict[str, tuple[str, str, str]]:
    two = ("max_nan", "min_nan", "sub_rn", "floor_mod")
    given = {**dict.fromkeys(two, "float x, float y"), "quotient": "float x, float y, float z"}
    written = {**bodies, "floor_mod": FLOOR_MOD}
    return {name: ("float", given.get(name, "float x"), body) for name, body in written.items()}


CUDA = Dialect("import tilelang.language as T", {**_floats({
    "exp2_approx": 'float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;',
    "reciprocal_approx": 'float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;',
    "reciprocal_small": 'float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 0.125f)); return y * 0.125f;',
    "rsqrt_approx": 'float y; asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;',
    "tanh_approx": 'float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;',
    "normal_share": "float t = fabsf(x), y = fmaf(t, -1.8297474e-5f, 4.5983650e-4f); y = fmaf(t, y, -5.0933948e-3f); "
                    "y = fmaf(t, y, 3.3601902e-2f); y = fmaf(t, y, -1.5207419e-1f); y = fmaf(t, y, -9.1726148e-1f); "
                    'y = fmaf(t, y, -1.6280346f); y = fmaf(t, y, -1.0f); asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(y)); '
                    "return x < 0.0f ? y : 1.0f - y;",
    "rounded_bf16": 'unsigned y; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(x), "f"(0.0f)); '
                    "return __uint_as_float(y);",
    "quotient": "return fmaf(x, y, x * z);",
    "max_nan": 'float z; asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z;',
    "min_nan": 'float z; asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z;',
    "sub_rn": "return __fsub_rn(x, y);",
    "within_e4m3": "return fabsf(x) > 464.0f ? __int_as_float(0x7fffffff) : x;",
}), "byte_of_two": ("int", "const unsigned char *at, int odd",
                    "unsigned two = *(const unsigned short *)at; return odd ? two > 255u : two & 255u;"),
    "divided": DIVIDED, WARPS: ("", "", EXCHANGE), LINES: ("", "", EXCHANGE_LINES), SCAN: ("", "", FUNCTIONS)},
    functions=BY_NAME)
"""The approximations are to 2 units in the last place; that called ``small`` has reciprocals below 2^-126, of numbers from
1 on. ``tanh_approx`` is to 2^-16.5 of its value (measured on an H200 over a quarter of all numbers; promised is 2^-11), and
taken of what was rounded to half precision alone. ``normal_share`` is ``0.5 + erf(x) * 0.5``: half of ``erfc(|x|)``, or one
less that, as a power of two whose exponent is a polynomial, to 3.3e-5 of its value where half precision has numbers
(|x| < 4.3) and to 1.4e-6 anywhere, in a third of the instructions of CUDA's ``erff``. ``rounded_bf16`` is the instruction that
rounds two numbers, the other of them 0: its result is the number as single precision has it, and one that rounds a single
number has an eighth of its rate. ``byte_of_two`` looks at one of two neighbouring bytes: a thread that reads both loads them
once, and asks of either in one instruction. ``quotient`` goes with :func:`redfuser.codegen.halves.reciprocal`. Whatever else a
kernel computes is compiled as torch's own kernels are: IEEE quotients and square roots, no flushed operands."""

ROCM = Dialect("import tilelang.rocm.language as T", {**_floats({
    "exp2_approx": "return __builtin_amdgcn_exp2f(x);",
    "reciprocal_approx": "return __builtin_amdgcn_rcpf(x);",
    "reciprocal_small": "return 1.0f / x;",
    "max_nan": "return x != x || x > y ? x : y;",
    "min_nan": "return x != x || x < y ? x : y;",
    "sub_rn": "_Pragma(\"clang fp contract(off)\") return x - y;",
    "rsqrt_near": "return (float)(1.0 / sqrt((double)x));",
    "sigmoid_near": "return 1.0f / (1.0f + expf(-x));",
}),
    HALVES: ("", "", "\n".join(
        "template <class T, class = std::enable_if_t<sizeof(T) == 2 && !std::is_integral<T>::value>> __device__ "
        f"__forceinline__ T {n}(T x, T y) {{ return (float)x {less} (float)y ? x : y; }}"
        for n, less in (("max", ">"), ("min", "<")))),
    "from_e4m3": ("float", "unsigned char b", "float x = __uint_as_float((b & 0x7fu) << 20) * 0x1p120f; x = (b & 0x7f) == 0x7f "
                  "? __uint_as_float(0x7fc00000u) : x; return b & 0x80 ? -x : x;"),
    "from_e5m2": ("float", "unsigned char b", "float x = __uint_as_float((b & 0x7fu) << 21) * 0x1p112f; x = (b & 0x7f) >= 0x7c "
                  "? __uint_as_float((b & 0x7f) == 0x7c ? 0x7f800000u : 0x7fc00000u) : x; return b & 0x80 ? -x : x;"),
    "to_e4m3": ("unsigned char", "float x", "unsigned u = __float_as_uint(x), s = u >> 24 & 0x80u, v = u & 0x7fffffffu; "
                "float a = __uint_as_float(v); if (!(a <= 464.0f)) return s | 0x7fu; "
                "return s | (a < 0x1p-6f ? (unsigned)rintf(a * 512.0f) : ((v + 0x7ffffu + (v >> 20 & 1u)) >> 20) - 960u);"),
    "to_e5m2": ("unsigned char", "float x", "unsigned u = __float_as_uint(x), s = u >> 24 & 0x80u, v = u & 0x7fffffffu; "
                "float a = __uint_as_float(v); if (a != a) return s | 0x7fu; if (a >= 61440.0f) return s | 0x7cu; "
                "return s | (a < 0x1p-14f ? (unsigned)rintf(a * 65536.0f) : ((v + 0xfffffu + (v >> 21 & 1u)) >> 21) - 448u);"),
}, "#include <hip/hip_runtime.h>\n#include <type_traits>",
    {n: f"{n}f" for n in ("exp", "exp2", "log", "log2", "sqrt", "tanh", "erf", "floor", "ceil", "sin", "cos", "pow")} | BY_NAME
    | {"round": "rintf", "rsqrt": "rsqrt_near", "sigmoid": "sigmoid_near"},
    {**DTYPES, **dict.fromkeys(EIGHT, "uint8")}, True, 2)
"""``v_exp_f32`` and ``v_rcp_f32`` are to 1 unit in the last place and flush as CUDA's do. e4m3 and e5m2 are those of the Open
Compute Project: float16 holds each of their numbers, rounding to them is to nearest even, beyond the largest as torch has
it."""


def byte(value: float | int | bool, dtype: str) -> int:
    """The byte of a number of 8 bits."""
    return int(np.array(float(value)).astype(NUMPY_DTYPES[dtype]).view(np.uint8))


DIALECTS = {"cuda": CUDA, "hip": ROCM}
"""By the kind of a target."""
