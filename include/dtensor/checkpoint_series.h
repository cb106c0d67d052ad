// The checkpoints of one run: ROOT/step-00000050 and so on, the newest few of them, and ROOT/latest, a link to the
// newest. See docs/design/checkpoint.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/checkpoint.h"
#include "dtensor/comm.h"
#include "dtensor/export.h"

namespace dtensor {

// What was taken up.
struct LoadedCheckpoint {
  std::string path = {};                      // empty: there was none
  std::vector<std::string> passed_over = {};  // newer ones that are damaged, each with why, on one line
};

// Saves a run's checkpoints. While it lives no other program has a series in that folder. Every function is collective
// over `ranks`, and an error on one rank is the same error on all.
class DTENSOR_API CheckpointSeries {
 public:
  // Makes `root`, its parents too. `keep` >= 1: how many stay, the one being saved not counted until it is whole.
  // Throws where another program saves there, and where `root` is itself a checkpoint.
  CheckpointSeries(const std::string& root, const Communicator& ranks, std::int64_t keep);
  CheckpointSeries(CheckpointSeries&&) noexcept;
  CheckpointSeries& operator=(CheckpointSeries&&) noexcept;
  // Without finish() before: what is being saved in the background is given up.
  ~CheckpointSeries();

  // As the function below. The damaged ones do not count among those to keep, and go with the next save.
  LoadedCheckpoint load_newest(Checkpoint& state, const LoadOptions& options = {});

  // Saves `state` as that of `step`, then points `latest` at it and removes what is more than `keep` of its past. In
  // the background: a later save or finish() does the rest.
  void save(const Checkpoint& state, std::int64_t step, const SaveOptions& options = {});
  void save_async(const Checkpoint& state, std::int64_t step, const SaveOptions& options = {});
  void finish();

 private:
  struct Impl;
  Impl& impl() const;  // throws where this was moved from

  std::unique_ptr<Impl> impl_;
};

// ROOT/step-00000050.
DTENSOR_API std::string checkpoint_of_step(const std::string& root, std::int64_t step);
// The steps that ROOT has folders of, whole or not, the newest first. Not collective.
DTENSOR_API std::vector<std::int64_t> checkpoint_steps(const std::string& root);

// Loads the newest whole checkpoint below `root`, or `root` itself where it is a checkpoint; a damaged one is passed
// over for the one before. What does not fit (another model) is an error as in load_state, and so is a folder in which
// all are damaged. Nothing there: an empty path, and `state` is as it was. Collective.
DTENSOR_API LoadedCheckpoint load_newest(Checkpoint& state, const std::string& root, const Communicator& ranks,
                                         const LoadOptions& options = {});

}  // namespace dtensor
