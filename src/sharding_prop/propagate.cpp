// Assembles the decision of a call from the choices for its parts.
#include "sharding_prop/propagate.h"

#include <ATen/ExpandUtils.h>

#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include "placement/shard_map.h"
#include "sharding_prop/bit_identical/forms.h"
#include "sharding_prop/strategies/split_call.h"

namespace dtensor {
namespace {

const char* const kNoRule = "no rule: runs replicated";
const char* const kOtherLayout = "replicated: an operand is sparse";

void check_allowed(const OpCall& call) {
  const RuleEntry& entry = *call.info->rule().entry;
  if (entry.source == RuleSource::refuse && !call.has_sparse_operand) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, call.info->name(), " is refused on DTensors: ", entry.why);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(entry.source != RuleSource::none || !call.info->is_random, call.info->name(),
                              " draws random numbers and has no rule that makes them independent of the layout");
}

// Whether the operator writes an operand that its schema does not mark as written.
bool hidden_write(const BoundRule& p, std::size_t index) { return index < 32 && (p.data->written >> index & 1u) != 0; }

void decide_operands(const CallPart& part, const Assignment& chosen, Decision& decision) {
  const BoundRule& p = part.bound_rule;
  const Placements regular(p.mesh_shape().size());
  for (std::size_t i = 0; i < part.operands.size(); ++i) {
    const OperandState& state = p.operands[i];
    if (!state.operand->defined || !state.operand->spec) continue;
    Placements& target = decision.inputs[static_cast<std::size_t>(part.operands[i])];
    if (state.out && state.out_result >= 0) {
      target = result_placements(p, static_cast<std::size_t>(state.out_result), chosen, regular).value();
    } else {
      const std::size_t axes = state.operand->spec->mesh->layout.shape.size();
      target = state.spec ? operand_placements(p, state, chosen, regular).value() : Placements(axes);
    }
    restore_operand_placements(p, i, target);
    if (hidden_write(p, i)) decision.mutated.push_back(part.operands[i]);
  }
}

void keep_storage_flags(const BoundRule& p, const Placements& input, Placements& result) {
  const Operand& operand = *p.operands[0].operand;
  if (p.storage != StorageView::keep || !operand.spec) return;
  for (std::size_t a = 0; a < result.size(); ++a) {
    if (result[a].is_shard() && input[a].is_storage()) result[a] = result[a].as_storage();
  }
}

void decide_results(const CallPart& part, const Assignment& chosen, Decision& decision) {
  const BoundRule& p = part.bound_rule;
  for (std::size_t r = 0; r < part.results.size(); ++r) {
    if (part.results[r] < 0 || !p.results[r].used) continue;
    OutputDecision& output = decision.outputs[static_cast<std::size_t>(part.results[r])];
    output.mesh = p.mesh;
    output.placements = result_placements(p, r, chosen, Placements(p.mesh_shape().size())).value();
    if (p.results[r].alias >= 0 && p.pinned) {
      restore_operand_placements(p, static_cast<std::size_t>(p.results[r].alias), output.placements);
    } else if (!p.operands.empty()) {
      keep_storage_flags(p, decision.inputs[static_cast<std::size_t>(part.operands[0])], output.placements);
    }
  }
}

AxisMask local_kernel_axes(const BoundRule& p, const Assignment& chosen) {
  AxisMask mask = 0;
  for (std::size_t a = 0; a < chosen.size(); ++a) {
    if (chosen[a].kind != AxisChoice::Kind::factor) continue;
    const FactorState& factor = p.factors[static_cast<std::size_t>(chosen[a].index)];
    // On an axis of one rank no rows are elsewhere.
    if (factor.sharded_by_kernel && !(factor.elastic && p.mesh_shape()[a] == 1)) mask |= 1u << a;
  }
  return mask;
}

at::DimVector local_sizes_of(const BoundRule& p, const OutputDecision& output) {
  return local_sizes(output.meta.sizes, output.placements, p.mesh_shape(), p.mesh->coordinate);
}

void add_size_patch(const BoundRule& p, const std::string& name, int result, bool strides, Decision& decision) {
  const auto index = p.call->info->schema().argumentIndexWithName(name);
  TORCH_CHECK(index, p.call->info->name(), ": the rule patches '", name, "', which is not an argument of the schema");
  if (p.call->args[static_cast<std::size_t>(*index)].isNone()) return;
  const OutputDecision& output = decision.outputs.at(static_cast<std::size_t>(result));
  const at::DimVector local = local_sizes_of(p, output);
  if (local == output.meta.sizes) return;
  const auto value =
      strides ? at::infer_dense_strides(local, output.meta.strides) : std::vector(local.begin(), local.end());
  decision.patches.push_back({*index, c10::IValue(value)});
}

void add_patches(const BoundRule& p, Decision& decision) {
  if (!p.mesh->is_member) return;
  for (const auto& [name, result] : p.data->size_patches) add_size_patch(p, name, result, false, decision);
  for (const auto& [name, result] : p.data->stride_patches) add_size_patch(p, name, result, true, decision);
}

void decide_part(const CallPart& part, const Chooser& chooser, Decision& decision) {
  const BoundRule& p = part.bound_rule;
  const Assignment chosen = chooser(p);
  decide_operands(part, chosen, decision);
  decide_results(part, chosen, decision);
  const AxisMask axes = local_kernel_axes(p, chosen);
  decision.local_kernel_axes |= axes;
  if (axes != 0 || p.data->local_kernel_always) decision.local_kernel = p.data->local_kernel;
  add_patches(p, decision);
}

// Copies the decision of an equal part.
void decide_like(const CallPart& first, const CallPart& part, Decision& decision) {
  for (std::size_t i = 0; i < part.operands.size(); ++i) {
    decision.inputs[static_cast<std::size_t>(part.operands[i])] =
        decision.inputs[static_cast<std::size_t>(first.operands[i])];
  }
  for (std::size_t r = 0; r < part.results.size(); ++r) {
    OutputDecision& output = decision.outputs[static_cast<std::size_t>(part.results[r])];
    const OutputDecision& known = decision.outputs[static_cast<std::size_t>(first.results[r])];
    output.mesh = known.mesh;
    output.placements = known.placements;
  }
}

Decision empty_decision(const OpCall& call) {
  Decision decision;
  decision.inputs.resize(call.operands.size());
  decision.outputs.resize(call.outputs.size());
  const std::vector<ResultAlias> aliases = result_aliases(call);
  for (std::size_t r = 0; r < call.outputs.size(); ++r) {
    decision.outputs[r].meta = call.outputs[r];
    decision.outputs[r].alias = aliases[r].operand;
    decision.outputs[r].is_view = aliases[r].operand >= 0 && !aliases[r].write;
  }
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    if (call.operands[i].defined && call.info->writes(call.operands[i].arg))
      decision.mutated.push_back(static_cast<int>(i));
  }
  return decision;
}

std::string inputs_text(const OpCall& call) {
  std::string text;
  for (const Operand& operand : call.operands) {
    if (!text.empty()) text += ", ";
    text += operand.spec ? operand.spec->str() : operand.defined ? "regular" : "none";
  }
  return text;
}

std::string why_text(const OpCall& call, const CallPart* part) {
  const RuleEntry& entry = *call.info->rule().entry;
  if (call.has_sparse_operand) return kOtherLayout;
  if (entry.source == RuleSource::none) return kNoRule;
  if (entry.source == RuleSource::replicate) return "replicated: " + entry.why;
  return part == nullptr || !part->bound_rule.data ? "" : part->bound_rule.rule.notation();
}

}  // namespace

Decision propagate(const OpCall& call) {
  return decide(call, [](const BoundRule& p) { return choose(p); });
}

Decision decide(const OpCall& call, const Chooser& chooser) {
  check_allowed(call);
  if (call.block > 0) check_bit_identical_operands(call);
  Decision decision = empty_decision(call);
  const std::deque<CallPart> parts = split_call(call);
  for (const CallPart& part : parts) {
    if (part.like >= 0) {
      decide_like(parts[static_cast<std::size_t>(part.like)], part, decision);
    } else if (part.call.mesh) {
      decide_part(part, chooser, decision);
    }
  }
  decision.why = why_text(call, parts.empty() ? nullptr : &parts.front());
  decision.warn_replicated = call.info->rule().entry->source == RuleSource::none && !call.has_sparse_operand;
  return decision;
}

std::string explain_decision(const OpCall& call) {
  const std::string& derived_from = call.info->rule().derived_from;
  std::string text = fmt::format("{}({})\n", c10::str(call.info->name()), inputs_text(call));
  for (const CallPart& part : split_call(call)) {
    if (part.like >= 0) continue;
    text +=
        fmt::format("  rule {}{}\n", why_text(call, &part), derived_from.empty() ? "" : " (of " + derived_from + ")");
    if (part.call.mesh) choose(part.bound_rule, &text);
  }
  const Decision decision = propagate(call);
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    const SpecPtr& spec = call.operands[i].spec;
    if (spec && decision.inputs[i] != spec->placements) {
      text += fmt::format("  operand {}: {} -> {}\n", i, to_string(spec->placements), to_string(decision.inputs[i]));
    }
  }
  for (const OutputDecision& output : decision.outputs) text += "  result " + to_string(output.placements) + '\n';
  if (!decision.local_kernel.empty()) text += "  local kernel " + decision.local_kernel + '\n';
  return text;
}

}  // namespace dtensor
