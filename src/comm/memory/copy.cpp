// Selects a copy method: one block if both tensors have the same dense layout, long rows if the innermost runs are
// contiguous, and ATen's copy otherwise.
#include "comm/memory/copy.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "comm/memory/streaming_stores.h"
#include "internal/simulated.h"

namespace dtensor {
namespace {

constexpr std::size_t kShortRow = 256;  // bytes; below, ATen's kernels are faster

struct Loop {
  std::int64_t size, target_stride, source_stride;
};
using Loops = c10::SmallVector<Loop, 6>;

// The dimensions of both tensors, outermost first, merged where they are contiguous in both.
Loops merged_loops(const at::Tensor& to, const at::Tensor& from) {
  Loops loops;
  for (std::int64_t d = 0; d < to.dim(); ++d) {
    const Loop loop{to.size(d), to.stride(d), from.stride(d)};
    if (loop.size == 1) continue;
    const bool adjacent = !loops.empty() && loops.back().target_stride == loop.target_stride * loop.size &&
                          loops.back().source_stride == loop.source_stride * loop.size;
    if (adjacent) {
      loops.back() = {loops.back().size * loop.size, loop.target_stride, loop.source_stride};
    } else {
      loops.push_back(loop);
    }
  }
  return loops;
}

// Bypasses the cache, as part of a large copy. `next` is the memory to read afterwards, or null.
void stream_bytes(void* to, const void* from, std::size_t bytes, const void* next) {
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  std::size_t i = std::min(bytes, -reinterpret_cast<std::uintptr_t>(target) % kCacheLineBytes);
  std::memcpy(target, source, i);
  for (; i + kCacheLineBytes <= bytes; i += kCacheLineBytes) {
    if (next != nullptr) prefetch_ahead(source, next, i, bytes);
    stream_cache_line(target + i, source + i);
  }
  std::memcpy(target + i, source + i, bytes - i);
}

void copy_rows(const Loops& loops, std::size_t depth, char* to, const char* from, std::int64_t element, bool streamed) {
  const Loop& loop = loops[depth];
  const auto to_step = loop.target_stride * element, from_step = loop.source_stride * element;
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
      stream_bytes(row, source, bytes,
                   bytes < kHardwarePrefetchBytes ? source + (i + 1 < loop.size ? from_step : 0) : nullptr);
    } else {
      std::memcpy(row, source, bytes);
    }
  }
}

bool in_long_rows(const Loops& loops, std::int64_t element) {
  if (loops.empty()) return false;
  const Loop& row = loops.back();
  return row.target_stride == 1 && row.source_stride == 1 &&
         (loops.size() == 1 || row.size * element >= std::int64_t{kShortRow});
}

}  // namespace

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (to == from) return;
  if (bytes < kStreamBytes) {
    std::memcpy(to, from, bytes);
  } else {
    stream_bytes(to, from, bytes, nullptr);
    stream_fence();
  }
}

void copy_tensor(const at::Tensor& to, const at::Tensor& from) {
  if (to.numel() == 0) return;
  if (is_simulated(to)) return;
  if (is_simulated(from)) return forget_values(to);
  const auto element = static_cast<std::int64_t>(to.element_size());
  const bool raw = !to.is_conj() && !to.is_neg() && !from.is_conj() && !from.is_neg();
  const bool alike = raw && to.strides() == from.strides() && to.is_non_overlapping_and_dense();
  if (alike) return copy_bytes(to.data_ptr(), from.const_data_ptr(), to.nbytes());
  if (raw) {
    const Loops loops = merged_loops(to, from);
    auto* target = static_cast<char*>(to.data_ptr());
    const auto* source = static_cast<const char*>(from.const_data_ptr());
    if (loops.empty()) return copy_bytes(target, source, element);
    if (loops.size() == 1 && in_long_rows(loops, element)) return copy_bytes(target, source, to.nbytes());
    if (in_long_rows(loops, element)) {
      const bool streamed = to.nbytes() >= kStreamBytes;
      copy_rows(loops, 0, target, source, element, streamed);
      return streamed ? stream_fence() : void();
    }
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  to.copy_(from);
}

}  // namespace dtensor
