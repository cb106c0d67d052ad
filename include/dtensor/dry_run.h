// Dry runs: one rank of a program without its peers, memory and arithmetic. A dry run answers before GPUs are paid for
// whether a model fits, and what it communicates.
#pragma once

#include <c10/core/ScalarType.h>

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
  // The load of the first expert of each mixture of experts in multiples of the mean load, at least 1; the other
  // experts share the rest equally. An expert gets a token at most once. The first expert is on the first ranks of
  // `ep`.
  double expert_load = 1;
  // Whether DryRunReport::trace is recorded.
  bool trace = false;
  // Whether StepTrace::memory is recorded with it, which the outputs of estimate.h for people need.
  bool trace_memory = false;
  // Whether collectives run in the background, as NCCL's do: FSDP then gathers the next unit during the current one.
  bool asynchronous = false;
  // Whether collectives copy into buffers of their own, as those of processes (MPI, sockets) do and those of thread
  // ranks do not. Their memory is counted.
  bool staging = false;
};

// What a rank did in a step, in order. estimate_step() (dtensor/estimate.h) computes its time.
struct DTENSOR_API StepTrace {
  // What an event takes time for.
  enum class Kind : std::uint8_t {
    product,      // matrix products and convolutions
    attention,    // scaled dot product attention
    norm,         // normalizations and softmax: several passes over a row
    elementwise,  // all other operators
    host,         // operators on tensors in host memory (DeviceMesh::offloaded)
    transfer,     // copies between host and device
    collective,   // the start of a collective
    wait,         // the first wait for its results
    mark,         // StepRecorder::mark()
  };
  // One event.
  struct Event {
    Kind kind = Kind::elementwise;      // what it takes time for
    at::ScalarType dtype = at::kFloat;  // of an operator's first tensor
    std::int32_t name = 0;              // index into `names`: the operator, collective or mark
    std::int32_t group = -1;            // of collectives and waits: index into `groups`; -1 for send and recv
    std::int64_t flops = 0;             // of an operator
    std::int64_t bytes = 0;             // read and written by an operator; received by a collective from other ranks
    std::int64_t start = -1;            // of a wait: index of its collective in `events`
    bool of_unit = false;               // of an operator: of a unit's gather or reduction (fully_shard), such as a cast
  };
  // The members of a collective.
  struct Group {
    std::string axis;                 // name of the mesh dimension
    std::vector<std::int64_t> ranks;  // world ranks
  };
  std::vector<Event> events;         // in the order of the program
  std::vector<MemoryByKind> memory;  // highest live bytes by kind since the previous event, if asked for
  std::vector<std::string> names;    // of operators, collectives and marks, each once
  std::vector<Group> groups;         // of collectives, each once
};

// What one rank of a program needs since the last StepRecorder::begin_step(), or since the start. A dry run predicts
// it; StepRecorder measures it in a real run.
struct DTENSOR_API DryRunReport {
  // The calls of one operator on local tensors.
  struct OperatorCount {
    std::int64_t calls = 0;  // On this rank.
    std::int64_t flops = 0;  // Of matrix products, convolutions and attention, two for a product and a sum; others: 0.
    std::int64_t bytes = 0;  // Read and written.
  };

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
  std::map<std::pair<std::string, std::string>, CommDebugMode::Count> collectives;
  // Operators by name. Only a dry run counts them.
  std::map<std::string, OperatorCount> operators;
  // The events of the step, if DryRunOptions::trace is set.
  StepTrace trace = {};
  // The reports of the other ranks of this rank's pipelines, which a dry run also runs. Their `peers` are empty.
  std::vector<DryRunReport> peers;

  // The highest of both peaks of this rank and of its peers, and whether it is at most `bytes`.
  std::int64_t peak_bytes() const;
  bool fits(std::int64_t bytes) const;
  // What is largest at that peak, by kind and by module: "activations 60.0 GB; 9.1 GB in h.3.mlp, forward".
  std::string largest() const;
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
  // Adds a mark to the trace, which divides the estimated time (StepEstimate::marks). No effect without a trace.
  static void mark(const std::string& name);
  // What was measured since then.
  DryRunReport report(const Communicator& world) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Runs `fn` as one rank of `options.ranks`, without the others. If that rank has a pipeline, `fn` also runs as the
// other ranks of the pipeline, each on a thread of its own. Tensors on the CPU of more than 4096 bytes (integers: 16
// MiB) have sizes, but no memory; operators compute sizes; collectives return at once. Small tensors are real. Where
// ranks exchange real tensors, all send what this rank sends. Rethrows what `fn` throws.
DTENSOR_API DryRunReport dry_run(const DryRunOptions& options, const std::function<void(Communicator)>& fn);

// Whether this thread runs a dry run: then tensors may have no values.
DTENSOR_API bool is_dry_run();

}  // namespace dtensor
