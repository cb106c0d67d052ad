// If backward runs on its own thread, two threads report events concurrently.
#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <gtest/gtest.h>

#include <thread>

#include "dtensor/debug.h"
#include "dtensor/dtensor.h"
#include "dtensor/inspect.h"

namespace dtensor {
namespace {

// The second thread gets the thread-local state of this one, as autograd's threads do.
void on_two_threads(const std::function<void()>& run) {
  const at::ThreadLocalState state;
  std::thread other([&] {
    const at::ThreadLocalStateGuard guard(state);
    run();
  });
  run();
  other.join();
}

TEST(TwoThreads, TimelineReceivesEventsOfBoth) {
  constexpr std::size_t kTensors = 3000;
  const MemoryTimeline memory;
  on_two_threads([] {
    for (std::size_t i = 0; i < kTensors; ++i) at::empty({static_cast<std::int64_t>(1 + i % 5)}, at::kByte);
  });
  EXPECT_EQ(memory.live(), 0);
  EXPECT_EQ(memory.samples().size(), 2 * 2 * kTensors);
}

std::size_t times(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto i = text.find(part); i != std::string::npos; i = text.find(part, i + 1)) ++count;
  return count;
}

TEST(TwoThreads, CallsOfBothAreExplained) {
  run_local(1, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {1});
    const at::Tensor x = distribute_tensor(at::ones({4}), mesh, {Replicate()});
    const auto once = explain([&] { at::neg(x); }, Explain::decisions);
    const auto text = explain(
        [&] {
          on_two_threads([&] {
            for (int i = 0; i < 300; ++i) at::neg(x);
          });
        },
        Explain::decisions);
    EXPECT_EQ(times(text, once), 600u) << once;
  });
}

}  // namespace
}  // namespace dtensor
