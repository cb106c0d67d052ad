// What parallelize() decided, as the functions that carry it out see it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "dtensor/parallelize.h"

namespace dtensor {

struct ActivationRule {
  DeviceMesh mesh;
  std::int64_t axis = 0;
  std::string axis_name;  // for activations on another mesh that has it
  Placement placement;
  bool pins_gradient = false;  // the gradient too, even where the activation is there already
};

// Whether both are about one axis, so that the later one counts.
bool same_axis(const ActivationRule& a, const ActivationRule& b);
// Those of one activation point, of several plans perhaps: each an axis of its own.
at::Tensor apply_rules(const std::vector<ActivationRule>& rules, const at::Tensor& x);

struct ParallelModel::State {
  std::vector<Decision> parameters, activations;
  std::map<std::string, std::vector<ActivationRule>> rules;  // by activation point: each an axis of its own
  // Of what is in force: the plans that it is made of. Put in force again, it counts alone.
  std::vector<std::shared_ptr<const State>> plans;
};

// After what is there, which it replaces on its axis.
void add_rule(std::vector<ActivationRule>& rules, const ActivationRule& rule);

}  // namespace dtensor
