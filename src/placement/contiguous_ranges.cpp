// Dimensions after the last split one are complete, so each segment of the split dimension is one contiguous range.
#include "internal/contiguous_ranges.h"

namespace dtensor {
namespace {

bool is_full(const Segments& held, std::int64_t size) { return held.size() == 1 && held[0] == Segment{0, size}; }

// The global position of a local one, and the remaining length of its segment.
ContiguousRanges::Range locate(const Segments& held, std::int64_t local) {
  for (const Segment& s : held) {
    if (local < s.length) return {s.offset + local, s.length - local};
    local -= s.length;
  }
  return {0, 0};
}

}  // namespace

std::int64_t total_length(const Segments& segments) {
  std::int64_t total = 0;
  for (const Segment& s : segments) total += s.length;
  return total;
}

ContiguousRanges::ContiguousRanges(c10::IntArrayRef sizes, std::vector<Segments> held) {
  for (const Segments& h : held) numel_ *= total_length(h);
  std::size_t split = sizes.size();
  std::int64_t inner = 1;
  while (split > 0 && is_full(held[split - 1], sizes[split - 1])) inner *= sizes[--split];
  if (split == 0) {
    line_ = {{0, inner}};
  } else {
    for (const Segment& s : held[split - 1]) line_.push_back({s.offset * inner, s.length * inner});
    std::int64_t stride = inner * sizes[split - 1];
    for (std::size_t d = split - 1; d-- > 0; stride *= sizes[d]) {
      const std::int64_t count = total_length(held[d]);
      outer_.push_back({std::move(held[d]), count, stride});
    }
  }
  line_length_ = total_length(line_);
}

ContiguousRanges::Range ContiguousRanges::at(std::int64_t local) const {
  std::int64_t line = local / line_length_, base = 0;
  for (const Dim& dim : outer_) {  // innermost first
    base += locate(dim.held, line % dim.count).global * dim.stride;
    line /= dim.count;
  }
  Range range = locate(line_, local % line_length_);
  range.global += base;
  return range;
}

}  // namespace dtensor
