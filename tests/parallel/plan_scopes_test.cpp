// Nested plan scopes of models that are functions.
#include "dtensor/checkpoint_activations.h"
#include "dtensor/debug.h"
#include "dtensor/parallelize.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Two = std::pair<ParallelModel, ParallelModel>;

// Plans on two axes; each splits a dimension of the same activation.
void on_two_axes(const std::function<void(const DeviceMesh&, const Two&, at::Tensor weight)>& body) {
  run_local(4, [&](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"sp", "tp"});
    at::Tensor weight = distribute_tensor(Draw(1).normal({4, 4}), mesh, Placements(2)).requires_grad_();
    const NamedTensors parameters{{"layer.weight", &weight}};
    const auto plan = [&](const std::string& axis, std::int64_t dim) {
      return parallelize(parameters, mesh, {{"layer.out", ConstrainActivation{Shard(dim)}}}, {.axis = axis});
    };
    const Two plans{plan("sp", 0), plan("tp", 1)};
    body(mesh, plans, weight);
  });
}

at::Tensor run(const at::Tensor& x, const at::Tensor& weight) {
  static const std::string name = "layer";
  const ModuleScope scope(name);
  return constrain("out", at::mm(x, weight));
}

Placements placements_of(const at::Tensor& x) { return DTensor(x).placements(); }

TEST(PlanScopes, PlansOfTwoAxesCombineAndTheInnerOfAnAxisWins) {
  on_two_axes([](const DeviceMesh& mesh, const Two& plans, const at::Tensor& weight) {
    const at::Tensor x = distribute_tensor(Draw(2).normal({4, 4}), mesh, Placements(2));
    const ParallelModel::Scope outer(plans.first);
    EXPECT_EQ(placements_of(run(x, weight)), (Placements{Shard(0), Replicate()}));
    {
      const ParallelModel::Scope inner(plans.second);
      EXPECT_EQ(placements_of(run(x, weight)), (Placements{Shard(0), Shard(1)}));
      EXPECT_EQ(ParallelModel::current().activations().size(), 2U);
      const ParallelModel::Scope again(plans.first);
      EXPECT_EQ(placements_of(run(x, weight)), (Placements{Shard(0), Shard(1)}));
      EXPECT_EQ(ParallelModel::current().activations().size(), 2U);
    }
    EXPECT_EQ(placements_of(run(x, weight)), (Placements{Shard(0), Replicate()}));
  });
}

// Backward recomputes a segment under the plans of its forward, whichever plans are current then.
TEST(PlanScopes, SegmentIsRecomputedUnderThePlansOfItsForward) {
  on_two_axes([](const DeviceMesh& mesh, const Two& plans, const at::Tensor& weight) {
    const at::Tensor x = distribute_tensor(Draw(2).normal({4, 4}), mesh, Placements(2));
    std::vector<Placements> seen;
    const auto segment = [&](const at::Tensor& in) {
      const at::Tensor out = run(in, weight);
      seen.push_back(placements_of(out));
      return out;
    };
    at::Tensor both, none;
    {
      const ParallelModel::Scope outer(plans.first), inner(plans.second);
      both = checkpoint(segment, x);
    }
    none = checkpoint(segment, x);
    {
      const ParallelModel::Scope other(plans.first);
      none.sum().backward();
      both.sum().backward();
    }
    const Placements split{Shard(0), Shard(1)}, full(2);
    EXPECT_EQ(seen, (std::vector<Placements>{split, full, full, split}));
  });
}

}  // namespace
}  // namespace dtensor::test
