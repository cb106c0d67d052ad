// Reductions over strided sequences: finds the longest runs that are contiguous in every tensor and passes them to the
// kernels (reduce_kernels.inl); packs shorter runs.
#include "comm/memory/reduce/reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/SmallVector.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <type_traits>

#include "comm/memory/reduce/half_conversion.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#pragma GCC optimize("O3")

namespace dtensor {
namespace {

constexpr std::int64_t kTile = 128;                              // elements that the kernels keep in the cache at once
constexpr std::size_t kPrefetchBytes = 1024;                     // prefetch distance for inputs
constexpr std::int64_t kLongestRow = 1 << 16;                    // bytes; the hardware prefetches longer rows itself
constexpr std::int64_t kBlock = 1024;                            // elements that are packed at once
constexpr std::int64_t kShortRun = 64;                           // elements; shorter runs are packed
constexpr std::int64_t kStreamedResult = std::int64_t{1} << 20;  // bytes; larger results bypass the cache

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

// Sums and products of integers wrap, as in ATen. In C++ only unsigned arithmetic wraps, and types shorter than int are
// computed as int. So this converts to an unsigned type of at least that width.
template <class A>
auto wrapping(A value) {
  if constexpr (std::is_integral_v<A>) {
    return static_cast<std::common_type_t<std::make_unsigned_t<A>, unsigned>>(value);
  } else {
    return value;
  }
}

// For bools, sums are "any" and products are "all".
struct Add {
  template <class A>
  static A apply(A a, A b) {
    return static_cast<A>(wrapping(a) + wrapping(b));
  }
  static bool apply(bool a, bool b) { return a | b; }
};
struct Multiply {
  template <class A>
  static A apply(A a, A b) {
    return static_cast<A>(wrapping(a) * wrapping(b));
  }
  static bool apply(bool a, bool b) { return a & b; }
};
// NaN propagates, as in ATen's max and min.
struct Max {
  template <class A>
  static A apply(A a, A b) {
    return (a > b) | (a != a) ? a : b;
  }
};
struct Min {
  template <class A>
  static A apply(A a, A b) {
    return (a < b) | (a != a) ? a : b;
  }
};

namespace any_processor {
inline void store_tile(void* to, const void* tile, std::size_t bytes) { std::memcpy(to, tile, bytes); }
inline void stream_tile(void* to, const void* tile, std::size_t bytes) { std::memcpy(to, tile, bytes); }
#include "comm/memory/reduce/reduce_kernels.inl"
}  // namespace any_processor

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
namespace avx2 {
// Not memcpy: for this size it compiles to a string instruction with a high start-up cost.
inline void store_tile(void* to, const void* tile, std::size_t bytes) {
  auto* target = static_cast<__m256i*>(to);
  const auto* source = static_cast<const __m256i*>(tile);
  for (std::size_t i = 0; i < bytes / sizeof(__m256i); ++i)
    _mm256_storeu_si256(target + i, _mm256_load_si256(source + i));
}
inline void stream_tile(void* to, const void* tile, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(to) % 32 != 0) return store_tile(to, tile, bytes);
  auto* target = static_cast<__m256i*>(to);
  const auto* source = static_cast<const __m256i*>(tile);
  for (std::size_t i = 0; i < bytes / sizeof(__m256i); ++i)
    _mm256_stream_si256(target + i, _mm256_load_si256(source + i));
}
#include "comm/memory/reduce/reduce_kernels.inl"
}  // namespace avx2
#pragma GCC pop_options

bool has_avx2() {
  static const bool yes = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return yes;
}
#endif

void reduce_all(void* const* out, int targets, const void* const* in, int n, std::int64_t count, at::ScalarType dtype,
                ReduceOp op, bool stream) {
#if defined(__x86_64__)
  if (has_avx2()) {
    avx2::reduce_any(out, targets, in, n, count, dtype, op, stream);
    if (stream) _mm_sfence();
    return;
  }
#endif
  any_processor::reduce_any(out, targets, in, n, count, dtype, op, stream);
}

using Views = c10::ArrayRef<FlatView>;

// The number of elements from `at` on that are contiguous in every view.
std::int64_t common_run(Views a, Views b, std::int64_t at, std::int64_t most) {
  for (const auto& view : a) most = std::min(most, view.contiguous_run_length(at));
  for (const auto& view : b) most = std::min(most, view.contiguous_run_length(at));
  return most;
}

class Reducer {
 public:
  Reducer(Views targets, Views sources, at::ScalarType dtype, ReduceOp op, bool stream)
      : targets_(targets),
        sources_(sources),
        in_(sources.size()),
        out_(targets.size()),
        dtype_(dtype),
        op_(op),
        stream_(stream) {}

  void adjacent(std::int64_t at, std::int64_t count) {
    for (std::size_t k = 0; k < in_.size(); ++k) in_[k] = sources_[k].contiguous_pointer(at, count);
    for (std::size_t k = 0; k < out_.size(); ++k) out_[k] = targets_[k].contiguous_pointer(at, count);
    reduce_all(out_.data(), static_cast<int>(out_.size()), in_.data(), static_cast<int>(in_.size()), count, dtype_, op_,
               stream_);
  }

  void packed(std::int64_t at, std::int64_t count) {
    constexpr std::int64_t kBytes = 16 * kBlock;  // of the widest element
    if (!scratch_) scratch_ = std::make_unique_for_overwrite<char[]>(kBytes * (in_.size() + 1));
    for (std::size_t k = 0; k < in_.size(); ++k)
      in_[k] = sources_[k].read(at, count, scratch_.get() + (k + 1) * kBytes);
    void* result = scratch_.get();
    reduce_all(&result, 1, in_.data(), static_cast<int>(in_.size()), count, dtype_, op_, false);
    for (const auto& target : targets_) target.scatter(at, count, result);
  }

 private:
  Views targets_, sources_;
  c10::SmallVector<const void*, 8> in_;
  c10::SmallVector<void*, 8> out_;
  std::unique_ptr<char[]> scratch_;
  at::ScalarType dtype_;
  ReduceOp op_;
  bool stream_;
};

}  // namespace

ReduceSlice reduce_slice_of(std::int64_t numel, int rank, int size) {
  constexpr std::int64_t kGrain = 64;
  const std::int64_t grains = (numel + kGrain - 1) / kGrain;
  const auto edge = [&](int r) { return std::min(numel, grains * r / size * kGrain); };
  return {edge(rank), edge(rank + 1)};
}

void reduce_contiguous(void* out, const void* const* in, int n, std::int64_t count, at::ScalarType dtype, ReduceOp op) {
  reduce_all(&out, 1, in, n, count, dtype, op, false);
}

void reduce_views(Views targets, Views sources, std::int64_t begin, std::int64_t end, at::ScalarType dtype,
                  ReduceOp op) {
  const bool in_place = targets.data() == sources.data();  // the target's cache lines are loaded already
  const bool large = (end - begin) * static_cast<std::int64_t>(c10::elementSize(dtype)) >= kStreamedResult;
  Reducer reducer(targets, sources, dtype, op, large && !in_place);
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t run = common_run(targets, sources, at, end - at);
    const std::int64_t count = run >= std::min(kShortRun, end - at) ? run : std::min(kBlock, end - at);
    count == run ? reducer.adjacent(at, count) : reducer.packed(at, count);
    at += count;
  }
}

}  // namespace dtensor
