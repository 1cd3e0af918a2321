// A stand-in for libcuda.so.1 (and, by HIP's names, for libamdhip64.so) that records what the launcher asks of it, so that
// launches are tested without a GPU. What it does not have cannot be called: nothing here allocates, copies or waits.
//
// A stream can be captured, by the driver's rules: a launch on it becomes a node of the graph; a launch on the default stream, and
// loading by a thread whose mode is not relaxed, break the capture.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <utility>

constexpr int kRelaxed = 2, kUnsupported = 900, kImplicit = 906;
static std::string g_log;
static int g_fail_load = 0, g_fail_launch = 0, g_mode = 0, g_version = 13000;
static uintptr_t g_context = 0, g_captured = 0;
static std::map<uintptr_t, std::string> g_names;    // of functions, by handle
static std::map<std::string, std::string> g_kinds;  // of their parameters: p a pointer, i an int

static void Line(const char* text) { g_log += text; g_log += '\n'; }

static int Broken(int status, const char* what) {
  Line((std::string("capture broken by ") + what).c_str());
  return status;
}

static std::string Arguments(const std::string& name, void** params) {
  auto kinds = g_kinds.find(name);
  char text[32];
  if (kinds == g_kinds.end()) {
    std::snprintf(text, sizeof text, " first %zx", *static_cast<uintptr_t*>(params[0]));
    return text;
  }
  std::string all = " of " + name;
  for (size_t i = 0; i < kinds->second.size(); ++i) {
    const bool pointer = kinds->second[i] == 'p';
    std::snprintf(text, sizeof text, pointer ? " %zx" : " %zu", pointer ? *static_cast<uintptr_t*>(params[i]) : size_t(*static_cast<int*>(params[i])));
    all += text;
  }
  return all;
}

extern "C" {
const char* stub_log() { return g_log.c_str(); }
void stub_reset() { g_log.clear(); g_kinds.clear(); g_fail_load = g_fail_launch = g_mode = 0; g_context = g_captured = 0; }
void stub_fail_load(int status) { g_fail_load = status; }
void stub_fail_launch(int status) { g_fail_launch = status; }
void stub_parameters(const char* function, const char* kinds) { g_kinds[function] = kinds; }
void stub_capture(uintptr_t stream) { g_captured = stream; Line(stream ? "capture begins" : "capture ends"); }

int cuInit(unsigned) { Line("init"); return 0; }
int cuDeviceGet(int* out, int id) { *out = id; return id < 4 ? 0 : 101; }
int cuDevicePrimaryCtxRetain(void** out, int device) { *out = reinterpret_cast<void*>(uintptr_t(0x1000 + device)); return 0; }
int cuCtxGetCurrent(void** out) { *out = reinterpret_cast<void*>(g_context); return 0; }
int cuCtxPushCurrent_v2(void* context) { g_context = reinterpret_cast<uintptr_t>(context); return 0; }
int cuCtxPopCurrent_v2(void** out) { *out = reinterpret_cast<void*>(g_context); g_context = 0; return 0; }
int cuModuleLoadData(void** out, const void* image) {
  if (g_captured && g_mode != kRelaxed) return Broken(kUnsupported, "load");
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
  g_names[next] = name;
  *out = reinterpret_cast<void*>(uintptr_t(next++));
  return 0;
}
int cuFuncSetAttribute(void*, int attribute, int value) {
  char text[64];
  std::snprintf(text, sizeof text, "attribute %d = %d", attribute, value);
  Line(text);
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) { std::swap(*mode, g_mode); return 0; }
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
  if (g_fail_launch) return g_fail_launch;
  const uintptr_t on = reinterpret_cast<uintptr_t>(stream);
  if (g_captured && !on) return Broken(kImplicit, "a launch on the default stream");
  char text[160];
  std::snprintf(text, sizeof text, "%s grid %u,%u,%u block %u,%u,%u shared %u stream %zx ctx %zx", g_captured && on == g_captured ? "node" : "launch",
                gx, gy, gz, bx, by, bz, shared, on, g_context);
  if (g_log.size() < 1 << 20) Line((text + Arguments(g_names[reinterpret_cast<uintptr_t>(function)], params)).c_str());
  return 0;
}
int cuDriverGetVersion(int* out) { *out = g_version; return 0; }
void stub_version(int version) { g_version = version; }
int cuLaunchKernelEx(const void* config, void* function, void** params, void** extra) {
  struct Config { unsigned grid[3], block[3], shared; void* stream; const int* attributes; unsigned count; };
  const Config& c = *static_cast<const Config*>(config);
  for (unsigned i = 0; i < c.count; ++i) {
    const int* attribute = c.attributes + 18 * i;
    Line(("with " + std::to_string(attribute[0]) + " = " + std::to_string(attribute[2])).c_str());
  }
  return cuLaunchKernel(function, c.grid[0], c.grid[1], c.grid[2], c.block[0], c.block[1], c.block[2], c.shared, c.stream, params, extra);
}
}
