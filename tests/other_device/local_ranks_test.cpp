// Thread ranks with tensors in device memory, except for the results (see conformance_test.cpp).
#include <gtest/gtest.h>

#include "dtensor/comm_backend.h"
#include "internal/host_memory.h"
#include "other_device/fake_device.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

at::Tensor on_fake(at::Tensor t) { return t.to(c10::Device(fake::kDevice, 0)); }

// Number of times that all ranks together waited for their streams in `body`.
int waits_in(const std::function<void(const Communicator&)>& body) {
  fake::start();
  std::atomic<int> waits = 0;
  run_local(2, [&](const Communicator& world) {
    world.barrier();
    if (world.rank() == 0) fake::stream_waits = 0;
    world.barrier();
    body(world);
    world.barrier();
    if (world.rank() == 0) waits = fake::stream_waits.load();
    world.barrier();
  });
  return waits;
}

// A rank waits before other ranks read what it has queued, and before they may overwrite what it reads.
TEST(DeviceRanks, WaitForTheirStreamsBeforeAndAfter) {
  const auto x = [] { return on_fake(at::ones({4})); };
  const auto gathers = [&](const Communicator& world) { world.all_gather({x(), x()}, x()).wait(); };
  const auto reduces = [&](const Communicator& world) { world.all_reduce(x(), ReduceOp::sum).wait(); };
  const auto messages = [&](const Communicator& world) {
    const at::Tensor t = x();
    (world.rank() == 0 ? world.send(t, 1) : world.recv(t, 0)).wait();
  };
  EXPECT_EQ(waits_in(gathers), 2 * 3);   // Outputs, inputs; outputs again.
  EXPECT_EQ(waits_in(reduces), 2 * 2);   // In place.
  EXPECT_EQ(waits_in(messages), 2 + 1);  // Each rank for its own stream; the later one also for the copy.
  EXPECT_EQ(waits_in([](const Communicator& world) { world.all_reduce(at::ones({4}), ReduceOp::sum).wait(); }), 0);
}

// Host and device memory are read differently, so all tensors of a call must be on one kind of device.
TEST(DeviceRanks, MixedDevicesAreRefused) {
  fake::start();
  run_local(2, [](const Communicator& world) {
    const at::Tensor here = at::ones({4}), there = on_fake(here);
    const auto mixed = error_of([&] { world.all_reduce(there, here, ReduceOp::sum); });
    EXPECT_NE(mixed.find("all_reduce: expected tensors on one device type, got fake:0 and cpu"), std::string::npos)
        << mixed;
    const auto lists = error_of([&] { world.all_gather_list({here, there, here, there}, {here, there}); });
    EXPECT_NE(lists.find("all_gather: expected tensors on one device type, got cpu and fake:0"), std::string::npos)
        << lists;
  });
  std::string diverged;
  try {
    run_local(2, [](const Communicator& world) {
      const at::Tensor here = at::ones({4});
      world.all_reduce(world.rank() == 0 ? here : on_fake(here), ReduceOp::sum).wait();
    });
  } catch (const CommError& error) {
    diverged = error.what();
  }
  EXPECT_NE(diverged.find("ranks disagree"), std::string::npos) << diverged;
  EXPECT_NE(diverged.find("Float [4] on fake:0)"), std::string::npos) << diverged;
}

// A device whose memory is declared as host memory is handled as the CPU.
TEST(DeviceRanks, DeclaredHostMemoryIsHandledAsCpu) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // In a separate process: a declaration is permanent.
  const auto child = [] {
    fake::start();
    declare_host_memory(fake::kDevice);
    const int waits = waits_in([](const Communicator& world) {
      const at::Tensor t = on_fake(at::full({4}, world.rank() + 1));
      world.all_reduce(t, ReduceOp::sum).wait();
      TORCH_CHECK(at::equal(t.cpu(), at::full({4}, 3)));
    });
    std::_Exit(waits == 0 ? 0 : 1);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), testing::Eq(""));
}

}  // namespace
}  // namespace dtensor::test
