// What memory this rank holds over time, and for which module: ATen's allocators report to it, and that of what
// communicators put out.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/debug.h"
#include "dtensor/export.h"

namespace dtensor {

// Follows what this thread allocates and frees while it lives (with thread ranks: this rank). Bytes count from its
// start: what was there before and is freed now counts negative. Nests, and ends in any order; all hear. Not while a
// profiler runs. Hears the threads of backward passes that start meanwhile, too; what peak() and samples() refer to is
// to be read when these have ended.
class DTENSOR_API MemoryTimeline {
 public:
  // Memory at one moment.
  struct Sample {
    // When it was, how many bytes lived, and in which phase and module.
    std::chrono::steady_clock::time_point when;
    std::int64_t bytes = 0;
    std::string module;  // that allocated or freed
    Phase phase = Phase::forward;
  };
  // A sample is kept where the bytes differ from the last one's by `resolution`; the highest one always.
  explicit MemoryTimeline(std::int64_t resolution = 0);
  ~MemoryTimeline();
  MemoryTimeline(const MemoryTimeline&) = delete;
  MemoryTimeline& operator=(const MemoryTimeline&) = delete;

  // Bytes that live now.
  std::int64_t live() const;
  const Sample& peak() const;  // since the start or the last reset_peak()
  // Looks for the peak from now on.
  void reset_peak();
  // Memory that was made in one module and phase: activations are of forward, gradients of backward.
  struct Holder {
    // Where it was made, and how much of it lived.
    std::string module;
    Phase phase = Phase::forward;
    std::int64_t bytes = 0;
  };
  // Who held memory at the peak, the largest first. Of memory that was made since the start.
  std::vector<Holder> holders_at_peak() const;
  // All that was noted, in order of time.
  const std::vector<Sample>& samples() const;
  std::string csv() const;  // seconds,bytes,phase,module
  // A drawing over time: bytes against milliseconds, the backward passes shaded, the peak and who held it named.
  std::string svg(int width = 800, int height = 240) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace dtensor
