// Saves and loads of a run.
#include "state.h"

#include <fmt/format.h>

#include <bit>

namespace train {

RunState::RunState(const Options& options, dtensor::Communicator world)
    : options_(options),
      world_(std::move(world)),
      seed_(std::bit_cast<std::int64_t>(options.seed)),
      batch_(options.batch),
      sequence_(options.seq) {
  parts_.add("step", step_).add("seed", seed_).add("batch", batch_).add("sequence", sequence_);
}

std::int64_t RunState::begin() {
  if (!world_ || options_.load.empty()) return 0;
  parts_.load(options_.load, world_);
  if (std::bit_cast<std::uint64_t>(seed_) != options_.seed || batch_ != options_.batch || sequence_ != options_.seq) {
    throw UsageError(fmt::format("--load: {} was trained with --seed {} --batch {} --seq {}", options_.load,
                                 std::bit_cast<std::uint64_t>(seed_), batch_, sequence_));
  }
  if (step_ >= options_.steps) {
    throw UsageError(fmt::format("--load: {} has {} steps behind it, and --steps {} asks for no more", options_.load,
                                 step_, options_.steps));
  }
  return step_;
}

void RunState::after(std::int64_t step) {
  if (!world_ || options_.save.empty()) return;
  step_ = step + 1;
  const bool last = step_ == options_.steps;
  if (!last && (options_.save_every == 0 || step_ % options_.save_every != 0)) return;
  if (pending_) pending_->wait();
  pending_.reset();
  if (last) {
    parts_.save(options_.save, world_);
  } else {
    pending_ = parts_.save_async(options_.save, world_);
  }
}

}  // namespace train
