// Reductions of rows by a block of threads, in the order of internal/kernels/lanes.h, and conversions of half types.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "internal/kernels/lanes.h"

namespace dtensor::lanes::cuda {

template <class T>
struct SumOf {
  using type = float;
};
template <>
struct SumOf<double> {
  using type = double;
};

__device__ inline float widen(float v) { return v; }
__device__ inline double widen(double v) { return v; }
__device__ inline float widen(__half v) { return __half2float(v); }
__device__ inline float widen(__nv_bfloat16 v) { return __bfloat162float(v); }

template <class T>
__device__ T narrow(typename SumOf<T>::type v) {
  return static_cast<T>(v);
}
template <>
__device__ inline __half narrow<__half>(float v) {
  return __float2half_rn(v);
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}

template <class T>
struct alignas(16) Pack {
  T v[kVector];
};

// Up to kVector elements from `from` on; returns their number.
template <bool kAligned, class T>
__device__ int load(const T* row, std::int64_t from, std::int64_t end, Pack<T>& pack) {
  const int count = static_cast<int>(end - from < kVector ? end - from : kVector);
  if (kAligned && count == kVector) {
    pack = *reinterpret_cast<const Pack<T>*>(row + from);
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (i < count) pack.v[i] = row[from + i];
    }
  }
  return count;
}

// The first `count` elements.
template <bool kAligned, class T>
__device__ void store(const Pack<T>& pack, int count, T* to) {
  if (kAligned && count == kVector) {
    *reinterpret_cast<Pack<T>*>(to) = pack;
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (i < count) to[i] = pack.v[i];
    }
  }
}

struct Add {
  template <class S>
  __device__ S operator()(S a, S b) const {
    return a + b;
  }
};

template <int kGroup, class S, class Combine>
__device__ S fold_threads(S value, const Combine& combine) {
#pragma unroll
  for (int half = kGroup / 2; half > 0; half /= 2) value = combine(value, __shfl_xor_sync(~0u, value, half));
  return value;
}

// Combines the lanes of all threads. Every thread gets the result.
template <int kWarps, class S, class Combine>
__device__ S fold_block(S (&lanes)[kVector], const Combine& combine) {
  __shared__ S warps[kWarps];
#pragma unroll
  for (int half = kVector / 2; half > 0; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) lanes[i] = combine(lanes[i], lanes[i + half]);
  }
  const S own = fold_threads<kWarp>(lanes[0], combine);
  __syncthreads();  // the last call's results have been read
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = own;
  __syncthreads();
  return fold_threads<kWarps>(warps[threadIdx.x % kWarps], combine);
}

// combine(...) over value(element of a, element of b, index) of two rows.
template <int kWarps, bool kAligned, class T, class S, class Value, class Combine>
__device__ S reduce_rows(const T* a, const T* b, std::int64_t n, S identity, const Value& value,
                         const Combine& combine) {
  S lanes[kVector];
#pragma unroll
  for (S& lane : lanes) lane = identity;
  for (std::int64_t from = threadIdx.x * kVector; from < n; from += kVector * kWarp * kWarps) {
    Pack<T> first, second;
    const int count = load<kAligned>(a, from, n, first);
    load<kAligned>(b, from, n, second);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (i < count) lanes[i] = combine(lanes[i], value(widen(first.v[i]), widen(second.v[i]), from + i));
    }
  }
  return fold_block<kWarps>(lanes, combine);
}

// The same of one row; value(element, index).
template <int kWarps, bool kAligned, class T, class S, class Value, class Combine>
__device__ S reduce_row(const T* row, std::int64_t n, S identity, const Value& value, const Combine& combine) {
  return reduce_rows<kWarps, kAligned, T, S>(
      row, row, n, identity, [&](S v, S, std::int64_t i) { return value(v, i); }, combine);
}

template <class T>
bool is_aligned(const void* p, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(p) % alignof(Pack<T>) == 0 &&
         stride * static_cast<std::int64_t>(sizeof(T)) % static_cast<std::int64_t>(alignof(Pack<T>)) == 0;
}

// Calls fn(null pointer of the element type).
template <class Fn>
void with_type(Type type, const Fn& fn) {
  switch (type) {
    case Type::f32:
      return fn(static_cast<float*>(nullptr));
    case Type::f64:
      return fn(static_cast<double*>(nullptr));
    case Type::f16:
      return fn(static_cast<__half*>(nullptr));
    case Type::bf16:
      return fn(static_cast<__nv_bfloat16*>(nullptr));
  }
}

inline int blocks_for(std::int64_t rows) { return static_cast<int>(std::clamp<std::int64_t>(rows, 1, 1 << 16)); }

// The error of the last launch, or null.
inline const char* outcome() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace dtensor::lanes::cuda
