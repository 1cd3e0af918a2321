// A CPU kernel as the LLVM road leaves it: a tvm-ffi function over tensors, workspaces last.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

static void Softmax(tvm::ffi::TensorView x, tvm::ffi::TensorView y, tvm::ffi::TensorView total, tvm::ffi::TensorView scratch) {
  const float* in = static_cast<const float*>(x.data_ptr());
  float* out = static_cast<float*>(y.data_ptr());
  float* sums = static_cast<float*>(total.data_ptr());
  float* work = static_cast<float*>(scratch.data_ptr());
  const int64_t rows = x.size(0), columns = x.size(1);
  for (int64_t i = 0; i < rows; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < columns; ++j) {
      sum += __builtin_exp(in[i * columns + j]);
      work[j] = in[i * columns + j];
    }
    for (int64_t j = 0; j < columns; ++j) out[i * columns + j] = static_cast<float>(__builtin_exp(work[j]) / sum);
    sums[i] = static_cast<float>(sum);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(softmax, Softmax);
