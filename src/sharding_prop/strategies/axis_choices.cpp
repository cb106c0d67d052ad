// The choices that a mesh axis offers. A factor is offered only if an operand is sharded on the axis or result 0 is
// preferred in a shard. So an implicit redistribution never adds a shard, and it adds a Partial only for an operand
// that is added once.
#include "sharding_prop/strategies/axis_choices.h"

#include "internal/shard_segments.h"
#include "sharding_prop/strategies/factor_placements.h"

namespace dtensor {
namespace {

using Kind = AxisChoice::Kind;

const Placements& own(const OperandState& operand) { return operand.spec->placements; }

bool is_sharded_on(const BoundRule& p, std::size_t axis) {
  return std::any_of(p.operands.begin(), p.operands.end(),
                     [&](const OperandState& o) { return o.spec && own(o)[axis].is_shard(); });
}

// Whether an operand is in storage shards on the axis. Its parts are taken of the parameter that its unit gathers.
bool is_stored_on(const BoundRule& p, std::size_t axis) {
  return p.storage == StorageView::keep &&
         std::any_of(p.operands.begin(), p.operands.end(),
                     [&](const OperandState& o) { return o.spec && o.operand->spec->placements[axis].is_storage(); });
}

bool occurs_in_operands(const BoundRule& p, int factor) {
  return std::any_of(p.operands.begin(), p.operands.end(),
                     [&](const OperandState& o) { return o.used && o.has(factor); });
}

// Whether the preferred shard of result 0 contains the factor. Splitting a factor that only the result has costs
// nothing, but pays off only in this case.
bool is_preferred(const BoundRule& p, int factor, std::size_t axis) {
  const Placement* wanted = preferred_output(p, axis);
  if (wanted == nullptr) return false;
  const Rule::DimFactors& dim = p.results[0].dims[static_cast<std::size_t>(wanted->dim())];
  return std::find(dim.begin(), dim.end(), factor) != dim.end();
}

// The splits of this factor that the axis offers: chunks, and the splits of the operands.
c10::SmallVector<Placement, 4> split_kinds(const BoundRule& p, int factor, std::size_t axis) {
  c10::SmallVector<Placement, 4> found{Shard(0)};
  for (const OperandState& o : p.operands) {
    if (!o.spec || !o.used || !own(o)[axis].is_shard()) continue;
    const Placement& placement = own(o)[axis];
    const auto split = split_of_factor(p, o.dims[static_cast<std::size_t>(placement.dim())], factor, placement);
    if (split && std::find(found.begin(), found.end(), *split) == found.end()) found.push_back(*split);
  }
  return found;
}

// Whether a sum of small integers wraps around while summands in the larger or floating-point type would not.
bool continues(c10::ScalarType from, c10::ScalarType to) {
  const bool few = c10::isIntegralType(from, false) && c10::elementSize(from) < sizeof(std::int64_t);
  return few && (!c10::isIntegralType(to, false) || c10::elementSize(to) > c10::elementSize(from));
}

// Whether converting each summand and reducing equals reducing and converting. Sums of bools, or of floating-point
// numbers converted to integers, do not commute with the conversion. In 8-bit types, summands may exceed the range of
// their sum.
bool survives_types(const BoundRule& p, const Operand& operand, ReduceOp op) {
  const bool additive = op == ReduceOp::sum || op == ReduceOp::avg;
  const auto fractional = [](c10::ScalarType type) { return c10::isFloatingType(type) || c10::isComplexType(type); };
  const c10::ScalarType from = operand.dtype;
  for (const ResultState& result : p.results) {
    const c10::ScalarType to = result.meta->dtype;
    if (!result.meta->defined || to == from) continue;
    if (from == c10::ScalarType::Bool || to == c10::ScalarType::Bool) return false;
    if (additive && ((fractional(from) && !fractional(to)) || continues(from, to) || c10::isFloat8Type(to)))
      return false;
    if (!additive && to != c10::ScalarType::Undefined) return false;
  }
  return true;
}

bool group_fits(const BoundRule& p, const Group& group, ReduceOp op, std::size_t axis) {
  if ((group.ops & bit(op)) == 0) return false;
  bool any = false;
  for (const int i : group.operands) {
    if (i >= static_cast<int>(p.operands.size())) return false;
    const OperandState& o = p.operands[static_cast<std::size_t>(i)];
    if (o.operand == nullptr || !o.operand->defined) continue;
    if (!survives_types(p, *o.operand, op)) return false;
    const bool partial = o.spec && own(o)[axis].is_partial(op);
    if (!partial && !o.once) return false;
    any |= partial;
  }
  return any;
}

void add_group_choices(const BoundRule& p, std::size_t axis, std::vector<AxisChoice>& choices) {
  for (std::size_t g = 0; g < p.data->groups.size(); ++g) {
    for (unsigned op = 0; op < 5; ++op) {
      if (!group_fits(p, p.data->groups[g], static_cast<ReduceOp>(op), axis)) continue;
      choices.push_back({Kind::group, static_cast<int>(g), Shard(0), static_cast<ReduceOp>(op)});
    }
  }
}

}  // namespace

const Placement* preferred_output(const BoundRule& p, std::size_t axis) {
  if (p.call->preferred_result.empty() || !p.call->preferred_result[axis].is_shard() || p.results.empty())
    return nullptr;
  return &p.call->preferred_result[axis];
}

bool may_shard(const BoundRule& p, const Assignment& with_choice) {
  const AxisChoice& c = with_choice.back();
  const FactorState& factor = p.factors[static_cast<std::size_t>(c.index)];
  if (factor.unsharded || factor.size < 0) return false;
  if (p.call->block > 0 && factor.contracted && !factor.sharded_by_kernel) return false;
  if (factor.block > 1 && !is_cut_at_blocks(p, c.index, with_choice)) return false;
  if (factor.elastic && is_stored_on(p, with_choice.size() - 1)) return false;
  if (!occurs_in_operands(p, c.index) && !is_preferred(p, c.index, with_choice.size() - 1)) return false;
  const std::int64_t parts = parts_of_factor(p, c.index, with_choice, with_choice.size());
  // Listed sizes of a compound dimension are scaled, so they need not be equal.
  const std::int64_t equal_parts = chunk_count(c.split, parts) * c.split.split_factor();
  if (factor.even && !lists_sizes(c.split) && factor.size % equal_parts != 0) return false;
  if (parts == 1) return true;
  return !factor.nonempty || smallest_part(p, c.index, with_choice) > 0;
}

std::vector<AxisChoice> choices_on(const BoundRule& p, std::size_t axis) {
  std::vector<AxisChoice> choices(1);
  if (is_sharded_on(p, axis) || preferred_output(p, axis) != nullptr) {
    for (int f = 0; f < static_cast<int>(p.factors.size()); ++f) {
      if (p.factors[static_cast<std::size_t>(f)].unsharded) continue;
      for (const Placement& split : split_kinds(p, f, axis)) choices.push_back({Kind::factor, f, split});
    }
  }
  add_group_choices(p, axis, choices);
  return choices;
}

}  // namespace dtensor
