// HIP on the host, for tests: a block's threads are fibers that take turns, so that printed HIP text runs under g++. Barriers and
// what crosses lanes are as AMD's instruction set guide for CDNA3 has them; nothing here is taken from what prints the text.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>
#include <vector>

#define __HIP_PLATFORM_AMD__ 1
#define __gfx942__ 1
#define __global__
#define __device__
#define __host__
#define __shared__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define address_space(n) unused

using std::isnan;
using hipError_t = int;
constexpr hipError_t hipSuccess = 0;

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace host {
constexpr int kWave = 64;
struct Wave {
  int arrived = 0;
  unsigned turn = 0;
  alignas(64) unsigned char slot[2][kWave][64];
};
inline dim3 block_index, block_size, grid_size;
inline std::vector<ucontext_t> fibers;
inline std::vector<Wave> waves;
inline std::vector<char> done;
inline ucontext_t scheduler;
inline int current = 0, arrived = 0, alive = 0;
inline unsigned turn = 0;

inline void yield() { swapcontext(&fibers[current], &scheduler); }
inline int lanes(int wave) { return std::min(kWave, static_cast<int>(block_size.x) - wave * kWave); }

// Every lane of a wave puts a value; what `read` makes of all of them is this lane's.
template <typename T, typename F>
auto exchange(const T& mine, F read) {
  static_assert(sizeof(T) <= 64);
  Wave& wave = waves[current / kWave];
  const unsigned now = wave.turn;
  std::memcpy(wave.slot[now & 1][current % kWave], &mine, sizeof(T));
  if (++wave.arrived == lanes(current / kWave)) wave.arrived = 0, ++wave.turn;
  while (wave.turn == now) yield();
  return read([&wave, now](int lane) {
    T value;
    std::memcpy(&value, wave.slot[now & 1][lane], sizeof(T));
    return value;
  });
}

inline void barrier() {
  const unsigned now = turn;
  if (++arrived == alive) arrived = 0, ++turn;
  while (turn == now) yield();
}

inline std::function<void()> body;
inline void enter() {
  body();
  done[current] = 1;
  if (--alive && arrived == alive) arrived = 0, ++turn;
  swapcontext(&fibers[current], &scheduler);
}

template <typename F>
void run(dim3 grid, unsigned threads, unsigned char* shared, size_t bytes, F f) {
  static std::vector<std::vector<unsigned char>> stacks;
  stacks.resize(threads, std::vector<unsigned char>(1 << 17));
  body = f;
  block_size = {threads, 1, 1}, grid_size = grid;
  for (block_index.z = 0; block_index.z < grid.z; ++block_index.z)
    for (block_index.y = 0; block_index.y < grid.y; ++block_index.y)
      for (block_index.x = 0; block_index.x < grid.x; ++block_index.x) {
        std::memset(shared, 0xA5, bytes);  // what nobody has written is nothing anyone may use
        fibers.assign(threads, {}), done.assign(threads, 0), waves.assign((threads + kWave - 1) / kWave, Wave());
        alive = static_cast<int>(threads), arrived = 0;
        for (unsigned t = 0; t < threads; ++t) {
          getcontext(&fibers[t]);
          fibers[t].uc_stack.ss_sp = stacks[t].data(), fibers[t].uc_stack.ss_size = stacks[t].size(), fibers[t].uc_link = &scheduler;
          makecontext(&fibers[t], enter, 0);
        }
        while (alive)
          for (unsigned t = 0; t < threads; ++t)
            if (!done[t]) current = static_cast<int>(t), swapcontext(&scheduler, &fibers[t]);
      }
}

struct ThreadIndex {
  struct X {
    operator int() const { return current; }
  } x;
  struct Zero {
    operator int() const { return 0; }
  } y, z;
};
}  // namespace host

inline host::ThreadIndex threadIdx;
#define blockIdx host::block_index
#define blockDim host::block_size
#define gridDim host::grid_size
inline void __syncthreads() { host::barrier(); }

// -- vectors --------------------------------------------------------------------------------------------------------------------
template <typename T, int N>
struct Lanes;
template <typename T>
struct Lanes<T, 1> {
  T x;
};
template <typename T>
struct alignas(2 * sizeof(T)) Lanes<T, 2> {
  T x, y;
};
template <typename T>
struct alignas(4 * sizeof(T)) Lanes<T, 4> {
  T x, y, z, w;
};
template <typename T>
struct Lanes<T, 3> {
  T x, y, z;
};
#define VECTOR(type, name)                                                  \
  using name##1 = Lanes<type, 1>;                                           \
  using name##2 = Lanes<type, 2>;                                           \
  using name##3 = Lanes<type, 3>;                                           \
  using name##4 = Lanes<type, 4>;                                           \
  inline name##1 make_##name##1(type x) { return {x}; }                     \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }          \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; } \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
VECTOR(float, float)
VECTOR(int, int)
VECTOR(unsigned, uint)
VECTOR(short, short)
VECTOR(unsigned short, ushort)
VECTOR(signed char, char)
VECTOR(unsigned char, uchar)
VECTOR(long long, longlong)
VECTOR(unsigned long long, ulonglong)
VECTOR(double, double)
using half2 = Lanes<_Float16, 2>;
using __half = _Float16;
using __half2 = half2;

inline float __uint_as_float(unsigned v) { float f; std::memcpy(&f, &v, 4); return f; }
inline float __int_as_float(int v) { float f; std::memcpy(&f, &v, 4); return f; }
inline unsigned __float_as_uint(float v) { unsigned u; std::memcpy(&u, &v, 4); return u; }
inline int __float_as_int(float v) { int u; std::memcpy(&u, &v, 4); return u; }

struct hip_bfloat16 {
  uint16_t data;
  hip_bfloat16() = default;
  hip_bfloat16(float f) {
    unsigned u = __float_as_uint(f);
    data = f != f ? static_cast<uint16_t>(u >> 16 | 0x40) : static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
  operator float() const { return __uint_as_float(static_cast<unsigned>(data) << 16); }
};
using __hip_bfloat16 = hip_bfloat16;

inline float max(float x, float y) { return std::fmax(x, y); }
inline float min(float x, float y) { return std::fmin(x, y); }
inline int max(int x, int y) { return x > y ? x : y; }
inline int min(int x, int y) { return x < y ? x : y; }
inline long long max(long long x, long long y) { return x > y ? x : y; }
inline long long min(long long x, long long y) { return x < y ? x : y; }

// -- across lanes ---------------------------------------------------------------------------------------------------------------
#define __builtin_amdgcn_wavefrontsize() 64
#define __builtin_amdgcn_sdot4(...) (std::abort(), 0)
#define __builtin_amdgcn_readfirstlane(v) (v)
#define __builtin_amdgcn_exp2f(x) host_exp2(x)
#define __builtin_amdgcn_rcpf(x) (1.0f / (x))
inline float host_exp2(float x) {  // v_exp_f32: to a unit in the last place, no denormal results
  float y = std::exp2(x);
  return y < 0x1p-126f ? 0.0f : y;
}
template <typename T>
T __shfl_xor(T v, int mask, int width = 64) {
  int lane = host::current % host::kWave, other = lane ^ mask;
  return host::exchange(v, [=](auto at) { return other / width == lane / width && other < host::lanes(host::current / 64) ? at(other) : v; });
}
template <typename T>
T __shfl_down(T v, int delta, int width = 64) {
  int lane = host::current % host::kWave, other = lane + delta;
  return host::exchange(v, [=](auto at) { return other / width == lane / width ? at(other) : v; });
}
template <typename T>
T __shfl_up(T v, int delta, int width = 64) {
  int lane = host::current % host::kWave, other = lane - delta;
  return host::exchange(v, [=](auto at) { return other >= 0 && other / width == lane / width ? at(other) : v; });
}
template <typename T>
T __shfl(T v, int source, int width = 64) {
  int lane = host::current % host::kWave;
  return host::exchange(v, [=](auto at) { return at(lane / width * width + source % width); });
}

// v_mfma_f32_16x16x16: lane l gives A[l % 16][4 * (l / 16) + i] and B[4 * (l / 16) + i][l % 16] and has D[4 * (l / 16) + i][l % 16].
typedef float host_f4 __attribute__((vector_size(16)));
template <typename V, typename F>
host_f4 host_mfma(V a, V b, host_f4 c, F value) {
  struct Both {
    V a, b;
  };
  const int lane = host::current % host::kWave;
  return host::exchange(Both{a, b}, [&](auto at) {
    host_f4 d = c;
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < 16; ++k)
        d[i] += value(at(4 * (lane / 16) + i + 16 * (k / 4)).a, k % 4) * value(at(lane % 16 + 16 * (k / 4)).b, k % 4);
    return d;
  });
}
typedef _Float16 host_h4 __attribute__((vector_size(8)));
typedef short host_s4 __attribute__((vector_size(8)));
inline host_f4 __builtin_amdgcn_mfma_f32_16x16x16f16(host_h4 a, host_h4 b, host_f4 c, int, int, int) {
  return host_mfma(a, b, c, [](host_h4 v, int i) { return static_cast<float>(v[i]); });
}
inline host_f4 __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(host_s4 a, host_s4 b, host_f4 c, int, int, int) {
  return host_mfma(a, b, c, [](host_s4 v, int i) { return __uint_as_float(static_cast<unsigned>(static_cast<uint16_t>(v[i])) << 16); });
}
// v_mfma_f32_16x16x4: lane l gives A[l % 16][l / 16] and B[l / 16][l % 16] and has D[4 * (l / 16) + i][l % 16].
inline host_f4 __builtin_amdgcn_mfma_f32_16x16x4f32(float a, float b, host_f4 c, int, int, int) {
  struct Both {
    float a, b;
  };
  const int lane = host::current % host::kWave;
  return host::exchange(Both{a, b}, [&](auto at) {
    host_f4 d = c;
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < 4; ++k) d[i] = std::fma(at(4 * (lane / 16) + i + 16 * k).a, at(lane % 16 + 16 * k).b, d[i]);
    return d;
  });
}
