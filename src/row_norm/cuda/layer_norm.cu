// CUDA kernels of layer norm and RMS norm. A block computes a row, and a thread a column of the sums over rows. Sums
// have the order of the loops on the CPU, so results are deterministic and equal those of the CPU.
#include "internal/kernels/lanes.cuh"
#include "row_norm/cuda/layer_norm.h"
#include "row_norm/layer_norm_arithmetic.h"

namespace dtensor::row_norm::cuda {
namespace {

using namespace lanes::cuda;
using lanes::kVector;

constexpr int kThreads = lanes::kWarp * kWarps;

template <bool kAligned, class T, class Value>
__device__ float sum_of(const T* row, std::int64_t n, const Value& value) {
  return reduce_row<kWarps, kAligned, T, float>(row, n, 0.0F, value, Add());
}

// out = fn(element of a, element of b, index).
template <bool kAligned, class T, class Fn>
__device__ void map_rows(const T* a, const T* b, T* out, std::int64_t n, const Fn& fn) {
  for (std::int64_t from = threadIdx.x * kVector; from < n; from += kThreads * kVector) {
    Pack<T> first, second;
    const int count = load<kAligned>(a, from, n, first);
    load<kAligned>(b, from, n, second);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (i < count) first.v[i] = narrow<T>(fn(widen(first.v[i]), widen(second.v[i]), from + i));
    }
    if (kAligned && count == kVector) {
      *reinterpret_cast<Pack<T>*>(out + from) = first;
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (i < count) out[from + i] = first.v[i];
      }
    }
  }
}

__device__ inline float mean_of(const Rows& s, std::int64_t r) { return s.mean != nullptr ? s.mean[r] : 0.0F; }
__device__ inline float scale_of(const Rows& s, std::int64_t c) { return s.weight != nullptr ? s.weight[c] : 1.0F; }

template <bool kAligned, class T>
__global__ void __launch_bounds__(kThreads) forward(Rows s, const float* bias, float eps, T* y) {
  const auto count = static_cast<float>(s.n);
  for (std::int64_t r = blockIdx.x; r < s.rows; r += gridDim.x) {
    const T* row = static_cast<const T*>(s.x) + r * s.n;
    float mean = 0;
    if (s.mean != nullptr) mean = quotient(sum_of<kAligned>(row, s.n, [](float v, std::int64_t) { return v; }), count);
    const float squares = sum_of<kAligned>(row, s.n, [&](float v, std::int64_t) { return square_of(v, mean); });
    const float rstd = reciprocal_deviation(squares, count, eps);
    if (threadIdx.x == 0) s.rstd[r] = rstd;
    if (threadIdx.x == 0 && s.mean != nullptr) s.mean[r] = mean;
    map_rows<kAligned>(row, row, y + r * s.n, s.n, [&](float v, float, std::int64_t c) {
      return dist::mul_add(normalized(v, mean, rstd), scale_of(s, c), bias != nullptr ? bias[c] : 0.0F);
    });
  }
}

template <bool kAligned, class T>
__global__ void __launch_bounds__(kThreads) input_gradient_rows(Rows s, const T* grad, T* result) {
  const auto count = static_cast<float>(s.n);
  for (std::int64_t r = blockIdx.x; r < s.rows; r += gridDim.x) {
    const T *row = static_cast<const T*>(s.x) + r * s.n, *g = grad + r * s.n;
    const float mean = mean_of(s, r), rstd = s.rstd[r];
    const auto scaled = [&](float v, std::int64_t c) { return dist::product(v, scale_of(s, c)); };
    const auto along = [&](float v, float x, std::int64_t c) {
      return dist::product(scaled(v, c), normalized(x, mean, rstd));
    };
    const float sum = s.mean != nullptr ? sum_of<kAligned>(g, s.n, scaled) : 0.0F;
    const float sum_along = reduce_rows<kWarps, kAligned, T, float>(g, row, s.n, 0.0F, along, Add());
    const RowMeans means{quotient(sum, count), quotient(sum_along, count)};
    map_rows<kAligned>(g, row, result + r * s.n, s.n, [&](float v, float x, std::int64_t c) {
      return input_gradient(scaled(v, c), normalized(x, mean, rstd), rstd, means);
    });
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_chunks_of_rows(Rows s, const T* grad, std::int64_t chunks, float* partial) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= s.n) return;
  for (std::int64_t chunk = blockIdx.y; chunk < chunks; chunk += gridDim.y) {
    float weight = 0, bias = 0;
    const std::int64_t end = (chunk + 1) * kRowsOfChunk < s.rows ? (chunk + 1) * kRowsOfChunk : s.rows;
#pragma unroll 8
    for (std::int64_t r = chunk * kRowsOfChunk; r < end; ++r) {
      const float g = widen(grad[r * s.n + c]);
      weight = dist::mul_add(g, normalized(widen(static_cast<const T*>(s.x)[r * s.n + c]), mean_of(s, r), s.rstd[r]),
                             weight);
      bias += g;
    }
    partial[chunk * s.n + c] = weight;
    partial[(chunks + chunk) * s.n + c] = bias;
  }
}

__global__ void __launch_bounds__(kThreads)
    sum_chunks(std::int64_t n, std::int64_t chunks, const float* partial, float* sums) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= n) return;
  const float* own = partial + blockIdx.y * chunks * n + c;
  float sum = 0;
#pragma unroll 16
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) sum += own[chunk * n];
  sums[blockIdx.y * n + c] = sum;
}

// Calls fn(null pointer of the element type, whether rows are aligned) with a constant for the second.
template <class Fn>
const char* with_kernel(const Rows& s, const void* a, const void* b, const Fn& fn) {
  const auto choose = [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    const bool aligned = is_aligned<T>(s.x, s.n) && is_aligned<T>(a, s.n) && is_aligned<T>(b, s.n);
    aligned ? fn(null, std::true_type()) : fn(null, std::false_type());
  };
  s.type == Type::f16 ? choose(static_cast<__half*>(nullptr)) : choose(static_cast<__nv_bfloat16*>(nullptr));
  return outcome();
}

}  // namespace

const char* launch_forward(const Rows& rows, const float* bias, float eps, void* y, cudaStream_t stream) {
  return with_kernel(rows, y, nullptr, [&](auto* null, auto aligned) {
    using T = std::remove_pointer_t<decltype(null)>;
    forward<decltype(aligned)::value, T>
        <<<blocks_for(rows.rows), kThreads, 0, stream>>>(rows, bias, eps, static_cast<T*>(y));
  });
}

const char* launch_input_gradient(const Rows& rows, const void* grad, void* result, cudaStream_t stream) {
  return with_kernel(rows, grad, result, [&](auto* null, auto aligned) {
    using T = std::remove_pointer_t<decltype(null)>;
    input_gradient_rows<decltype(aligned)::value, T>
        <<<blocks_for(rows.rows), kThreads, 0, stream>>>(rows, static_cast<const T*>(grad), static_cast<T*>(result));
  });
}

const char* launch_parameter_gradients(const Rows& rows, const void* grad, float* partial, float* sums,
                                       cudaStream_t stream) {
  const auto columns = static_cast<unsigned>((rows.n + kThreads - 1) / kThreads);
  const std::int64_t chunks = (rows.rows + kRowsOfChunk - 1) / kRowsOfChunk;
  return with_kernel(rows, nullptr, nullptr, [&](auto* null, auto) {
    using T = std::remove_pointer_t<decltype(null)>;
    const dim3 grid(columns, static_cast<unsigned>(std::min<std::int64_t>(chunks, 1 << 15)));
    sum_chunks_of_rows<T><<<grid, kThreads, 0, stream>>>(rows, static_cast<const T*>(grad), chunks, partial);
    sum_chunks<<<dim3(columns, 2), kThreads, 0, stream>>>(rows.n, chunks, partial, sums);
  });
}

}  // namespace dtensor::row_norm::cuda
