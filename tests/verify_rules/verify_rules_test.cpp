// Verifies a sample of the recorded calls: every offered strategy is valid, and nearly all decisions move at most 1.25
// times the minimum of bytes.
#include <gtest/gtest.h>
#include <torch/library.h>

#include "aten_cases/case_file.h"
#include "ops/dispatch/operator_entry.h"
#include "support/data.h"
#include "verify/search.h"
#include "verify/traffic.h"

namespace dtensor::verify {
namespace {

TEST(VerifyRules, OfferedStrategiesAreValidAndCheap) {
  int runs = 0, lean = 0;
  for (const auto& c : cases::load_cases(test::data_path("aten_cases"))) {
    if (c.id() % 8 != 0 || entry_of(c.handle()).special != nullptr) continue;
    const Sample sample{c.handle(), c.arguments([](const at::Tensor& t) { return t; })};
    const Report report = verify_sample(sample, 2, false);
    for (const auto& text : report.unsound) ADD_FAILURE() << c.text() << "\n" << text;
    for (const auto& text : verify_mesh(sample, {2, 2}, 2)) ADD_FAILURE() << c.text() << "\n" << text;
    for (const double ratio : report.bytes) ++runs, lean += ratio <= 1.25;
  }
  EXPECT_GE(lean, 0.95 * runs) << lean << " of " << runs;
}

// A rule that keeps the rows of a product unsharded is valid, but lacks strategies.
TEST(VerifyRules, FindsMissingStrategies) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "");
  const Sample sample{op, {at::randn({8, 8}), at::randn({8, 8})}};
  EXPECT_TRUE(verify_sample(sample, 2, true).missing.empty());
  RuleBook::get().rule("aten::mm", "m!k, kn -> mn");
  const auto missing = verify_sample(sample, 2, true).missing;
  RuleBook::get().rule("aten::mm", "mk, kn -> mn").linear({0}, {1});
  EXPECT_EQ(missing, (std::vector<std::string>{"[S(0)], [R]"}));
}

at::Tensor square(const at::Tensor& x) { return x * x; }
at::Tensor line(const at::Tensor& x) { return x * 2 - 1; }
at::Tensor negative(const at::Tensor& x) { return -x; }

// The square of a sum is not the sum of squares, max(-x) is not -max(x), and 2 x - 1 is a product only where the other
// factors are 1.
TEST(VerifyRules, FindsInvalidPartialGroups) {
  torch::Library library(torch::Library::DEF, "wrong_groups", std::nullopt, __FILE__, __LINE__);
  const std::pair<const char*, at::Tensor (*)(const at::Tensor&)> operators[] = {
      {"square", square}, {"line", line}, {"negative", negative}};
  for (const auto& [name, kernel] : operators) {
    library.def((std::string(name) + "(Tensor x) -> Tensor").c_str());
    library.impl(name, c10::DispatchKey::CPU, kernel);
  }
  const auto unsound = [](const std::string& op, const Rule& rule) {
    RuleBook::get().rule("wrong_groups::" + op, Rule(rule).no_meta());
    return verify_rule("wrong_groups::" + op, {at::randn({8})}, 2).unsound.size();
  };
  const Rule regular("X -> X");
  EXPECT_EQ(unsound("square", regular), 0U);
  EXPECT_EQ(unsound("square", Rule(regular).linear({0})), 2U);  // sum and avg.
  EXPECT_EQ(unsound("square", Rule(regular).monotone({0}, ReduceOp::product)), 0U);
  EXPECT_EQ(unsound("line", Rule(regular).monotone({0}, ReduceOp::product)), 1U);
  EXPECT_EQ(unsound("line", Rule(regular).monotone({0}, ReduceOp::max)), 0U);
  EXPECT_EQ(unsound("negative", Rule(regular).monotone({0}, ReduceOp::max)), 1U);
  EXPECT_EQ(unsound("negative", Rule(regular).linear({0})), 0U);
}

// Two all_reduces of one value for each of 16 rows, of which a rank receives 2 (n - 1) / n; none if rows are split.
TEST(VerifyRules, CountsCommunicationOfKernels) {
  const auto softmax = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_softmax", "");
  const Sample sample{softmax, {at::randn({16, 8}), 1, false}};
  EXPECT_EQ(kernel_traffic(sample, 4, {{Shard(1)}}), 2 * 16 * 4 * 2 * 3 / 4);
  EXPECT_EQ(kernel_traffic(sample, 4, {{Shard(0)}}), 0);
}

}  // namespace
}  // namespace dtensor::verify
