// Saves and loads a run.
#include "state.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <filesystem>

#include "signals.h"
#include "train/output/progress.h"

namespace train {

RunState::RunState(const RunFlags& flags, const RunText& text, std::string model_flags, dtensor::Communicator world)
    : flags_(flags),
      text_(text),
      model_flags_(std::move(model_flags)),
      world_(std::move(world)),
      seed_(std::bit_cast<std::int64_t>(flags.seed)),
      batch_(flags.batch),
      sequence_(flags.seq),
      saved_text_(text),
      saved_model_flags_(model_flags_) {
  parts_.add("step", step_).add("seed", seed_).add("batch", batch_).add("sequence", sequence_);
  parts_.add("tokens", saved_text_.tokens).add("text", saved_text_.fingerprint);
  parts_.add("documents", saved_text_.documents).add("model_flags", saved_model_flags_);
}

void RunState::say(const std::string& line) const {
  if (world_.rank() != 0) return;
  const char* erased = isatty(STDERR_FILENO) == 1 ? "\r\033[K" : "";  // The progress bar.
  std::fputs((erased + line + "\n").c_str(), stderr);
}

namespace {

// The tensors of the checkpoint, or of the newest undamaged one in the folder.
std::vector<dtensor::CheckpointEntry> newest_entries(const std::string& folder) {
  std::vector<std::string> paths{folder};
  for (const auto step : dtensor::checkpoint_steps(folder)) paths.push_back(dtensor::checkpoint_of_step(folder, step));
  for (const std::string& path : paths) {
    try {
      return dtensor::read_checkpoint_index(path).entries;
    } catch (const c10::Error&) {  // Loading says why.
    }
  }
  return {};
}

// Whether it was written by a version in which the model of `train` had other names.
bool has_former_names(const std::string& folder) {
  const auto entries = newest_entries(folder);
  return std::any_of(entries.begin(), entries.end(), [](const auto& e) { return e.name == "model.wte.weight"; });
}

dtensor::LoadOptions load_options(const std::string& folder) {
  if (!has_former_names(folder)) return {};
  return {.names = {{"**.embed.**", "**.wte.**"},
                    {"**.layers.*.attn_norm.**", "**.h.*.ln1.**"},
                    {"**.layers.*.mlp_norm.**", "**.h.*.ln2.**"},
                    {"**.layers.*.mlp.up_proj.**", "**.h.*.mlp.ffn1.**"},
                    {"**.layers.*.mlp.down_proj.**", "**.h.*.mlp.ffn2.**"},
                    {"**.layers.*.**", "**.h.*.**"},
                    {"**.norm.**", "**.ln.**"},
                    {"**", "**"}}};
}

}  // namespace

std::string RunState::resume_run() {
  if (!flags_.load.empty()) {
    parts_.load(flags_.load, world_, load_options(flags_.load));
    return flags_.load;
  }
  if (flags_.resume.empty()) return "";
  const std::string from = flags_.resume == "latest" ? flags_.save : flags_.resume;
  const bool own = series_ && flags_.resume == "latest";
  const auto how = load_options(from);
  const auto loaded = own ? series_->load_newest(parts_, how) : dtensor::load_newest(parts_, from, world_, how);
  for (const std::string& why : loaded.skipped_checkpoints) say("skipped, damaged: " + why);
  say(loaded.path.empty() ? "nothing to resume in " + from + ": starting at step 0"
                          : fmt::format("resuming after step {} from {}", step_, loaded.path));
  return loaded.path;
}

// The batch of a step depends on these only.
void RunState::check_batches(const std::string& from) const {
  if (std::bit_cast<std::uint64_t>(seed_) != flags_.seed || batch_ != flags_.batch || sequence_ != flags_.seq) {
    throw UsageError(fmt::format("{} was trained with --seed {} --batch {} --seq {}", from,
                                 std::bit_cast<std::uint64_t>(seed_), batch_, sequence_));
  }
  if (saved_text_.tokens != text_.tokens || saved_text_.fingerprint != text_.fingerprint) {
    throw UsageError(
        fmt::format("{} was trained on another text (--data and --tokenizer) of {} tokens; this one has {}", from,
                    saved_text_.tokens, text_.tokens));
  }
  if (saved_text_.documents != text_.documents) {
    throw UsageError(fmt::format("{} was trained {} --documents", from, saved_text_.documents ? "with" : "without"));
  }
}

// With other flags the parameters would belong to a different function.
void RunState::check_model(const std::string& from) const {
  if (saved_model_flags_ == model_flags_) return;
  throw UsageError(fmt::format("{} was trained with {}, not with {}", from, saved_model_flags_, model_flags_));
}

std::int64_t RunState::begin() {
  if (!world_) return 0;
  if (flags_.keep > 0) series_.emplace(flags_.save, world_, flags_.keep);
  const std::string from = resume_run();
  if (from.empty()) return 0;
  check_batches(from);
  check_model(from);
  if (step_ >= flags_.steps) {
    throw UsageError(fmt::format("{} has done {} steps already, and --steps is {}", from, step_, flags_.steps));
  }
  return step_;
}

// A signal may have reached one process only, or processes at different steps.
int RunState::requested() const {
  const at::Tensor signal = at::full({1}, TerminationSignals::received(), at::kInt);
  world_.all_reduce(signal, dtensor::ReduceOp::max).wait();
  return signal.item<int>();
}

int RunState::after(std::int64_t step) {
  if (!world_ || flags_.save.empty()) return 0;
  step_ = step + 1;
  const bool last = step_ == flags_.steps;
  const int signal = last ? 0 : requested();
  const bool due = flags_.save_every > 0 && step_ % flags_.save_every == 0;
  if (last || signal != 0 || due) save(last || signal != 0);
  if (signal != 0) {
    say(fmt::format("{}: {}; --resume continues the run", TerminationSignals::name(signal), saved(step_)));
  } else if (last) {
    say(saved(step_));
  }
  return signal;
}

std::string RunState::saved(std::int64_t step) const {
  const std::string path = series_ ? dtensor::checkpoint_of_step(flags_.save, step) : flags_.save;
  if (world_.rank() != 0) return "";
  double bytes = 0;
  std::error_code none;
  for (const auto& file : std::filesystem::directory_iterator(path, none)) {
    const auto size = file.file_size(none);
    if (!none) bytes += static_cast<double>(size);
  }
  return fmt::format("saved to {} after step {} of {}: {}", path, step, flags_.steps, bytes_text(bytes));
}

void RunState::finish_background() {
  if (background_step_ == 0) return;
  if (series_) series_->finish();
  if (pending_) pending_->wait();
  pending_.reset();
  say(saved(std::exchange(background_step_, 0)));
}

void RunState::save(bool wait) {
  finish_background();
  if (before_save_) before_save_();
  if (wait) return series_ ? series_->save(parts_, step_) : parts_.save(flags_.save, world_);
  background_step_ = step_;
  if (series_) return series_->save_async(parts_, step_);
  pending_ = parts_.save_async(flags_.save, world_);
}

}  // namespace train
