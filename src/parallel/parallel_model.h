// The decisions of parallelize(), for the functions that apply them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "dtensor/parallelize.h"

namespace dtensor {

struct ActivationRule {
  DeviceMesh mesh;
  std::int64_t axis = 0;
  std::string axis_name;  // applies to activations on another mesh with this axis
  Placement placement;
  bool pins_gradient = false;  // redistributes the gradient too, even if the activation has the placement already
  bool is_output = false;      // of a module: the gathered tensor is saved, since its readers are unknown
};

// Whether both rules are for the same axis, so that the later one replaces the earlier.
bool same_axis(const ActivationRule& a, const ActivationRule& b);
// Applies the rules of one activation point, which may be of several plans: each is for an axis of its own.
at::Tensor apply_rules(const std::vector<ActivationRule>& rules, const at::Tensor& x);

struct ParallelModel::State {
  std::vector<Decision> parameters, activations;
  std::map<std::string, std::vector<ActivationRule>> rules;  // by activation point: one rule per axis
  // The plans that a combined state was made of. A Scope of a combined state replaces the enclosing scopes.
  std::vector<std::shared_ptr<const State>> plans;
};

// Appends a rule and removes an earlier one for the same axis.
void add_rule(std::vector<ActivationRule>& rules, const ActivationRule& rule);

}  // namespace dtensor
