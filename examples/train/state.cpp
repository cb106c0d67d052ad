// Saves and loads of a run.
#include "state.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <bit>
#include <cstdio>

#include "signals.h"

namespace train {

RunState::RunState(const Options& options, dtensor::Communicator world)
    : options_(options),
      world_(std::move(world)),
      seed_(std::bit_cast<std::int64_t>(options.seed)),
      batch_(options.batch),
      sequence_(options.seq) {
  parts_.add("step", step_).add("seed", seed_).add("batch", batch_).add("sequence", sequence_);
}

void RunState::say(const std::string& line) const {
  if (world_.rank() == 0) std::fputs((line + "\n").c_str(), stderr);
}

std::string RunState::take_up() {
  if (!options_.load.empty()) {
    parts_.load(options_.load, world_);
    return options_.load;
  }
  if (options_.resume.empty()) return "";
  const std::string from = options_.resume == "latest" ? options_.save : options_.resume;
  const bool own = series_ && options_.resume == "latest";
  const auto loaded = own ? series_->load_newest(parts_) : dtensor::load_newest(parts_, from, world_);
  for (const std::string& why : loaded.passed_over) say("passed over, damaged: " + why);
  say(loaded.path.empty() ? "nothing to resume in " + from + ": beginning at step 0"
                          : fmt::format("going on after step {} from {}", step_, loaded.path));
  return loaded.path;
}

std::int64_t RunState::begin() {
  if (!world_) return 0;
  if (options_.keep > 0) series_.emplace(options_.save, world_, options_.keep);
  const std::string from = take_up();
  if (from.empty()) return 0;
  if (std::bit_cast<std::uint64_t>(seed_) != options_.seed || batch_ != options_.batch || sequence_ != options_.seq) {
    throw UsageError(fmt::format("{} was trained with --seed {} --batch {} --seq {}", from,
                                 std::bit_cast<std::uint64_t>(seed_), batch_, sequence_));
  }
  if (step_ >= options_.steps) {
    throw UsageError(
        fmt::format("{} has {} steps behind it, and --steps {} asks for no more", from, step_, options_.steps));
  }
  return step_;
}

// A signal may have reached one process only, or each at another step.
int RunState::requested() const {
  const at::Tensor signal = at::full({1}, LeaveSignals::received(), at::kInt);
  world_.all_reduce(signal, dtensor::ReduceOp::max).wait();
  return signal.item<int>();
}

int RunState::after(std::int64_t step) {
  if (!world_ || options_.save.empty()) return 0;
  step_ = step + 1;
  const bool last = step_ == options_.steps;
  const int signal = last ? 0 : requested();
  const bool due = options_.save_every > 0 && step_ % options_.save_every == 0;
  if (last || signal != 0 || due) save(last || signal != 0);
  if (signal != 0) {
    say(fmt::format("{}: saved to {} after step {} of {}; --resume goes on", LeaveSignals::name(signal),
                    options_.keep > 0 ? dtensor::checkpoint_of_step(options_.save, step_) : options_.save, step_,
                    options_.steps));
  }
  return signal;
}

void RunState::save(bool wait) {
  if (series_) return wait ? series_->save(parts_, step_) : series_->save_async(parts_, step_);
  if (pending_) pending_->wait();
  pending_.reset();
  if (wait) return parts_.save(options_.save, world_);
  pending_ = parts_.save_async(options_.save, world_);
}

}  // namespace train
