// CUDA kernels of cross entropy. A block computes a row; its threads load 8 neighbors at once where rows are aligned.
// Sums have the order of internal/kernels/lanes.h, so results are deterministic and equal those of the CPU.
#include <algorithm>
#include <cstdio>

#include "internal/kernels/lanes.cuh"
#include "parallel/cuda/loss_rows.h"
#include "parallel/loss/row_arithmetic.h"

namespace dtensor::loss_rows::cuda {
namespace {

using namespace lanes::cuda;
using lanes::kVector;

constexpr int kThreads = lanes::kWarp * kWarps;
constexpr int kLanes = kVector * kThreads;

struct Larger {
  template <class S>
  __device__ S operator()(S a, S b) const {
    return larger(a, b);
  }
};

template <bool kAligned, class T, class S>
__device__ S largest_of(const T* row, std::int64_t classes) {
  return reduce_row<kWarps, kAligned, T, S>(
      row, classes, lowest<S>(), [](S v, std::int64_t) { return v; }, Larger());
}

template <bool kAligned, class T, class S>
__global__ void __launch_bounds__(kThreads) largest(Rows rows, S* top) {
  for (std::int64_t t = blockIdx.x; t < rows.tokens; t += gridDim.x) {
    const S most = largest_of<kAligned, T, S>(static_cast<const T*>(rows.values) + t * rows.stride, rows.classes);
    if (threadIdx.x == 0) top[t] = most;
  }
}

// The target among this rank's classes. Stops the program if it is neither a class nor ignore_index.
__device__ std::int64_t target_of(const Rows& rows, std::int64_t t) {
  const std::int64_t target = rows.targets[t];
  if (target != rows.ignore_index && (target < 0 || target >= rows.count)) {
    printf("cross_entropy: expected a class index in [0, %lld) or ignore_index %lld, got %lld\n",
           static_cast<long long>(rows.count), static_cast<long long>(rows.ignore_index),
           static_cast<long long>(target));
    __trap();
  }
  return target - rows.first;
}

template <bool kAligned, class T, class S>
__global__ void __launch_bounds__(kThreads) sums(Rows rows, S* top, bool finds_top, S* result) {
  const S* weight = static_cast<const S*>(rows.weight);
  for (std::int64_t t = blockIdx.x; t < rows.tokens; t += gridDim.x) {
    const T* row = static_cast<const T*>(rows.values) + t * rows.stride;
    const S most = finds_top ? largest_of<kAligned, T, S>(row, rows.classes) : top[t];
    const S exponentials = reduce_row<kWarps, kAligned, T, S>(
        row, rows.classes, S(0), [&](S v, std::int64_t) { return dist::exp_of(v - most); }, Add());
    S smoothing = 0;
    if (rows.smooths) {
      smoothing = reduce_row<kWarps, kAligned, T, S>(
          row, rows.classes, S(0),
          [&](S v, std::int64_t i) { return weight != nullptr ? dist::product(weight[i], v - most) : v - most; },
          Add());
    }
    if (threadIdx.x != 0) continue;
    const std::int64_t target = target_of(rows, t);
    const bool here = target >= 0 && target < rows.classes;
    if (finds_top) top[t] = most;
    result[kExponentials * rows.tokens + t] = exponentials;
    result[kTarget * rows.tokens + t] = here ? widen(row[target]) - most : S(0);
    result[kTargetWeight * rows.tokens + t] = here ? (weight != nullptr ? weight[target] : S(1)) : S(0);
    if (rows.smooths) result[kSmoothing * rows.tokens + t] = smoothing;
  }
}

template <bool kAligned, class T, class S>
__global__ void __launch_bounds__(kThreads)
    gradient(Rows rows, const S* factors, T* out, std::int64_t out_stride, std::int64_t columns) {
  const S* weight = static_cast<const S*>(rows.weight);
  for (std::int64_t t = blockIdx.x; t < rows.tokens; t += gridDim.x) {
    const T* from_row = static_cast<const T*>(rows.values) + t * rows.stride;
    T* to = out + t * out_stride;
    const GradientRow<S> row{factors[kLogSum * rows.tokens + t], factors[kSoftmax * rows.tokens + t],
                             factors[kSmooth * rows.tokens + t], factors[kPeak * rows.tokens + t],
                             rows.targets[t] - rows.first};
    for (std::int64_t from = threadIdx.x * kVector; from < columns; from += kLanes) {
      Pack<T> pack;
      load<kAligned>(from_row, from, rows.classes, pack);
      const int count = static_cast<int>(columns - from < kVector ? columns - from : kVector);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const std::int64_t index = from + i;
        const bool own = index < rows.classes;
        const S w = own && weight != nullptr ? weight[index] : S(1);
        pack.v[i] = own ? narrow<T>(gradient_of(row, widen(pack.v[i]), w, index)) : narrow<T>(S(0));
      }
      if (kAligned && count == kVector) {
        *reinterpret_cast<Pack<T>*>(to + from) = pack;
      } else {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          if (i < count) to[from + i] = pack.v[i];
        }
      }
    }
  }
}

// Calls fn(null pointer of the element type, whether rows are aligned) with a constant for the second.
template <class Fn>
const char* with_kernel(const Rows& rows, const void* out, std::int64_t out_stride, const Fn& fn) {
  const auto choose = [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    is_aligned<T>(rows.values, rows.stride) && is_aligned<T>(out, out_stride) ? fn(null, std::true_type())
                                                                              : fn(null, std::false_type());
  };
  if (rows.tokens == 0) return nullptr;
  with_type(rows.type, choose);
  return outcome();
}

}  // namespace

const char* launch_largest(const Rows& rows, void* top, cudaStream_t stream) {
  return with_kernel(rows, nullptr, 0, [&](auto* null, auto aligned) {
    using T = std::remove_pointer_t<decltype(null)>;
    using S = typename SumOf<T>::type;
    largest<decltype(aligned)::value, T, S>
        <<<blocks_for(rows.tokens), kThreads, 0, stream>>>(rows, static_cast<S*>(top));
  });
}

const char* launch_sums(const Rows& rows, void* top, bool finds_top, void* result, cudaStream_t stream) {
  return with_kernel(rows, nullptr, 0, [&](auto* null, auto aligned) {
    using T = std::remove_pointer_t<decltype(null)>;
    using S = typename SumOf<T>::type;
    sums<decltype(aligned)::value, T, S><<<blocks_for(rows.tokens), kThreads, 0, stream>>>(
        rows, static_cast<S*>(top), finds_top, static_cast<S*>(result));
  });
}

const char* launch_gradient(const Rows& rows, const void* factors, void* out, std::int64_t out_stride,
                            std::int64_t columns, cudaStream_t stream) {
  return with_kernel(rows, out, out_stride, [&](auto* null, auto aligned) {
    using T = std::remove_pointer_t<decltype(null)>;
    using S = typename SumOf<T>::type;
    gradient<decltype(aligned)::value, T, S><<<blocks_for(rows.tokens), kThreads, 0, stream>>>(
        rows, static_cast<const S*>(factors), static_cast<T*>(out), out_stride, columns);
  });
}

}  // namespace dtensor::loss_rows::cuda
