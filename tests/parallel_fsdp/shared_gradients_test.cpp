// Autograd may pass one gradient tensor to several parameters (of a sum), and hooks may keep it: the unit reduces a
// tensor that it owns.
#include "parallel_fsdp/tower.h"

namespace dtensor::test {
namespace {

using List = std::vector<at::Tensor>;
using Loss = std::function<at::Tensor(const List&, const at::Tensor&)>;

List parameters(const std::vector<Shape>& sizes) {
  Draw draw(3);
  List list;
  for (const auto& s : sizes) list.push_back(draw.normal(s).requires_grad_());
  return list;
}

List sharded_as_one_unit(const List& regular, const DeviceMesh& mesh) {
  List copy;
  NamedTensors list;
  for (const auto& t : regular) copy.push_back(t.detach().clone().requires_grad_());
  for (std::size_t i = 0; i < copy.size(); ++i) list.emplace_back("p" + std::to_string(i), &copy[i]);
  fully_shard(list, mesh);
  return copy;
}

DeviceMesh hsdp(const Communicator& world, std::int64_t replicas, std::int64_t shards) {
  return init_device_mesh(world, at::kCPU, {replicas, shards}, {"replicate", "shard"});
}

// Accumulates several passes and then writes to one gradient, as clipping does. `one_device` replaces the reference
// loss where autograd on one device lets gradients share memory.
void expect_as_on_one_device(const DeviceMesh& mesh, const List& regular, const Loss& loss, Loss one_device = {}) {
  if (!one_device) one_device = loss;
  const auto mine = sharded_as_one_unit(regular, mesh);
  const auto x = Draw(5).normal({8, 4});
  const auto on = distribute_tensor(x, mesh, {Shard(0), Shard(0)});
  for (int pass = 0; pass < 3; ++pass) {
    one_device(regular, x).backward();
    loss(mine, on).backward();
    expect_same_gradients(mine, regular);
  }
  for (const auto& list : {regular, mine}) list[0].grad().mul_(3);
  expect_same_gradients(mine, regular);
}

TEST(FsdpSharedGradients, GradientsOfScalarsEqualOneDevice) {
  run_local(2, [](const Communicator& world) {
    expect_as_on_one_device(hsdp(world, 1, 2), parameters({{}, {}, {}}), [](const List& p, const at::Tensor& x) {
      return ((p[0] + p[1] + p[2]) * x).sum() + (p[0] + p[2]).square();
    });
  });
}

TEST(FsdpSharedGradients, SumOfTwoWeights) {
  for (const Shape& mesh : {Shape{2, 1}, Shape{1, 2}, Shape{2, 2}}) {
    run_local(count(mesh), [&](const Communicator& world) {
      const auto on = hsdp(world, mesh[0], mesh[1]);
      const auto two = parameters({{4, 4}, {4, 4}});
      const Loss of_sum = [](const List& p, const at::Tensor& x) { return at::mm(x, p[0] + p[1]).square().sum(); };
      expect_as_on_one_device(on, two, of_sum);
    });
  }
}

// With views, autograd on regular tensors lets their gradients share memory.
TEST(FsdpSharedGradients, OfViewsOfParameters) {
  run_local(2, [](const Communicator& world) {
    const Loss of_sum = [](const List& p, const at::Tensor& x) { return at::mm(x, p[0] + p[1]).square().sum(); };
    const Loss of_views = [](const List& p, const at::Tensor& x) {
      return at::mm(x, (p[0].view(16) + p[1].view(16)).view({4, 4})).square().sum();
    };
    expect_as_on_one_device(hsdp(world, 2, 1), parameters({{4, 4}, {4, 4}}), of_views, of_sum);
  });
}

TEST(FsdpSharedGradients, OfWeightsOfLayers) {
  run_local(2, [](const Communicator& world) {
    const Loss loss = [](const List& p, const at::Tensor& x) {
      return (at::linear(x, p[0], p[1]) + at::linear(x.tanh(), p[2], p[3])).square().mean();
    };
    expect_as_on_one_device(hsdp(world, 2, 1), parameters({{4, 4}, {4}, {4, 4}, {4}}), loss);
  });
}

TEST(FsdpSharedGradients, HookMayKeepItsGradient) {
  for (const Shape& mesh : {Shape{2, 1}, Shape{1, 2}}) {
    run_local(2, [&](const Communicator& world) {
      const auto on = hsdp(world, mesh[0], mesh[1]);
      const auto regular = parameters({{4, 4}, {}});
      const auto mine = sharded_as_one_unit(regular, on);
      const auto x = Draw(5).normal({8, 4});
      at::Tensor kept[2], want[2];
      for (std::size_t i = 0; i < 2; ++i) {
        mine[i].register_hook([&kept, i](const at::Tensor& g) { kept[i] = g; });
        regular[i].register_hook([&want, i](const at::Tensor& g) { want[i] = g; });
      }
      const auto loss = [](const List& p, const at::Tensor& in) { return (at::mm(in, p[0]).square() * p[1]).sum(); };
      loss(regular, x).backward();
      loss(mine, distribute_tensor(x, on, {Shard(0), Shard(0)})).backward();
      for (std::size_t i = 0; i < 2; ++i) expect_close(kept[i], want[i], "kept gradient " + std::to_string(i));
      expect_same_gradients(mine, regular);
    });
  }
}

}  // namespace
}  // namespace dtensor::test
