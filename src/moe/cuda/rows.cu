// CUDA kernels for row permutations. One thread writes each element of a result, and one block computes each dot
// product with a fixed reduction tree. So results are deterministic.
#include <algorithm>

#include "internal/kernels/lanes.cuh"
#include "moe/cuda/rows.h"

namespace dtensor::moe::cuda {
namespace {

constexpr int kThreads = 256;

using namespace lanes::cuda;
using lanes::kVector;

template <class Word>
__global__ void permute(std::int64_t entries, std::int64_t choices, std::int64_t words, const Word* x,
                        const std::int64_t* position, Word* out) {
  for (std::int64_t entry = blockIdx.x; entry < entries; entry += gridDim.x) {
    const std::int64_t to = position[entry];
    if (to < 0) continue;
    const Word* from = x + entry / choices * words;
    for (std::int64_t i = threadIdx.x; i < words; i += blockDim.x) out[to * words + i] = from[i];
  }
}

template <bool kAligned, class T, class Sum>
__global__ void unpermute(Extent e, const T* rows, const std::int64_t* position, const Sum* weight, T* out, bool adds) {
  for (std::int64_t t = blockIdx.x; t < e.tokens; t += gridDim.x) {
    T* const result = out + t * e.width;
    for (std::int64_t d = threadIdx.x * kVector; d < e.width; d += kThreads * kVector) {
      Sum sum[kVector] = {};
      for (std::int64_t entry = t * e.choices; entry < (t + 1) * e.choices; ++entry) {
        if (position[entry] < 0) continue;
        const Sum w = weight != nullptr ? weight[entry] : Sum(1);
        Pack<T> row;
        load<kAligned>(rows + position[entry] * e.width, d, e.width, row);
#pragma unroll
        for (int i = 0; i < kVector; ++i) sum[i] += w * widen(row.v[i]);
      }
      Pack<T> old;  // empty unless `adds`
      const int count = load<kAligned>(result, d, adds ? e.width : d, old);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const T value = narrow<T>(sum[i]);
        old.v[i] = i < count ? narrow<T>(widen(old.v[i]) + widen(value)) : value;
      }
      store<kAligned>(old, static_cast<int>(e.width - d < kVector ? e.width - d : kVector), result + d);
    }
  }
}

template <bool kAligned, class T, class Sum>
__global__ void unpermute_backward(Extent e, const T* grad, const T* rows, const std::int64_t* position,
                                   const Sum* weight, T* d_rows, Sum* d_weight) {
  __shared__ Sum partial[kThreads];
  for (std::int64_t entry = blockIdx.x; entry < e.tokens * e.choices; entry += gridDim.x) {
    const std::int64_t at = position[entry];
    Sum dot = 0;
    for (std::int64_t d = threadIdx.x * kVector; at >= 0 && d < e.width; d += kThreads * kVector) {
      Pack<T> g, row;
      const int count = load<kAligned>(grad + entry / e.choices * e.width, d, e.width, g);
      load<kAligned>(rows + at * e.width, d, e.width, row);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (i >= count) continue;
        dot += widen(row.v[i]) * widen(g.v[i]);
        g.v[i] = narrow<T>(weight[entry] * widen(g.v[i]));
      }
      store<kAligned>(g, count, d_rows + at * e.width + d);
    }
    partial[threadIdx.x] = dot;
    __syncthreads();
    for (int half = kThreads / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
      __syncthreads();
    }
    if (threadIdx.x == 0) d_weight[entry] = partial[0];
    __syncthreads();
  }
}

__global__ void count(const std::int64_t* ids, std::int64_t entries, std::int64_t bins, unsigned long long* counts) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < entries; i += step) {
    if (ids[i] >= 0 && ids[i] < bins) atomicAdd(counts + ids[i], 1ull);
  }
}

template <class T>
T* as(void* p) {
  return static_cast<T*>(p);
}
template <class T>
const T* as(const void* p) {
  return static_cast<const T*>(p);
}

bool aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % sizeof(uint4) == 0; }

}  // namespace

const char* launch_permute(const Extent& e, const void* x, const std::int64_t* position, void* out,
                           std::int64_t row_bytes, cudaStream_t stream) {
  const std::int64_t entries = e.tokens * e.choices;
  if (row_bytes % sizeof(uint4) == 0 && aligned(x) && aligned(out)) {
    permute<<<blocks_for(entries), kThreads, 0, stream>>>(entries, e.choices,
                                                          row_bytes / static_cast<std::int64_t>(sizeof(uint4)),
                                                          as<uint4>(x), position, as<uint4>(out));
  } else {
    permute<<<blocks_for(entries), kThreads, 0, stream>>>(entries, e.choices, row_bytes, as<char>(x), position,
                                                          as<char>(out));
  }
  return outcome();
}

const char* launch_unpermute(const Extent& e, Type type, const void* rows, const std::int64_t* position,
                             const void* weight, void* out, bool adds, cudaStream_t stream) {
  with_type(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    using Sum = typename SumOf<T>::type;
    const bool wide = is_aligned<T>(rows, e.width) && is_aligned<T>(out, e.width);
    const auto kernel = wide ? &unpermute<true, T, Sum> : &unpermute<false, T, Sum>;
    kernel<<<blocks_for(e.tokens), kThreads, 0, stream>>>(e, as<T>(rows), position, as<Sum>(weight), as<T>(out), adds);
  });
  return outcome();
}

const char* launch_unpermute_backward(const Extent& e, Type type, const void* grad, const void* rows,
                                      const std::int64_t* position, const void* weight, void* d_rows, void* d_weight,
                                      cudaStream_t stream) {
  with_type(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    using Sum = typename SumOf<T>::type;
    const bool wide = is_aligned<T>(grad, e.width) && is_aligned<T>(rows, e.width) && is_aligned<T>(d_rows, e.width);
    const auto kernel = wide ? &unpermute_backward<true, T, Sum> : &unpermute_backward<false, T, Sum>;
    kernel<<<blocks_for(e.tokens * e.choices), kThreads, 0, stream>>>(
        e, as<T>(grad), as<T>(rows), position, as<Sum>(weight), as<T>(d_rows), as<Sum>(d_weight));
  });
  return outcome();
}

const char* launch_count(const std::int64_t* ids, std::int64_t entries, std::int64_t bins, std::int64_t* counts,
                         cudaStream_t stream) {
  count<<<blocks_for((entries + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      ids, entries, bins, reinterpret_cast<unsigned long long*>(counts));
  return outcome();
}

}  // namespace dtensor::moe::cuda
