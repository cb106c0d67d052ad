// A timeline with coarse resolution drops samples, but never the highest.
#include "dtensor/debug.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>

#include "dtensor/dtensor.h"
#include "internal/scoped_value.h"

namespace dtensor {
namespace {

std::int64_t highest(const MemoryTimeline& memory) {
  std::int64_t most = 0;
  for (const auto& sample : memory.samples()) most = std::max(most, sample.bytes);
  return most;
}

bool in_order(const MemoryTimeline& memory) {
  const auto& all = memory.samples();
  return std::is_sorted(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.when < b.when; });
}

TEST(MemoryTimeline, KeepsTheHighestSampleAtAnyResolution) {
  for (const std::int64_t resolution : {0, 1000, 1 << 20}) {
    MemoryTimeline memory(resolution);
    at::Tensor first = at::empty({1000}, at::kByte), second = at::empty({500000}, at::kByte);
    second.reset();
    EXPECT_EQ(highest(memory), memory.peak().bytes) << resolution;
    second = at::empty({700000}, at::kByte);
    const std::int64_t before = memory.peak().bytes;
    second.reset();
    memory.reset_peak();  // the previous highest sample stays
    const at::Tensor third = at::empty({3000000}, at::kByte), fourth = at::empty({100}, at::kByte);
    const auto& all = memory.samples();
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const auto& s) { return s.bytes == before; })) << resolution;
    EXPECT_EQ(highest(memory), memory.peak().bytes) << resolution;
    EXPECT_TRUE(in_order(memory)) << resolution;
  }
}

bool has_profiler_state() { return c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) != nullptr; }

// The inner timeline continues, and both leave no state behind.
// The cycles of an earlier program are freed at any time.
TEST(MemoryTimeline, IgnoresMemoryFromBeforeTheStart) {
  at::Tensor old = at::empty({1 << 20});
  const MemoryTimeline timeline;
  const auto fresh = at::empty({1 << 10});
  old.reset();
  EXPECT_EQ(timeline.live(), fresh.nbytes());
  const auto more = at::empty({1 << 12});
  EXPECT_EQ(timeline.peak().bytes, fresh.nbytes() + more.nbytes());
}

TEST(MemoryTimeline, TimelinesEndInAnyOrder) {
  auto outer = std::make_unique<MemoryTimeline>(), inner = std::make_unique<MemoryTimeline>();
  outer.reset();
  const at::Tensor x = at::empty({1000}, at::kByte);
  EXPECT_GE(inner->live(), 1000);
  inner.reset();
  EXPECT_FALSE(has_profiler_state());
}

// A scope opened later stays current, and the hidden state ends with it.
TEST(MemoryTimeline, EndsBeforeAScopeOpenedLater) {
  auto memory = std::make_unique<MemoryTimeline>();
  {
    const ScopedValue<double> scope(7, Recompute::unchanged);
    memory.reset();
    ASSERT_NE(ScopedValue<double>::current(), nullptr);
    EXPECT_EQ(*ScopedValue<double>::current(), 7);
  }
  { const MemoryTimeline another; }
  EXPECT_FALSE(has_profiler_state());
}

// Gathered parameters dominate memory in many programs.
TEST(MemoryTimeline, CountsOutputsOfCollectives) {
  run_local(2, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2});
    const at::Tensor halves = distribute_tensor(at::ones({1 << 20}), mesh, {Shard(0)});
    for (const std::int64_t count : {std::int64_t{3}, std::int64_t{1} << 20}) {
      const MemoryTimeline memory;
      auto full = world.empty({count}, at::kFloat);
      EXPECT_EQ(memory.live(), 4 * count);
      full.reset();
      EXPECT_EQ(memory.live(), 0);
    }
    const MemoryTimeline memory;
    const at::Tensor full = DTensor(halves).full_tensor();
    EXPECT_GE(memory.live(), 4 << 20);
    EXPECT_LT(memory.live(), 5 << 20);
  });
}

}  // namespace
}  // namespace dtensor
