// ScopedValue: values that are current while an object lives. They nest, may end in any order, and are separate for
// each type and thread.
#include "internal/scoped_value.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <thread>

#include "scope/scope_frames.h"

namespace dtensor::test {
namespace {

struct Level {
  int value;
};
struct Other {
  int value;
};

int level() {
  const auto* now = ScopedValue<Level>::current();
  return now == nullptr ? -1 : now->value;
}

TEST(ScopedValue, InnermostOfTheTypeIsCurrent) {
  EXPECT_EQ(level(), -1);
  const ScopedValue<Level> outer({1}, Recompute::unchanged);
  {
    const ScopedValue<Other> other({7}, Recompute::unchanged);
    const ScopedValue<Level> inner({2}, Recompute::unchanged);
    EXPECT_EQ(level(), 2);
    EXPECT_EQ(ScopedValue<Other>::current()->value, 7);
    std::thread([] { EXPECT_EQ(level(), -1); }).join();
  }
  EXPECT_EQ(level(), 1);
  EXPECT_EQ(ScopedValue<Other>::current(), nullptr);
}

// Compares with a list of open scopes, innermost last. Half of the steps run within a guard of autograd, as in an
// operator.
TEST(ScopedValue, ScopesMayEndInAnyOrder) {
  std::mt19937 draw(3);
  std::vector<std::pair<int, std::unique_ptr<ScopedValue<Level>>>> open;
  for (int step = 0; step < 2000; ++step) {
    std::optional<at::AutoDispatchBelowADInplaceOrView> below;
    if (draw() % 2 == 0) below.emplace();
    if (open.empty() || draw() % 2 == 0) {
      open.emplace_back(
          step, std::make_unique<ScopedValue<Level>>(Level{step}, Recompute::unchanged, OperatorScope{step % 3 == 0}));
    } else {
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(draw() % open.size()));
    }
    below.reset();
    EXPECT_EQ(level(), open.empty() ? -1 : open.back().first);
    std::vector<int> seen;
    ScopedValue<Level>::for_each([&](const Level& l) { seen.insert(seen.begin(), l.value); });
    std::vector<int> expected;
    for (const auto& entry : open) expected.push_back(entry.first);
    EXPECT_EQ(seen, expected);
    EXPECT_EQ(any_operator_scope(), std::any_of(expected.begin(), expected.end(), [](int i) { return i % 3 == 0; }));
  }
}

}  // namespace
}  // namespace dtensor::test
