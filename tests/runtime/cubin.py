"""A cubin without TileLang or nvcc: NVRTC through ctypes, as torch's CUDA wheels bring it."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import pytest

SOURCE = b"""
extern "C" __global__ void scale(const float* x, float* partial) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  partial[i] = 2.0f * x[i];
}
extern "C" __global__ void shift(const float* partial, const float* y, float* out, float* sum) {
  extern __shared__ float shared[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  shared[threadIdx.x] = partial[i];
  __syncthreads();
  out[i] = shared[threadIdx.x] + y[i];
  sum[i] = x_of(shared[threadIdx.x]) + out[i];
}
""".replace(b"extern \"C\" __global__ void scale", b"__device__ float x_of(float v) { return 0.5f * v; }\n"
            b"extern \"C\" __global__ void scale", 1)


def library() -> ctypes.CDLL:
    found = []
    spec = importlib.util.find_spec("nvidia")
    for base in (spec.submodule_search_locations or []) if spec else []:
        found += sorted(Path(base).glob("*/lib/libnvrtc.so.*[0-9]"))
    found += sorted(Path("/usr/local/cuda/lib64").glob("libnvrtc.so*"))
    for path in found:
        if "builtins" not in path.name and "alt" not in path.name:
            return ctypes.CDLL(str(path))
    pytest.skip("no NVRTC")


ENDLESS = b"""
extern "C" __global__ void scale(const float* x, float* partial) {
  while (*(volatile const float*)x < 1e30f) {}
  partial[0] = x[0];
}
extern "C" __global__ void shift(const float* partial, const float* y, float* out, float* sum) { out[0] = sum[0] = y[0]; }
"""


def compile_cubin(arch: str, source: bytes = SOURCE) -> bytes:
    nvrtc, program = library(), ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"k.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture={arch}".encode())
    status, size = nvrtc.nvrtcCompileProgram(program, 1, options), ctypes.c_size_t()
    if status:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise AssertionError(log.value.decode())
    assert nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
    data = ctypes.create_string_buffer(size.value)
    assert nvrtc.nvrtcGetCUBIN(program, data) == 0
    return data.raw
