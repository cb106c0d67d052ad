// Compares every recorded call, under every placement on four thread ranks, with the result of one device. Expected
// refusals are listed here. There are two recordings: the cases of peers, and more shapes and dtypes
// (tools/aten_cases/record.py).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "aten_cases/run_case.h"
#include "support/data.h"

namespace dtensor::cases {
namespace {

const std::vector<Case>& recorded() {
  static const std::vector<Case> all = [] {
    auto cases = load_cases(test::data_path("aten_cases"));
    for (Case& c : load_cases(test::data_path("aten_cases/more"))) cases.push_back(std::move(c));
    return cases;
  }();
  return all;
}

// Expected refusals, by operator and configuration.
bool is_refused(const Case& c, const Config& config) {
  static const std::set<std::pair<std::string, std::string>> refused = {};
  return refused.count({c.op(), config.name}) != 0;
}

TEST(AtenCases, OneDeviceGivesTheRecordedValues) {
  for (const Case& c : recorded()) {
    const auto args = c.arguments([](const at::Tensor& t) { return t; });
    torch::jit::Stack stack(args.begin(), args.end());
    c.handle().callBoxed(stack);
    const auto expected = c.results();
    ASSERT_EQ(stack.size(), expected.size()) << c.text();
    for (std::size_t i = 0; i < stack.size(); ++i) {
      if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
      const at::Tensor a = stack[i].toTensor(), e = expected[i].toTensor();
      const bool narrow = c10::isFloat8Type(a.scalar_type());
      const double tolerance =
          c10::isReducedFloatingType(a.scalar_type()) ? 2e-2 : 1e-4;  // rounding depends on the processor
      EXPECT_TRUE(narrow || at::allclose(a, e, tolerance, tolerance, true)) << c.text();
    }
  }
}

class AtenCasesUnder : public testing::TestWithParam<std::size_t> {};

TEST_P(AtenCasesUnder, EqualOneDevice) {
  const Config& config = configs()[GetParam()];
  for (const Case& c : recorded()) {
    const auto distinct = distinct_configs(c);
    if (std::find(distinct.begin(), distinct.end(), &config) == distinct.end()) continue;
    const Outcome outcome = run_case(c, config);
    const bool fine =
        is_refused(c, config) ? outcome.kind == Outcome::Kind::raise : outcome.kind == Outcome::Kind::pass;
    EXPECT_TRUE(fine) << config.name << " " << c.text() << "\n" << outcome.text;
  }
}

INSTANTIATE_TEST_SUITE_P(Placements, AtenCasesUnder, testing::Range<std::size_t>(0, configs().size()),
                         [](const auto& info) { return "c" + configs()[info.param].name; });

}  // namespace
}  // namespace dtensor::cases
