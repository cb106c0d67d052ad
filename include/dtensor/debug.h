// Watching a program that runs on many ranks: what it communicates and for which module, what memory it holds, where a
// tensor lives, and how to stop one rank for a debugger.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/events.h"
#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/named_tensors.h"
#include "dtensor/placement.h"

namespace dtensor {

// Names the part of the model that runs on this thread while it lives. Scopes nest: "h.0", then "attn" is "h.0.attn".
// Costs a few nanoseconds where nobody watches. The backward pass of what ran inside is told apart by autograd's
// sequence numbers, so the model needs no hooks.
class DTENSOR_API ModuleScope {
 public:
  explicit ModuleScope(const std::string& name);  // the name must outlive the scope; empty: no scope
  explicit ModuleScope(std::string&& name) = delete;
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

  static std::string path();  // of this thread, "" outside any scope

 private:
  const std::string* name_;
  std::uint64_t first_node_ = 0;
};

// What collectives are counted by.
struct CommKey {
  std::string kind;    // all_gather, all_reduce, reduce_scatter, all_to_all, broadcast, ...
  std::string axis;    // mesh dimension name(s)
  std::string module;  // "" outside any ModuleScope
  // Whether forward or backward ran.
  Phase phase = Phase::forward;
  // The parameter that was gathered, or whose gradient was reduced; of several at once (a unit, a list) what their
  // names have in common, and how many they are: "h.0.* (12)". "" for activations, and where no names were given.
  std::string parameter = {};
  friend bool operator<(const CommKey& a, const CommKey& b) {
    return std::tie(a.module, a.phase, a.kind, a.axis, a.parameter) <
           std::tie(b.module, b.phase, b.kind, b.axis, b.parameter);
  }
};

// So many collectives, and what they brought.
struct CommCount {
  // How many.
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  // received by this rank from others
};

// Counts the collectives of this thread (and of backward passes that run on it) while it lives. Nests.
class DTENSOR_API CommDebugMode {
 public:
  CommDebugMode();
  // With a model's parameters as they are placed now, collectives are told apart by those that they are for
  // (CommKey::parameter).
  explicit CommDebugMode(const NamedTensors& parameters);
  ~CommDebugMode();
  CommDebugMode(const CommDebugMode&) = delete;
  CommDebugMode& operator=(const CommDebugMode&) = delete;

  // All that was counted; the sum of those for which `of` holds (none: of all).
  const std::map<CommKey, CommCount>& counts() const;
  CommCount total(const std::function<bool(const CommKey&)>& of = {}) const;
  // Sums by kind, axis and phase; an empty text counts any. `module`: the module itself and those below it.
  CommCount total(const std::string& kind, const std::string& axis = "", const std::string& module = "") const;
  CommCount total(const std::string& kind, Phase phase, const std::string& module = "") const;
  std::string table() const;
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What memory this rank holds over time, and for which module: ATen's allocators report to it, and that of what
// communicators put out.

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

// Where a training step first got a value that is no finite number: which module, and which operator.

// An operator whose results were not finite.
struct NonFinite {
  std::string module = {};       // the innermost ModuleScope, "" outside any
  std::string op = {};           // aten::div
  Phase phase = Phase::forward;  // whether forward or backward ran
  int rank = 0;                  // of the ranks that were asked, the one that saw it first
  bool from_operand = false;     // an operand was so already: a parameter, the batch, what another program made
  std::string str() const;       // "in h.1.mlp, forward, by aten::div on rank 1"
};

// What a pass came to, the same on every rank.
struct NonFiniteReport {
  std::optional<NonFinite> nan;  // the operator that first made NaN
  // That first made infinite values of finite ones; what is told to (masks are filled with -inf) does not count.
  std::optional<NonFinite> infinite;
  std::string str() const;  // one line
};

// Runs `pass`, a forward pass or forward and backward, and looks at what each operator called in it reads and writes on
// this rank: DTensors by their local part, plain tensors whole. Operators inside of others are theirs, and memory that
// was not written yet (at::empty) is nobody's. Of several ranks the one counts that made NaN of finite operands, and
// came to it after the fewest operators: what others get by communication is not their doing. Reads every tensor once
// more, and on a device waits for each operator: for a pass that is known to go wrong.
// Collective over `ranks`, which are all that the pass communicates with; none: this rank alone.
DTENSOR_API NonFiniteReport find_nonfinite(const std::function<void()>& pass, const Communicator& ranks = {});

// A step whose numbers were no longer finite.
class DTENSOR_API NonFiniteError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What a step knows before its optimizer is called, the same on every rank.
struct StepNumbers {
  std::int64_t step = 0;  // as the messages shall count it
  // Of the batch, and of all gradients together, before clipping.
  double loss = 0, gradient_norm = 0;
};

// For a training loop, between backward pass and optimizer: returns at once where both numbers are finite. Else runs
// `pass`, the step's forward and backward again on the same batch, through find_nonfinite, and throws a NonFiniteError
// of one line with step, module and operator. No parameter has changed by then; gradients have. A pass that draws
// random numbers sets the state of before (get_rng_state, set_rng_state). No communication while numbers are finite.
DTENSOR_API void check_step_finite(const StepNumbers& numbers, const std::function<void()>& pass,
                                   const Communicator& ranks = {});

// Where a tensor lives, drawn: which ranks of a mesh hold which part of it. No communication; any rank can draw.

// Rows and columns are the first two sharded dimensions (fewer: leading ones), cells name the ranks that hold them;
// what is sharded beyond them is listed rank by rank. Partial: each rank holds its share of the values.
DTENSOR_API std::string visualize_sharding(at::IntArrayRef sizes, const DeviceMesh& mesh, const Placements& placements);
DTENSOR_API std::string visualize_sharding(const at::Tensor& dtensor);
// The same as a drawing, cells coloured by the set of ranks.
DTENSOR_API std::string visualize_sharding_svg(at::IntArrayRef sizes, const DeviceMesh& mesh,
                                               const Placements& placements);
DTENSOR_API std::string visualize_sharding_svg(const at::Tensor& dtensor);

}  // namespace dtensor
