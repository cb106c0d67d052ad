// Chooses how to copy: one block where both lie alike in memory, long rows where the innermost runs are adjacent, and
// ATen's copy for anything finer.
#include "comm/copy.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <cstring>

namespace dtensor {
namespace {

constexpr std::size_t kShortRow = 256;  // bytes; ATen's kernels win below

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

void copy_rows(const Loops& loops, std::size_t depth, char* to, const char* from, std::int64_t element) {
  const Loop& loop = loops[depth];
  if (depth + 1 == loops.size()) return copy_bytes(to, from, loop.size * element);
  for (std::int64_t i = 0; i < loop.size; ++i) {
    copy_rows(loops, depth + 1, to + i * loop.to_stride * element, from + i * loop.from_stride * element, element);
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
  if (to != from) std::memcpy(to, from, bytes);
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
    if (in_long_rows(loops, element)) return copy_rows(loops, 0, target, source, element);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  to.copy_(from);
}

}  // namespace dtensor
