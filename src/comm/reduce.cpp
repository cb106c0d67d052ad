// The reduction kernels: block by block, so that the accumulators stay in the first-level cache and each input is read
// once.
#include "comm/reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/SmallVector.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "comm/copy.h"
#include "comm/half_blocks.h"

#pragma GCC optimize("O3")

namespace dtensor {
namespace {

constexpr std::int64_t kBlock = 1024;  // elements of one accumulator block

template <class T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<at::BFloat16> {
  using type = float;
};
template <>
struct Accumulator<at::Half> {
  using type = float;
};

template <class T>
void load(const T* in, T* out, std::int64_t n) {
  std::memcpy(out, in, n * sizeof(T));
}
inline void load(const at::BFloat16* in, float* out, std::int64_t n) { to_float(in, out, n); }
inline void load(const at::Half* in, float* out, std::int64_t n) { to_float(in, out, n); }

template <class T>
void store(const T* in, T* out, std::int64_t n) {
  std::memcpy(out, in, n * sizeof(T));
}
inline void store(const float* in, at::BFloat16* out, std::int64_t n) { from_float(in, out, n); }
inline void store(const float* in, at::Half* out, std::int64_t n) { from_float(in, out, n); }

// Sums of integers wrap, as everywhere in ATen; bool sums are "any", products "all".
struct Add {
  template <class A>
  static A apply(A a, A b) {
    return static_cast<A>(a + b);
  }
  static bool apply(bool a, bool b) { return a | b; }
};
struct Multiply {
  template <class A>
  static A apply(A a, A b) {
    return static_cast<A>(a * b);
  }
  static bool apply(bool a, bool b) { return a & b; }
};
// NaN wins, as in ATen's max and min.
struct Max {
  template <class A>
  static A apply(A a, A b) {
    return a > b || a != a ? a : b;
  }
};
struct Min {
  template <class A>
  static A apply(A a, A b) {
    return a < b || a != a ? a : b;
  }
};

// Combines one input into the accumulators; the half types are widened into `wide` first.
template <class Op, class T, class A>
void combine(A* acc, const T* in, std::int64_t n) {
  if constexpr (std::is_same_v<T, A>) {
    for (std::int64_t i = 0; i < n; ++i) acc[i] = Op::apply(acc[i], in[i]);
  } else {
    std::array<A, kBlock> wide;
    load(in, wide.data(), n);
    for (std::int64_t i = 0; i < n; ++i) acc[i] = Op::apply(acc[i], wide[i]);
  }
}

template <class Op, class T>
void reduce_typed(T* out, const T* const* in, int n, std::int64_t count, bool average) {
  using A = typename Accumulator<T>::type;
  std::array<A, kBlock> acc;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t size = std::min(kBlock, count - begin);
    load(in[0] + begin, acc.data(), size);
    for (int k = 1; k < n; ++k) combine<Op>(acc.data(), in[k] + begin, size);
    if constexpr (!std::is_integral_v<A>) {
      const A divisor(static_cast<float>(n));
      if (average) {
        for (std::int64_t i = 0; i < size; ++i) acc[i] = acc[i] / divisor;
      }
    }
    store(acc.data(), out + begin, size);
  }
}

template <class T>
void reduce_op(void* out, const void* const* in, int n, std::int64_t count, ReduceOp op) {
  auto* target = static_cast<T*>(out);
  const auto* sources = reinterpret_cast<const T* const*>(in);
  switch (op) {
    case ReduceOp::sum:
      return reduce_typed<Add>(target, sources, n, count, false);
    case ReduceOp::avg:
      return reduce_typed<Add>(target, sources, n, count, true);
    case ReduceOp::product:
      return reduce_typed<Multiply>(target, sources, n, count, false);
    default:
      break;
  }
  if constexpr (!c10::is_complex<T>::value) {
    if (op == ReduceOp::max) return reduce_typed<Max>(target, sources, n, count, false);
    return reduce_typed<Min>(target, sources, n, count, false);
  }
}

}  // namespace

Share share_of(std::int64_t numel, int rank, int size) {
  constexpr std::int64_t kGrain = 64;
  const std::int64_t grains = (numel + kGrain - 1) / kGrain;
  const auto edge = [&](int r) { return std::min(numel, grains * r / size * kGrain); };
  return {edge(rank), edge(rank + 1)};
}

void reduce_run(void* out, const void* const* in, int n, std::int64_t count, at::ScalarType dtype, ReduceOp op) {
#define DTENSOR_REDUCE(T, name) \
  case at::ScalarType::name:    \
    return reduce_op<T>(out, in, n, count, op);
  switch (dtype) {
    DTENSOR_REDUCE(float, Float)
    DTENSOR_REDUCE(double, Double)
    DTENSOR_REDUCE(at::BFloat16, BFloat16)
    DTENSOR_REDUCE(at::Half, Half)
    DTENSOR_REDUCE(c10::complex<float>, ComplexFloat)
    DTENSOR_REDUCE(c10::complex<double>, ComplexDouble)
    DTENSOR_REDUCE(bool, Bool)
    DTENSOR_REDUCE(std::uint8_t, Byte)
    DTENSOR_REDUCE(std::int8_t, Char)
    DTENSOR_REDUCE(std::int16_t, Short)
    DTENSOR_REDUCE(std::int32_t, Int)
    DTENSOR_REDUCE(std::int64_t, Long)
    DTENSOR_REDUCE(std::uint16_t, UInt16)
    DTENSOR_REDUCE(std::uint32_t, UInt32)
    DTENSOR_REDUCE(std::uint64_t, UInt64)
    default:
      TORCH_CHECK(false, "no reduction of ", c10::toString(dtype));
  }
#undef DTENSOR_REDUCE
}

void reduce_views(c10::ArrayRef<FlatView> targets, c10::ArrayRef<FlatView> sources, std::int64_t begin,
                  std::int64_t end, at::ScalarType dtype, ReduceOp op) {
  constexpr std::int64_t kBytes = 16 * kBlock;  // of the widest element
  const auto n = static_cast<int>(sources.size());
  const auto scratch = std::make_unique_for_overwrite<char[]>(static_cast<std::size_t>(kBytes) * (n + 1));
  c10::SmallVector<const void*, 8> in(n);
  for (std::int64_t at = begin; at < end; at += kBlock) {
    const std::int64_t count = std::min(kBlock, end - at);
    for (int k = 0; k < n; ++k) in[k] = sources[k].read(at, count, scratch.get() + (k + 1) * kBytes);
    char* direct = targets.size() == 1 ? targets[0].direct(at, count) : nullptr;
    char* result = direct != nullptr ? direct : scratch.get();
    reduce_run(result, in.data(), n, count, dtype, op);
    if (direct != nullptr) continue;
    for (const auto& target : targets) target.scatter(at, count, result);
  }
}

}  // namespace dtensor
