// Positions of a shard's elements in the row-major global tensor, as ranges of consecutive elements in local order.
#pragma once

#include <c10/util/ArrayRef.h>

#include <vector>

#include "internal/shard_segments.h"

namespace dtensor {

// Total number of indices in the segments.
DTENSOR_API std::int64_t total_length(const Segments& segments);

// The elements of a contiguous tensor that a rank stores, as ranges of its memory.
class DTENSOR_API ContiguousRanges {
 public:
  // `length` elements from `global` on.
  struct Range {
    std::int64_t global, length;  // in elements
  };

  // `sizes` are global; `held[d]` are the segments of the shard along dimension d.
  ContiguousRanges(c10::IntArrayRef sizes, std::vector<Segments> held);

  // Number of elements in all ranges.
  std::int64_t numel() const { return numel_; }
  // The range from local element `local` (flat, row-major) to the end of its range.
  Range at(std::int64_t local) const;

  // Calls fn(local, range) for each range of the local elements [begin, end).
  template <class F>
  void each(std::int64_t begin, std::int64_t end, const F& fn) const {
    for (std::int64_t local = begin; local < end;) {
      Range range = at(local);
      if (range.length > end - local) range.length = end - local;
      fn(local, range);
      local += range.length;
    }
  }

 private:
  struct Dim {
    Segments held;
    std::int64_t count, stride;  // number of local indices; global elements per index
  };
  std::vector<Dim> outer_;  // dimensions before the last split one
  // Segments of the last split dimension and those behind it, in elements.
  Segments line_;
  std::int64_t line_length_ = 1, numel_ = 1;
};

}  // namespace dtensor
