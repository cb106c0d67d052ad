// Calls with mistakes end alike on every rank, never by a crash or a wait without end, and leave the engine right.
// `build/release/tools/fuzz --draws 20000` makes as many as you like and repeats one by its number.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "fuzz/guard.h"
#include "fuzz/run.h"
#include "support/data.h"

namespace dtensor::fuzz {
namespace {

const CallSource& source() {
  static CallSource all = [] {
    at::set_num_threads(1);  // children have no pool
    guard_memory();
    CallSource calls(test::data_path("aten_cases"));
    return keep_valid(calls), calls;
  }();
  return all;
}

TEST(Fuzz, CallsWithMistakesEndAlikeOnEveryRank) {
  ASSERT_GT(source().overloads(), 600u);
  constexpr std::uint64_t seed = 1;
  const Report report =
      run_draws([](int i) { return draw_call(source(), seed, static_cast<std::uint64_t>(i)); }, 0, 300);
  for (const auto& text : report.wrong) ADD_FAILURE() << "seed " << seed << ": " << text;
}

}  // namespace
}  // namespace dtensor::fuzz
