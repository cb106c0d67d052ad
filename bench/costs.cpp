// Communication and memory of a training step, compared with a formula of sizes (tests/costs): a table in Markdown.
// Exit status 1 if they differ.
#include "costs/cases.h"
#include "costs/formula.h"

#include <iostream>

namespace {

costs::Count total(const costs::Counts& counts) {
  costs::Count sum;
  for (const auto& [key, count] : counts) sum.calls += count.calls, sum.bytes += count.bytes;
  return sum;
}

std::string both(std::int64_t measured, std::int64_t formula) {
  return measured == formula ? c10::str(measured) : c10::str("**", measured, " for ", formula, "**");
}

}  // namespace

int main() {
  const auto corpus = train::Corpus::read({}, 8);
  bool equal = true;
  std::cout << "| layout | collectives | bytes received | parameters | gathered at the peak |\n|---|---|---|---|---|\n";
  for (const auto& [name, options] : costs::all_cases()) {
    if (options.checkpoint_activations) continue;
    const auto step = costs::measure(options, corpus);
    const costs::Formula formula(options);
    const auto expected = formula.counts();
    const auto measured = total(step.counts), wanted = total(expected);
    equal = equal && step.counts == expected && step.measured.parameters == formula.parameter_bytes();
    std::cout << "| " << name << " | " << both(measured.calls, wanted.calls) << " | "
              << both(measured.bytes, wanted.bytes) << " | "
              << both(step.measured.parameters, formula.parameter_bytes()) << " | "
              << both(step.measured.gathered, formula.gathered_bytes()) << " |\n";
  }
  return equal ? 0 : 1;
}
