// Optimizers, norms and their state compute the same under a MeshScope and under autocast as outside.
#include <ATen/autocast_mode.h>

#include "dtensor/tensor.h"
#include "optim/mixture.h"

namespace dtensor::test {
namespace {

using Make = std::function<std::unique_ptr<Optimizer>(const at::Tensor&)>;

const std::vector<std::pair<const char*, Make>>& optimizers() {
  using List = std::vector<at::Tensor>;
  static const std::vector<std::pair<const char*, Make>> all{
      {"adamw", [](auto& p) { return std::make_unique<AdamW>(List{p}); }},
      {"adamw_foreach", [](auto& p) { return std::make_unique<AdamW>(List{p}, AdamWOptions{.fused = false}); }},
      {"sgd", [](auto& p) { return std::make_unique<SGD>(List{p}, SGDOptions{.momentum = 0.9}); }},
      {"adagrad", [](auto& p) { return std::make_unique<Adagrad>(List{p}); }},
      {"muon", [](auto& p) { return std::make_unique<Muon>(List{p}, MuonOptions{.bfloat16 = false}); }},
      {"shampoo",
       [](auto& p) {
         return std::make_unique<Shampoo>(List{p}, ShampooOptions{.eps = 1e-4, .frequency = 1, .start = 1});
       }},
  };
  return all;
}

// Runs steps and norms, and moves the state into a new optimizer after half of them. Returns the parameter after each
// step, and the norms.
std::vector<at::Tensor> train(const Make& make, const at::Tensor& start, const std::vector<at::Tensor>& gradients) {
  const at::Tensor parameter = start.clone().requires_grad_();
  auto optimizer = make(parameter);
  std::vector<at::Tensor> seen;
  for (const at::Tensor& gradient : gradients) {
    parameter.mutable_grad() = gradient.clone();
    seen.push_back(get_total_norm({parameter.grad()}));
    seen.push_back(clip_grad_norm_({parameter}, 1));
    optimizer->step();
    seen.push_back(parameter.detach().clone());
    const OptimizerState state = optimizer->state_dict();
    optimizer = make(parameter);
    optimizer->load_state_dict(state);
  }
  return seen;
}

struct Autocast {
  explicit Autocast(bool on) { at::autocast::set_autocast_enabled(at::kCPU, on); }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

// `placed`: with DTensors, else with regular tensors.
void expect_the_same(const DeviceMesh& mesh, bool placed, const std::function<std::shared_ptr<void>()>& surround) {
  const auto put = [&](std::uint64_t seed) -> at::Tensor {
    const at::Tensor full = Draw(seed).normal({6, 5}, at::kFloat);
    return placed ? at::Tensor(distribute_tensor(full, mesh, {Shard(0)})) : full;
  };
  const at::Tensor start = put(1);
  const std::vector<at::Tensor> gradients{put(2), put(3), put(4)};
  for (const auto& [name, make] : optimizers()) {
    const auto expected = train(make, start, gradients);
    std::vector<at::Tensor> actual;
    {
      const auto scope = surround();
      actual = train(make, start, gradients);
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(is_dtensor(actual[i]), is_dtensor(expected[i])) << name;
      EXPECT_TRUE(at::equal(full_of(actual[i]), full_of(expected[i]))) << name << " " << i;
    }
  }
}

TEST(Scopes, MeshScopeDoesNotAffectTensorsOfOptimizers) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const bool placed : {true, false}) {
      expect_the_same(mesh, placed, [&] { return std::make_shared<MeshScope>(mesh, Placements{Shard(0)}); });
    }
  });
}

TEST(Scopes, AutocastDoesNotAffectSteps) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const bool placed : {true, false}) {
      expect_the_same(mesh, placed, [] { return std::make_shared<Autocast>(true); });
    }
  });
}

}  // namespace
}  // namespace dtensor::test
