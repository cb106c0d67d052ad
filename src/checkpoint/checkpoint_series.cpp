// The checkpoints of a run: lists them, loads the newest intact one and removes old ones. A dry run has none.
#include "dtensor/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>

#include "checkpoint/collective_errors.h"
#include "checkpoint/format/files/folder_lock.h"
#include "checkpoint/format/files/saved_folder.h"
#include "dtensor/comm.h"
#include "internal/ranks/heartbeat_scope.h"
#include "internal/simulated.h"

namespace dtensor {
namespace files {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStep = "step-";
constexpr const char* kLatest = "latest";
constexpr int kDigits = 8;  // at least, so that names sort like numbers

std::string number_text(std::int64_t step) {
  const std::string text = std::to_string(step);
  return std::string(static_cast<std::size_t>(std::max<std::int64_t>(0, kDigits - std::ssize(text))), '0') + text;
}

// Returns -1 if `name` is not a step's folder.
std::int64_t step_of(const std::string& name) {
  if (!name.starts_with(kStep)) return -1;
  const std::string digits = name.substr(std::string(kStep).size());
  std::int64_t step = -1;
  std::from_chars(digits.data(), digits.data() + digits.size(), step);
  return step >= 0 && digits == number_text(step) ? step : -1;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  const fs::directory_iterator entries(folder, error);
  TORCH_CHECK(!error || is_absent(error), "cannot read the folder ", folder, ": ", error.message());
  for (const auto& entry : entries) names.push_back(entry.path().filename().string());
  return names;
}

// Whether `rest`, the part after "latest.", is a suffix that point_latest() adds. Other files are kept.
bool is_unfinished_link(const std::string& path, const std::string& rest) {
  return fs::is_symlink(path) && std::regex_match(rest, std::regex(".+-[0-9]+-[0-9]+"));
}

// Removes what a killed run left next to the step folders. The caller must hold the lock of the series.
void clean_up_series(const std::string& root) {
  for (const std::string& name : names_in(root)) {
    const auto dot = name.find('.');
    if (dot == std::string::npos) continue;
    const std::string path = root + "/" + name, base = name.substr(0, dot), rest = name.substr(dot + 1);
    const bool of_step = step_of(base) >= 0;
    if (base == kLatest ? is_unfinished_link(path, rest) : of_step && rest == "lock") fs::remove(path);
    if (of_step && rest.starts_with("saving")) clean_up(root + "/" + base);
  }
}

// Renames the folder first, so that an interruption leaves no partial checkpoint. Of a link, only the link is removed.
void remove_checkpoint(const std::string& folder) {
  if (fs::is_symlink(folder)) {
    fs::remove(folder);
    return;
  }
  if (!only_checkpoint_files(folder)) return;
  const std::string going = make_temporary(folder);
  fs::rename(folder, going);
  remove_folder(going);
}

// Replaces the link atomically; on file systems without links there is none.
void point_latest(const std::string& root, std::int64_t step) {
  const std::string link = root + "/" + kLatest, fresh = link + "." + unique_name();
  std::error_code error;
  fs::create_symlink(kStep + number_text(step), fresh, error);
  if (!error) fs::rename(fresh, link);
}

// Checkpoints newer than `step` are kept unless they are damaged: another run may have written them.
void rotate(const std::string& root, std::int64_t step, std::int64_t keep, const std::set<std::int64_t>& damaged) {
  point_latest(root, step);
  for (const std::int64_t old : checkpoint_steps(root)) {
    const bool stays = old != step && damaged.contains(old) ? false : old > step || keep-- > 0;
    if (!stays) remove_checkpoint(checkpoint_of_step(root, old));
  }
}

void check_root(const std::string& root) {
  std::error_code error;
  fs::create_directories(root, error);
  TORCH_CHECK(!error, "cannot create the folder ", root, ": ", error.message());
  for (const std::string& name : names_in(root)) {
    TORCH_CHECK(!is_checkpoint_file(name), root, " is a checkpoint itself (it contains '", name,
                "'); expected a folder for several checkpoints: move it away or use another name");
  }
}

// Newest first.
std::vector<std::string> candidates(const std::string& root) {
  std::vector<std::string> paths;
  for (const std::int64_t step : checkpoint_steps(root)) paths.push_back(checkpoint_of_step(root, step));
  if (!paths.empty()) return paths;
  if (!fs::exists(root)) {
    paths = find_moved_aside(root);
    std::reverse(paths.begin(), paths.end());
    return paths;
  }
  if (!fs::is_directory(root)) return {root};
  const auto names = names_in(root);
  if (std::any_of(names.begin(), names.end(), is_checkpoint_file)) paths.push_back(root);
  return paths;
}

// CBOR, because paths need not be UTF-8 as JSON requires.
std::string joined_errors(const std::vector<std::string>& texts) {
  const auto bytes = nlohmann::json::to_cbor(nlohmann::json(texts));
  return {bytes.begin(), bytes.end()};
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// Whether the error means that `path` is damaged. Temporary failures (too many open files, an unavailable server, no
// memory) and missing files do not.
bool is_damage_error(std::string why, const std::string& path) {
  c10::ReplaceAll(why, path, "");
  return why.find(" damaged") != std::string::npos || why.find(" is truncated") != std::string::npos;
}

// Returns an empty string on success, else the error. Mismatches (c10::ValueError) and failures of other ranks
// propagate.
std::string try_load(Checkpoint& state, const std::string& path, const Communicator& ranks,
                     const LoadOptions& options) {
  try {
    state.load(path, ranks, options);
    return "";
  } catch (const c10::ValueError&) {
    throw;
  } catch (const c10::Error& error) {
    return one_line(error.what_without_backtrace());
  }
}

// load_newest() that also returns the damaged ones among the skipped folders.
LoadedCheckpoint load_newest_readable(Checkpoint& state, const std::string& root, const Communicator& ranks,
                                      const LoadOptions& options, std::vector<std::string>& damaged) {
  if (is_simulating()) return {};
  const std::string what = "load the newest checkpoint of " + root;
  std::string text, error;
  if (ranks.rank() == 0) error = error_of([&] { text = joined_errors(candidates(strip_trailing_slash(root))); });
  raise_on_all(ranks, what, error);
  LoadedCheckpoint loaded;
  for (const std::string path : nlohmann::json::from_cbor(broadcast_string(ranks, text, 0))) {
    const std::string why = try_load(state, path, ranks, options);
    if (why.empty()) {
      loaded.path = path;
      return loaded;
    }
    loaded.skipped_checkpoints.push_back(why);
    if (is_damage_error(why, path)) damaged.push_back(path);
  }
  TORCH_CHECK(loaded.skipped_checkpoints.empty(), what,
              ": no checkpoint can be read: ", c10::Join("; ", loaded.skipped_checkpoints));
  return loaded;
}

}  // namespace
}  // namespace files

struct CheckpointSeries::Impl {
  std::string root, what;
  Communicator ranks;
  std::int64_t keep, pending_step = 0;
  std::unique_ptr<files::FolderLock> lock = {};  // on rank 0
  std::optional<PendingSave> pending = {};

  std::set<std::int64_t> damaged = {};

  void settle(std::int64_t step) {
    if (is_simulating()) return;
    const HeartbeatScope heartbeats(ranks);  // all ranks have just synchronized
    std::string error;
    if (ranks.rank() == 0) error = error_of([&] { files::rotate(root, step, keep, damaged); });
    raise_on_all(ranks, what, error);
    damaged.clear();
  }
  void finish() {
    if (!pending) return;
    PendingSave save = *std::exchange(pending, std::nullopt);
    save.wait();
    settle(pending_step);
  }
};

CheckpointSeries::CheckpointSeries(const std::string& root, const Communicator& ranks, std::int64_t keep)
    : impl_(new Impl{root, "save to " + root, ranks, keep}) {
  using namespace files;
  TORCH_CHECK(keep >= 1, "CheckpointSeries: expected keep >= 1, got ", keep);
  if (is_simulating()) return;
  std::string error;
  ranks.barrier();
  const HeartbeatScope heartbeats(ranks);  // all ranks are here; rank 0 may wait for a lock or a disk
  if (ranks.rank() == 0) {
    error = error_of([&] {
      impl_->root = resolve(root);
      check_root(impl_->root);
      impl_->lock = std::make_unique<FolderLock>(impl_->root);
      clean_up_series(impl_->root);
    });
  }
  raise_on_all(ranks, impl_->what, error);
  impl_->root = broadcast_string(ranks, impl_->root, 0);  // the resolved folder, equal on all ranks
}

CheckpointSeries::CheckpointSeries(CheckpointSeries&&) noexcept = default;
CheckpointSeries& CheckpointSeries::operator=(CheckpointSeries&&) noexcept = default;
CheckpointSeries::~CheckpointSeries() = default;

CheckpointSeries::Impl& CheckpointSeries::impl() const {
  TORCH_CHECK(impl_ != nullptr, "CheckpointSeries: this object was moved from");
  return *impl_;
}

LoadedCheckpoint CheckpointSeries::load_newest(Checkpoint& state, const LoadOptions& options) {
  std::vector<std::string> damaged;
  LoadedCheckpoint loaded = files::load_newest_readable(state, impl().root, impl().ranks, options, damaged);
  for (const std::string& path : damaged) {
    impl().damaged.insert(files::step_of(std::filesystem::path(path).filename().string()));
  }
  return loaded;
}

void CheckpointSeries::save(const Checkpoint& state, std::int64_t step, const SaveOptions& options) {
  impl().finish();
  state.save(checkpoint_of_step(impl().root, step), impl().ranks, options);
  impl().settle(step);
}

void CheckpointSeries::save_async(const Checkpoint& state, std::int64_t step, const SaveOptions& options) {
  impl().finish();
  impl().pending.emplace(state.save_async(checkpoint_of_step(impl().root, step), impl().ranks, options));
  impl().pending_step = step;
}

void CheckpointSeries::finish() { impl().finish(); }

std::string checkpoint_of_step(const std::string& root, std::int64_t step) {
  TORCH_CHECK(step >= 0, "expected a step >= 0, got ", step);
  return files::strip_trailing_slash(root) + "/" + files::kStep + files::number_text(step);
}

std::vector<std::int64_t> checkpoint_steps(const std::string& root) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : files::names_in(root)) {
    if (const std::int64_t step = files::step_of(name); step >= 0) steps.push_back(step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

LoadedCheckpoint load_newest(Checkpoint& state, const std::string& root, const Communicator& ranks,
                             const LoadOptions& options) {
  std::vector<std::string> damaged;
  return files::load_newest_readable(state, root, ranks, options, damaged);
}

}  // namespace dtensor
