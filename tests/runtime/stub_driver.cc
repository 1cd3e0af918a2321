// A stand-in for libcuda.so.1 that records what the launcher asks of it, so that launches are tested without a GPU.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

static std::string g_log;
static int g_fail_load = 0;
static uintptr_t g_context = 0;

static void Line(const char* text) { g_log += text; g_log += '\n'; }

extern "C" {
const char* stub_log() { return g_log.c_str(); }
void stub_reset() { g_log.clear(); g_fail_load = 0; g_context = 0; }
void stub_fail_load(int status) { g_fail_load = status; }

int cuInit(unsigned) { Line("init"); return 0; }
int cuDeviceGet(int* out, int id) { *out = id; return id < 4 ? 0 : 101; }
int cuDevicePrimaryCtxRetain(void** out, int device) { *out = reinterpret_cast<void*>(uintptr_t(0x1000 + device)); return 0; }
int cuCtxGetCurrent(void** out) { *out = reinterpret_cast<void*>(g_context); return 0; }
int cuCtxPushCurrent_v2(void* context) { g_context = reinterpret_cast<uintptr_t>(context); return 0; }
int cuCtxPopCurrent_v2(void** out) { *out = reinterpret_cast<void*>(g_context); g_context = 0; return 0; }
int cuModuleLoadData(void** out, const void* image) {
  if (g_fail_load) return g_fail_load;
  char text[64];
  std::snprintf(text, sizeof text, "load %.8s ctx %zx", static_cast<const char*>(image), g_context);
  Line(text);
  *out = const_cast<void*>(image);
  return 0;
}
int cuModuleGetFunction(void** out, void* module, const char* name) {
  static int next = 0x10;
  Line((std::string("function ") + name + " of " + std::string(static_cast<const char*>(module), 2)).c_str());
  *out = reinterpret_cast<void*>(uintptr_t(next++));
  return 0;
}
int cuFuncSetAttribute(void*, int attribute, int value) {
  char text[64];
  std::snprintf(text, sizeof text, "attribute %d = %d", attribute, value);
  Line(text);
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) { int old = 0; *mode = old; return 0; }
int cuGetErrorName(int status, const char** out) { *out = status == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : "CUDA_ERROR_STUB"; return 0; }
int cuTensorMapEncodeTiled(void* out, int dtype, uint32_t rank, void* address, const uint64_t* dims, const uint64_t* strides,
                           const uint32_t* box, const uint32_t* element, int interleave, int swizzle, int l2, int oob) {
  if (reinterpret_cast<uintptr_t>(out) % 64) return 1;
  std::string text = "encode dtype " + std::to_string(dtype);
  auto list = [&](const char* name, auto* values, uint32_t count) {
    text += std::string(" ") + name;
    for (uint32_t i = 0; i < count; ++i) text += (i ? "," : " ") + std::to_string(values[i]);
  };
  list("dims", dims, rank);
  list("strides", strides, rank - 1);
  list("box", box, rank);
  list("element", element, rank);
  for (int value : {interleave, swizzle, l2, oob}) text += " " + std::to_string(value);
  Line(text.c_str());
  std::memset(out, 0, 128);
  std::memcpy(out, &address, sizeof address);
  return 0;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** params, void**) {
  (void)function;
  char text[160];
  std::snprintf(text, sizeof text, "launch grid %u,%u,%u block %u,%u,%u shared %u stream %zx ctx %zx first %zx", gx, gy, gz, bx,
                by, bz, shared, reinterpret_cast<uintptr_t>(stream), g_context, *static_cast<uintptr_t*>(params[0]));
  if (g_log.size() < 1 << 20) Line(text);
  return 0;
}
}
