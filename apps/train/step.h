// A training step, the same for every program: forward and backward, a check of its numbers, an update.
#pragma once

#include <functional>

#include "dtensor/comm.h"
#include "train/model/optimizer.h"
#include "train/output/step_record.h"

namespace train {

struct StepCalls {
  // Forward and backward of the step's batch. Returns its mean loss, a regular scalar.
  std::function<at::Tensor(StepRecord&)> run;
  // The same again, with equal random numbers: finds the operator whose result is not finite.
  std::function<void()> repeat;
  // The gradient norm on every rank; absent: its value is known here.
  std::function<double(const at::Tensor& norm)> read_norm = {};
  std::function<void()> before_update = {}, after_update = {};
};

// The next step of the optimizer. Counts the bytes of collectives and the time of all calls. Throws
// dtensor::NonFiniteError before any update if the loss or the gradient norm is not finite. Collective over `ranks`,
// which is empty on one device.
StepRecord run_step(Optimizer& optimizer, std::int64_t tokens, const StepCalls& calls,
                    const dtensor::Communicator& ranks);

}  // namespace train
