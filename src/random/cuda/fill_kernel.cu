// CUDA kernels of random fills. For a run of consecutive indices, a thread computes a block and stores all its values.
// Otherwise a thread computes the block of one element. The distributions are the same code as on the CPU
// (random/distributions.h).
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "random/cuda/fill_kernel.h"

namespace dtensor::cuda {
namespace {

constexpr int kThreads = 256;

template <class T, class Value>
__device__ T saturated(Value value) {  // a geometric number may exceed the type
  constexpr double largest =
      static_cast<double>(static_cast<T>((std::uint64_t{1} << (8 * sizeof(T) - (T(-1) < T(0)))) - 1));
  const auto wide = static_cast<double>(value);
  return sizeof(Value) == 8 && wide >= largest && std::is_same_v<Value, double>
             ? static_cast<T>((std::uint64_t{1} << (8 * sizeof(T) - (T(-1) < T(0)))) - 1)
             : static_cast<T>(value);
}

template <class Value>
__device__ void store(void* out, Type type, std::int64_t i, Value value) {
  switch (type) {
    case Type::f32:
      static_cast<float*>(out)[i] = static_cast<float>(value);
      break;
    case Type::f64:
      static_cast<double*>(out)[i] = static_cast<double>(value);
      break;
    case Type::f16:
      static_cast<__half*>(out)[i] = __float2half_rn(static_cast<float>(value));
      break;
    case Type::bf16:
      static_cast<__nv_bfloat16*>(out)[i] = __float2bfloat16_rn(static_cast<float>(value));
      break;
    case Type::u8:
      static_cast<std::uint8_t*>(out)[i] = saturated<std::uint8_t>(value);
      break;
    case Type::i8:
      static_cast<std::int8_t*>(out)[i] = saturated<std::int8_t>(value);
      break;
    case Type::i16:
      static_cast<std::int16_t*>(out)[i] = saturated<std::int16_t>(value);
      break;
    case Type::i32:
      static_cast<std::int32_t*>(out)[i] = saturated<std::int32_t>(value);
      break;
    case Type::i64:
      static_cast<std::int64_t*>(out)[i] = saturated<std::int64_t>(value);
      break;
    case Type::boolean:
      static_cast<bool*>(out)[i] = value != Value(0);
      break;
  }
}

__device__ std::uint64_t global_index(const FillLayout& layout, std::int64_t local) {
  std::int64_t index = 0;
  for (int d = layout.ndim - 1; d >= 0; --d) {
    std::int64_t at = local % layout.local_sizes[d];
    local /= layout.local_sizes[d];
    int s = 0;
    while (at >= layout.lengths[d][s]) at -= layout.lengths[d][s++];
    index += (layout.offsets[d][s] + at) * layout.strides[d];
  }
  return static_cast<std::uint64_t>(index);
}

template <class Dist>
__global__ void fill_run(void* out, Type type, std::int64_t count, std::uint64_t first, RandomKey key, Dist dist) {
  constexpr int kPer = Dist::kPerBlock;
  const std::uint64_t first_block = first / kPer;
  const std::int64_t blocks = static_cast<std::int64_t>((first + count - 1) / kPer - first_block) + 1;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t b = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; b < blocks; b += step) {
    typename Dist::Value values[kPer];
    dist(philox::block(key, first_block + static_cast<std::uint64_t>(b)), values);
    const std::int64_t at = b * kPer - static_cast<std::int64_t>(first % kPer);
    for (int i = 0; i < kPer; ++i) {
      if (at + i >= 0 && at + i < count) store(out, type, at + i, values[i]);
    }
  }
}

template <class Dist>
__global__ void fill_scattered(void* out, Type type, std::int64_t count, FillLayout layout, RandomKey key, Dist dist) {
  constexpr int kPer = Dist::kPerBlock;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const std::uint64_t index = global_index(layout, i);
    typename Dist::Value values[kPer];
    dist(philox::block(key, index / kPer), values);
    for (int lane = 0; lane < kPer; ++lane) {
      if (lane == static_cast<int>(index % kPer)) store(out, type, i, values[lane]);
    }
  }
}

int grid_for(std::int64_t work) {
  return static_cast<int>(std::min<std::int64_t>((work + kThreads - 1) / kThreads, 1 << 16));
}

}  // namespace

const char* launch_fill(void* out, Type type, std::int64_t count, const FillLayout& layout, RandomKey key,
                        const Distribution& distribution, CUstream_st* stream) {
  std::visit(
      [&](const auto& dist) {
        constexpr int kPer = std::decay_t<decltype(dist)>::kPerBlock;
        if (layout.is_one_range) {
          fill_run<<<grid_for(count / kPer + 2), kThreads, 0, stream>>>(out, type, count, layout.first, key, dist);
        } else {
          fill_scattered<<<grid_for(count), kThreads, 0, stream>>>(out, type, count, layout, key, dist);
        }
      },
      distribution);
  const auto status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace dtensor::cuda
