// Experts: what turns rows into rows. Works on local tensors; rows come in order of experts, rows[e] of expert e.
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

// Of a row x.
enum class ExpertActivation : std::uint8_t {
  swiglu,  // w2 (silu(w1 x) * w3 x)
  geglu,   // w2 (gelu(w1 x) * w3 x), exact
  glu,     // w2 (sigmoid(w1 x) * w3 x)
  gelu,    // w2 gelu(w1 x), exact
  silu,    // w2 silu(w1 x)
  relu,    // w2 relu(w1 x)
};
// Whether it has a third weight.
DTENSOR_API bool is_gated(ExpertActivation activation);

// How experts are computed.
enum class ExpertBackend : std::uint8_t {
  automatic,  // batched where all experts have equally many rows, else loop
  loop,       // a matrix product an expert
  batched,    // equal counts only
  grouped,    // at::_grouped_mm on aligned groups: not float64, D and F in multiples of 16 bytes
};

// out[rows of e] = x[rows of e] * weight[e]^T, for x [M, K] and weight [E, N, K]. An expert without rows is not read,
// and its gradient is zero. Differentiable (once). Any floating dtype. `again`: gives the weight
// anew for backward, which then keeps none (weights that are gathered for a pass).
using RegatherWeight = std::function<at::Tensor()>;
DTENSOR_API at::Tensor grouped_mm(const at::Tensor& x, const at::Tensor& weight, at::IntArrayRef rows,
                                  ExpertBackend backend = ExpertBackend::automatic, RegatherWeight again = {});

// Groups of rows moved apart so that each begins at a multiple of `alignment` rows, as kernels for groups want it,
// found without the host's knowing counts [E]: sizes depend on the numbers of rows and groups only.
struct DTENSOR_API AlignedGroups {
  at::Tensor counts;  // [E] int64: rows of each group
  at::Tensor place;   // [rows] int64: where each row goes
  at::Tensor ends;    // [E] int32: where each group ends, padding included
  // Padding included.
  std::int64_t rows = 0;
  at::Tensor pad(const at::Tensor& x) const;    // x [rows, D] with zero rows between; differentiable
  at::Tensor unpad(const at::Tensor& y) const;  // back; differentiable
};
// For counts [E] that add up to `rows`.
DTENSOR_API AlignedGroups align_groups(const at::Tensor& counts, std::int64_t rows, std::int64_t alignment);
// Of x [groups.rows, K], by at::_grouped_mm. Padding gives zeros; what lies behind the last group is not defined.
DTENSOR_API at::Tensor grouped_mm(const at::Tensor& x, const at::Tensor& weight, const AlignedGroups& groups,
                                  RegatherWeight again = {});

// w1, w3 [E, F, D], w2 [E, D, F]; of one expert [F, D], [D, F]. w3: gated activations only.
struct ExpertWeights {
  // The weights; `again`: as in grouped_mm, for each.
  at::Tensor w1, w2, w3 = {};
  RegatherWeight regather1 = {}, regather2 = {}, regather3 = {};  // packed only
  std::vector<at::Tensor> parameters = {};  // DTensors that these are this rank's part of, gathered for the pass
};

// Gate and up weights in one tensor, and down weights transposed, for passes without gradients. Kept for the same
// tensors (or the parameters that they are gathered from) at the same version: a write to a weight misses.
class DTENSOR_API ExpertWeightCache {
 public:
  ExpertWeightCache();
  ~ExpertWeightCache();
  // As passes without gradients want them.
  struct Packed {
    at::Tensor up;    // [E, D, 2F] (gated) or [E, D, F]
    at::Tensor down;  // [E, F, D]
  };
  // Those of these weights, packed anew where they are not known; and how often that was (not) so.
  const Packed& get(const ExpertWeights& weights);
  std::uint64_t hits() const { return hits_; }
  std::uint64_t misses() const { return misses_; }

 private:
  struct Key;
  std::unique_ptr<Key> key_;
  Packed packed_;
  std::uint64_t hits_ = 0, misses_ = 0;
};

// How experts are computed.
struct ExpertOptions {
  // What each expert computes, and how.
  ExpertActivation activation = ExpertActivation::swiglu;
  ExpertBackend backend = ExpertBackend::automatic;
  // grouped: each expert's rows are padded with zeros to a multiple of so many, as a kernel may want it (8, 16, 128).
  // 0: as few as at::_grouped_mm takes, 16 bytes' worth.
  std::int64_t block = 0;
};

// Packed experts. `cache`: used where no gradient is recorded and all experts have equally many rows.
DTENSOR_API at::Tensor run_experts(const at::Tensor& x, at::IntArrayRef rows, const ExpertWeights& weights,
                                   const ExpertOptions& options = {}, ExpertWeightCache* cache = nullptr);
// Packed experts by ExpertBackend::grouped, for counts [E] that the host need not know: nothing is read.
DTENSOR_API at::Tensor run_grouped_experts(const at::Tensor& x, const at::Tensor& counts, const ExpertWeights& weights,
                                           const ExpertOptions& options = {});
// Separate experts; the grouped and batched backends pack them.
DTENSOR_API at::Tensor run_experts(const at::Tensor& x, at::IntArrayRef rows, const std::vector<ExpertWeights>& experts,
                                   const ExpertOptions& options = {});
// One expert for all rows of x [..., D], in plain operators (DTensors too): a shared expert.
DTENSOR_API at::Tensor run_expert(const at::Tensor& x, const ExpertWeights& weights, ExpertActivation activation);

// `weight` itself; its gradient for expert e is multiplied by mean / load[e] (1 where there is no load). load [E], mean
// [].
DTENSOR_API at::Tensor scale_expert_gradients(const at::Tensor& weight, const at::Tensor& load, const at::Tensor& mean);

// Experts of any kind in a block of one's own: modules that turn rows into rows, sent the tokens that a router of one's
// own chooses. Written for one device; apply_expert_parallel() spreads the modules over ranks.
//
//   struct Block : nn::Module {                          // in forward(x), plain ATen:
//     auto [weights, ids] = at::softmax(router.forward(x), -1).topk(2, -1);
//     return x + experts.forward(x, ids, weights);

// A list of modules of which each token visits a few.
class DTENSOR_API RoutedExperts final : public nn::Module {
 public:
  RoutedExperts();
  ~RoutedExperts() override;

  // rows [n, D] of one expert, n perhaps 0, to [n, D]. Rows are independent of each other; where experts are spread
  // over ranks, rows and parameters are DTensors.
  using Forward = std::function<at::Tensor(const at::Tensor& rows)>;
  void add(std::unique_ptr<nn::Module> expert, Forward forward);  // named "0", "1", ...
  template <class Expert>
  void add(std::unique_ptr<Expert> expert) {
    auto* module = expert.get();
    add(std::move(expert), [module](const at::Tensor& rows) { return module->forward(rows); });
  }
  // Number of experts.
  std::int64_t size() const;

  // sum_j weights[t, j] * expert ids[t, j] (x[t]), for x [tokens, D] or [batch, sequence, D], ids (int64) and weights
  // with D replaced by the number of choices; an id of size() is no expert, one beyond an error (where ids are on the
  // CPU). All three plain, or DTensors on one mesh.
  // On several ranks: each has its part of the tokens (plain), or x's placements say who has which; one all-gather of
  // counts and one exchange of rows there and back.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& ids, const at::Tensor& weights);
  at::Tensor load() const;  // [size()] entries of the last pass, on this rank

  // By apply_expert_parallel(): ep splits the modules, in order; edp holds replicas of each, for fully_shard() to
  // split.
  void set_expert_parallel(const DeviceMesh& mesh, std::int64_t ep_axis, std::int64_t edp_axis);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtensor
