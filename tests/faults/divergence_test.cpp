// Divergence that no collective would detect: Checked names the operator, the ranks and the module.
#include "faults/divergence.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "comm/record/call_history.h"
#include "faults/errors.h"

namespace dtensor::test {
namespace {

// Sets DTENSOR_CHECKED for one test and restores its value.
class CheckedVariable {
 public:
  explicit CheckedVariable(const char* value) { value == nullptr ? ::unsetenv(kName) : ::setenv(kName, value, 1); }
  ~CheckedVariable() { former_.has_value() ? ::setenv(kName, former_->c_str(), 1) : ::unsetenv(kName); }

 private:
  static constexpr auto kName = "DTENSOR_CHECKED";
  std::optional<std::string> former_ =
      std::getenv(kName) ? std::optional<std::string>(std::getenv(kName)) : std::nullopt;
};

void expect_reported(const Divergence& kind, const std::string& text, int rank) {
  for (const auto& part : {std::string("their operators differ, first in call"), kind.says,
                           std::string("rank 1 called"), std::string("block.layer")}) {
    EXPECT_TRUE(contains(text, part)) << kind.name << ", rank " << rank << ", lacks " << part << ": " << text;
  }
}

TEST(Divergence, EveryKindIsReportedOnEveryRank) {
  EXPECT_GE(divergences().size(), 40u);
  for (const auto& kind : divergences()) {
    for (const int ranks : {2, 3}) {
      const auto errors = errors_of(ranks, [&](Communicator world) {
        const Checked checked(Checks::calls);
        run_divergence(kind, world, world.rank() == 1);
      });
      for (int r = 0; r < ranks; ++r) expect_reported(kind, errors[static_cast<std::size_t>(r)], r);
    }
  }
}

TEST(Divergence, RankWithoutCallsReportsCallsOfOthers) {
  const auto errors = errors_of(2, [](Communicator world) {
    const Checked checked(Checks::calls);
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2});
    const DTensor x = distribute_tensor(at::ones({4}), mesh, {Shard(0)});
    if (world.rank() == 1) x + 1;
    x.full_tensor();
  });
  for (const auto& text : errors) {
    EXPECT_TRUE(contains(text, "first in call 1: rank 0 called none; rank 1 called aten::add")) << text;
  }
}

TEST(Divergence, EqualProgramsHaveNoError) {
  for (const auto& kind : divergences()) {
    for (const bool astray : {false, true}) {
      const auto errors = errors_of(2, [&](Communicator world) {
        const Checked checked(Checks::calls);
        run_divergence(kind, world, astray);
      });
      for (const auto& text : errors) EXPECT_EQ(text, "") << kind.name;
    }
  }
}

// The divergence stays undetected: sums and means move the same bytes.
TEST(Divergence, IsNotDetectedWithoutChecks) {
  const CheckedVariable unset(nullptr);
  const auto kind = divergences()[0];
  const auto errors = errors_of(2, [&](Communicator world) { run_divergence(kind, world, world.rank() == 1); });
  for (const auto& text : errors) EXPECT_EQ(text, "") << kind.name;
}

TEST(Divergence, EnvironmentVariableEnablesChecks) {
  const auto kind = divergences()[0];
  for (const char* value : {"calls", "values"}) {
    const CheckedVariable variable(value);
    const auto errors = errors_of(2, [&](Communicator world) { run_divergence(kind, world, world.rank() == 1); });
    for (int r = 0; r < 2; ++r) expect_reported(kind, errors[static_cast<std::size_t>(r)], r);
  }
  const CheckedVariable variable("call");
  try {
    run_local(2, [](const Communicator&) {});
    FAIL() << "an unknown value of DTENSOR_CHECKED was accepted";
  } catch (const c10::Error& e) {
    EXPECT_TRUE(contains(e.what(), "DTENSOR_CHECKED: expected calls or values, got call")) << e.what();
  }
}

TEST(Divergence, FirstDifferenceNamesRanksAndCall) {
  const auto line = [](std::uint64_t number, std::uint64_t signature, const char* text) {
    return CallHistory::Line{number, signature, text};
  };
  const std::vector<CallHistory::Line> usual{line(1, 10, "a"), line(2, 20, "b"), line(3, 30, "c")};
  EXPECT_EQ(first_difference({{0, 3, 30, usual}, {1, 3, 30, usual}}), "");
  EXPECT_EQ(
      first_difference(
          {{0, 3, 30, usual}, {5, 3, 31, {line(1, 10, "a"), line(2, 21, "x"), line(3, 31, "c")}}, {7, 3, 30, usual}}),
      "first in call 2: ranks 0, 7 called b; rank 5 called x");
  EXPECT_EQ(first_difference({{0, 3, 30, usual}, {1, 2, 20, {line(1, 10, "a"), line(2, 20, "b")}}}),
            "first in call 3: rank 0 called c; rank 1 called none after it");
  EXPECT_EQ(first_difference({{0, 3, 30, {line(3, 30, "c")}}, {1, 3, 31, {line(3, 31, "c")}}}),
            "before or in call 3: rank 0 called c; rank 1 called c (with other arguments)");
  EXPECT_EQ(first_difference({{0, 3, 30, usual}, {1, 0, 0, {}}}), "");
}

// A random rank changes a random operator of a random program; the error names the first difference.
TEST(Divergence, FirstDifferentOperatorIsNamed) {
  for (int trial = 0; trial < campaign(20); ++trial) {
    const int ranks = 2 + trial % 3, culprit = trial % ranks, length = 5 + trial % 200, at = (trial * 37) % length;
    const auto errors = errors_of(ranks, [&](Communicator world) {
      const Checked checked(Checks::calls);
      at::Tensor x = make_tensors(world).a.detach();  // call 1
      for (int i = 0; i < length; ++i) x = world.rank() == culprit && i == at ? x.sigmoid() : x.tanh();
      DTensor(x.sum()).full_tensor();
    });
    const bool remembered = length - at < static_cast<int>(CallHistory::kKept) - 2;
    for (const auto& text : errors) {
      if (remembered) {
        EXPECT_TRUE(contains(text, "first in call " + std::to_string(at + 2) + ":")) << text;
        EXPECT_TRUE(contains(text, "rank " + std::to_string(culprit) + " called aten::sigmoid(")) << text;
      } else {
        EXPECT_TRUE(contains(text, "before or in call ")) << text;
      }
    }
  }
}

TEST(Divergence, BackwardIsCheckedAndNamesTheModule) {
  const auto errors = errors_of(2, [&](Communicator world) {
    const Checked checked(Checks::calls);
    const auto t = make_tensors(world);
    static const std::string name = "mlp";
    at::Tensor y;
    {
      const ModuleScope scope(name);
      y = t.a.tanh();
    }
    if (world.rank() == 1) y.register_hook([](const at::Tensor& g) { return g * 2; });
    y.sum().backward();
    DTensor(t.a.grad().sum()).full_tensor();
  });
  for (const auto& text : errors) {
    EXPECT_TRUE(contains(text, "their operators differ")) << text;
    EXPECT_TRUE(contains(text, "tanh_backward")) << text;
    EXPECT_TRUE(contains(text, "in the backward pass of mlp")) << text;
  }
}

}  // namespace
}  // namespace dtensor::test
