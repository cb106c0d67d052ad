// Costs are contracts: what a step communicates and holds is what a formula says, to the byte.
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

TEST(Costs, AStepCommunicatesWhatTheFormulaSays) {
  for (const auto& [the, step] : all_measured()) {
    const auto& [name, options] = the;
    const auto expected = Formula(options).counts();
    EXPECT_EQ(step.calls.misses, 0U) << name;
    EXPECT_EQ(step.by_module, step.all) << name << "\nCommDebugMode\n" << text(step.by_module) << text(step.all);
    EXPECT_EQ(step.counts, expected) << name << "\nmeasured\n" << text(step.counts) << "formula\n" << text(expected);
  }
}

TEST(Costs, AStepHoldsWhatTheFormulaSays) {
  for (const auto& [the, step] : all_measured()) {
    const auto& [name, options] = the;
    const Formula formula(options);
    EXPECT_EQ(step.measured.parameters, formula.parameter_bytes()) << name;
    EXPECT_EQ(step.measured.gradients, formula.parameter_bytes()) << name;
    EXPECT_EQ(step.measured.optimizer, 2 * formula.parameter_bytes()) << name;
    EXPECT_EQ(step.predicted.parameters, formula.parameter_bytes()) << name;
    EXPECT_EQ(step.predicted.gradients, formula.parameter_bytes()) << name;
    EXPECT_EQ(step.predicted.optimizer, 2 * formula.parameter_bytes()) << name;
    EXPECT_EQ(step.predicted.gathered, formula.gathered_bytes()) << name;
    EXPECT_LE(step.measured.unreduced, step.predicted.unreduced) << name;
    // Several pieces: the gradients of all units wait for the last one, in full, from the first one on.
    if (options.grad_accum > 1) {
      EXPECT_EQ(step.measured.unreduced, formula.waiting_bytes()) << name;
    }
    // A block that is recomputed is used before its experts' unit and after.
    const bool both = options.experts && options.checkpoint_activations;
    const auto units = formula.units();
    const auto slack = both ? std::min(units[0].flat(), units[1].flat()) : 0;
    EXPECT_LE(step.measured.gathered, formula.gathered_bytes() + slack) << name;
    // Where experts are in use, which keep no share, those of some blocks lie beside them.
    const bool some = options.experts && formula.gathered_bytes() > formula.in_use_bytes();
    EXPECT_GE(step.measured.gathered, some ? formula.in_use_bytes() + 1 : formula.gathered_bytes()) << name;
  }
}

// What a benchmark calls over and over is no training step, of which each result is new.
TEST(Costs, LayersOfAStepTakeTheShortWay) {
  for (const auto& [the, step] : all_measured()) {
    const auto& [name, options] = the;
    const auto& calls = step.calls;
    if (options.grad_accum > 1) continue;
    std::size_t parameters = 0;
    for (const auto& unit : Formula(options).units()) parameters += unit.parameters.size();
    EXPECT_GT(calls.hits, 200U) << name;
    const auto layers = static_cast<std::uint64_t>(options.layers);
    const auto again = options.checkpoint_activations ? layers : 0;
    // Keys are built of the lists that are clipped and updated, of the inputs that are detached to be recomputed from,
    // and of parameters, whose memory is looked at one by one; in bf16 each is cast, of more kinds than are remembered.
    EXPECT_LE(calls.key_lookups - calls.boxed_hits, (options.bf16 ? 2 : 1) * parameters + again + 3) << name;
    if (options.mesh->tp > 1 || options.experts) continue;  // what is summed over tp is no simple call
    // There and back: each layer's attention (recomputed: there again), embedding and loss.
    EXPECT_EQ(calls.boxed_hits, 2 * (layers + 2) + again) << name;
  }
}

}  // namespace
}  // namespace costs
