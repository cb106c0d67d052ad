// Splits a call into parts and binds the rule to each.
#include "sharding_prop/strategies/split_call.h"

#include "sharding_prop/bit_identical/forms.h"

#include <map>

namespace dtensor {
namespace {

int operand_of(const OpCall& call, int arg, int list_index) {
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    const Operand& operand = call.operands[i];
    if (operand.arg == arg && (operand.list_index < 0 || list_index < 0 || operand.list_index == list_index)) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

// Number of flattened outputs of each return.
std::vector<int> return_lengths(const OpCall& call) {
  const OpInfo& info = *call.info;
  const int lists = static_cast<int>(
      std::count_if(info.returns.begin(), info.returns.end(), [](const ReturnInfo& r) { return r.is_list; }));
  const int singles = static_cast<int>(info.returns.size()) - lists;
  const int per_list = lists == 0 ? 0 : (static_cast<int>(call.outputs.size()) - singles) / lists;
  std::vector<int> lengths;
  for (const ReturnInfo& r : info.returns) lengths.push_back(r.is_list ? per_list : 1);
  return lengths;
}

StorageView storage_view(const BoundRule& p) {
  const StorageView rule = p.rule.data().storage;
  if (rule != StorageView::replicate) return rule;
  return p.call->info->inplace || p.call->info->rule().data().foreach_op ? StorageView::shard : rule;
}

// The operand's spec as the rule reads it.
SpecPtr spec_seen_by_rule(const BoundRule& p, const SpecPtr& spec, std::size_t index) {
  if (!spec || spec->mesh != p.mesh) return nullptr;
  const bool values_unused = index < 32 && (p.rule.data().values_unused >> index & 1u) != 0;
  if (!spec->has_storage && !(values_unused && spec->has_partial)) return spec;
  Placements placements = spec->placements;
  for (Placement& placement : placements) {
    if (placement.is_storage()) {
      placement = p.storage == StorageView::replicate ? Replicate() : placement.as_storage(false);
    }
    if (values_unused && placement.is_partial()) placement = Replicate();
  }
  return with_placements(*spec, std::move(placements));
}

void add_operands(CallPart& part) {
  const OpInfo& info = *part.call.info;
  BoundRule& p = part.bound_rule;
  for (const Operand& operand : part.call.operands) {
    OperandState& state = p.operands.emplace_back();
    state.operand = &operand;
    state.used = operand.defined;
    state.rank = operand.dim();
    state.out = operand.defined && info.is_out(operand.arg);
    const std::size_t index = p.operands.size() - 1;
    state.written = operand.defined && info.writes(operand.arg);
    state.ignored = index < 32 && (p.rule.data().ignored >> index & 1u) != 0;
    if (!state.ignored) state.spec = spec_seen_by_rule(p, operand.spec, index);
  }
}

void add_results(CallPart& part, const std::vector<ResultAlias>& aliases) {
  BoundRule& p = part.bound_rule;
  for (std::size_t r = 0; r < part.results.size(); ++r) {
    ResultState& state = p.results.emplace_back();
    state.meta = &part.call.outputs[r];
    state.used = state.meta->defined;
    state.rank = static_cast<std::int64_t>(state.meta->sizes.size());
    if (!aliases[r].write || aliases[r].operand < 0) continue;
    state.alias = aliases[r].operand;
    OperandState& operand = p.operands[static_cast<std::size_t>(state.alias)];
    if (operand.out) operand.out_result = static_cast<int>(r);
  }
}

// Tensors that list operators share between positions are numbers or conditions and are never sharded.
void mark_shared(BoundRule& p) {
  if (!p.call->info->rule().data().foreach_op) return;
  for (OperandState& operand : p.operands) {
    if (operand.operand->list_index < 0) operand.used = false;
  }
}

void build_problem(CallPart& part, const std::vector<ResultAlias>& aliases) {
  BoundRule& p = part.bound_rule;
  p.call = &part.call;
  p.mesh = part.call.mesh;
  p.rule = rule_for(part.call);
  if (part.call.block > 0) p.rule = bit_identical_rule(part.call, p.rule);
  p.pinned = !part.call.info->inplace_view;
  p.storage = storage_view(p);
  add_operands(part);
  add_results(part, aliases);
  mark_shared(p);
  bind_rule(p);
}

OutputMeta meta_of(const Operand& operand) {
  OutputMeta meta;
  meta.sizes = operand.sizes;
  meta.strides = operand.strides;
  meta.dtype = operand.dtype;
  return meta;
}

// If the operator returns nothing, its written list entries count as results.
void add_silent_results(CallPart& part, std::vector<ResultAlias>& aliases) {
  const OpInfo& info = *part.call.info;
  if (!info.returns.empty()) return;
  for (std::size_t i = 0; i < part.call.operands.size(); ++i) {
    const Operand& operand = part.call.operands[i];
    if (!operand.defined || !info.writes(operand.arg)) continue;
    part.results.push_back(-1);
    part.call.outputs.push_back(meta_of(operand));
    aliases.push_back({static_cast<int>(i), true});
  }
}

MeshRef mesh_of(const OpCall& part, int position) {
  for (const Operand& operand : part.operands) {
    if (operand.spec && (position < 0 || operand.list_index == position)) return operand.spec->mesh;
  }
  return {};
}

// Requires part.operands and part.results in ascending order.
void fill_part(const OpCall& call, int position, const std::vector<ResultAlias>& all, CallPart& part) {
  part.call.info = call.info;
  part.call.args = call.args;
  part.call.preferred_result = call.preferred_result;
  part.call.runs_replicated = call.runs_replicated;
  part.call.has_sparse_operand = call.has_sparse_operand;
  part.call.block = call.block;
  for (const int i : part.operands) part.call.operands.push_back(call.operands[static_cast<std::size_t>(i)]);
  part.call.mesh = mesh_of(part.call, position);
  std::vector<ResultAlias> aliases;
  for (const int r : part.results) {
    part.call.outputs.push_back(call.outputs[static_cast<std::size_t>(r)]);
    ResultAlias alias = all[static_cast<std::size_t>(r)];
    if (alias.operand >= 0) {
      const auto at = std::lower_bound(part.operands.begin(), part.operands.end(), alias.operand);
      alias.operand = static_cast<int>(at - part.operands.begin());
    }
    aliases.push_back(alias);
  }
  add_silent_results(part, aliases);
  if (part.call.mesh) build_problem(part, aliases);
}

// One pass over all operands, since lists may have thousands of entries.
void share_out_operands(const OpCall& call, std::deque<CallPart>& parts) {
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    const int at = call.operands[i].list_index;
    if (at >= 0 && parts.size() > 1) {
      parts[static_cast<std::size_t>(at)].operands.push_back(static_cast<int>(i));
      continue;
    }
    for (CallPart& part : parts) part.operands.push_back(static_cast<int>(i));
  }
}

void share_out_results(const OpCall& call, std::deque<CallPart>& parts) {
  const std::vector<int> lengths = return_lengths(call);
  const OpInfo& info = *call.info;
  int next = 0;
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    for (int k = 0; k < lengths[r]; ++k, ++next) {
      if (info.rule().data().foreach_op && info.returns[r].is_list) {
        parts[static_cast<std::size_t>(k)].results.push_back(next);
        continue;
      }
      for (CallPart& part : parts) part.results.push_back(next);
    }
  }
}

// The data that determines the decision of a list position. Layers repeat, so most positions of a long list equal an
// earlier one.
using Signature = std::vector<std::uint64_t>;

void add_sizes(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype, Signature& signature) {
  signature.push_back(sizes.size() << 8 | static_cast<std::uint64_t>(dtype));
  for (const auto size : sizes) signature.push_back(static_cast<std::uint64_t>(size));
  for (const auto stride : strides) signature.push_back(static_cast<std::uint64_t>(stride));
}

Signature signature_of(const OpCall& call, const CallPart& part) {
  Signature signature;
  for (const int i : part.operands) {
    const Operand& operand = call.operands[static_cast<std::size_t>(i)];
    signature.push_back(static_cast<std::uint64_t>(operand.arg) << 2 | (operand.defined ? 1 : 0) |
                        (operand.wrapped_number ? 2 : 0));
    signature.push_back(reinterpret_cast<std::uint64_t>(operand.spec.get()));
    if (!operand.spec) add_sizes(operand.sizes, operand.strides, operand.dtype, signature);
  }
  for (const int r : part.results) {
    const OutputMeta& meta = call.outputs[static_cast<std::size_t>(r)];
    signature.push_back((meta.defined ? 1 : 0) | (meta.from_local ? 2 : 0));
    add_sizes(meta.sizes, meta.strides, meta.dtype, signature);
  }
  return signature;
}

}  // namespace

int list_length(const OpCall& call) {
  int length = 0;
  for (const Operand& operand : call.operands) length = std::max(length, operand.list_index + 1);
  return length;
}

std::vector<ResultAlias> result_aliases(const OpCall& call) {
  const std::vector<int> lengths = return_lengths(call);
  std::vector<ResultAlias> aliases;
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    const ReturnInfo& alias = call.info->returns[r];
    for (int k = 0; k < lengths[r]; ++k) {
      aliases.push_back({alias.arg < 0 ? -1 : operand_of(call, alias.arg, k), alias.write});
    }
  }
  return aliases;
}

std::deque<CallPart> split_call(const OpCall& call) {
  std::deque<CallPart> parts;
  const std::vector<ResultAlias> aliases = result_aliases(call);
  const bool foreach_op = call.info->rule().data().foreach_op;
  const int count = foreach_op ? list_length(call) : 1;
  parts.resize(static_cast<std::size_t>(count));
  share_out_operands(call, parts);
  share_out_results(call, parts);
  std::map<Signature, int> seen;
  for (int k = 0; k < count; ++k) {
    CallPart& part = parts[static_cast<std::size_t>(k)];
    if (count > 1) {
      const auto [first, fresh] = seen.emplace(signature_of(call, part), k);
      part.like = fresh ? -1 : first->second;
    }
    if (part.like < 0) fill_part(call, foreach_op ? k : -1, aliases, part);
  }
  return parts;
}

void restore_operand_placements(const BoundRule& p, std::size_t index, Placements& placements) {
  const OperandState& state = p.operands[index];
  const SpecPtr& spec = state.operand->spec;
  if (!spec || spec == state.spec) return;
  const bool values_unused = index < 32 && (p.data->values_unused >> index & 1u) != 0;
  for (std::size_t a = 0; a < placements.size(); ++a) {
    const Placement& own = spec->placements[a];
    const bool same_shard = own.is_storage() && placements[a] == own.as_storage(false);
    const bool same_shape = values_unused && own.is_partial() && placements[a].is_replicate();
    if ((same_shard && p.storage != StorageView::replicate) || same_shape || state.ignored) placements[a] = own;
  }
}

}  // namespace dtensor
