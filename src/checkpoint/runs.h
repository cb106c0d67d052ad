// Where the elements of a shard lie in the whole tensor, row-major: as runs of consecutive elements, in local order.
#pragma once

#include <c10/util/ArrayRef.h>

#include <vector>

#include "dtensor/shards.h"

namespace dtensor::files {

struct Run {
  std::int64_t global, length;  // in elements
};

class ShardRuns {
 public:
  // `held[d]`: what the shard has along dimension d.
  ShardRuns(at::IntArrayRef sizes, std::vector<Segments> held);

  std::int64_t numel() const { return numel_; }
  // From local element `local` (flat, row-major) to the end of its run.
  Run at(std::int64_t local) const;

  // fn(local, run) for each run of the local elements [begin, end).
  template <class F>
  void each(std::int64_t begin, std::int64_t end, const F& fn) const {
    for (std::int64_t local = begin; local < end;) {
      Run run = at(local);
      if (run.length > end - local) run.length = end - local;
      fn(local, run);
      local += run.length;
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

}  // namespace dtensor::files
