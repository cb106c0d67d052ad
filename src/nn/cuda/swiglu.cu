// CUDA kernels of SwiGLU. A thread reads and writes kVector elements of each tensor at once.
#include "nn/cuda/swiglu.h"

#include "internal/kernels/lanes.cuh"
#include "nn/swiglu_arithmetic.h"

namespace dtensor::nn::cuda {
namespace {

using namespace lanes::cuda;
using lanes::kVector;

constexpr int kThreads = 256;
constexpr std::int64_t kElements = kThreads * kVector;  // of a block

__device__ inline std::int64_t first_of_thread() {
  return blockIdx.x * kElements + static_cast<std::int64_t>(threadIdx.x) * kVector;
}

template <bool kAligned, class T>
__global__ void __launch_bounds__(kThreads) forward(std::int64_t n, const T* gate, const T* up, T* out) {
  for (std::int64_t from = first_of_thread(); from < n; from += gridDim.x * kElements) {
    Pack<T> g, u;
    const int count = load<kAligned>(gate, from, n, g);
    load<kAligned>(up, from, n, u);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (i < count) g.v[i] = narrow<T>(swiglu_of(widen(g.v[i]), widen(u.v[i])));
    }
    store<kAligned>(g, count, out + from);
  }
}

template <bool kAligned, class T>
__global__ void __launch_bounds__(kThreads)
    backward(std::int64_t n, const T* grad, const T* gate, const T* up, T* d_gate, T* d_up) {
  for (std::int64_t from = first_of_thread(); from < n; from += gridDim.x * kElements) {
    Pack<T> y, g, u;
    const int count = load<kAligned>(grad, from, n, y);
    load<kAligned>(gate, from, n, g);
    load<kAligned>(up, from, n, u);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (i >= count) continue;
      const SwigluGradients d = swiglu_gradients(widen(y.v[i]), widen(g.v[i]), widen(u.v[i]));
      g.v[i] = narrow<T>(d.gate);
      u.v[i] = narrow<T>(d.up);
    }
    store<kAligned>(g, count, d_gate + from);
    store<kAligned>(u, count, d_up + from);
  }
}

int blocks_of(std::int64_t n) { return blocks_for((n + kElements - 1) / kElements); }

// Calls fn(null pointer of the element type).
template <class Fn>
const char* with_kernel(Type type, const Fn& fn) {
  switch (type) {
    case Type::f32:
      fn(static_cast<float*>(nullptr));
      break;
    case Type::f16:
      fn(static_cast<__half*>(nullptr));
      break;
    case Type::bf16:
      fn(static_cast<__nv_bfloat16*>(nullptr));
      break;
    case Type::f64:
      return "expected float32, float16 or bfloat16, got float64";
  }
  return outcome();
}

template <class T, class... Pointers>
bool all_aligned(const Pointers*... pointers) {
  return (is_aligned<T>(pointers, 0) && ...);
}

}  // namespace

const char* launch_swiglu(Type type, std::int64_t n, const void* gate, const void* up, void* out, cudaStream_t stream) {
  return with_kernel(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    const auto kernel = all_aligned<T>(gate, up, out) ? &forward<true, T> : &forward<false, T>;
    kernel<<<blocks_of(n), kThreads, 0, stream>>>(n, static_cast<const T*>(gate), static_cast<const T*>(up),
                                                  static_cast<T*>(out));
  });
}

const char* launch_swiglu_backward(Type type, std::int64_t n, const void* grad, const void* gate, const void* up,
                                   void* d_gate, void* d_up, cudaStream_t stream) {
  return with_kernel(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    const auto kernel = all_aligned<T>(grad, gate, up, d_gate, d_up) ? &backward<true, T> : &backward<false, T>;
    kernel<<<blocks_of(n), kThreads, 0, stream>>>(n, static_cast<const T*>(grad), static_cast<const T*>(gate),
                                                  static_cast<const T*>(up), static_cast<T*>(d_gate),
                                                  static_cast<T*>(d_up));
  });
}

}  // namespace dtensor::nn::cuda
