// Where the elements of a shard lie in the whole tensor, row-major: as ranges of consecutive elements, in local order.
#pragma once

#include <c10/util/ArrayRef.h>

#include <vector>

#include "internal/shard_segments.h"

namespace dtensor {

// How many indices the segments hold.
DTENSOR_API std::int64_t total_length(const Segments& segments);

// Which elements of a contiguous tensor a rank holds, as ranges of its memory.
class DTENSOR_API ContiguousRanges {
 public:
  // So many elements from this one on.
  struct Range {
    std::int64_t global, length;  // in elements
  };

  // Of a tensor of these (global) sizes; `held[d]`: what the shard has along dimension d.
  ContiguousRanges(c10::IntArrayRef sizes, std::vector<Segments> held);

  // Elements in all ranges.
  std::int64_t numel() const { return numel_; }
  // From local element `local` (flat, row-major) to the end of its range.
  Range at(std::int64_t local) const;

  // fn(local, range) for each range of the local elements [begin, end).
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
    std::int64_t count, stride;  // local indices; global elements from one index to the next
  };
  std::vector<Dim> outer_;  // before the last dimension that is split
  Segments line_;           // what is held of that dimension and those behind it, in elements
  std::int64_t line_length_ = 1, numel_ = 1;
};

}  // namespace dtensor
