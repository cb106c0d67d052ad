// A layer works in any scope of the program: local tensors stay regular, and matrix products follow autocast.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include "moe/experts/experts.h"
#include "small_layer.h"

namespace dtensor::test {
namespace {

struct Way {
  DispatchKind kind = DispatchKind::all_to_all;
  CapacityOptions capacity = {};
  RouterChoice choice = RouterChoice::tokens;
  ExpertBackend backend = ExpertBackend::automatic;
};

std::vector<at::Tensor> run_way(const Way& way, const DeviceMesh& mesh, const at::Tensor& values, bool in_scope) {
  auto o = small_options(way.backend == ExpertBackend::grouped ? at::kFloat : at::kDouble);
  o.router.choice = way.choice;
  o.experts.backend = way.backend;
  o.shared_ffn = 4;
  o.balance_rate = 0.1;
  o.scale_expert_gradients = true;
  if (way.choice == RouterChoice::tokens) o.router.sequence_aux_loss = o.router.aux_loss = 0.1;
  MixtureOfExperts layer(o);
  fill(layer, 3);
  apply_expert_parallel(layer, mesh.view({1, 2}, {"edp", "ep"}));
  layer.set_dispatch(way.kind, way.capacity);
  const auto x = distribute_tensor(values.to(o.tensor.dtype()), mesh, {Shard(0)}).requires_grad_();
  std::optional<MeshScope> scope;
  if (in_scope) scope.emplace(mesh);
  const auto out = layer.run(x);
  auto loss = out.y.square().sum();
  if (out.loss.defined()) loss = loss + out.loss;
  loss.backward();
  update_load_balancers(layer, mesh.communicator());
  std::vector<at::Tensor> results{out.y.detach(), x.grad(), layer.balancer()->bias};
  for (const auto& p : layer.parameters()) results.push_back(p.grad());
  for (auto& t : results) t = is_dtensor(t) ? DTensor(t).full_tensor() : t;
  return results;
}

TEST(MoeScopes, MeshScopeDoesNotChangeResults) {
  const auto values = Draw(1).normal({8, 8});
  const std::vector<Way> ways = {
      {},
      {.kind = DispatchKind::all_gather},
      {.kind = DispatchKind::capacity, .capacity = {0.7, CapacityOptions::Drop::position}},
      {.kind = DispatchKind::capacity, .capacity = {0.7, CapacityOptions::Drop::probability}},
      {.kind = DispatchKind::equal, .choice = RouterChoice::round_robin},
      {.choice = RouterChoice::experts},
      {.backend = ExpertBackend::grouped}};
  run_local(2, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"dp"});
    for (std::size_t w = 0; w < ways.size(); ++w) {
      const auto wanted = run_way(ways[w], mesh, values, false), got = run_way(ways[w], mesh, values, true);
      for (std::size_t i = 0; i < wanted.size(); ++i) expect_close(got[i], wanted[i], c10::str("way ", w, " ", i));
    }
  });
}

TEST(MoeScopes, LayerMayBeConstructedAndTrainedInAMeshScope) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const MeshScope scope(mesh);
    RoutedExperts list;
    for (int i = 0; i < 2; ++i) list.add(std::make_unique<nn::Linear>(8, 8, true, at::kDouble));
    const std::vector<at::Tensor> born = list.parameters();
    apply_expert_parallel(list, mesh);
    MixtureOfExperts layer(small_options());
    const auto x = at::randn({4, 8}, at::kDouble), ids = at::zeros({4, 1}, at::kLong);
    const auto y = list.forward(layer.forward(x), ids, at::ones({4, 1}, at::kDouble));
    y.sum().backward();
    EXPECT_TRUE(layer.experts.w1.grad().defined() && layer.gate.weight.grad().defined());
    const bool first = mesh.communicator().rank() == 0;  // the rank with the expert of all tokens
    const auto mine = DTensor(list.parameters()[first ? 0 : 2].detach()).to_local();
    EXPECT_TRUE(at::equal(mine, DTensor(born[first ? 0 : 2].detach()).full_tensor()));
    EXPECT_TRUE(list.parameters()[0].requires_grad());
  });
}

struct Autocast {
  Autocast() { at::autocast::set_autocast_enabled(at::kCPU, true); }
  ~Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
};

// Backward runs outside of autocast, with the dtypes of forward.
TEST(MoeScopes, ExpertsUnderAutocastEqualLinearLayers) {
  Draw draw(2);
  const auto values = draw.normal({8, 8}, at::kFloat);
  std::vector<at::Tensor> weights;
  for (int i = 0; i < 3; ++i) weights.push_back(draw.normal({2, 8, 8}, at::kFloat).mul_(0.5));
  const auto run = [&](at::IntArrayRef rows, ExpertBackend backend, bool packed) {
    const auto x = values.clone().requires_grad_();
    std::vector<at::Tensor> w;
    for (const auto& each : weights) w.push_back(each.clone().requires_grad_());
    const ExpertWeights all{w[0], w[1], w[2]};
    const std::vector<ExpertWeights> one_by_one = {{w[0][0], w[1][0], w[2][0]}, {w[0][1], w[1][1], w[2][1]}};
    at::Tensor y;
    {
      const Autocast autocast;
      y = packed ? run_experts(x, rows, all, {.backend = backend})
                 : run_experts(x, rows, one_by_one, {.backend = backend});
    }
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    y.to(at::kFloat).square().sum().backward();
    return std::vector<at::Tensor>{y.detach(), x.grad(), w[0].grad(), w[1].grad(), w[2].grad()};
  };
  for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{4, 4}, {3, 5}, {0, 8}}) {
    const auto wanted = run(rows, ExpertBackend::loop, false);
    for (const auto backend : {ExpertBackend::automatic, ExpertBackend::loop, ExpertBackend::grouped}) {
      const auto got = run(rows, backend, true);
      for (std::size_t i = 0; i < got.size(); ++i) expect_close(got[i], wanted[i], c10::str(rows, i), 3e-2);
    }
  }
}

// The cache of casts belongs to the process: one rank would clear what another one still uses.
TEST(MoeScopes, RanksDoNotShareTheCacheOfAutocast) {
  for (const int ranks : {2, 1}) {
    run_local(ranks, [&](const Communicator&) { EXPECT_EQ(at::autocast::is_autocast_cache_enabled(), ranks == 1); });
  }
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

TEST(MoeScopes, LayerTrainsUnderAutocast) {
  run_local(2, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"shard"});
    for (const std::int64_t top : {1, 4}) {  // 4 selects all experts, so that all have equally many rows
      auto o = small_options(at::kFloat);
      o.router.top_k = top;
      o.shared_ffn = 4;
      MixtureOfExperts layer(o);
      fill(layer, 3);
      fully_shard(layer, mesh);
      const auto x = distribute_tensor(Draw(1).normal({6, 8}, at::kFloat), mesh, {Shard(0)}).requires_grad_();
      at::Tensor y;
      {
        const Autocast autocast;
        y = layer.forward(x);
      }
      EXPECT_EQ(y.scalar_type(), at::kBFloat16) << top;
      y.sum().backward();
      for (const auto& p : layer.parameters()) EXPECT_EQ(p.grad().scalar_type(), at::kFloat);
    }
  });
}

}  // namespace
}  // namespace dtensor::test
