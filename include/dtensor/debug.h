// Debugging tools for distributed programs: counts of collectives by module, memory over time, visualization of shards,
// detection of non-finite values, and a debugger breakpoint on one rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/events.h"
#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/placement.h"
#include "dtensor/tensor.h"

namespace dtensor {

// Names the module that runs on this thread during the scope's lifetime. Scopes nest: "attn" inside "h.0" is
// "h.0.attn". It costs a few nanoseconds while no debugging tool is active. Backward passes are attributed to modules
// by autograd's sequence numbers, so the model needs no hooks.
class DTENSOR_API ModuleScope {
 public:
  explicit ModuleScope(const std::string& name);  // The name must outlive the scope. Empty: no scope.
  explicit ModuleScope(std::string&& name) = delete;
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

  static std::string path();  // Of this thread; "" outside any scope.

 private:
  static std::string path_in(int pass);

  const std::string* name_;
  const ModuleScope* outer_ = nullptr;
  int pass_ = -1;  // the backward pass in which it was opened (recomputation), or -1
  std::uint64_t first_node_ = 0;
};

// Counts the collectives of this thread, and of backward passes that run on it, during its lifetime. Instances nest.
class DTENSOR_API CommDebugMode {
 public:
  // Collectives are counted by these attributes.
  struct Key {
    std::string kind;    // all_gather, all_reduce, reduce_scatter, all_to_all, broadcast, ...
    std::string axis;    // Names of the mesh dimensions.
    std::string module;  // "" outside any ModuleScope
    // Whether the forward or the backward pass ran.
    Phase phase = Phase::forward;
    // The parameter that was gathered, or whose gradient was reduced. For several at once (an FSDP unit, a list) it is
    // the common part of their names and their number: "h.0.* (12)". "" for activations, and if no names were given.
    std::string parameter = {};
    friend bool operator<(const Key& a, const Key& b) {
      return std::tie(a.module, a.phase, a.kind, a.axis, a.parameter) <
             std::tie(b.module, b.phase, b.kind, b.axis, b.parameter);
    }
  };

  // Number of collectives and bytes that they received.
  struct Count {
    // Number of collectives.
    std::int64_t calls = 0;
    std::int64_t bytes = 0;  // Received by this rank from other ranks.
  };

  CommDebugMode();
  // Also attributes collectives to the parameters that they gather or reduce (Key::parameter). The placements of
  // the parameters are read once, by the constructor.
  explicit CommDebugMode(const NamedTensors& parameters);
  ~CommDebugMode();
  CommDebugMode(const CommDebugMode&) = delete;
  CommDebugMode& operator=(const CommDebugMode&) = delete;

  // All counts, and their sum over the keys for which `of` returns true. An empty `of` selects all keys.
  const std::map<Key, Count>& counts() const;
  Count total(const std::function<bool(const Key&)>& of = {}) const;
  // Sums by kind, axis and phase. An empty string selects all. `module` includes its submodules.
  Count total(const std::string& kind, const std::string& axis = "", const std::string& module = "") const;
  Count total(const std::string& kind, Phase phase, const std::string& module = "") const;
  std::string table() const;
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What a block of memory belongs to. Blocks that no module of the library claims are activations.
enum class MemoryKind : std::uint8_t {
  parameter,
  gradient,         // Reduced gradients, and those that wait for their reduction in .grad.
  optimizer_state,  // Also the updates that a step computes.
  gathered,         // Gathered copies of parameters.
  activation,       // Also temporaries of operators and gradients of activations.
  communication,    // Outputs of collectives that are none of the above.
};
// Bytes by kind, indexed by MemoryKind; its size is the number of kinds.
using MemoryByKind = std::array<std::int64_t, 6>;

// The name in tables: "optimizer states".
DTENSOR_API const char* to_string(MemoryKind kind);

// Memory of this rank over time, by module. ATen's allocators and the communicators report it.

// Records allocations and deallocations of this thread (with thread ranks: of this rank) during its lifetime. Bytes are
// relative to the start, so freeing older memory counts as negative. Instances nest and end in any order; each of them
// records all events. It does not work while a profiler runs. Threads of backward passes that start in the meantime are
// included. Read the references that peak() and samples() return only after these passes have ended.
class DTENSOR_API MemoryTimeline {
 public:
  // Memory at one point in time.
  struct Sample {
    // Time, live bytes, phase and module of the event.
    std::chrono::steady_clock::time_point when;
    std::int64_t bytes = 0;
    std::string module;  // The module that allocated or freed.
    Phase phase = Phase::forward;
  };
  // Keeps a sample if its bytes differ from the last sample's by at least `resolution`. The peak is always kept.
  explicit MemoryTimeline(std::int64_t resolution = 0);
  ~MemoryTimeline();
  MemoryTimeline(const MemoryTimeline&) = delete;
  MemoryTimeline& operator=(const MemoryTimeline&) = delete;

  // Bytes that are allocated now, without those from before the start.
  std::int64_t live() const;
  const Sample& peak() const;  // Since the start or the last reset_peak().
  // Restarts the search for the peak.
  void reset_peak();
  // Memory allocated in one module and phase. Activations belong to forward, gradients to backward.
  struct Holder {
    // Where the memory was allocated, and its live bytes.
    std::string module;
    Phase phase = Phase::forward;
    std::int64_t bytes = 0;
  };
  // Live memory at the peak by module and phase, largest first.
  std::vector<Holder> holders_at_peak() const;
  // Live memory at the peak by what it is used for.
  MemoryByKind peak_by_kind() const;
  // All samples in order of time.
  const std::vector<Sample>& samples() const;
  std::string csv() const;  // Columns: seconds,bytes,phase,module.
  // A plot of bytes against milliseconds, with backward passes shaded and the peak and its largest modules labeled.
  std::string svg(int width = 800, int height = 240) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Detection of the first non-finite value (NaN or infinity) of a training step, by module and operator.

// The result of find_nonfinite(), the same on every rank.
struct NonFiniteReport {
  // An operator with non-finite results.
  struct Operator {
    std::string module = {};       // The innermost ModuleScope; "" outside any.
    std::string op = {};           // For example aten::div.
    Phase phase = Phase::forward;  // Whether the forward or the backward pass ran.
    // The first of the compared ranks whose results were not finite.
    int rank = 0;
    // Whether an operand was non-finite already, for example a parameter, the batch or data of another program.
    bool from_operand = false;
    std::string str() const;  // For example "in h.1.mlp, forward, by aten::div on rank 1".
  };
  std::optional<Operator> nan;  // The operator that first returned NaN.
  // The operator that first returned infinite values for finite operands. Requested infinities, such as masks filled
  // with -inf, are not reported.
  std::optional<Operator> infinite;
  std::string str() const;  // One line.
};

// Runs `pass` (a forward pass, or forward and backward) and checks the operands and results of each operator on this
// rank. For DTensors it checks the local tensor. An operator inside a composite operator is attributed to the
// composite. Unwritten memory (at::empty) is ignored. Among several ranks the report is of the rank that made NaN from
// finite operands after the fewest operators, since other ranks receive NaN by communication.
// Each tensor is read once more, and on a GPU each operator is synchronized, so use it only to repeat a failed pass.
// Collective over `ranks`, which must include all ranks that the pass communicates with. By default only this rank.
DTENSOR_API NonFiniteReport find_nonfinite(const std::function<void()>& pass, const Communicator& ranks = {});

// Thrown by check_step_finite() for a step with a non-finite loss or gradient norm.
class DTENSOR_API NonFiniteError : public std::runtime_error {
 public:
  // Numbers of a step before the optimizer runs, the same on every rank.
  struct Step {
    std::int64_t step = 0;  // The step number for error messages.
    // Loss of the batch, and norm of all gradients together before clipping.
    double loss = 0, gradient_norm = 0;
  };
  using std::runtime_error::runtime_error;
};

// Call it between the backward pass and the optimizer. It returns at once if both numbers are finite, without
// communication. Otherwise it runs `pass` through find_nonfinite and throws a NonFiniteError with step, module and
// operator. `pass` repeats the step's forward and backward pass on the same batch. If it draws random numbers, it must
// restore their state (get_rng_state, set_rng_state). Parameters are unchanged; gradients are not.
DTENSOR_API void check_step_finite(const NonFiniteError::Step& numbers, const std::function<void()>& pass,
                                   const Communicator& ranks = {});

// Visualization of shards: which ranks of a mesh store which part of a tensor. No communication; any rank may call it.

// A table as text. Rows and columns are the first two sharded dimensions, or leading dimensions if fewer are sharded.
// Each cell lists the ranks that store it; further sharded dimensions are listed by rank. Partial values are marked.
DTENSOR_API std::string visualize_sharding(at::IntArrayRef sizes, const DeviceMesh& mesh, const Placements& placements);
DTENSOR_API std::string visualize_sharding(const at::Tensor& dtensor);
// The same as SVG, with one color for each set of ranks.
DTENSOR_API std::string visualize_sharding_svg(at::IntArrayRef sizes, const DeviceMesh& mesh,
                                               const Placements& placements);
DTENSOR_API std::string visualize_sharding_svg(const at::Tensor& dtensor);

// Called by every rank of `comm`. Rank `rank` stops at this line (-1: each rank, one after the other); the other ranks
// wait without a timeout. If the run fails, all ranks throw. The stopped rank prints its position and the command to
// attach a debugger. When a debugger is attached, the thread traps here, a few frames below the caller; after
// `continue`, all ranks go on. `stop` replaces the trap.
DTENSOR_API void debug_rank(const Communicator& comm, int rank = 0, const std::function<void()>& stop = {},
                            std::source_location where = std::source_location::current());

}  // namespace dtensor
