// Passes each step to all outputs.
#include "train/output/run_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace train {

RunOutput::RunOutput(const RunFlags& flags, bool writes)
    : writes_(writes), log_(writes ? flags.log : ""), board_(writes ? flags.tensorboard : ""), progress_(flags.steps) {}

void RunOutput::add(const StepRecord& r) {
  if (!writes_) return;
  if (losses_.empty()) first_step_ = r.step;
  losses_.push_back(r.loss);
  log_.add(r);
  const std::int64_t done = r.step + 1;
  board_.add("loss", done, r.loss);
  board_.add("gradient norm", done, r.grad_norm);
  board_.add("learning rate", done, r.lr);
  board_.add("tokens per second", done, static_cast<double>(r.tokens) / std::max(r.seconds, 1e-9));
  for (const auto& [axis, bytes] : r.moved) board_.add("bytes received/" + axis, done, static_cast<double>(bytes));
  board_.flush();
  progress_.show(r);
}

void RunOutput::add_evaluation(std::int64_t steps, double loss) {
  if (!writes_) return;
  board_.add("evaluation/loss", steps, loss);
  board_.flush();
  fmt::print("evaluation after {} steps: loss {:.6f}, perplexity {:.4f}\n", steps, loss, std::exp(loss));
  std::fflush(stdout);
}

void RunOutput::close() {
  log_.close();
  board_.close();
}

}  // namespace train
