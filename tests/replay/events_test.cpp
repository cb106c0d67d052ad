// What listeners see of operators and collectives.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "dtensor/comm.h"
#include "dtensor/events.h"
#include "dtensor/tensor.h"

namespace dtensor::test {
namespace {

TEST(EventTensors, OfAContributionAreThoseBeforeAReductionInPlace) {
  run_local(2, [](const Communicator& world) {
    std::vector<double> given;
    const EventListener listener(
        [&](const Event& event) {
          for (const at::Tensor& t : event.tensors) given.push_back(t.sum().item<double>());
        },
        {Event::Kind::contribution});
    const double mine = world.rank() + 1;
    const at::Tensor tensor = at::full({2}, mine);
    world.all_reduce(tensor, ReduceOp::sum).wait();
    EXPECT_EQ(given, std::vector<double>{2 * mine});
    EXPECT_EQ(tensor.sum().item<double>(), 6);
    const std::vector<at::Tensor> outputs = {at::empty({3}), at::empty({3})};
    world.all_gather(outputs, at::full({3}, mine)).wait();
    world.broadcast(tensor, 1);
    const std::size_t expected = world.rank() == 1 ? 3 : 2;  // The root of a broadcast gives, others receive.
    ASSERT_EQ(given.size(), expected);
    EXPECT_EQ(given[1], 3 * mine);
  });
}

TEST(EventTensors, OfAnOperatorAreItsResults) {
  run_local(2, [](const Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2});
    const at::Tensor x = distribute_tensor(at::arange(6, at::kFloat).view({6, 1}), mesh, {Shard(0)});
    std::vector<std::vector<std::int64_t>> sizes;
    const EventListener listener(
        [&](const Event& event) {
          for (const at::Tensor& t : event.tensors) sizes.push_back(t.sizes().vec());
        },
        {Event::Kind::op});
    at::neg(x);
    at::max(x, 1);
    at::empty_like(x);  // Its contents differ between runs.
    EXPECT_EQ(sizes, (std::vector<std::vector<std::int64_t>>{{6, 1}, {6}, {6}}));
  });
}

}  // namespace
}  // namespace dtensor::test
