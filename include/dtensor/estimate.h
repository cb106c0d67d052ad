// Estimated time of a training step on given hardware, from the trace of a dry run, and the search for the fastest
// layout that fits into memory. Nothing here runs ranks or reads tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/dry_run.h"
#include "dtensor/export.h"
#include "dtensor/pipeline_schedule.h"

namespace dtensor {

// Measured or assumed speed of one rank and of its links. A JSON table; `plan calibrate` measures one.
struct DTENSOR_API HardwareModel {
  // A rate that calls of this size reach. Between two points the rate is interpolated over the logarithm of the size.
  struct Point {
    double size = 0;  // FLOPs of a product or attention, bytes of another operator
    double rate = 0;  // FLOP/s or bytes/s
  };
  // Links between ranks whose numbers divided by `ranks` are equal, such as the 8 GPUs of a node.
  struct Level {
    std::string name;        // for outputs: "node"
    std::int64_t ranks = 1;  // number of ranks that it connects
    double latency = 0;      // seconds of one message
    double bandwidth = 0;    // bytes/s that one rank receives
    // The same by the number of bytes of a collective; empty: `bandwidth` for all.
    std::vector<Point> bandwidths = {};
  };

  std::string name;  // for outputs: "h100"
  // By operator or kind, and dtype ("aten::mm float32", "product bfloat16", "elementwise"). The rate of an operator
  // goes before that of its kind; a name without the dtype serves all other dtypes.
  std::map<std::string, std::vector<Point>> rates;
  double operator_seconds = 0;               // of each operator, in addition
  std::map<std::string, double> peak_flops;  // FLOP/s of one rank by dtype, for the utilization
  double memory_bytes = 0;                   // of one rank; 0: unknown
  double memory_reserve = 0;  // bytes of those that a step does not get: context, NCCL, what an allocator keeps
  bool asynchronous = false;  // whether collectives run beside operators
  std::vector<Level> levels;  // innermost first; the last one connects all ranks

  // Reads the table of a file. Throws c10::Error with the path and what is missing.
  static HardwareModel read(const std::string& path);
  static HardwareModel parse(const std::string& json);
  std::string json() const;

  // The name of the rates of an operator or kind.
  static std::string rate_name(const std::string& op, at::ScalarType dtype);
  // Seconds of the operator `name`: operator_seconds + flops / rate (bytes / rate if it has none), and at least the
  // time to read and write its operands.
  double seconds(const StepTrace::Event& op, const std::string& name = {}) const;
  // Seconds of a collective of these world ranks, by the sum of latencies and the largest quotient of bytes and
  // bandwidth over the levels. `bytes`: received by a rank. A level moves what comes from members beyond the level
  // below, whose members share it, except for all_to_all; they forward it to each other. So a collective takes at least
  // as long as in one unit of the first level.
  double seconds(const std::string& collective, const std::vector<std::int64_t>& ranks, std::int64_t bytes) const;
};

// Estimated seconds of one rank's step.
struct DTENSOR_API StepEstimate {
  double seconds = 0;                             // of the step
  double compute = 0;                             // of operators
  double communication = 0;                       // of collectives, whether or not they are hidden
  double exposed = 0;                             // while the rank waits for collectives: seconds = compute + exposed
  std::map<std::string, double> compute_by_kind;  // seconds of operators by the name of their kind
  std::map<std::string, double> communication_by_axis;  // seconds of collectives by mesh axis
  std::map<std::string, double> exposed_by_axis;        // seconds of waits for collectives by mesh axis
  std::vector<std::pair<std::string, double>> marks;    // name, and seconds until the next mark

  // Where the time goes: "operators product 61% attention 20% norm 3% elementwise 7%; waits shard 9%".
  std::string shares() const;
};
// Replays the trace: operators one after the other; collectives of one axis one after the other, beside the operators
// if `hardware.asynchronous`. A collective starts when the operators before it have ended.
DTENSOR_API StepEstimate estimate_step(const StepTrace& trace, const HardwareModel& hardware);

// The replayed step of a report with a trace, for each of its ranks by itself: without waits for messages of a
// pipeline. As a Chrome trace (JSON for chrome://tracing and Perfetto) with rows of operators and waits, marks, and
// collectives of each mesh axis, and with the memory by kind if DryRunOptions::trace_memory is set; and the memory by
// kind over the time, as SVG, which needs it.
DTENSOR_API std::string step_chrome_trace(const DryRunReport& report, const HardwareModel& hardware);
DTENSOR_API std::string step_memory_svg(const DryRunReport& report, const HardwareModel& hardware);

// Estimated seconds of a pipeline's step.
struct PipelineEstimate {
  double seconds = 0;  // of the step, with what a stage does outside of actions
  double bubble = 0;   // idle share of the ranks during the actions
};
// Simulates the schedule with the mean times of the marks of each pipeline rank that are named as actions are ("0F0",
// "0B0"), as Pipeline names them in a dry run. The stages that the marks of a rank name are its stages in the schedule,
// in this order. `message_seconds`: of an activation to the next stage. Throws c10::Error if marks are missing.
DTENSOR_API PipelineEstimate estimate_pipeline(const pipeline::Schedule& schedule,
                                               const std::vector<StepEstimate>& ranks, double message_seconds);

// Which activations of a block are computed again in backward: all, or all but the results of matrix products and of
// attention.
enum class Recomputation : std::uint8_t { none, selective, full };
DTENSOR_API const char* to_string(Recomputation recomputation);

// A way to run a training step.
struct DTENSOR_API ParallelLayout {
  // Sizes of the mesh axes; `ep` ranks of those share the experts of a layer.
  std::int64_t pp = 1, replicate = 1, shard = 1, cp = 1, tp = 1, ep = 1;
  std::int64_t microbatches = 1;  // of a pipeline or of gradient accumulation
  Recomputation recompute = Recomputation::none;
  bool bf16 = false;              // computation in bfloat16
  std::string schedule = "1f1b";  // of a pipeline
  std::int64_t chunks = 0;        // stages of a rank of a pipeline; 0: the schedule's default
  // What ranks of data parallelism keep between uses. Gathered parameters are freed after forward (ZeRO-3), or stay
  // gathered until the last backward pass of the step. Gradients of each microbatch are reduced into shards, or those
  // of the step once (with `reshard` false: ZeRO-1). A pipeline reduces once.
  bool reshard = true, accumulate_sharded = true;
  // Parameters, gradients and states of the optimizer are in host memory, which also updates them
  // (FsdpOptions::cpu_offload). Needs accumulate_sharded.
  bool offload = false;
  // What else changes the numbers. float8: products of blocks, as in nn::Float8Scope. bf16_parameters: parameters,
  // gradients and states of the optimizer are bfloat16, too; needs bf16. optimizer: "adamw", or "muon" for the matrices
  // of blocks and AdamW for all else.
  bool float8 = false, bf16_parameters = false;
  std::string optimizer = "adamw";
  std::int64_t ranks() const { return pp * replicate * shard * cp * tp; }
  std::string str() const;  // "pp=2,shard=4,tp=2 microbatches=8 recompute=full bf16"
  friend bool operator==(const ParallelLayout&, const ParallelLayout&) = default;
};

// Which layouts are tried: all products of axis sizes that equal `ranks`, with each of the other values.
struct LayoutSpace {
  std::int64_t ranks = 1;  // of the mesh
  // Largest size of an axis; 1: not used.
  std::int64_t max_pp = 1, max_replicate = 1 << 20, max_shard = 1 << 20, max_cp = 1, max_tp = 8, max_ep = 1;
  std::vector<std::int64_t> microbatches = {1};
  std::vector<Recomputation> recompute = {Recomputation::none, Recomputation::full};
  std::vector<bool> bf16 = {true};
  std::vector<std::string> schedules = {"1f1b"};
  std::vector<std::int64_t> chunks = {0};  // of interleaved and bfs
  // What data parallelism keeps, as in ParallelLayout.
  std::vector<bool> reshard = {true};
  std::vector<bool> accumulate_sharded = {true};
  std::vector<bool> offload = {false};
  // As in ParallelLayout.
  std::vector<bool> float8 = {false};
  std::vector<bool> bf16_parameters = {false};
  std::vector<std::string> optimizers = {"adamw"};
};
// Values that change nothing are left out: schedules and chunks without a pipeline, accumulation of one microbatch. So
// are parameters in bfloat16 without bf16, and offloading with unsharded sums of gradients.
DTENSOR_API std::vector<ParallelLayout> enumerate_layouts(const LayoutSpace& space);

// What a program needs in a layout.
struct LayoutCost {
  double seconds = 0;            // of a step; 0: not computed
  std::int64_t peak_bytes = 0;   // of memory of one rank's device
  std::string largest = {};      // what of the memory is largest, for people
  std::string explanation = {};  // where the time goes, for people
  std::int64_t host_bytes = 0;   // of what a rank keeps in host memory (ParallelLayout::offload)
};
// The program to plan.
struct PlannedProgram {
  // Why the program cannot run in this layout, such as heads that tp does not divide; empty: it can.
  std::function<std::string(const ParallelLayout&)> reject;
  // Cheap lower bounds of seconds and memory. Layouts are tried in the order of the bounds. Asked again right before
  // the cost, as bounds may be higher after costs of similar layouts.
  std::function<LayoutCost(const ParallelLayout&)> bound;
  // The cost by dry runs. A layout whose run throws counts as rejected, for the first line of the error. Memory must
  // not grow with recomputation, with `shard` in place of `replicate`, with `reshard` and `accumulate_sharded`, nor
  // with microbatches if there are at least two: where a layout does not fit, those with less of all are not run.
  std::function<LayoutCost(const ParallelLayout&)> cost;
};
// How far a search is.
struct SearchProgress {
  std::size_t runs = 0;                  // layouts whose cost is computed
  std::size_t decided = 0, layouts = 0;  // of those that the program accepts
  double fastest = 0;                    // seconds of the fastest layout that fits; 0: none yet
};
// What bounds a search.
struct SearchLimits {
  std::int64_t memory_bytes = 0;  // of a rank
  std::size_t most_runs = 1000;   // layouts whose cost is computed
  double tolerance = 0;           // share of its time by which the layout that is found may be slower than the fastest
  std::function<void(const SearchProgress&)> progress = {};  // called before each run
};
// A layout of a search with its cost.
struct PlannedLayout {
  ParallelLayout layout;  // sizes of the mesh and other choices
  LayoutCost cost;        // its memory and time
  std::string problem;    // why it was not chosen; empty: it fits
};
// The result of a search.
struct DTENSOR_API LayoutPlan {
  std::vector<PlannedLayout> fitting;            // fastest first
  std::vector<PlannedLayout> too_large;          // least memory first
  std::map<std::string, std::int64_t> rejected;  // number of layouts by reason
  std::int64_t slower = 0;     // layouts whose bound, with the tolerance, is above the time of the fastest
  std::int64_t not_tried = 0;  // layouts beyond SearchLimits::most_runs
  // One screen: the fastest layouts and where their time goes, the nearest that do not fit and why.
  std::string table(const SearchLimits& limits) const;
};
// Computes the costs of the layouts whose bounds allow them to be the fastest, first for the variant of a mesh that
// needs the least memory.
DTENSOR_API LayoutPlan search_layouts(const std::vector<ParallelLayout>& layouts, const PlannedProgram& program,
                                      const SearchLimits& limits);

}  // namespace dtensor
