// When a unit of a list of tensors without a module may be freed, from how often earlier passes used it.
#include <gtest/gtest.h>

#include <vector>

#include "parallel/fsdp/unit.h"

namespace dtensor::fsdp {
namespace {

struct Case {
  const char* what;
  std::vector<std::int64_t> passes;  // uses in earlier passes
  std::int64_t uses;                 // in this pass, so far
  bool may_be_all;
};

class UseCountsTest : public testing::TestWithParam<Case> {};

TEST_P(UseCountsTest, EndsAfterAsManyUsesAsARecentPass) {
  UseCounts counts;
  EXPECT_TRUE(counts.none());
  for (const auto uses : GetParam().passes) counts.note(uses);
  EXPECT_FALSE(counts.none());
  EXPECT_EQ(counts.may_be_all(GetParam().uses), GetParam().may_be_all) << GetParam().what;
}

std::vector<std::int64_t> after(std::vector<std::int64_t> passes, std::size_t repeats, std::int64_t uses) {
  passes.insert(passes.end(), repeats, uses);
  return passes;
}

INSTANTIATE_TEST_SUITE_P(Passes, UseCountsTest,
                         testing::Values(Case{"the first of two uses", {2}, 1, false}, Case{"both uses", {2}, 2, true},
                                         Case{"more uses than before", {2}, 3, true},
                                         Case{"a short microbatch among long ones", {4, 2}, 2, true},
                                         Case{"between the counts of two passes", {4, 2}, 3, false},
                                         Case{"a count that left the window of 16 passes", after({1}, 16, 3), 1, false},
                                         Case{"a count that is the oldest of the window", after({1}, 15, 3), 1, true}),
                         [](const auto& info) { return std::to_string(info.index); });

}  // namespace
}  // namespace dtensor::fsdp
