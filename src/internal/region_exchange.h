// "Intersect what I hold with what you want, exchange, write": the transfers of one tensor as views of local tensors
// (docs/design/redistribute.md). The caller chooses the collective.
#pragma once

#include <ATen/core/Tensor.h>

#include "internal/bucketed_all_to_all.h"
#include "internal/region.h"

namespace dtensor {

class RegionExchange {
 public:
  // What happens to received elements. Elements are added in the order of the plan.
  enum class Arrival : std::uint8_t { write, add };

  // `local` stores plan.held, and `result` stores plan.wanted. Either may be undefined if the plan does not use it. A
  // part is a view, unless it has several ranges of a dimension, is to be added, or parts overlap: then it is a buffer.
  RegionExchange(TransferPlan plan, const at::Tensor& local, at::Tensor result, Arrival arrival = Arrival::write);

  // One tensor for each entry of plan.sends and plan.receives.
  at::TensorList pieces() const { return pieces_; }
  at::TensorList targets() const { return targets_; }
  // Adds the transfers to a bucket.
  void join(BucketedAllToAll& exchange, std::size_t bucket) const;
  const at::Tensor& result() const { return result_; }
  // Copies buffers to the result, and returns it. Call it after the collective.
  const at::Tensor& finish() const;

 private:
  TransferPlan plan_;
  at::Tensor result_;
  Arrival arrival_;
  std::vector<at::Tensor> pieces_, targets_;
  std::vector<bool> buffered_;  // of targets
};

}  // namespace dtensor
