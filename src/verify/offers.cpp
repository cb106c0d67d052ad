// Enumerates all strategies that a rule offers: those with sharded operands, and each group of operands that may be
// Partial together, for each allowed reduction.
#include <ATen/ATen.h>

#include <set>

#include "verify/oracle.h"

namespace dtensor {
namespace {

// Replicate except for the first operand with a dimension, so that the rule offers its factors.
std::vector<Placements> some_shard(const std::vector<at::Tensor>& operands) {
  std::vector<Placements> placements;
  bool sharded = false;
  for (const at::Tensor& tensor : operands) {
    placements.emplace_back();
    if (!is_placed(tensor)) continue;
    const bool here = !sharded && tensor.dim() > 0;
    placements.back() = {here ? Shard(0) : Replicate()};
    sharded |= here;
  }
  return placements;
}

// A group of the rule, given by the arguments of its operands. An argument that is a list belongs to a group with all
// its entries.
struct PartialGroup {
  int group;
  ReduceOp op;
  std::set<int> args;
};

PartialGroup partial_group_of(const BoundRule& p, std::size_t group, ReduceOp op) {
  PartialGroup sharing{static_cast<int>(group), op, {}};
  for (const int i : p.data->groups[group].operands) {
    if (i < static_cast<int>(p.operands.size())) {
      sharing.args.insert(p.operands[static_cast<std::size_t>(i)].operand->arg);
    }
  }
  return sharing;
}

// Whether summands of the type can be generated such that only a wrong rule changes their reduction. Sums of 16-bit
// types show rounding, and integers have no average.
bool has_shares(c10::ScalarType type, ReduceOp op) {
  const bool full = c10::isIntegralType(type, true) && !c10::isBarebonesUnsignedType(type);
  const bool summed = op == ReduceOp::sum || op == ReduceOp::avg, ordered = op == ReduceOp::max || op == ReduceOp::min;
  if (type == at::kComplexFloat || type == at::kComplexDouble) return !ordered;
  if (type == at::kHalf || type == at::kBFloat16) return !summed;
  return type == at::kFloat || type == at::kDouble || (full && op != ReduceOp::avg);
}

class StrategyTrial {
 public:
  StrategyTrial(const Sample& sample, std::int64_t ranks)
      : sample_(sample), ranks_(ranks), operands_(sample_operands(sample)), shards_(some_shard(operands_)) {}

  std::vector<Verdict> run() {
    find_groups();
    for (std::size_t k = 0; k < count_; ++k) {
      verdicts_.push_back(verify_strategy(sample_, {ranks_}, shards_, nth_candidate(k, count_)));
    }
    for (const PartialGroup& sharing : groups_) {
      if (can_be_partial(sharing)) share(sharing);
    }
    return std::move(verdicts_);
  }

 private:
  // Finds the groups for the first position of a list; the same rule decides the others.
  void find_groups() {
    MeshCall mc = mesh_call(sample_, {ranks_}, 0, shards_);
    for (const Operand& operand : mc.call.operands) args_.push_back(operand.arg);
    infer_outputs(mc.call);
    decide(mc.call, [&](const BoundRule& p) {
      count_ = std::max(count_, candidates(p, {}).size());
      for (std::size_t g = 0; first_ && g < p.data->groups.size(); ++g) {
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min, ReduceOp::product}) {
          if ((p.data->groups[g].ops & bit(op)) != 0) groups_.push_back(partial_group_of(p, g, op));
        }
      }
      first_ = false;
      return choose(p);
    });
  }

  bool in(const PartialGroup& sharing, std::size_t operand) const { return sharing.args.contains(args_[operand]); }

  // Non-finite numbers have no summands, since sums of summands would be NaN.
  bool can_be_partial(const PartialGroup& sharing) {
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      if (in(sharing, i) && operands_[i].defined() && !has_shares(operands_[i].scalar_type(), sharing.op)) return false;
    }
    if (sharing.op != ReduceOp::sum && sharing.op != ReduceOp::avg) return true;
    if (!finite_) finite_ = has_finite_results(sample_);
    return *finite_;
  }

  void share(const PartialGroup& sharing) {
    std::vector<Placements> placements;
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      placements.emplace_back();
      if (is_placed(operands_[i])) placements.back() = {in(sharing, i) ? Partial(sharing.op) : Placement(Replicate())};
    }
    bool offered = false;
    const auto chooser = [&](const BoundRule& p) {
      for (const Candidate& candidate : candidates(p, {})) {
        const AxisChoice& c = candidate.choice;
        if (c.kind != AxisChoice::Kind::group || c.index != sharing.group || c.op != sharing.op) continue;
        offered = true;
        return Assignment{c};
      }
      return choose(p);
    };
    Verdict verdict = verify_strategy(sample_, {ranks_}, placements, chooser);
    if (offered) verdicts_.push_back(std::move(verdict));
  }

  const Sample& sample_;
  std::int64_t ranks_;
  std::vector<at::Tensor> operands_;
  std::vector<Placements> shards_;
  std::vector<int> args_;  // one per operand
  std::vector<PartialGroup> groups_;
  bool first_ = true;
  std::size_t count_ = 0;
  std::optional<bool> finite_;
  std::vector<Verdict> verdicts_;
};

}  // namespace

Chooser nth_candidate(std::size_t k, std::size_t& count) {
  return [k, &count](const BoundRule& p) {
    const std::vector<Candidate> list = candidates(p, {});
    count = std::max(count, list.size());
    return Assignment{list[std::min(k, list.size() - 1)].choice};
  };
}

std::vector<Verdict> verify_all_strategies(const Sample& sample, std::int64_t ranks) {
  return StrategyTrial(sample, ranks).run();
}

}  // namespace dtensor
