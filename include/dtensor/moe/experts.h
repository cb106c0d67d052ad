// Options of experts, and experts of any module type with a router of your own.
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

struct ExpertParallelOptions;

// The old name of nn::Activation.
using ExpertActivation = nn::Activation;

// Implementation of the expert computation.
enum class ExpertBackend : std::uint8_t {
  automatic,  // batched if all experts have the same number of rows; else grouped for bfloat16 on a GPU with a kernel
              // for it (counts are not copied to the host), loop otherwise
  loop,       // one matrix product per expert
  batched,    // one batched product; requires equal row counts
  grouped,    // at::_grouped_mm: not float64; D and F multiples of 16 bytes
};

// What experts compute, and how.
struct ExpertOptions {
  // What each expert computes, and the implementation.
  nn::Activation activation = nn::Activation::swiglu;
  ExpertBackend backend = ExpertBackend::automatic;
  // grouped: rows of each expert are padded with zeros to a multiple of this number (for instance 8, 16 or 128). 0: no
  // padding.
  std::int64_t block = 0;
};

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
    add(std::move(expert), [module](const at::Tensor& rows) { return nn::detail::call_module(*module, rows); });
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

 private:
  friend DTENSOR_API int apply_expert_parallel(nn::Module& model, const DeviceMesh& mesh,
                                               const ExpertParallelOptions& options);
  // ep splits the modules in order; edp holds replicas of each, which fully_shard() can shard.
  void set_expert_parallel(const DeviceMesh& mesh, std::int64_t ep_axis, std::int64_t edp_axis);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtensor
