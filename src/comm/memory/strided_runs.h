// A strided CPU tensor seen as one row-major sequence of elements.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace dtensor {

// Which dimension comes first, second, ... in the sequence; empty: as they are.
using DimOrder = c10::SmallVector<std::int64_t, 6>;

// The dimensions from the largest stride to the smallest: the order in which a permuted dense tensor lies in memory.
DimOrder memory_order(const at::Tensor& tensor);

// Does not own the tensor. What is written through it must have memory of its own by then (comm/resolved_values.h,
// touched): several threads look at one tensor, and none of them may be the one that parts it from its lazy clones.
class FlatView {
 public:
  explicit FlatView(const at::Tensor& tensor, const DimOrder& order = {});

  std::int64_t numel() const { return numel_; }
  std::size_t element_size() const { return element_size_; }
  bool contiguous() const { return sizes_.size() == 1 && strides_[0] == 1; }

  // How many elements from `begin` on are adjacent in memory; 1 or fewer where the innermost stride is not 1.
  std::int64_t contiguous_run_length(std::int64_t begin) const;
  // Elements [begin, begin + count): where they lie if they are adjacent in memory, else null.
  char* contiguous_pointer(std::int64_t begin, std::int64_t count) const;
  // Copies elements [begin, begin + count) to or from adjacent memory.
  void gather(std::int64_t begin, std::int64_t count, void* out) const;
  void scatter(std::int64_t begin, std::int64_t count, const void* in) const;

  // As contiguous_pointer(), through `scratch` where the elements are not adjacent.
  const char* read(std::int64_t begin, std::int64_t count, void* scratch) const;

 private:
  template <class Visit>  // visit(address, elements in this run)
  void for_each_run(std::int64_t begin, std::int64_t count, Visit&& visit) const;

  c10::SmallVector<std::int64_t, 6> sizes_;  // merged; at least one dimension
  c10::SmallVector<std::int64_t, 6> strides_;
  char* data_;
  std::size_t element_size_;
  std::int64_t numel_;
};

}  // namespace dtensor
