// Where a local tensor sits in its global one: the global indices that it holds along each dimension, and the local
// elements as runs of consecutive global (row-major) indices.
#pragma once

#include <ATen/core/DimVector.h>

#include <vector>

#include "placement/shard_map.h"
#include "placement/spec.h"

namespace dtensor {

struct GlobalRegion {
  at::DimVector sizes;             // global
  std::vector<Segments> segments;  // per dimension, in local order

  at::DimVector local_sizes() const;
};

GlobalRegion whole_region(at::IntArrayRef sizes);
// What the coordinate holds. Throws on a Partial: a sum of random numbers is not one.
GlobalRegion region_of(at::IntArrayRef sizes, const Placements& placements, at::IntArrayRef mesh_shape,
                       at::IntArrayRef coordinate);
// On this rank, which is in the mesh.
GlobalRegion region_of(const TensorSpec& spec);

// The runs of a region: dimensions after `split` are whole, so that they and a segment of `split` are consecutive.
class Runs {
 public:
  explicit Runs(const GlobalRegion& region);

  // fn(local offset, first global index, length), in local order.
  template <class F>
  void for_each(F&& fn) const {
    std::int64_t local = 0;
    Odometer outer(*this);
    for (std::int64_t i = 0; i < outer_count_; ++i, outer.advance()) {
      for (const auto& segment : segments_) {
        if (segment.length > 0) fn(local, outer.base() + segment.offset * inner_, segment.length * inner_);
        local += segment.length * inner_;
      }
    }
  }

 private:
  // Counts through the local indices of the dimensions before `split`.
  class Odometer {
   public:
    explicit Odometer(const Runs& runs) : runs_(runs), index_(runs.offsets_.size(), 0) { sum(); }
    std::int64_t base() const { return base_; }
    void advance();

   private:
    void sum();
    const Runs& runs_;
    c10::SmallVector<std::int64_t, 5> index_;
    std::int64_t base_ = 0;
  };

  std::vector<std::vector<std::int64_t>> offsets_;  // per outer dimension and local index: its part of the global index
  std::int64_t outer_count_ = 1;
  Segments segments_{Segment{0, 1}};  // of the split dimension
  std::int64_t inner_ = 1;
};

}  // namespace dtensor
