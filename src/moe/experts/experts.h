// Expert networks on local tensors. Rows are ordered by expert: rows[e] rows of expert e.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "dtensor/moe/experts.h"

namespace dtensor {

// Computes out[rows of e] = x[rows of e] * weight[e]^T for x [M, K] and weight [E, N, K]. An expert without rows is not
// read and gets a zero gradient. Differentiable once; any floating dtype. If `again` is set, backward calls it for the
// weight instead of saving the weight (for weights that are gathered for a pass).
using RegatherWeight = std::function<at::Tensor()>;
at::Tensor grouped_mm(const at::Tensor& x, const at::Tensor& weight, at::IntArrayRef rows,
                      ExpertBackend backend = ExpertBackend::automatic, RegatherWeight again = {});

// Row groups padded so that each starts at a multiple of `alignment` rows; 1: no padding and no copy. Computed without
// copying the counts [E] to the host: sizes depend only on the numbers of rows and groups.
struct AlignedGroups {
  at::Tensor counts;  // [E] int64: rows of each group
  at::Tensor place;   // [rows] int64: target position of each row; undefined: its own
  at::Tensor ends;    // [E] int32: end of each group, including padding
  // Number of rows, including padding.
  std::int64_t rows = 0;
  at::Tensor pad(const at::Tensor& x) const;    // inserts zero rows into x [rows, D]; differentiable
  at::Tensor unpad(const at::Tensor& y) const;  // removes the padding; differentiable
};
// For counts [E] whose sum is `rows`.
AlignedGroups align_groups(const at::Tensor& counts, std::int64_t rows, std::int64_t alignment);
// For x [groups.rows, K], by at::_grouped_mm. Padding rows give zeros; rows after the last group are undefined.
at::Tensor grouped_mm(const at::Tensor& x, const at::Tensor& weight, const AlignedGroups& groups,
                      RegatherWeight again = {});

// w1, w3 [E, F, D], w2 [E, D, F]; for a single expert [F, D] and [D, F]. w3 is used by gated activations only.
struct ExpertWeights {
  // Weights, and functions that gather them again in backward, as in grouped_mm().
  at::Tensor w1, w2, w3 = {};
  RegatherWeight regather1 = {}, regather2 = {}, regather3 = {};  // not for separate experts
  std::vector<at::Tensor> parameters = {};  // DTensors whose local parts these are, if gathered for the pass
};

// Cache of packed weights for passes without gradients: gate and up weights in one tensor, transposed down weights. An
// entry is valid for the same tensors (or the parameters they are gathered from) at the same version.
class ExpertWeightCache {
 public:
  ExpertWeightCache();
  ~ExpertWeightCache();
  // Packed weights.
  struct Packed {
    at::Tensor up;    // [E, D, 2F] (gated) or [E, D, F]
    at::Tensor down;  // [E, F, D]
  };
  // The packed weights of `weights`, repacked on a miss; and counters of hits and misses.
  const Packed& get(const ExpertWeights& weights);
  void clear();  // frees them
  std::uint64_t hits() const { return hits_; }
  std::uint64_t misses() const { return misses_; }

 private:
  struct Key;
  std::unique_ptr<Key> key_;
  Packed packed_;
  std::uint64_t hits_ = 0, misses_ = 0;
};

// Packed experts. `cache` is used if no gradient is recorded and all experts have the same number of rows.
at::Tensor run_experts(const at::Tensor& x, at::IntArrayRef rows, const ExpertWeights& weights,
                       const ExpertOptions& options = {}, ExpertWeightCache* cache = nullptr);
// Packed experts with ExpertBackend::grouped, for counts [E] on the device: no host synchronization.
at::Tensor run_grouped_experts(const at::Tensor& x, const at::Tensor& counts, const ExpertWeights& weights,
                               const ExpertOptions& options = {});
// Separate experts; the grouped and batched backends pack them.
at::Tensor run_experts(const at::Tensor& x, at::IntArrayRef rows, const std::vector<ExpertWeights>& experts,
                       const ExpertOptions& options = {});
// One expert for all rows of x [..., D] with regular ATen operators (also for DTensors): a shared expert.
at::Tensor run_expert(const at::Tensor& x, const ExpertWeights& weights, ExpertActivation activation);
// The same with another function for x weight^T. `again`: as in ExpertWeights.
using LinearFunction =
    std::function<at::Tensor(const at::Tensor& x, const at::Tensor& weight, const RegatherWeight& again)>;
at::Tensor run_expert(const at::Tensor& x, const ExpertWeights& weights, ExpertActivation activation,
                      const LinearFunction& linear);

// Returns `weight`; the gradient for expert e is multiplied by mean / load[e] (by 1 if load[e] is 0). load: [E], mean:
// [].
at::Tensor scale_expert_gradients(const at::Tensor& weight, const at::Tensor& load, const at::Tensor& mean);

}  // namespace dtensor
