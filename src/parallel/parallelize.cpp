// Matches the plan against the names of a model, then distributes parameters and sets activation points.
#include "dtensor/parallelize.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "internal/parameter_swap.h"
#include "name_patterns/name_patterns.h"
#include "parallel/parallel_model.h"
#include "parallel/place_parameter.h"

namespace dtensor {
namespace {

// The names that a plan is matched against.
struct Names {
  NamedTensors parameters;
  std::map<std::string, nn::Module*> modules;  // null: only its name is known, from its parameters
  std::vector<std::string> points;             // full names
};

struct Claim {
  std::string entry;
  Placement placement;
  bool pins_gradient = false;
};
using Claims = std::map<std::string, Claim>;

void claim(Claims& claims, const std::string& name, Claim by) {
  const auto [it, fresh] = claims.emplace(name, by);
  TORCH_CHECK(fresh, "parallelize: '", name, "' is claimed by two entries of the plan, '", it->second.entry, "' and '",
              by.entry, "'");
}

std::string point_of(const std::string& module, const char* point) {
  return module.empty() ? point : module + "." + point;
}

// Collects what one entry of the plan claims.
struct Matcher {
  const Names& names;
  const std::string& pattern;
  std::int64_t ranks;  // of the plan's axis
  Claims& parameters;
  Claims& points;
  bool found = false;

  void activation(const std::string& module, const char* point, const std::optional<Placement>& wanted,
                  bool pins_gradient) {
    if (wanted) claim(points, point_of(module, point), {pattern, *wanted, pins_gradient});
  }

  template <class Activations>
  void each_module(const Activations& activations) {
    for (const auto& [name, module] : names.modules) {
      if (!matches_pattern(pattern, name)) continue;
      found = true;
      activations(name);
    }
  }

  // Parameters that match by their own name or, with of_modules, by their module's.
  template <class PlacementOf>
  std::size_t each_parameter(bool of_modules, const PlacementOf& placement_of) {
    std::size_t count = 0;
    for (const auto& [name, tensor] : names.parameters) {
      const bool own = name.find('.') == std::string::npos;  // the model's own, for an empty pattern
      const bool by_module = of_modules && (own ? pattern.empty() : matches_pattern(pattern, parent_name(name)));
      if (!by_module && !matches_pattern(pattern, name)) continue;
      claim(parameters, name, {pattern, placement_of(name, *tensor)});
      ++count;
    }
    found |= count > 0;
    return count;
  }

  nn::Module* module_of(const std::string& parameter) const {
    const auto it = names.modules.find(parent_name(parameter));
    return it == names.modules.end() ? nullptr : it->second;
  }
};

Placement split(const Matcher& m, std::int64_t dim, const at::Tensor& tensor, std::int64_t block) {
  TORCH_CHECK(block >= 1, "parallelize: expected a block of at least 1 feature, got ", block, " in entry '", m.pattern,
              "'");
  if (dim < 0 || dim >= tensor.dim()) return Replicate();
  const std::int64_t size = tensor.size(dim);
  return size % (block * m.ranks) == 0 || block == 1 ? Shard(dim) : BlockShard(dim, size, block, m.ranks);
}

std::string last_name(const std::string& name) { return name.substr(name.rfind('.') + 1); }

void check_has_parameters(const Matcher& m, std::size_t count) {
  TORCH_CHECK(count > 0 || !m.found, "parallelize: entry '", m.pattern,
              "' names modules without parameters of their own; name the layers below them");
}

// Features are along dimension `dim`, unless the parameter's module overrides it (output_dim, input_dim).
template <class Style>
void split_features(Matcher& m, const Style& s, std::int64_t dim,
                    std::int64_t (nn::Module::*dim_of)(const std::string&) const) {
  m.each_module([&](const std::string& name) {
    m.activation(name, "in", s.in, false);
    m.activation(name, "out", s.out, false);
  });
  check_has_parameters(m, m.each_parameter(true, [&](const std::string& name, const at::Tensor& tensor) {
    const nn::Module* module = m.module_of(name);
    return split(m, module == nullptr ? dim : (module->*dim_of)(last_name(name)), tensor, s.block);
  }));
}

// One overload per style.
void apply(Matcher& m, const ColwiseParallel& s) { split_features(m, s, 0, &nn::Module::output_dim); }

void apply(Matcher& m, const RowwiseParallel& s) { split_features(m, s, 1, &nn::Module::input_dim); }

Placement full(const std::string&, const at::Tensor&) { return Replicate(); }

void apply(Matcher& m, const SequenceParallel& s) {
  m.each_module([&](const std::string& name) {
    m.activation(name, "in", Shard(s.dim), true);
    m.activation(name, "out", Shard(s.dim), true);
  });
  m.each_parameter(true, full);
}

void apply(Matcher& m, const PrepareModuleInput& s) {
  m.each_module([&](const std::string& name) { m.activation(name, "in", s.in, true); });
}

void apply(Matcher& m, const PrepareModuleOutput& s) {
  m.each_module([&](const std::string& name) { m.activation(name, "out", s.out, true); });
}

void apply(Matcher& m, const ShardParameter& s) {
  m.each_parameter(false, [&](const std::string& name, const at::Tensor& tensor) {
    TORCH_CHECK(s.dim >= -tensor.dim() && s.dim < tensor.dim(), "parallelize: entry '", m.pattern,
                "' splits dimension ", s.dim, " of '", name, "', which has sizes ", tensor.sizes());
    return Shard(s.dim < 0 ? s.dim + tensor.dim() : s.dim);
  });
}

void apply(Matcher& m, const ReplicateParameter&) { m.each_parameter(true, full); }

void apply(Matcher& m, const ConstrainActivation& s) {
  for (const std::string& name : m.names.points) {
    if (!matches_pattern(m.pattern, name)) continue;
    m.found = true;
    claim(m.points, name, {m.pattern, s.placement, true});
  }
}

std::vector<std::string> all_names(const Names& names) {
  std::vector<std::string> all;
  for (const auto& [name, module] : names.modules) all.push_back(name);
  for (const auto& [name, tensor] : names.parameters) all.push_back(name);
  all.insert(all.end(), names.points.begin(), names.points.end());
  return all;
}

void match_plan(const Names& names, const ParallelPlan& plan, std::int64_t ranks, Claims& parameters, Claims& points) {
  for (const auto& [pattern, style] : plan) {
    Matcher matcher{names, pattern, ranks, parameters, points};
    std::visit([&](const auto& s) { apply(matcher, s); }, style);
    TORCH_CHECK(matcher.found, "parallelize: entry '", pattern, "' matches nothing; the nearest names are ",
                c10::Join(", ", closest_names(pattern, all_names(names))));
  }
}

std::int64_t axis_of(const DeviceMesh& mesh, const ParallelizeOptions& options) {
  const std::vector<std::string>& names = mesh.names();
  const bool named = std::find(names.begin(), names.end(), options.axis) != names.end();
  return mesh.ndim() == 1 && !named ? 0 : mesh.dim(options.axis);
}

std::shared_ptr<const ParallelModel::State> apply_decisions(const Names& names, const DeviceMesh& mesh,
                                                            const ParallelPlan& plan,
                                                            const ParallelizeOptions& options) {
  retie_shared_parameters(names.parameters);
  Claims parameters, points;
  const std::int64_t axis = axis_of(mesh, options);
  match_plan(names, plan, mesh.size(axis), parameters, points);
  auto state = std::make_shared<ParallelModel::State>();
  place_parameters(names.parameters, mesh, axis, [&](const std::string& name) {
    const auto it = parameters.find(name);
    return it == parameters.end() ? std::nullopt : std::optional(it->second.placement);
  });
  for (const auto& [name, tensor] : names.parameters) {
    if (!(DTensor(*tensor).mesh() == mesh)) continue;
    const auto it = parameters.find(name);
    state->parameters.push_back({name, DTensor(*tensor).placements()[static_cast<std::size_t>(axis)],
                                 it == parameters.end() ? "" : it->second.entry});
  }
  const std::string axis_name = mesh.names().empty() ? "" : mesh.names()[static_cast<std::size_t>(axis)];
  for (const auto& [name, by] : points) {
    state->activations.push_back({name, by.placement, by.entry});
    state->rules[name] = {
        ActivationRule{mesh, axis, axis_name, by.placement, by.pins_gradient, last_name(name) == "out"}};
  }
  return state;
}

// The rules at an activation point of a module. A later plan for another axis adds to them.
struct Follows {
  std::vector<ActivationRule> rules;
  at::Tensor operator()(const at::Tensor& x) const { return apply_rules(rules, x); }
};

void add_rules(nn::Module& module, const std::string& point, const std::vector<ActivationRule>& rules) {
  const auto* before = module.constraint(point).target<Follows>();
  Follows all = before == nullptr ? Follows() : *before;
  for (const ActivationRule& rule : rules) add_rule(all.rules, rule);
  module.set_constraint(point, std::move(all));
}

void add_points(const std::string& module, const std::vector<std::string>& points, Names& names) {
  for (const std::string& point : points) names.points.push_back(point_of(module, point.c_str()));
}

}  // namespace

ParallelModel parallelize(nn::Module& model, const DeviceMesh& mesh, const ParallelPlan& plan,
                          const ParallelizeOptions& options) {
  Names names{model.named_parameters(), {}, options.activations};
  for (const auto& [name, module] : model.named_modules()) {
    names.modules[name] = module;
    add_points(name, module->activation_points(), names);
  }
  auto state = apply_decisions(names, mesh, plan, options);
  for (const auto& [name, module] : names.modules) {
    for (const std::string& point : module->activation_points()) {
      const auto rules = state->rules.find(point_of(name, point.c_str()));
      if (rules != state->rules.end()) add_rules(*module, point, rules->second);
    }
  }
  return ParallelModel(std::move(state));
}

ParallelModel parallelize(const NamedTensors& parameters, const DeviceMesh& mesh, const ParallelPlan& plan,
                          const ParallelizeOptions& options) {
  Names names{parameters, {}, options.activations};
  for (const auto& [name, tensor] : parameters) {
    for (std::string module = parent_name(name); !module.empty(); module = parent_name(module)) {
      if (names.modules.emplace(module, nullptr).second) add_points(module, {"in", "out"}, names);
    }
  }
  return ParallelModel(apply_decisions(names, mesh, plan, options));
}

namespace {

// Without a state, there are no decisions.
const ParallelModel::State& decided(const std::shared_ptr<const ParallelModel::State>& state) {
  static const ParallelModel::State none;
  return state ? *state : none;
}

}  // namespace

const std::vector<ParallelModel::Decision>& ParallelModel::parameters() const { return decided(state_).parameters; }
const std::vector<ParallelModel::Decision>& ParallelModel::activations() const { return decided(state_).activations; }

std::string ParallelModel::str() const {
  std::string text;
  const auto add = [&](const char* kind, const std::vector<Decision>& decisions) {
    for (const Decision& d : decisions) {
      text += std::string(kind) + " " + d.name + ": " + d.placement.str() +
              (d.entry.empty() ? "" : " (" + d.entry + ")") + "\n";
    }
  };
  add("parameter", parameters());
  add("activation", activations());
  return text;
}

}  // namespace dtensor
