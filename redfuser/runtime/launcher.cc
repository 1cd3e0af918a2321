// The generic kernel launcher: a KernelSpec's JSON and binaries in, a tvm-ffi function over tensors out.
//
// Built once with any C++17 compiler against tvm-ffi's headers. It knows no kernel, no compiler and no CUDA header: the
// driver is found at run time with dlopen, and only stable driver entry points with fixed signatures are used.
//
// A call checks every tensor against its declaration, asks tvm-ffi for the framework's current stream, encodes or
// recalls tensor-maps, and launches. It allocates only the workspace, through the framework's own allocator, so it is
// safe under CUDA-graph capture. Errors are thrown with a code in front ("RF505 ..."); Python turns them into ours.

#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace redfuser {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

#define RF_FAIL(code) TVM_FFI_THROW(ValueError) << code << " "

// ---------------------------------------------------------------------------------------------------------------
// The driver, by name. Types are opaque here; the values of the few enumerators used are part of CUDA's ABI, and HIP's are
// the same.

using Handle = void*;
using Status = int;

constexpr int kMaxDynamicSharedAttribute = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kCaptureModeRelaxed = 2;         // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr int kEarlyAttribute = 6;             // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
constexpr int kEarlySince = 12030;             // the driver's version
constexpr Status kNoBinaryForGpu = 209;        // CUDA_ERROR_NO_BINARY_FOR_GPU

struct TensorMapBytes {
  alignas(64) unsigned char bytes[128];
};

struct LaunchAttribute {  // CUlaunchAttribute
  int id, padding;
  alignas(8) int value[16];
};

struct LaunchConfig {  // CUlaunchConfig
  unsigned grid[3], block[3], shared;
  Handle stream;
  const LaunchAttribute* attributes;
  unsigned count;
};

struct Driver {
  Status (*init)(unsigned) = nullptr;
  Status (*deviceGet)(int*, int) = nullptr;
  Status (*primaryRetain)(Handle*, int) = nullptr;
  Status (*ctxGetCurrent)(Handle*) = nullptr;
  Status (*ctxPush)(Handle) = nullptr;
  Status (*ctxPop)(Handle*) = nullptr;
  Status (*moduleLoad)(Handle*, const void*) = nullptr;
  Status (*moduleGetFunction)(Handle*, Handle, const char*) = nullptr;
  Status (*funcSetAttribute)(Handle, int, int) = nullptr;
  Status (*exchangeCaptureMode)(int*) = nullptr;
  Status (*errorName)(Status, const char**) = nullptr;
  Status (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**,
                   void**) = nullptr;
  // Without it a launch begins when the one before has ended. Graphs know early ones since CUDA 12.3.
  Status (*driverVersion)(int*) = nullptr;
  Status (*launchEarly)(const LaunchConfig*, Handle, void**, void**) = nullptr;
  // Absent before CUDA 12; needed only by kernels with tensor-maps.
  Status (*encodeTiled)(void*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*,
                        const uint32_t*, int, int, int, int) = nullptr;

  const char* prefix;  // of its calls' names

  explicit Driver(const std::string& path, bool hip) : prefix(hip ? "hip" : "cu") {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) RF_FAIL("RF509") << "no GPU driver: " << dlerror();
    auto load = [&](auto& slot, const char* cuda, const char* amd, bool required = true) {
      const char* name = hip ? amd : cuda;
      slot = reinterpret_cast<std::decay_t<decltype(slot)>>(name == nullptr ? nullptr : dlsym(library, name));
      if (slot == nullptr && required) RF_FAIL("RF509") << path << " lacks " << name << "; update the GPU driver";
    };
    load(init, "cuInit", "hipInit");
    load(deviceGet, "cuDeviceGet", "hipDeviceGet");
    load(primaryRetain, "cuDevicePrimaryCtxRetain", "hipDevicePrimaryCtxRetain");
    load(ctxGetCurrent, "cuCtxGetCurrent", "hipCtxGetCurrent");
    load(ctxPush, "cuCtxPushCurrent_v2", "hipCtxPushCurrent");
    load(ctxPop, "cuCtxPopCurrent_v2", "hipCtxPopCurrent");
    load(moduleLoad, "cuModuleLoadData", "hipModuleLoadData");
    load(moduleGetFunction, "cuModuleGetFunction", "hipModuleGetFunction");
    load(funcSetAttribute, "cuFuncSetAttribute", nullptr, !hip);  // AMD's blocks have all shared memory without asking
    load(exchangeCaptureMode, "cuThreadExchangeStreamCaptureMode", "hipThreadExchangeStreamCaptureMode");
    load(errorName, "cuGetErrorName", "hipDrvGetErrorName");
    load(launch, "cuLaunchKernel", "hipModuleLaunchKernel");
    load(driverVersion, "cuDriverGetVersion", nullptr, false);
    int version = 0;
    if (driverVersion != nullptr && driverVersion(&version) == 0 && version >= kEarlySince) load(launchEarly, "cuLaunchKernelEx", nullptr, false);
    load(encodeTiled, "cuTensorMapEncodeTiled", nullptr, false);
    check(init(0), "cuInit");
  }

  void check(Status status, const char* call) const {
    if (__builtin_expect(status == 0, 1)) return;
    const char* name = nullptr;
    if (errorName != nullptr) errorName(status, &name);
    RF_FAIL("RF508") << prefix << call + 2 << " returned " << (name != nullptr ? name : "an unknown error") << " (" << status << ")";
  }
};

// ---------------------------------------------------------------------------------------------------------------
// The kernel, as its JSON says.

enum class Role { kIn, kOut, kWorkspace };

struct Arg {
  std::string name, dtypeName;
  DLDataType dtype{};
  std::vector<int64_t> shape;
  Role role = Role::kIn;
  uint64_t align = 1;
  size_t bytes = 0, offset = 0;  // offset: into the workspace
};

struct TensorMap {
  int dtype = 0, interleave = 0, swizzle = 0, l2 = 0, oob = 0;
  uint32_t rank = 0;
  std::vector<uint64_t> dims, strides;
  std::vector<uint32_t> box, elementStrides;
};

struct Param {
  int arg = 0;
  int map = -1;  // index into Launch::maps, or -1 for a pointer
};

struct Launch {
  std::string entry;
  size_t binary = 0;
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1}, shared = 0;
  bool waits = false;
  std::vector<Param> params;
  std::vector<TensorMap> maps;
};

DLDataType ParseDtype(const std::string& name) {
  struct Entry {
    const char* name;
    DLDataType dtype;
  };
  static const Entry table[] = {{"f64", {kDLFloat, 64, 1}},          {"f32", {kDLFloat, 32, 1}},
                                {"f16", {kDLFloat, 16, 1}},          {"bf16", {kDLBfloat, 16, 1}},
                                {"e4m3", {kDLFloat8_e4m3fn, 8, 1}},  {"e5m2", {kDLFloat8_e5m2, 8, 1}},
                                {"e4m3fnuz", {kDLFloat8_e4m3fnuz, 8, 1}},
                                {"i64", {kDLInt, 64, 1}},            {"i32", {kDLInt, 32, 1}},
                                {"i8", {kDLInt, 8, 1}},              {"u8", {kDLUInt, 8, 1}},
                                {"bool", {kDLBool, 8, 1}}};
  for (const Entry& entry : table) {
    if (name == entry.name) return entry.dtype;
  }
  RF_FAIL("RF601") << "unknown dtype " << name;
  return {};
}

std::string Text(const json::Object& object, const char* key) { return std::string(object.at(ffi::String(key)).cast<ffi::String>()); }
int64_t Integer(const json::Object& object, const char* key) { return object.at(ffi::String(key)).cast<int64_t>(); }
json::Array List(const json::Object& object, const char* key) { return object.at(ffi::String(key)).cast<json::Array>(); }

template <typename T>
std::vector<T> Integers(const json::Array& array) {
  std::vector<T> out;
  for (const ffi::Any& value : array) out.push_back(static_cast<T>(value.cast<int64_t>()));
  return out;
}

std::string ShapeText(const int64_t* values, int64_t count) {
  std::ostringstream os;
  os << "[";
  for (int64_t i = 0; i < count; ++i) os << (i ? ", " : "") << values[i];
  os << "]";
  return os.str();
}

std::string DtypeText(DLDataType dtype) { return std::string(ffi::DLDataTypeToString(dtype)); }

// ---------------------------------------------------------------------------------------------------------------

class Kernel {
 public:
  Kernel(const std::string& spec, ffi::Array<ffi::Bytes> binaries, std::string driverPath)
      : binaries_(std::move(binaries)), driverPath_(std::move(driverPath)) {
    json::Object root = json::Parse(ffi::String(spec)).cast<json::Object>();
    name_ = Text(root, "name");
    arch_ = Text(root, "arch");
    const std::string kind = Text(root, "kind");
    deviceType_ = kind == "cpu" ? kDLCPU : kind == "hip" ? kDLROCM : kDLCUDA;
    for (const ffi::Any& value : List(root, "args")) ReadArg(value.cast<json::Object>());
    for (const ffi::Any& value : List(root, "launches")) ReadLaunch(value.cast<json::Object>());
    for (Arg& arg : args_) {
      if (arg.role != Role::kWorkspace) continue;
      uint64_t align = arg.align < 256 ? 256 : arg.align;
      arg.offset = (workspaceBytes_ + align - 1) / align * align;
      workspaceBytes_ = arg.offset + arg.bytes;
    }
  }

  // args: the "in" and "out" tensors in declaration order of each role: all inputs, then all outputs.
  void Call(ffi::PackedArgs args) {
    const int given = args.size(), wanted = static_cast<int>(order_.size());
    if (given != wanted) RF_FAIL("RF501") << "kernel " << name_ << " takes " << wanted << " tensors, got " << given;
    void* pointers[kMaxArgs];
    DLDevice device{};
    for (int i = 0; i < given; ++i) {
      const Arg& arg = args_[order_[i]];
      const DLTensor* tensor = AsTensor(args[i]);
      if (tensor == nullptr) RF_FAIL("RF502") << "argument '" << arg.name << "' of kernel " << name_ << " is not a tensor";
      if (i == 0) {
        device = tensor->device;
        if (device.device_type != deviceType_) FailDevice(arg, tensor->device);
      } else if (tensor->device.device_type != device.device_type || tensor->device.device_id != device.device_id) {
        FailDevice(arg, tensor->device);
      }
      Check(arg, tensor);
      pointers[order_[i]] = static_cast<char*>(tensor->data) + tensor->byte_offset;
    }
    ffi::Optional<ffi::Tensor> workspace;
    if (workspaceBytes_ != 0) {
      const int64_t shape[1] = {static_cast<int64_t>(workspaceBytes_)};
      workspace = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, ffi::ShapeView(shape, 1), DLDataType{kDLUInt, 8, 1}, device);
      char* base = static_cast<char*>(workspace.value().data_ptr()) + workspace.value().byte_offset();
      for (size_t i = 0; i < args_.size(); ++i) {
        if (args_[i].role == Role::kWorkspace) pointers[i] = base + args_[i].offset;
      }
    }
    LaunchAll(device.device_id, TVMFFIEnvGetStream(device.device_type, device.device_id), pointers);
  }

  // Load the modules now, e.g. before a capture; Call does it on first use otherwise.
  void Prepare(int device) { Loaded(device); }

 private:
  static constexpr int kMaxArgs = 64;
  static constexpr int kMaxParams = 64;
  static constexpr int kMaxMaps = 16;
  static constexpr int kMaxDevices = 64;
  static constexpr int kRemembered = 8;

  struct Remembered {  // encoded tensor-maps of one parameter, by address: allocators alternate between few
    void* address[kRemembered] = {};
    TensorMapBytes map[kRemembered];
    int next = 0;
  };

  struct PerDevice {
    Handle context = nullptr;
    std::vector<Handle> functions;  // one per launch
    std::vector<std::vector<std::unique_ptr<Remembered>>> maps;
    std::mutex mutex;
  };

  class InContext {  // makes a context current for a scope; costs one thread-local read when it already is
   public:
    InContext(const Driver& driver, Handle context) : driver_(driver) {
      Handle current = nullptr;
      driver_.ctxGetCurrent(&current);
      if (current == context) return;
      driver_.check(driver_.ctxPush(context), "cuCtxPushCurrent");
      pushed_ = true;
    }
    ~InContext() {
      Handle ignored = nullptr;
      if (pushed_) driver_.ctxPop(&ignored);
    }

   private:
    const Driver& driver_;
    bool pushed_ = false;
  };

  class RelaxedCapture {  // loading a module is legal while another stream of this thread is being captured
   public:
    explicit RelaxedCapture(const Driver& driver) : driver_(driver) { driver_.exchangeCaptureMode(&mode_); }
    ~RelaxedCapture() { driver_.exchangeCaptureMode(&mode_); }

   private:
    const Driver& driver_;
    int mode_ = kCaptureModeRelaxed;
  };

  static const DLTensor* AsTensor(const ffi::AnyView& value) {
    if (value.type_index() == ffi::TypeIndex::kTVMFFIDLTensorPtr) return value.cast<DLTensor*>();
    if (value.type_index() == ffi::TypeIndex::kTVMFFITensor) {
      return TVMFFITensorGetDLTensorPtr(value.CopyToTVMFFIAny().v_obj);
    }
    return nullptr;
  }

  void FailDevice(const Arg& arg, DLDevice got) const {
    RF_FAIL("RF503") << "argument '" << arg.name << "' of kernel " << name_ << " is on "
                     << (got.device_type == kDLCPU ? "the CPU" : got.device_type == kDLCUDA || got.device_type == kDLROCM ? "cuda:" + std::to_string(got.device_id) : "device type " + std::to_string(got.device_type))
                     << "; all tensors must be on one " << (deviceType_ == kDLCPU ? "CPU" : deviceType_ == kDLROCM ? "ROCm" : "CUDA") << " device";
  }

  void Check(const Arg& arg, const DLTensor* tensor) const {
    if (tensor->dtype.code != arg.dtype.code || tensor->dtype.bits != arg.dtype.bits || tensor->dtype.lanes != 1) {
      RF_FAIL("RF504") << "argument '" << arg.name << "' of kernel " << name_ << " is " << DtypeText(tensor->dtype)
                       << ", expected " << arg.dtypeName;
    }
    const int rank = static_cast<int>(arg.shape.size());
    if (tensor->ndim != rank || std::memcmp(tensor->shape, arg.shape.data(), sizeof(int64_t) * rank) != 0) {
      RF_FAIL("RF505") << "argument '" << arg.name << "' of kernel " << name_ << " has shape "
                       << ShapeText(tensor->shape, tensor->ndim) << ", expected " << ShapeText(arg.shape.data(), rank);
    }
    if (tensor->strides != nullptr) {
      int64_t expected = 1;
      for (int d = rank - 1; d >= 0; --d) {
        if (arg.shape[d] != 1 && tensor->strides[d] != expected && arg.bytes != 0) {
          RF_FAIL("RF506") << "argument '" << arg.name << "' of kernel " << name_ << " has strides "
                           << ShapeText(tensor->strides, rank) << ", expected contiguous; call .contiguous() on it";
        }
        expected *= arg.shape[d];
      }
    }
    const uint64_t address = reinterpret_cast<uint64_t>(tensor->data) + tensor->byte_offset;
    if (address % arg.align != 0) {
      RF_FAIL("RF507") << "argument '" << arg.name << "' of kernel " << name_ << " is not aligned to " << arg.align
                       << " bytes (a view into a larger tensor?); clone it";
    }
  }

  void LaunchAll(int deviceId, Handle stream, void** pointers) {
    PerDevice& device = Loaded(deviceId);
    InContext scope(*driver_, device.context);
    for (size_t index = 0; index < launches_.size(); ++index) {
      const Launch& launch = launches_[index];
      TensorMapBytes maps[kMaxMaps];
      void* values[kMaxParams];
      for (size_t p = 0; p < launch.params.size(); ++p) {
        const Param& param = launch.params[p];
        if (param.map < 0) {
          values[p] = &pointers[param.arg];
        } else {
          Recall(device, index, param.map, pointers[param.arg], &maps[param.map]);
          values[p] = &maps[param.map];
        }
      }
      if (launch.waits && driver_->launchEarly != nullptr) {
        static const LaunchAttribute early = {kEarlyAttribute, 0, {1}};
        const LaunchConfig config = {{launch.grid[0], launch.grid[1], launch.grid[2]},
                                     {launch.block[0], launch.block[1], launch.block[2]}, launch.shared, stream, &early, 1};
        driver_->check(driver_->launchEarly(&config, device.functions[index], values, nullptr), "cuLaunchKernelEx");
        continue;
      }
      driver_->check(driver_->launch(device.functions[index], launch.grid[0], launch.grid[1], launch.grid[2],
                                     launch.block[0], launch.block[1], launch.block[2], launch.shared, stream, values,
                                     nullptr),
                     deviceType_ == kDLROCM ? "cuModuleLaunchKernel" : "cuLaunchKernel");  // named by the driver's prefix
    }
  }

  void Recall(PerDevice& device, size_t launch, int map, void* address, TensorMapBytes* out) {
    std::lock_guard<std::mutex> lock(device.mutex);
    Remembered& seen = *device.maps[launch][map];
    for (int i = 0; i < kRemembered; ++i) {
      if (seen.address[i] == address && address != nullptr) {
        *out = seen.map[i];
        return;
      }
    }
    const TensorMap& map_ = launches_[launch].maps[map];
    if (driver_->encodeTiled == nullptr) RF_FAIL("RF509") << "the GPU driver is older than CUDA 12: it has no tensor-maps";
    driver_->check(driver_->encodeTiled(out, map_.dtype, map_.rank, address, map_.dims.data(), map_.strides.data(),
                                        map_.box.data(), map_.elementStrides.data(), map_.interleave, map_.swizzle,
                                        map_.l2, map_.oob),
                   "cuTensorMapEncodeTiled");
    seen.address[seen.next] = address;
    seen.map[seen.next] = *out;
    seen.next = (seen.next + 1) % kRemembered;
  }

  PerDevice& Loaded(int id) {
    if (id < 0 || id >= kMaxDevices) RF_FAIL("RF503") << "device index " << id << " is out of range";
    PerDevice* found = __atomic_load_n(&devices_[id], __ATOMIC_ACQUIRE);
    if (__builtin_expect(found != nullptr, 1)) return *found;
    std::lock_guard<std::mutex> lock(mutex_);
    if (devices_[id] != nullptr) return *devices_[id];
    if (driver_ == nullptr) driver_ = SharedDriver(driverPath_, deviceType_ == kDLROCM);
    const Driver& driver = *driver_;
    auto fresh = std::make_unique<PerDevice>();
    int ordinal = 0;
    driver.check(driver.deviceGet(&ordinal, id), "cuDeviceGet");
    driver.check(driver.primaryRetain(&fresh->context, ordinal), "cuDevicePrimaryCtxRetain");
    InContext scope(driver, fresh->context);
    RelaxedCapture relaxed(driver);
    std::vector<Handle> modules;
    for (const ffi::Bytes& binary : binaries_) {
      Handle module = nullptr;
      Status status = driver.moduleLoad(&module, binary.data());
      if (status == kNoBinaryForGpu) {
        RF_FAIL("RF510") << "kernel " << name_ << " was built for " << arch_ << ", which cuda:" << id << " cannot run";
      }
      driver.check(status, "cuModuleLoadData");
      modules.push_back(module);
    }
    for (const Launch& launch : launches_) {
      Handle function = nullptr;
      driver.check(driver.moduleGetFunction(&function, modules.at(launch.binary), launch.entry.c_str()), "cuModuleGetFunction");
      if (launch.shared > 0 && driver.funcSetAttribute != nullptr) {  // static shared memory counts towards the 48 KB that need no asking, so always ask
        driver.check(driver.funcSetAttribute(function, kMaxDynamicSharedAttribute, static_cast<int>(launch.shared)),
                     "cuFuncSetAttribute (dynamic shared memory)");
      }
      fresh->functions.push_back(function);
      fresh->maps.emplace_back();
      for (size_t i = 0; i < launch.maps.size(); ++i) fresh->maps.back().push_back(std::make_unique<Remembered>());
    }
    owned_.push_back(std::move(fresh));
    __atomic_store_n(&devices_[id], owned_.back().get(), __ATOMIC_RELEASE);
    return *owned_.back();
  }

  static const Driver* SharedDriver(const std::string& path, bool hip) {
    static std::mutex mutex;
    static std::vector<std::pair<std::string, std::unique_ptr<Driver>>> drivers;
    std::lock_guard<std::mutex> lock(mutex);
    for (const auto& entry : drivers) {
      if (entry.first == path) return entry.second.get();
    }
    drivers.emplace_back(path, std::make_unique<Driver>(path, hip));
    return drivers.back().second.get();
  }

  void ReadArg(const json::Object& object) {
    Arg arg;
    arg.name = Text(object, "name");
    arg.dtypeName = Text(object, "dtype");
    arg.dtype = ParseDtype(arg.dtypeName);
    arg.shape = Integers<int64_t>(List(object, "shape"));
    const std::string role = Text(object, "role");
    arg.role = role == "in" ? Role::kIn : role == "out" ? Role::kOut : Role::kWorkspace;
    arg.align = static_cast<uint64_t>(Integer(object, "align"));
    if (arg.align == 0) arg.align = 1;
    arg.bytes = arg.dtype.bits / 8;
    for (int64_t extent : arg.shape) arg.bytes *= static_cast<size_t>(extent);
    args_.push_back(arg);
    if (args_.size() > kMaxArgs) RF_FAIL("RF601") << "kernel " << name_ << " has more than " << kMaxArgs << " arguments";
    order_.clear();
    for (Role wanted : {Role::kIn, Role::kOut}) {
      for (size_t i = 0; i < args_.size(); ++i) {
        if (args_[i].role == wanted) order_.push_back(static_cast<int>(i));
      }
    }
  }

  void ReadLaunch(const json::Object& object) {
    Launch launch;
    launch.entry = Text(object, "entry");
    launch.binary = static_cast<size_t>(Integer(object, "binary"));
    auto grid = Integers<unsigned>(List(object, "grid")), block = Integers<unsigned>(List(object, "block"));
    if (grid.size() != 3 || block.size() != 3 || launch.binary >= binaries_.size()) {
      RF_FAIL("RF601") << "launch " << launch.entry << " of kernel " << name_ << " is damaged";
    }
    for (int i = 0; i < 3; ++i) launch.grid[i] = grid[i], launch.block[i] = block[i];
    launch.shared = static_cast<unsigned>(Integer(object, "shared_bytes"));
    launch.waits = object.count(ffi::String("waits")) != 0 && object.at(ffi::String("waits")).cast<bool>();
    for (const ffi::Any& value : List(object, "params")) {
      json::Object entry = value.cast<json::Object>();
      Param param;
      param.arg = Find(Text(entry, "arg"));
      if (Text(entry, "kind") == "tma") {
        param.map = static_cast<int>(launch.maps.size());
        launch.maps.push_back(ReadMap(entry.at(ffi::String("tma")).cast<json::Object>()));
      }
      launch.params.push_back(param);
    }
    if (launch.params.size() > kMaxParams || launch.maps.size() > kMaxMaps) {
      RF_FAIL("RF601") << "launch " << launch.entry << " of kernel " << name_ << " has too many parameters";
    }
    launches_.push_back(std::move(launch));
  }

  static TensorMap ReadMap(const json::Object& object) {
    TensorMap map;
    map.dtype = static_cast<int>(Integer(object, "dtype"));
    map.rank = static_cast<uint32_t>(Integer(object, "rank"));
    map.dims = Integers<uint64_t>(List(object, "dims"));
    map.strides = Integers<uint64_t>(List(object, "strides"));
    map.box = Integers<uint32_t>(List(object, "box"));
    map.elementStrides = Integers<uint32_t>(List(object, "element_strides"));
    map.interleave = static_cast<int>(Integer(object, "interleave"));
    map.swizzle = static_cast<int>(Integer(object, "swizzle"));
    map.l2 = static_cast<int>(Integer(object, "l2"));
    map.oob = static_cast<int>(Integer(object, "oob"));
    if (map.rank < 1 || map.rank > 5 || map.dims.size() != map.rank || map.strides.size() + 1 != map.rank ||
        map.box.size() != map.rank || map.elementStrides.size() != map.rank) {
      RF_FAIL("RF601") << "a tensor-map is damaged";
    }
    return map;
  }

  int Find(const std::string& name) const {
    for (size_t i = 0; i < args_.size(); ++i) {
      if (args_[i].name == name) return static_cast<int>(i);
    }
    RF_FAIL("RF601") << "kernel " << name_ << " has no argument '" << name << "'";
    return -1;
  }

  std::string name_, arch_;
  ffi::Array<ffi::Bytes> binaries_;
  std::string driverPath_;
  DLDeviceType deviceType_ = kDLCUDA;
  std::vector<Arg> args_;
  std::vector<int> order_;  // argument indices in call order: inputs, then outputs
  std::vector<Launch> launches_;
  size_t workspaceBytes_ = 0;
  const Driver* driver_ = nullptr;
  std::mutex mutex_;
  PerDevice* devices_[kMaxDevices] = {};
  std::vector<std::unique_ptr<PerDevice>> owned_;
};

// (spec JSON, binaries, driver library) -> [call(in..., out...), prepare(device index)]
ffi::Array<ffi::Function> MakeKernel(ffi::String spec, ffi::Array<ffi::Bytes> binaries, ffi::String driver) {
  auto kernel = std::make_shared<Kernel>(std::string(spec), std::move(binaries), std::string(driver));
  auto call = ffi::Function::FromPacked([kernel](ffi::PackedArgs args, ffi::Any*) { kernel->Call(args); });
  auto prepare = ffi::Function::FromTyped([kernel](int64_t device) { kernel->Prepare(static_cast<int>(device)); });
  return {call, prepare};
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(make_kernel, MakeKernel);

}  // namespace redfuser
