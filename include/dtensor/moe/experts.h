// Expert networks on local tensors. Rows are ordered by expert: rows[e] rows of expert e.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/nn.h"

namespace dtensor {

// What an expert computes for a row x.
enum class ExpertActivation : std::uint8_t {
  swiglu,  // w2 (silu(w1 x) * w3 x)
  geglu,   // w2 (gelu(w1 x) * w3 x), exact
  glu,     // w2 (sigmoid(w1 x) * w3 x)
  gelu,    // w2 gelu(w1 x), exact
  silu,    // w2 silu(w1 x)
  relu,    // w2 relu(w1 x)
};
// Whether the activation has a third weight, w3.
DTENSOR_API bool is_gated(ExpertActivation activation);

// Implementation of the expert computation.
enum class ExpertBackend : std::uint8_t {
  automatic,  // batched if all experts have the same number of rows; else grouped for bfloat16 on a GPU with a kernel
              // for it (counts are not copied to the host), loop otherwise
  loop,       // one matrix product per expert
  batched,    // one batched product; requires equal row counts
  grouped,    // at::_grouped_mm: not float64; D and F multiples of 16 bytes
};

// Computes out[rows of e] = x[rows of e] * weight[e]^T for x [M, K] and weight [E, N, K]. An expert without rows is not
// read and gets a zero gradient. Differentiable once; any floating dtype. If `again` is set, backward calls it for the
// weight instead of saving the weight (for weights that are gathered for a pass).
using RegatherWeight = std::function<at::Tensor()>;
DTENSOR_API at::Tensor grouped_mm(const at::Tensor& x, const at::Tensor& weight, at::IntArrayRef rows,
                                  ExpertBackend backend = ExpertBackend::automatic, RegatherWeight again = {});

// Row groups padded so that each starts at a multiple of `alignment` rows; 1: no padding and no copy. Computed without
// copying the counts [E] to the host: sizes depend only on the numbers of rows and groups.
struct DTENSOR_API AlignedGroups {
  at::Tensor counts;  // [E] int64: rows of each group
  at::Tensor place;   // [rows] int64: target position of each row; undefined: its own
  at::Tensor ends;    // [E] int32: end of each group, including padding
  // Number of rows, including padding.
  std::int64_t rows = 0;
  at::Tensor pad(const at::Tensor& x) const;    // inserts zero rows into x [rows, D]; differentiable
  at::Tensor unpad(const at::Tensor& y) const;  // removes the padding; differentiable
};
// For counts [E] whose sum is `rows`.
DTENSOR_API AlignedGroups align_groups(const at::Tensor& counts, std::int64_t rows, std::int64_t alignment);
// For x [groups.rows, K], by at::_grouped_mm. Padding rows give zeros; rows after the last group are undefined.
DTENSOR_API at::Tensor grouped_mm(const at::Tensor& x, const at::Tensor& weight, const AlignedGroups& groups,
                                  RegatherWeight again = {});

// w1, w3 [E, F, D], w2 [E, D, F]; for a single expert [F, D] and [D, F]. w3 is used by gated activations only.
struct ExpertWeights {
  // Weights, and functions that gather them again in backward, as in grouped_mm().
  at::Tensor w1, w2, w3 = {};
  RegatherWeight regather1 = {}, regather2 = {}, regather3 = {};  // packed experts only
  std::vector<at::Tensor> parameters = {};  // DTensors whose local parts these are, if gathered for the pass
};

// Cache of packed weights for passes without gradients: gate and up weights in one tensor, transposed down weights. An
// entry is valid for the same tensors (or the parameters they are gathered from) at the same version.
class DTENSOR_API ExpertWeightCache {
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
  std::uint64_t hits() const { return hits_; }
  std::uint64_t misses() const { return misses_; }

 private:
  struct Key;
  std::unique_ptr<Key> key_;
  Packed packed_;
  std::uint64_t hits_ = 0, misses_ = 0;
};

// Options of run_experts().
struct ExpertOptions {
  // What each expert computes, and the implementation.
  ExpertActivation activation = ExpertActivation::swiglu;
  ExpertBackend backend = ExpertBackend::automatic;
  // grouped: rows of each expert are padded with zeros to a multiple of this number (for instance 8, 16 or 128). 0: no
  // padding.
  std::int64_t block = 0;
};

// Packed experts. `cache` is used if no gradient is recorded and all experts have the same number of rows.
DTENSOR_API at::Tensor run_experts(const at::Tensor& x, at::IntArrayRef rows, const ExpertWeights& weights,
                                   const ExpertOptions& options = {}, ExpertWeightCache* cache = nullptr);
// Packed experts with ExpertBackend::grouped, for counts [E] on the device: no host synchronization.
DTENSOR_API at::Tensor run_grouped_experts(const at::Tensor& x, const at::Tensor& counts, const ExpertWeights& weights,
                                           const ExpertOptions& options = {});
// Separate experts; the grouped and batched backends pack them.
DTENSOR_API at::Tensor run_experts(const at::Tensor& x, at::IntArrayRef rows, const std::vector<ExpertWeights>& experts,
                                   const ExpertOptions& options = {});
// One expert for all rows of x [..., D] with regular ATen operators (also for DTensors): a shared expert.
DTENSOR_API at::Tensor run_expert(const at::Tensor& x, const ExpertWeights& weights, ExpertActivation activation);

// Returns `weight`; the gradient for expert e is multiplied by mean / load[e] (by 1 if load[e] is 0). load: [E], mean:
// [].
DTENSOR_API at::Tensor scale_expert_gradients(const at::Tensor& weight, const at::Tensor& load, const at::Tensor& mean);

// Experts of any module type with a user-defined router. Written for one device; apply_expert_parallel() distributes
// the modules over ranks.
//
//   struct Block : nn::Callable<Block> {                 // in forward(x), plain ATen:
//     auto [weights, ids] = at::softmax(router(x), -1).topk(2, -1);
//     return x + experts(x, ids, weights);

// A list of expert modules; each token is computed by a few of them.
class DTENSOR_API RoutedExperts final : public nn::Layer<RoutedExperts> {
 public:
  RoutedExperts();
  ~RoutedExperts() override;

  // Maps rows [n, D] of one expert to [n, D]; n may be 0. Rows must be independent of each other. With expert
  // parallelism, rows and parameters are DTensors.
  using Forward = std::function<at::Tensor(const at::Tensor& rows)>;
  void add(std::unique_ptr<nn::Module> expert, Forward forward);  // named "0", "1", ...
  template <class Expert>
  void add(std::unique_ptr<Expert> expert) {
    auto* module = expert.get();
    add(std::move(expert), [module](const at::Tensor& rows) { return nn::call_module(*module, rows); });
  }
  // Number of experts.
  std::int64_t size() const;

  // Returns sum_j weights[t, j] * expert ids[t, j] (x[t]) for x [tokens, D] or [batch, sequence, D]. ids (int64) and
  // weights have the shape of x with D replaced by the number of choices. The id size() selects no expert; larger ids
  // throw (if ids are on the CPU). All three are regular tensors, or DTensors on one mesh.
  // On several ranks, regular tensors hold this rank's tokens; the placements of DTensors give their distribution.
  // Costs one all-gather of counts and one exchange of rows in each direction.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& ids, const at::Tensor& weights) {
    return without_hooks(x, ids, weights);
  }
  // What a call runs.
  at::Tensor compute(const at::Tensor& x, const at::Tensor& ids, const at::Tensor& weights);
  at::Tensor load() const;  // [size()] entries of the last forward pass, on this rank

  // Called by apply_expert_parallel(): ep splits the modules in order; edp holds replicas of each, which fully_shard()
  // can shard.
  void set_expert_parallel(const DeviceMesh& mesh, std::int64_t ep_axis, std::int64_t edp_axis);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtensor
