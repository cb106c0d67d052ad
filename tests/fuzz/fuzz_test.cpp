// Invalid calls end with the same result on every rank, without a crash or a hang, and leave the library usable.
// `build/release/tools/fuzz --draws 20000` runs more calls and repeats one by its number.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "fuzz/guard.h"
#include "fuzz/run.h"
#include "fuzz/sweep.h"
#include "support/data.h"

namespace dtensor::fuzz {
namespace {

const CallSource& source() {
  static CallSource all = [] {
    at::set_num_threads(1);  // forked children have no thread pool
    guard_memory();
    CallSource calls(test::data_path("aten_cases"));
    return keep_valid(calls), calls;
  }();
  return all;
}

// One in a hundred calls of `tools/fuzz --sweep`: every overload with tensors of 0 to 6 dimensions.
TEST(Fuzz, AnyNumberOfDimensionsGivesEqualResultsOnAllRanks) {
  guard_memory();
  const auto calls = sweep_calls();
  constexpr std::size_t kApart = 97;  // coprime to the number of dimensions
  const auto count = static_cast<int>(calls.size() / kApart);
  ASSERT_GT(count, 300);
  const Report report =
      run_draws([&](int i) { return sweep_draw(calls, 1, static_cast<std::size_t>(i) * kApart); }, 0, count);
  for (const auto& text : report.wrong) ADD_FAILURE() << text;
}

TEST(Fuzz, InvalidCallsGiveEqualResultsOnAllRanks) {
  ASSERT_GT(source().overloads(), 600u);
  constexpr std::uint64_t seed = 1;
  const Report report =
      run_draws([](int i) { return draw_call(source(), seed, static_cast<std::uint64_t>(i)); }, 0, 300);
  for (const auto& text : report.wrong) ADD_FAILURE() << "seed " << seed << ": " << text;
}

}  // namespace
}  // namespace dtensor::fuzz
