// Candidates for each mesh axis, and the choice by cost. Axes are decided from the left. The cost of a candidate is
// that of redistributing each operand, with the placements of later axes unchanged.
#include "sharding_prop/strategies/strategy.h"

#define FMT_HEADER_ONLY
#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "placement/shard_map.h"
#include "redistribute/plan/cost.h"
#include "sharding_prop/strategies/axis_choices.h"
#include "sharding_prop/strategies/factor_placements.h"

namespace dtensor {
namespace {

using Kind = AxisChoice::Kind;

bool in_group(const BoundRule& p, int group, std::size_t operand) {
  const Rule::Operands& members = p.data->groups[static_cast<std::size_t>(group)].operands;
  return std::find(members.begin(), members.end(), static_cast<int>(operand)) != members.end();
}

std::size_t index_of(const BoundRule& p, const OperandState& operand) {
  return static_cast<std::size_t>(&operand - p.operands.data());
}

bool is_contracted(const BoundRule& p, int factor) { return p.factors[static_cast<std::size_t>(factor)].contracted; }

std::optional<Placement> operand_placement(const BoundRule& p, const OperandState& operand, const Assignment& chosen,
                                           std::size_t axis, bool& valid) {
  const AxisChoice& c = chosen[axis];
  if (c.kind == Kind::group && in_group(p, c.index, index_of(p, operand))) return Partial(c.op);
  if (c.kind != Kind::factor) return Replicate();
  if (auto shard = shard_of_factor(p, operand, chosen, axis, valid)) return shard;
  const bool sharded_by_kernel = p.factors[static_cast<std::size_t>(c.index)].sharded_by_kernel;
  if (operand.once && is_contracted(p, c.index) && !sharded_by_kernel) return Partial(p.data->reduce);
  return Replicate();
}

bool reads(const ResultState& result, std::size_t operand) {
  return operand >= 32 || (result.reads >> operand & 1u) != 0;
}

// Whether a sharded operand contributes to the result along the factor. Otherwise the result is equal on all ranks.
bool depends_on(const BoundRule& p, const ResultState& result, int factor) {
  if (result.reads == ~0u) return true;
  for (std::size_t i = 0; i < p.operands.size(); ++i) {
    if (reads(result, i) && p.operands[i].used && p.operands[i].has(factor)) return true;
  }
  return false;
}

bool depends_on_group(const BoundRule& p, const ResultState& result, int group) {
  const Rule::Operands& members = p.data->groups[static_cast<std::size_t>(group)].operands;
  return std::any_of(members.begin(), members.end(),
                     [&](int i) { return i < 0 || reads(result, static_cast<std::size_t>(i)); });
}

Placement contracted_placement(const BoundRule& p, std::size_t result, int factor, bool& valid) {
  if (!depends_on(p, p.results[result], factor)) return Replicate();
  if (!p.factors[static_cast<std::size_t>(factor)].sharded_by_kernel) {
    if (p.results[result].absent) valid = false;
    return Partial(p.data->reduce);
  }
  const bool scalar = p.results[result].meta->sizes.empty();
  const KernelResult given = p.data->kernel_result;
  const bool replicate = given == KernelResult::replicate || (given == KernelResult::replicate_scalars && scalar);
  return replicate ? Replicate() : Partial(p.data->kernel_reduce_op);
}

Placement result_placement(const BoundRule& p, std::size_t result, const Assignment& chosen, std::size_t axis,
                           bool& valid) {
  const AxisChoice& c = chosen[axis];
  if (c.kind == Kind::replicate || p.results[result].always_replicated) return Replicate();
  if (c.kind == Kind::group && !depends_on_group(p, p.results[result], c.index)) return Replicate();
  if (c.kind == Kind::group) return Partial(c.op);
  if (auto shard = shard_of_factor(p, p.results[result], chosen, axis, valid)) return *shard;
  return contracted_placement(p, result, c.index, valid);
}

const Placements& own(const OperandState& operand) { return operand.spec->placements; }

bool all_replicate(const Placements& placements) {
  return std::all_of(placements.begin(), placements.end(), [](const Placement& x) { return x.is_replicate(); });
}

bool results_valid(const BoundRule& p, const Assignment& chosen, const Placements& rest,
                   std::vector<std::optional<Placements>>& results) {
  for (std::size_t r = 0; r < p.results.size(); ++r) {
    results.emplace_back();
    if (!p.results[r].used) continue;
    results.back() = result_placements(p, r, chosen, rest);
    if (!results.back()) return false;
  }
  return true;
}

void note_written(const BoundRule& p, const std::vector<std::optional<Placements>>& results, std::size_t axis,
                  Candidate& candidate) {
  int bit_index = 30;
  for (std::size_t i = 0; i < p.operands.size(); ++i) {
    const OperandState& o = p.operands[i];
    if (!o.written || !o.spec) continue;
    bool kept = o.out || candidate.operands[i][axis] == own(o)[axis];
    for (std::size_t r = 0; r < results.size(); ++r) {
      if (p.results[r].alias == static_cast<int>(i) && results[r]) kept &= (*results[r])[axis] == own(o)[axis];
    }
    if (!kept) candidate.unpinned |= 1 << bit_index;
    bit_index = std::max(bit_index - 1, 0);
  }
}

bool add_operand_costs(const BoundRule& p, const Assignment& chosen, Candidate& candidate) {
  const std::size_t axis = chosen.size() - 1;
  const Placements regular(p.mesh_shape().size());
  for (const OperandState& o : p.operands) {
    candidate.operands.emplace_back();
    if (o.operand == nullptr || !o.operand->defined || o.out) continue;
    auto needed = operand_placements(p, o, chosen, o.spec ? own(o) : regular);
    if (!needed) return false;
    if (!o.spec) {
      if (!all_replicate(*needed)) return false;
      continue;
    }
    if ((*needed)[axis] != own(o)[axis] && p.mesh_shape()[axis] > 1) ++candidate.changes;
    if (*needed != own(o)) candidate.cost += redistribute_cost(*o.spec, *needed);
    candidate.operands.back() = std::move(*needed);
  }
  return true;
}

// The cost of reducing a Partial result later, derived from the cost of reducing the operand now and the sizes of both.
// A small gradient is reduced before it becomes a large Partial result (an embedding's); a large operand is reduced
// after it was summed up. With equal sizes the reduction is deferred, since the next operator may make the tensor
// smaller.
double cost_of_deferred_reduction(const BoundRule& p, const AxisChoice& choice, std::size_t axis) {
  constexpr double kWaiting = 0.99;
  if (choice.kind != Kind::group) return 0;
  double reduce_now = 0;
  std::int64_t partial_elements = 1, result_elements = 0;
  for (const int i : p.data->groups[static_cast<std::size_t>(choice.index)].operands) {
    if (i >= static_cast<int>(p.operands.size()) || !p.operands[static_cast<std::size_t>(i)].spec) continue;
    const OperandState& o = p.operands[static_cast<std::size_t>(i)];
    if (!own(o)[axis].is_partial()) continue;
    Placements reduced = own(o);
    reduced[axis] = Replicate();
    const double cost = redistribute_cost(*o.spec, reduced);
    if (cost <= reduce_now) continue;
    reduce_now = cost;
    partial_elements = std::max<std::int64_t>(c10::multiply_integers(o.operand->sizes), 1);
  }
  for (const ResultState& result : p.results) {
    if (result.used && result.meta->defined) result_elements += c10::multiply_integers(result.meta->sizes);
  }
  return kWaiting * reduce_now * static_cast<double>(result_elements) / static_cast<double>(partial_elements);
}

// The cost of redistributing result 0 to the preferred placement. Sharding a replicated result moves nothing, but
// computing it in full has a cost.
double preference_cost(const BoundRule& p, const std::vector<std::optional<Placements>>& results, std::size_t axis) {
  const Placement* wanted = preferred_output(p, axis);
  if (wanted == nullptr || !results[0] || (*results[0])[axis] == *wanted) return 0;
  const OutputMeta& meta = *p.results[0].meta;
  Placements to = *results[0];
  to[axis] = *wanted;
  const double bytes =
      static_cast<double>(c10::multiply_integers(meta.sizes)) * static_cast<double>(c10::elementSize(meta.dtype));
  const double full = (1 - 1.0 / static_cast<double>(p.mesh_shape()[axis])) * bytes / kBytesPerSecond;
  if (!at_most_one_ragged(to)) return 2 * full;  // cannot be expressed as placements; assume that everything moves
  return redistribute_cost(*intern_spec(p.mesh, *results[0], meta.sizes, meta.strides, meta.dtype), to) + full;
}

// Whether written operands that are not returned have the placements after the call that they have in the candidate.
bool returns_nothing(const BoundRule& p, const std::vector<std::optional<Placements>>& results, std::size_t axis,
                     const Candidate& candidate) {
  if (!p.call->info->returns.empty()) return true;
  for (std::size_t r = 0; r < results.size(); ++r) {
    const int operand = p.results[r].alias;
    if (operand < 0 || !results[r] || p.operands[static_cast<std::size_t>(operand)].out) continue;
    const Placements& taken = candidate.operands[static_cast<std::size_t>(operand)];  // empty: regular tensor
    if ((*results[r])[axis] != (taken.empty() ? Replicate() : taken[axis])) return false;
  }
  return true;
}

bool evaluate(const BoundRule& p, const Assignment& chosen, Candidate& candidate) {
  if (chosen.back().kind == Kind::factor && !may_shard(p, chosen)) return false;
  std::vector<std::optional<Placements>> results;
  if (!results_valid(p, chosen, Placements(p.mesh_shape().size()), results)) return false;
  const std::size_t axis = chosen.size() - 1;
  if (!add_operand_costs(p, chosen, candidate) || !returns_nothing(p, results, axis, candidate)) return false;
  candidate.cost += preferred_output(p, axis) != nullptr ? preference_cost(p, results, axis)
                                                         : cost_of_deferred_reduction(p, chosen.back(), axis);
  if (p.pinned) note_written(p, results, axis, candidate);
  return true;
}

bool better(const Candidate& a, const Candidate& b) {
  if (a.unpinned != b.unpinned) return a.unpinned < b.unpinned;
  const double tolerance = 1e-9 * std::max(a.cost, b.cost);
  if (std::abs(a.cost - b.cost) > tolerance) return a.cost < b.cost;
  // Tensors without elements move at no cost. They keep their placements, or detach() would return a materialized view.
  const bool nothing_moves = a.cost == 0 && b.cost == 0;
  if (nothing_moves && a.changes != b.changes) return a.changes < b.changes;
  const bool a_all = a.choice.kind == Kind::replicate;
  const bool b_all = b.choice.kind == Kind::replicate;
  if (a_all != b_all) return a_all;
  return a.changes < b.changes;
}

void log_axis(const BoundRule& p, std::size_t axis, const std::vector<Candidate>& list, int best, std::string& log) {
  log += fmt::format("  axis {} (size {})\n", axis, p.mesh_shape()[axis]);
  for (std::size_t i = 0; i < list.size(); ++i) {
    log += fmt::format("    {} {:<14} {:>10.3f} us", static_cast<int>(i) == best ? '*' : ' ',
                       describe(p, list[i].choice), list[i].cost * 1e6);
    if (list[i].unpinned != 0) log += "  (changes a written operand)";
    log += '\n';
  }
}

std::string no_strategy(const BoundRule& p, const Assignment& chosen) {
  std::string text = c10::str(p.call->info->name()) + ": no strategy fits on mesh axis " +
                     std::to_string(chosen.size()) + ". Operands:";
  for (const OperandState& o : p.operands) text += " " + (o.spec ? o.spec->str() : std::string("regular")) + ";";
  text += " rule " + p.rule.str() + "; tried:";
  for (const AxisChoice& choice : choices_on(p, chosen.size())) text += " " + describe(p, choice) + ";";
  return text;
}

}  // namespace

std::optional<Placements> operand_placements(const BoundRule& p, const OperandState& operand, const Assignment& chosen,
                                             const Placements& rest) {
  Placements placements = rest;
  bool valid = true;
  for (std::size_t a = 0; a < chosen.size(); ++a) placements[a] = *operand_placement(p, operand, chosen, a, valid);
  if (!valid || !placements_fit_factors(p, operand, operand.operand->sizes, chosen, placements)) return std::nullopt;
  return placements;
}

std::optional<Placements> result_placements(const BoundRule& p, std::size_t result, const Assignment& chosen,
                                            const Placements& rest) {
  Placements placements = rest;
  bool valid = true;
  for (std::size_t a = 0; a < chosen.size(); ++a) placements[a] = result_placement(p, result, chosen, a, valid);
  const ResultState& state = p.results[result];
  if (!valid || !placements_fit_factors(p, state, state.meta->sizes, chosen, placements)) return std::nullopt;
  return placements;
}

std::vector<Candidate> candidates(const BoundRule& p, const Assignment& chosen) {
  std::vector<Candidate> list;
  Assignment with_choice = chosen;
  with_choice.emplace_back();
  for (const AxisChoice& choice : choices_on(p, chosen.size())) {
    with_choice.back() = choice;
    Candidate candidate;
    candidate.choice = choice;
    if (evaluate(p, with_choice, candidate)) list.push_back(std::move(candidate));
  }
  return list;
}

int cheapest(const std::vector<Candidate>& list) {
  int best = list.empty() ? -1 : 0;
  for (std::size_t i = 1; i < list.size(); ++i) {
    if (better(list[i], list[static_cast<std::size_t>(best)])) best = static_cast<int>(i);
  }
  return best;
}

Assignment choose(const BoundRule& p, std::string* log) {
  Assignment chosen;
  for (std::size_t axis = 0; axis < p.mesh_shape().size(); ++axis) {
    const std::vector<Candidate> list = candidates(p, chosen);
    const int best = cheapest(list);
    if (log != nullptr) log_axis(p, axis, list, best, *log);
    TORCH_CHECK(best >= 0, no_strategy(p, chosen));
    chosen.push_back(list[static_cast<std::size_t>(best)].choice);
  }
  return chosen;
}

std::string describe(const BoundRule& p, const AxisChoice& choice) {
  if (choice.kind == Kind::replicate) return "replicate";
  if (choice.kind == Kind::group) {
    return fmt::format("P({}) of {}", to_string(choice.op),
                       fmt::join(p.data->groups[static_cast<std::size_t>(choice.index)].operands, "+"));
  }
  const auto named = static_cast<std::size_t>(choice.index);
  std::string text = "shard ";
  text += named < p.data->factors.size() ? p.data->factors[named].name
                                         : "batch " + std::to_string(named - p.data->factors.size());
  return text + describe_split(choice.split);
}

}  // namespace dtensor
