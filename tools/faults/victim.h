// What the campaign of kills kills, and the memory in which it says how far it has come.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace dtensor::faults {

// What a process is at. Every second save is one in the background, so that the step after it runs meanwhile.
enum class Phase : std::int64_t { start, load, step, save, save_async, step_during_save };

// Shared between processes, so that what a victim wrote last is there after SIGKILL. Zero bytes are the beginning.
struct Progress {
  struct Process {
    std::atomic<std::int64_t> process, rank_plus_one, at,
        entered;  // `entered`: how many phases, loading being the first
  };
  std::atomic<std::int64_t> campaign;  // the process that kills: without it no victim goes on
  std::atomic<std::int64_t> trial;
  std::atomic<std::int64_t> saved;      // the last step that a save has returned for
  std::atomic<std::int64_t> processes;  // of the trial, that have started
  std::array<Process, 16> all;
};

class SharedProgress {
 public:
  explicit SharedProgress(const std::string& folder);  // FOLDER.progress
  SharedProgress(const SharedProgress&) = delete;
  SharedProgress& operator=(const SharedProgress&) = delete;
  ~SharedProgress();
  Progress* operator->() const { return progress_; }

 private:
  Progress* progress_;
};

// Launches `ranks` ranks, or is one of a launched job. Takes up what is there, checks it, and saves after every step
// until it is killed. `keep` 0: one checkpoint, replaced.
int run_victim(const std::string& folder, int ranks, std::int64_t keep, std::int64_t rows, std::int64_t trial);

}  // namespace dtensor::faults
