// Plans on models with shared modules, second plans on the same model, and the state without a plan.
#include "dtensor/parallelize.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;

// One layer that is registered twice (ALBERT, arXiv:1909.11942).
struct Shared : nn::Module {
  Shared() : layer(4, 4) {
    register_module("first", layer);
    register_module("second", layer);
  }
  nn::Linear layer;
};

TEST(Plan, SharedModuleIsDistributedOnce) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const ParallelPlan& plan : {ParallelPlan{{"first", ColwiseParallel()}, {"second", ColwiseParallel()}},
                                     ParallelPlan{{"second", ColwiseParallel()}}}) {
      Shared model;
      parallelize(model, mesh, plan);
      EXPECT_EQ(DTensor(model.layer.weight).placements(), Placements{Shard(0)});
      EXPECT_EQ(DTensor(model.layer.bias).placements(), Placements{Shard(0)});
      EXPECT_TRUE(model.layer.weight.requires_grad());
    }
    Shared model;
    std::vector<std::string> names;
    model.distribute(mesh, [&](const std::string& name, const at::Tensor&) {
      names.push_back(name);
      return Placements{name.starts_with("first") ? Shard(0) : Replicate()};
    });
    EXPECT_EQ(names, (std::vector<std::string>{"first.weight", "first.bias"}));
    EXPECT_EQ(DTensor(model.layer.weight).placements(), Placements{Shard(0)});
  });
}

TEST(Plan, PlansOfSeveralAxesCombineAndTheLastOfAnAxisWins) {
  run_local(4, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"sp", "tp"});
    const at::Tensor values = test::Draw(1).normal({4, 6, 4}, at::kFloat);
    nn::Linear layer(4, 4);
    nn::distribute(layer.named_parameters(), mesh, [](const auto&, const auto&) { return Placements(2); });
    const auto out_of = [&](const at::Tensor& x) {
      const at::Tensor y = layer.forward(x);
      test::expect_close(
          y.detach(),
          at::linear(values, DTensor(layer.weight.detach()).full_tensor(), DTensor(layer.bias.detach()).full_tensor()),
          "y", 1e-5);
      return DTensor(y).placements();
    };
    const at::Tensor x = distribute_tensor(values, mesh, Placements(2));
    parallelize(layer, mesh, {{"", PrepareModuleOutput{Shard(1)}}}, {.axis = "sp"});
    EXPECT_EQ(out_of(x), (Placements{Shard(1), Replicate()}));
    parallelize(layer, mesh, {{"", ColwiseParallel{.out = Shard(-1)}}});
    EXPECT_EQ(out_of(x), (Placements{Shard(1), Shard(2)}));
    EXPECT_EQ(out_of(values), (Placements{Shard(1), Shard(2)}));
    parallelize(layer, mesh, {{"", PrepareModuleOutput{Shard(0)}}});
    EXPECT_EQ(out_of(x), (Placements{Shard(1), Shard(0)}));
    parallelize(layer, mesh, {{"", PrepareModuleOutput{Replicate()}}}, {.axis = "sp"});
    EXPECT_EQ(out_of(x), (Placements{Replicate(), Shard(0)}));
  });
}

TEST(Plan, CurrentPlanIsEmptyWithoutAPlan) {
  const ParallelModel none = ParallelModel::current();
  EXPECT_TRUE(none.parameters().empty() && none.activations().empty());
  EXPECT_EQ(none.str(), "");
}

}  // namespace
