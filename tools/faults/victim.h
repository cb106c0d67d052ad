// The program that the campaign of kills kills, and the shared memory in which it records its progress.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace dtensor::faults {

// Phases of a process. Every second save runs in the background, during the next step.
enum class Phase : std::int64_t { start, load, step, save, save_async, step_during_save };

// Shared between processes, so that the last values of a victim are available after SIGKILL. Initially zero.
struct Progress {
  struct Process {
    std::atomic<std::int64_t> process, rank_plus_one, at,
        entered;  // `entered`: number of phases, the first of which is loading.
  };
  std::atomic<std::int64_t> campaign;  // The process that kills; victims end without it.
  std::atomic<std::int64_t> trial;
  std::atomic<std::int64_t> saved;      // The last completed save.
  std::atomic<std::int64_t> processes;  // Number of started processes in this trial.
  std::array<Process, 16> all;
};

class SharedProgress {
 public:
  explicit SharedProgress(const std::string& folder);  // Of the file FOLDER.progress.
  SharedProgress(const SharedProgress&) = delete;
  SharedProgress& operator=(const SharedProgress&) = delete;
  ~SharedProgress();
  Progress* operator->() const { return progress_; }

 private:
  Progress* progress_;
};

// Launches `ranks` ranks, or is one of a launched job. Loads and checks the checkpoint, if any, and saves after every
// step until it is killed. `keep` 0: one checkpoint, which is replaced.
int run_victim(const std::string& folder, int ranks, std::int64_t keep, std::int64_t rows, std::int64_t trial);

}  // namespace dtensor::faults
