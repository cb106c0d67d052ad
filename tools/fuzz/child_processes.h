// Jobs in child processes: one that crashes or hangs is named, and the others go on.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace dtensor::fuzz {

// How a job ended: a word of its own, or "crash" or "hang".
struct DrawResult {
  std::string word, text;
};

// Runs job(i) for i in [0, count), in order, in as few child processes as crashes allow. job tells what it is about to
// do by the note that it is given (kept where it crashes), and returns how it ended. The calling process must have no
// other threads.
using Note = std::function<void(const std::string&)>;
std::vector<DrawResult> run_isolated(int count, int seconds_per_job,
                                     const std::function<DrawResult(int, const Note&)>& job);

}  // namespace dtensor::fuzz
