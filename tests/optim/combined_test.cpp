// Several optimizers combined into one: all of them step, or none does.
#include "internal/parameter_swap.h"
#include "optim/mixture.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

using Mistake = std::function<void(SGD&, at::Tensor&, const DeviceMesh&)>;

// Mistakes that the second optimizer detects and the first does not.
const std::vector<std::pair<const char*, Mistake>>& mistakes() {
  static const std::vector<std::pair<const char*, Mistake>> all{
      {"the gradient of parameter 0 has sizes [3]",
       [](SGD&, at::Tensor& p, const DeviceMesh&) { p.mutable_grad() = at::ones({3}, at::kDouble); }},
      {"a regular parameter",
       [](SGD&, at::Tensor& p, const DeviceMesh& mesh) {
         p.mutable_grad() = distribute_tensor(p.detach(), mesh, {Shard(0)});
       }},
      {"was replaced",
       [](SGD&, at::Tensor& p, const DeviceMesh&) {
         p.mutable_grad().reset();
         record_parameter_swap(p);
       }},
      {"Nesterov momentum", [](SGD& sgd, at::Tensor&, const DeviceMesh&) { sgd.options().dampening = 0.5; }}};
  return all;
}

TEST(Combined, ErrorOfOneOptimizerPreventsAllSteps) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const auto& [says, make] : mistakes()) {
      const at::Tensor start = Draw(1).normal({4, 3});
      const at::Tensor first = distribute_tensor(start, mesh, {Shard(0)}).requires_grad_();
      at::Tensor second = start.clone().requires_grad_();
      first.mutable_grad() = first.detach().clone();
      second.mutable_grad() = second.detach().clone();
      std::vector<std::unique_ptr<Optimizer>> parts;
      parts.push_back(std::make_unique<Muon>(std::vector{first}));
      parts.push_back(std::make_unique<SGD>(std::vector{second}, SGDOptions{.momentum = 0.5, .nesterov = true}));
      CombinedOptimizer optimizer(std::move(parts));
      make(dynamic_cast<SGD&>(optimizer.part(1)), second, mesh);
      const std::string error = error_of([&] { optimizer.step(); });
      EXPECT_NE(error.find(says), std::string::npos) << error;
      EXPECT_TRUE(at::equal(full_of(first), start)) << says;
      EXPECT_TRUE(optimizer.state_dict().tensors.empty()) << says;
    }
  });
}

}  // namespace
}  // namespace dtensor::test
