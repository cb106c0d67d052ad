// Costs are contracts: the communication and memory of a training step equal a formula, to the byte.
#include <gtest/gtest.h>

#include "costs/cases.h"
#include "costs/formula.h"

namespace costs {
namespace {

std::string text(const Counts& counts) {
  std::string all;
  for (const auto& [key, count] : counts) all += c10::str("  ", key, ": ", count.calls, " calls, ", count.bytes, "\n");
  return all;
}

struct Measured {
  Case the;
  Step step;
};

// Each case runs once for all tests.
const std::vector<Measured>& all_measured() {
  static const auto all = [] {
    const auto corpus = train::Corpus::read({}, 8);
    std::vector<Measured> measured;
    for (const auto& the : all_cases()) measured.push_back({the, measure(the.options, corpus)});
    return measured;
  }();
  return all;
}

TEST(Costs, CommunicationOfAStepEqualsTheFormula) {
  for (const auto& [the, step] : all_measured()) {
    const auto& [name, options] = the;
    const auto expected = Formula(options).counts();
    EXPECT_EQ(step.calls.misses, 0U) << name;
    EXPECT_EQ(step.by_module, step.all) << name << "\nCommDebugMode\n" << text(step.by_module) << text(step.all);
    EXPECT_EQ(step.counts, expected) << name << "\nmeasured\n" << text(step.counts) << "formula\n" << text(expected);
  }
}

TEST(Costs, MemoryOfAStepEqualsTheFormula) {
  for (const auto& [the, step] : all_measured()) {
    const auto& [name, options] = the;
    const Formula formula(options);
    EXPECT_EQ(step.measured.parameters, formula.parameter_bytes()) << name;
    EXPECT_EQ(step.measured.gradients, formula.parameter_bytes()) << name;
    EXPECT_EQ(step.measured.optimizer, 2 * formula.parameter_bytes()) << name;
    // Full gradients of all units stay in memory from the first piece to the last, or of one unit while it is reduced.
    // Shards wait for the sum over replicas.
    if (options.grad_accum > 1 && !options.accumulate_sharded) {
      EXPECT_EQ(step.measured.unreduced, formula.waiting_bytes()) << name;
    } else if (options.grad_accum > 1) {
      const auto shards = options.mesh->replicate > 1 ? formula.parameter_bytes() : 0;
      EXPECT_LE(step.measured.unreduced, formula.largest_gradient_bytes() + shards) << name;
    }
    // A recomputed block is used both before and after the unit of its experts.
    const bool both = options.experts && options.checkpoint_activations;
    const auto units = formula.units();
    const auto slack = both ? std::min(units[0].flat(), units[1].flat()) : 0;
    EXPECT_LE(step.measured.gathered, formula.gathered_bytes() + slack) << name;
    // Experts keep no share, so the experts of some blocks are in memory at the same time.
    const bool some = options.experts && formula.gathered_bytes() > formula.in_use_bytes();
    EXPECT_GE(step.measured.gathered, some ? formula.in_use_bytes() + 1 : formula.gathered_bytes()) << name;
  }
}

// A benchmark repeats one call, but in a training step every result is a new tensor.
TEST(Costs, LayersOfAStepTakeTheFastPath) {
  for (const auto& [the, step] : all_measured()) {
    const auto& [name, options] = the;
    const auto& calls = step.calls;
    if (options.grad_accum > 1) continue;
    std::size_t parameters = 0;
    for (const auto& unit : Formula(options).units()) parameters += unit.parameters.size();
    EXPECT_GT(calls.hits, 200U) << name;
    const auto layers = static_cast<std::uint64_t>(options.layers);
    const auto again = options.checkpoint_activations ? layers : 0;
    // Keys are built for lists that are clipped and updated, for inputs detached for recomputation, and for parameters,
    // whose memory is checked individually. In bf16 each parameter is cast, and the casts exceed the memory for recent
    // calls.
    EXPECT_LE(calls.key_lookups - calls.boxed_hits, (options.bf16 ? 2 : 1) * parameters + again + 3) << name;
    if (options.mesh->tp > 1 || options.experts) continue;  // sums over tp do not take the fast path
    // Forward and backward: the attention of each layer (once more if recomputed), embedding and loss.
    EXPECT_EQ(calls.boxed_hits, 2 * (layers + 2) + again) << name;
  }
}

}  // namespace
}  // namespace costs
