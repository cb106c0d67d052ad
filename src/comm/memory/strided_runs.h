// A strided CPU tensor viewed as one row-major sequence of elements.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace dtensor {

// The order of dimensions in the sequence; empty: the tensor's own order.
using DimOrder = c10::SmallVector<std::int64_t, 6>;

// The dimensions from the largest stride to the smallest: the memory order of a permuted dense tensor.
DimOrder memory_order(const at::Tensor& tensor);

// Does not own the tensor. Before it is written through a view, the tensor must have its own memory
// (mark_outputs_written in comm/resolved_values.h): several threads access one tensor, and none of them may copy a
// lazy clone.
class FlatView {
 public:
  explicit FlatView(const at::Tensor& tensor, const DimOrder& order = {});

  std::int64_t numel() const { return numel_; }
  std::size_t element_size() const { return element_size_; }
  bool contiguous() const { return sizes_.size() == 1 && strides_[0] == 1; }

  // The number of elements from `begin` on that are contiguous in memory; at most 1 if the innermost stride is not 1.
  std::int64_t contiguous_run_length(std::int64_t begin) const;
  // The address of elements [begin, begin + count) if they are contiguous in memory, else null.
  char* contiguous_pointer(std::int64_t begin, std::int64_t count) const;
  // Copies elements [begin, begin + count) to or from contiguous memory.
  void gather(std::int64_t begin, std::int64_t count, void* out) const;
  void scatter(std::int64_t begin, std::int64_t count, const void* in) const;

  // Like contiguous_pointer(), but gathers non-contiguous elements into `scratch`.
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
