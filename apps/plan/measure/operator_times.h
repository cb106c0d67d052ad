// Times of operators inside of training steps, where their operands are as cold as in a program.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dtensor/estimate.h"

namespace plan {

using Step = std::function<void()>;

// One call of an operator.
struct OperatorTime {
  std::string name;  // "aten::mm"
  at::ScalarType dtype = at::kFloat;
  double size = 0;  // FLOPs, or bytes of an operator that has none
  double seconds = 0;
};

// Runs the step that `make` returns several times on this thread. A dry run of it knows the sizes, so a call has the
// size of the call with the same number in the dry run. Operators on tensors of this device only, no DTensors.
std::vector<OperatorTime> time_operators(const std::function<Step()>& make);

// Rates by operator and dtype, as HardwareModel::rates has them. Calls of similar size are one point.
std::map<std::string, std::vector<dtensor::HardwareModel::Point>> rates_of(const std::vector<OperatorTime>& calls);

// `values` has at least one element.
double median(std::vector<double> values);

}  // namespace plan
