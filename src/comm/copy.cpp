// Chooses how to copy: one block where both lie alike in memory, long rows where the innermost runs are adjacent, and
// ATen's copy for anything finer.
#include "comm/copy.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
<<<<<<< Updated upstream
#include <cstdint>
#include <cstring>

#include "comm/stream.h"
=======
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
>>>>>>> Stashed changes

namespace dtensor {
namespace {

constexpr std::size_t kStreamBytes = std::size_t{1} << 20;  // larger results would only evict what is in the cache
constexpr std::size_t kShortRow = 256;                      // bytes; ATen's kernels win below

struct Loop {
  std::int64_t size, to_stride, from_stride;
};
using Loops = c10::SmallVector<Loop, 6>;

// The dimensions that both tensors walk, outermost first, merged where they lie adjacent in both.
Loops merged_loops(const at::Tensor& to, const at::Tensor& from) {
  Loops loops;
  for (std::int64_t d = 0; d < to.dim(); ++d) {
    const Loop loop{to.size(d), to.stride(d), from.stride(d)};
    if (loop.size == 1) continue;
    const bool adjacent = !loops.empty() && loops.back().to_stride == loop.to_stride * loop.size &&
                          loops.back().from_stride == loop.from_stride * loop.size;
    if (adjacent) {
      loops.back() = {loops.back().size * loop.size, loop.to_stride, loop.from_stride};
    } else {
      loops.push_back(loop);
    }
  }
  return loops;
}

<<<<<<< Updated upstream
// Past the cache, as part of something large; `next`: what is read after it, or null.
void stream_bytes(void* to, const void* from, std::size_t bytes, const void* next) {
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  std::size_t i = std::min(bytes, -reinterpret_cast<std::uintptr_t>(target) % kStreamLine);
  std::memcpy(target, source, i);
  for (; i + kStreamLine <= bytes; i += kStreamLine) {
    if (next != nullptr) expect_read(source, next, i, bytes);
    stream_line(target + i, source + i);
  }
  std::memcpy(target + i, source + i, bytes - i);
}

void copy_rows(const Loops& loops, std::size_t depth, char* to, const char* from, std::int64_t element, bool streamed) {
  const Loop& loop = loops[depth];
  const auto to_step = loop.to_stride * element, from_step = loop.from_stride * element;
  if (depth + 2 < loops.size()) {
    for (std::int64_t i = 0; i < loop.size; ++i) {
      copy_rows(loops, depth + 1, to + i * to_step, from + i * from_step, element, streamed);
    }
    return;
  }
  const auto bytes = static_cast<std::size_t>(loops.back().size * element);
  for (std::int64_t i = 0; i < loop.size; ++i) {
    char* row = to + i * to_step;
    const char* source = from + i * from_step;
    if (streamed) {
      stream_bytes(row, source, bytes, bytes < kForeseen ? source + (i + 1 < loop.size ? from_step : 0) : nullptr);
    } else {
      std::memcpy(row, source, bytes);
    }
=======
#if defined(__x86_64__)
bool has_avx2() {
  static const bool yes = __builtin_cpu_supports("avx2");
  return yes;
}

// Stores past the cache; the caller fences.
__attribute__((target("avx2"))) void stream_bytes(char* to, const char* from, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  const std::size_t head = std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  const std::size_t body = (bytes - head) / kLine * kLine;
  for (std::size_t i = head; i < head + body; i += kLine) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + kLine / 2));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + kLine / 2), high);
  }
  std::memcpy(to + head + body, from + head + body, bytes - head - body);
}
void fence() { _mm_sfence(); }
#else
bool has_avx2() { return false; }
void stream_bytes(char* to, const char* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void fence() {}
#endif

void copy_rows(const Loops& loops, std::size_t depth, char* to, const char* from, std::int64_t element, bool stream) {
  const Loop& loop = loops[depth];
  if (depth + 1 == loops.size()) {
    if (stream) return stream_bytes(to, from, loop.size * element);
    std::memcpy(to, from, loop.size * element);
    return;
  }
  for (std::int64_t i = 0; i < loop.size; ++i) {
    copy_rows(loops, depth + 1, to + i * loop.to_stride * element, from + i * loop.from_stride * element, element,
              stream);
>>>>>>> Stashed changes
  }
}

bool in_long_rows(const Loops& loops, std::int64_t element) {
  if (loops.empty()) return false;
  const Loop& row = loops.back();
  return row.to_stride == 1 && row.from_stride == 1 &&
         (loops.size() == 1 || row.size * element >= std::int64_t{kShortRow});
}

}  // namespace

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (to == from) return;
<<<<<<< Updated upstream
  if (bytes < kStreamBytes) {
    std::memcpy(to, from, bytes);
  } else {
    stream_bytes(to, from, bytes, nullptr);
    end_stream();
=======
  if (bytes < kStreamBytes || !has_avx2()) {
    std::memcpy(to, from, bytes);
  } else {
    stream_bytes(static_cast<char*>(to), static_cast<const char*>(from), bytes);
    fence();
>>>>>>> Stashed changes
  }
}

void copy_tensor(const at::Tensor& to, const at::Tensor& from) {
  if (to.numel() == 0) return;
  const auto element = static_cast<std::int64_t>(to.element_size());
  const bool raw = !to.is_conj() && !to.is_neg() && !from.is_conj() && !from.is_neg();
  const bool alike = raw && to.strides() == from.strides() && to.is_non_overlapping_and_dense();
  if (alike) return copy_bytes(to.data_ptr(), from.const_data_ptr(), to.nbytes());
  if (raw) {
    const Loops loops = merged_loops(to, from);
    auto* target = static_cast<char*>(to.data_ptr());
    const auto* source = static_cast<const char*>(from.const_data_ptr());
    if (loops.empty()) return copy_bytes(target, source, element);
<<<<<<< Updated upstream
    if (loops.size() == 1 && in_long_rows(loops, element)) return copy_bytes(target, source, to.nbytes());
    if (in_long_rows(loops, element)) {
      const bool streamed = to.nbytes() >= kStreamBytes;
      copy_rows(loops, 0, target, source, element, streamed);
      return streamed ? end_stream() : void();
=======
    if (in_long_rows(loops, element)) {
      const bool stream = to.nbytes() >= kStreamBytes && has_avx2();
      copy_rows(loops, 0, target, source, element, stream);
      if (stream) fence();
      return;
>>>>>>> Stashed changes
    }
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  to.copy_(from);
}

}  // namespace dtensor
