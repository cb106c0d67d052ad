// Experts of any kind in a block of one's own: modules that turn rows into rows, sent the tokens that a router of one's
// own chooses. Written for one device; apply_expert_parallel() spreads the modules over ranks.
//
//   struct Block : nn::Module {                          // in forward(x), plain ATen:
//     auto [weights, ids] = at::softmax(router.forward(x), -1).topk(2, -1);
//     return x + experts.forward(x, ids, weights);
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/nn.h"

namespace dtensor {

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
  void spread(const DeviceMesh& mesh, std::int64_t ep_axis, std::int64_t edp_axis);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtensor
