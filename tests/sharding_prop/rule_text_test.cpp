// The text of rules: what is parsed, what is printed, what is refused.
#include <gtest/gtest.h>

#include "dtensor/rule.h"
#include "sharding_prop/rule_data.h"

namespace dtensor::testing {
namespace {

TEST(RuleText, PrintsWhatItParses) {
  for (const char* text : {"mk, kn -> mn", "+mn, mk, kn -> mn", "...k, nk! -> ...n", "(ij)k -> ijk", "m_, ~ -> m",
                           "k, k -> ", "...* -> ..., ...", " -> "}) {
    const Rule rule(text);
    const Rule again(rule.str());
    EXPECT_EQ(again.str(), rule.str()) << text;
  }
  EXPECT_EQ(Rule("mk,kn->mn").str(), "mk, kn -> mn");
  EXPECT_EQ(Rule("m1 -> m").str(), "m_ -> m");
}

TEST(RuleText, WholeIsAPropertyOfTheFactor) {
  const Rule rule("ab!, b -> a");
  EXPECT_FALSE(rule.data().factors[0].whole);
  EXPECT_TRUE(rule.data().factors[1].whole);
}

TEST(RuleText, RefusesNonsense) {
  for (const char* text : {"mk, kn", "m(k -> m", "mk -> mk)", "...m... -> m", "m? -> m"}) {
    EXPECT_THROW(Rule{text}, c10::Error) << text;
  }
  EXPECT_THROW(Rule("m -> m").whole("x"), c10::Error);
}

TEST(RuleText, ViewFactors) {
  const auto text = [](std::vector<std::int64_t> in, std::vector<std::int64_t> out) {
    return view_factors(in, out).str();
  };
  EXPECT_EQ(text({4, 6}, {24}), "d0d1 -> (d0d1)");
  EXPECT_EQ(text({24}, {4, 6}), "(d0d1) -> d0d1");
  EXPECT_EQ(text({1, 4, 1}, {4}), "_d0_ -> d0");
  EXPECT_EQ(text({2, 3, 4}, {6, 4}), "d0d1d2 -> (d0d1)d2");
  EXPECT_EQ(text({12, 8}, {16, 6}), "(d0d1!)d3! -> (d0d2!)d4!");
  EXPECT_EQ(text({0, 3}, {0, 3}), "d0d1 -> d0d1");
}

}  // namespace
}  // namespace dtensor::testing
