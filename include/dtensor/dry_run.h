// Dry runs: one rank of a program without its peers, memory and arithmetic. A dry run answers before GPUs are paid for
// whether a model fits, and what it communicates.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/debug.h"
#include "dtensor/export.h"

namespace dtensor {

// What a dry run computes.
struct DryRunOptions {
  // The number of ranks of the program, and the one that runs.
  int ranks = 1;
  int rank = 0;
  // The result of item() and of other reads of a floating-point number whose value a dry run does not know, such as a
  // loss for a log. Without a value, such a read is an error.
  std::optional<double> number = {};
};

// The calls of one operator on local tensors.
struct OperatorCount {
  std::int64_t calls = 0;
  std::int64_t flops = 0;  // Of matrix products and attention: two for a product and a sum. Other operators have none.
  std::int64_t bytes = 0;  // Read and written.
};

// What one rank of a program needs since the last StepRecorder::begin_step(), or since the start. A dry run predicts
// it; StepRecorder measures it in a real run.
struct DTENSOR_API DryRunReport {
  // The rank and the number of ranks.
  int rank = 0;
  int ranks = 1;
  // The moment of the highest memory, and the live bytes of each kind then.
  MemoryTimeline::Sample peak;
  MemoryByKind peak_by_kind = {};
  // The peak before that step, for instance while the model was placed.
  MemoryTimeline::Sample peak_before;
  // The live memory at the peak by module and phase, largest first.
  std::vector<MemoryTimeline::Holder> holders;
  // Collectives by kind and mesh axis.
  std::map<std::pair<std::string, std::string>, CommCount> collectives;
  // Operators by name. Only a dry run counts them.
  std::map<std::string, OperatorCount> operators;

  // Whether both peaks are at most `bytes`.
  bool fits(std::int64_t bytes) const { return peak.bytes <= bytes && peak_before.bytes <= bytes; }
  // For a terminal, with a limit in bytes, and for other programs.
  std::string table(std::optional<std::int64_t> limit = {}) const;
  std::string json() const;
};

// Measures memory and collectives of this thread's rank during its lifetime. A dry run has one.
class DTENSOR_API StepRecorder {
 public:
  StepRecorder();
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  // A step begins: the report counts from here. Call it after the first step of training, which creates the states of
  // the optimizer. No effect if no recorder exists on this thread.
  static void begin_step();
  // What was measured since then.
  DryRunReport report(const Communicator& world) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Runs `fn` as one rank of `options.ranks`, without the others. Tensors on the CPU of more than 4096 bytes (integers:
// 16 MiB) have sizes, but no memory; operators compute sizes; collectives return at once. Small tensors are real. Where
// ranks exchange real tensors, all send what this rank sends. Rethrows what `fn` throws.
DTENSOR_API DryRunReport dry_run(const DryRunOptions& options, const std::function<void(Communicator)>& fn);

// Whether this thread runs a dry run: then tensors may have no values.
DTENSOR_API bool is_dry_run();

}  // namespace dtensor
