// What kinds of actions of a pipeline have in common.
#pragma once

#include "dtensor/pipeline_schedule.h"

namespace dtensor::pipeline {

// Number of kinds.
constexpr int kActionKinds = 11;

// F, B, I, W: the actions that take a rank's compute time, and the only ones that generators write.
constexpr bool is_compute(Action::Kind kind) { return kind <= Action::Kind::backward_weight; }
constexpr bool is_communication(Action::Kind kind) {
  return kind >= Action::Kind::send_forward && kind <= Action::Kind::recv_backward;
}
// Whether actions of this kind have a microbatch; the others have only a stage.
constexpr bool has_microbatch(Action::Kind kind) { return kind < Action::Kind::unshard; }

}  // namespace dtensor::pipeline
