// Recomputation: results that are kept, the events it causes, and the names and plans that are current in it.
#include <gtest/gtest.h>

#include <set>

#include "dtensor/dtensor.h"
#include "internal/nested_backward.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;

// The backward pass of all segments has one id, and kept operators are not run twice.
TEST(Checkpoint, SegmentsShareOneBackwardIdAndKeepNamedResults) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor w = distribute_tensor(at::ones({4, 4}), mesh, {Shard(1)}).requires_grad_();
    int products = 0;
    std::set<int> passes;
    const EventListener ops([&](const Event& e) {
      products += e.name == "aten::mm";
      if (current_backward_id() >= 0) passes.insert(current_backward_id());
    });
    at::Tensor x = distribute_tensor(at::ones({4, 4}), mesh, {Replicate()});
    for (int i = 0; i < 3; ++i) {
      x = checkpoint([&](const at::Tensor& t) { return at::mm(t, w).exp().log(); }, x, {.keep = {"aten::mm"}});
    }
    EXPECT_EQ(products, 3);
    x.sum().backward();
    EXPECT_EQ(passes.size(), 1U);
    EXPECT_EQ(products, 3 + 3 + 2);  // Backward: three for w, two for the inputs except the first.
  });
}

// linear is one operator of the library but a product on one device; its result is kept under the product's name.
TEST(Checkpoint, KeepsLinearUnderTheNameOfItsProduct) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor w = distribute_tensor(at::ones({4, 4}), mesh, {Shard(0)}).requires_grad_();
    const at::Tensor x = distribute_tensor(at::ones({4, 4}), mesh, {Replicate()}).requires_grad_();
    const auto products = [&](const std::set<std::string>& keep) {
      int count = 0;
      const EventListener ops([&](const Event& e) { count += e.name == "aten::linear"; }, {Event::Kind::op});
      checkpoint([&](const at::Tensor& t) { return at::linear(t, w).exp(); }, x, {.keep = keep}).sum().backward();
      return count;
    };
    EXPECT_EQ(products({}), 2);
    for (const char* name : {"aten::mm", "aten::addmm", "aten::linear"}) EXPECT_EQ(products({name}), 1) << name;
  });
}

// Named activation points and the module names of counts are current in the recomputation.
TEST(Checkpoint, PlansAndModuleNamesApplyInRecomputation) {
  run_local(2, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"tp"});
    at::Tensor w = at::ones({4, 4});
    const ParallelModel plan =
        parallelize(NamedTensors{{"h.q.weight", &w}}, mesh, {{"h", PrepareModuleInput{Shard(0)}}});
    w.requires_grad_();
    const at::Tensor x = distribute_tensor(at::ones({4, 4}), mesh, {Replicate()}).requires_grad_();
    std::vector<std::string> seen;
    const std::string name = "h";
    CommDebugMode comms;
    const at::Tensor y = [&] {
      const ParallelModel::Scope scope(plan);
      const ModuleScope module(name);
      return checkpoint(
          [&](const at::Tensor& t) {
            seen.push_back(ModuleScope::path() + to_string(DTensor(constrain("in", t)).placements()));
            return at::mm(DTensor(constrain("in", t)).redistribute({Replicate()}), w);
          },
          x);
    }();
    EXPECT_EQ(comms.total("all_gather", Phase::forward, "h").calls, 1);
    y.sum().backward();
    EXPECT_EQ(seen, (std::vector<std::string>{"h[S(0)]", "h[S(0)]"}));
    EXPECT_EQ(comms.total("all_gather", "", "h").calls, 3) << comms.table();  // Twice forward, once for a gradient.
  });
}

}  // namespace
