// A U-Net on a volume that is sharded along one, two and three dimensions.
#include <gtest/gtest.h>

#include "dtensor/bit_identical.h"
#include "dtensor/dtensor.h"
#include "unet/training.h"

namespace unet::test {
namespace {

std::int64_t ranks_of(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const auto n : shape) count *= n;
  return count;
}

TEST(UNet, StepsEqualOneDevice) {
  const Options options{.sizes = {8, 12, 20}, .channels = 2};
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{2}, {3}, {2, 2}, {2, 2, 2}}) {
    dtensor::run_local(static_cast<int>(ranks_of(shape)), [&](const dtensor::Communicator& world) {
      Training ranks(options, dtensor::init_device_mesh(world, at::kCPU, shape)), one(options);
      for (int step = 0; step < 2; ++step) EXPECT_NEAR(ranks.step(), one.step(), 1e-12);
      EXPECT_LT(largest_difference(ranks.parameters(), one.parameters()), 1e-10) << "mesh " << at::IntArrayRef(shape);
    });
  }
}

// In a BitIdentical scope, in which ranks exchange halos too.
TEST(UNet, StepsInAScopeHaveTheBitsOfOneDevice) {
  const Options options{.sizes = {8, 12, 20}, .channels = 2};
  std::vector<std::string> expected;
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{1}, {2}, {3}, {2, 2}, {2, 2, 2}}) {
    dtensor::run_local(static_cast<int>(ranks_of(shape)), [&](const dtensor::Communicator& world) {
      Training training(options, dtensor::init_device_mesh(world, at::kCPU, shape));
      std::vector<std::string> hashes;
      {
        const dtensor::BitIdentical scope(16);
        for (int step = 0; step < 2; ++step) training.step();
        for (const auto& p : training.parameters()) hashes.push_back(dtensor::BitIdentical::content_hash(p.detach()));
      }
      if (shape[0] == 1) expected = hashes;
      EXPECT_EQ(hashes, expected) << "mesh " << at::IntArrayRef(shape);
    });
  }
}

// A rank receives a few planes of each activation, and the gradients of parameters.
TEST(UNet, HaloBytesDoNotGrowWithTheDepth) {
  const auto bytes = [](std::int64_t depth) {
    std::int64_t received = 0;
    dtensor::run_local(2, [&](const dtensor::Communicator& world) {
      const Options options{.sizes = {depth, 8, 8}, .channels = 2};
      Training training(options, dtensor::init_device_mesh(world, at::kCPU, {2}));
      training.step();
      if (world.rank() == 0) received = training.forward_bytes() + training.backward_bytes();
    });
    return received;
  };
  EXPECT_GT(bytes(16), 0);
  EXPECT_EQ(bytes(16), bytes(48));
}

// Activations are split over the ranks; halos and parameters are small.
TEST(UNet, PeakOfFourRanksIsBelowThreeTenthsOfOneDevice) {
  const Options options{.sizes = {64, 24, 24}, .channels = 4};
  const auto peak = [](Training& training) {
    const dtensor::MemoryTimeline memory;
    training.step();
    return memory.peak().bytes;
  };
  std::int64_t one = 0;
  dtensor::run_local(1, [&](const dtensor::Communicator&) {
    Training training(options);
    one = peak(training);
  });
  dtensor::run_local(4, [&](const dtensor::Communicator& world) {
    Training training(options, dtensor::init_device_mesh(world, at::kCPU, {4}));
    EXPECT_LE(static_cast<double>(peak(training)), 0.3 * static_cast<double>(one));
  });
}

}  // namespace
}  // namespace unet::test
