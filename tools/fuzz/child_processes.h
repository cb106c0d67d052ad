// Jobs in child processes: a job that crashes or hangs is reported, and the others continue.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace dtensor::fuzz {

// Result of a job: its own word, or "crash" or "hang".
struct DrawResult {
  std::string word, text;
};

// Runs job(i) for i in [0, count), in order, in as few child processes as crashes allow. A job calls `note` with a
// description before it starts, which is kept if it crashes, and returns its result. The calling process must have no
// other threads.
using Note = std::function<void(const std::string&)>;
std::vector<DrawResult> run_isolated(int count, int seconds_per_job,
                                     const std::function<DrawResult(int, const Note&)>& job);

}  // namespace dtensor::fuzz
