// Where a training step first got a value that is no finite number: which module, and which operator.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

#include "dtensor/comm.h"
#include "dtensor/export.h"
#include "dtensor/phase.h"

namespace dtensor {

// An operator whose results were not finite.
struct NonFinite {
  std::string module = {};       // the innermost ModuleScope, "" outside any
  std::string op = {};           // aten::div
  Phase phase = Phase::forward;  // whether forward or backward ran
  int rank = 0;                  // of the ranks that were asked, the one that saw it first
  bool given = false;            // an operand was so already: a parameter, the batch, what another program made
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

}  // namespace dtensor
