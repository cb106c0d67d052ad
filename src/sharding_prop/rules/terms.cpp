// Builders of terms for whole families.
#include "sharding_prop/rules/terms.h"

#include "sharding_prop/rules/metas.h"

namespace dtensor {
namespace {

bool among(const std::vector<std::int64_t>& dims, std::size_t d) {
  return std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(d)) != dims.end();
}

// The part of `batch` that a tensor with these sizes has, and its own dimensions, whole.
RuleTerm batch_term(Rule& rule, const RuleTerm& batch, std::size_t rank, std::size_t core) {
  RuleTerm term(batch.end() - static_cast<std::ptrdiff_t>(rank - core), batch.end());
  while (term.size() < rank) term.push_back(alone(rule));
  return term;
}

// `shared`, but for the dimensions in `whole`.
RuleTerm but_alone(Rule& rule, RuleTerm shared, const std::vector<std::int64_t>& whole) {
  for (std::size_t d = 0; d < shared.size(); ++d) {
    if (among(whole, d)) shared[d] = alone(rule);
  }
  return shared;
}

at::DimVector batch_sizes(const OpArgs& op, const std::vector<int>& core) {
  at::DimVector sizes;
  for (int i = 0; i < op.operand_count(); ++i) {
    const int own = core[static_cast<std::size_t>(i)];
    if (!op.defined(i) || own < 0 || op.sizes(i).size() < static_cast<std::size_t>(own)) continue;
    const auto lead = op.sizes(i).slice(0, op.sizes(i).size() - static_cast<std::size_t>(own));
    if (lead.size() > sizes.size()) sizes.insert(sizes.begin(), lead.size() - sizes.size(), 1);
    for (std::size_t d = 0; d < lead.size(); ++d) {
      auto& size = sizes[sizes.size() - lead.size() + d];
      if (size == 1) size = lead[d];
    }
  }
  return sizes;
}

}  // namespace

RuleDim alone(Rule& rule) {
  const int factor = rule.factor("w");
  rule.whole_factor(factor);
  return {factor};
}

RuleTerm all_alone(Rule& rule, std::size_t rank) {
  RuleTerm term;
  for (std::size_t d = 0; d < rank; ++d) term.push_back(alone(rule));
  return term;
}

Rule windowed(const OpArgs& op, std::size_t rank, const std::vector<std::int64_t>& whole) {
  Rule rule;
  RuleTerm term;
  for (std::size_t d = 0; d < rank; ++d) {
    term.push_back({rule.factor()});
    if (!among(whole, d)) rule.handled_factor(term.back()[0], kSkipEmpty);
  }
  for (int i = 0; i < op.operand_count(); ++i) {
    op.defined(i) && op.sizes(i).size() == rank ? rule.operand(but_alone(rule, term, whole)) : rule.absent_operand();
  }
  for (int r = 0; r < std::max(op.result_count(), 1); ++r) rule.result(but_alone(rule, term, whole));
  return rule;
}

Rule batched(const OpArgs& op, const std::vector<int>& core) {
  Rule rule;
  RuleTerm batch;
  const at::DimVector sizes = batch_sizes(op, core);
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    batch.push_back({rule.factor()});
    rule.handled_factor(batch.back()[0], kSkipEmpty);
  }
  for (int i = 0; i < op.operand_count(); ++i) {
    const int own = core[static_cast<std::size_t>(i)];
    const bool fits = op.defined(i) && own >= 0 && op.sizes(i).size() >= static_cast<std::size_t>(own);
    fits ? rule.operand(batch_term(rule, batch, op.sizes(i).size(), static_cast<std::size_t>(own)))
         : rule.absent_operand();
  }
  for (int r = 0; r < op.result_count(); ++r) {
    const at::IntArrayRef out = op.result(r).sizes;
    const bool leads = out.size() >= sizes.size() && out.slice(0, sizes.size()).equals(sizes);
    rule.result(leads ? batch_term(rule, batch, out.size(), out.size() - sizes.size()) : all_alone(rule, out.size()));
    // A result without the batch would be taken for a sum over it.
    for (std::size_t d = 0; d < batch.size() && !leads && op.result(r).defined; ++d) rule.whole_factor(batch[d][0]);
  }
  return rule;
}

Rule pointwise_but(const OpArgs& op, const std::vector<std::int64_t>& whole) {
  Rule rule;
  RuleTerm term;
  for (std::size_t d = 0; d < op.result(0).sizes.size(); ++d) {
    term.push_back({rule.factor()});
    if (among(whole, d)) rule.whole_factor(static_cast<int>(d));
  }
  for (int i = 0; i < op.operand_count(); ++i) {
    const std::size_t rank = op.defined(i) ? op.sizes(i).size() : 0;
    rule.operand(RuleTerm(term.end() - static_cast<std::ptrdiff_t>(rank), term.end()));
  }
  for (int r = 0; r < op.result_count(); ++r) rule.result(term);
  return rule;
}

std::vector<std::int64_t> last_dims(const OpArgs& op, std::size_t count) {
  const std::size_t rank = op.sizes(0).size();
  std::vector<std::int64_t> dims;
  for (std::size_t d = rank - std::min(rank, count); d < rank; ++d) dims.push_back(static_cast<std::int64_t>(d));
  return dims;
}

std::vector<OutputMeta> like_operands(const OpArgs& op, std::initializer_list<int> like, const char* mask) {
  std::vector<OutputMeta> outputs;
  for (const int i : like) {
    const bool wanted = mask == nullptr || op.arg(mask).toBoolList()[outputs.size()];
    outputs.push_back(wanted && i >= 0 && op.defined(i) ? dense_meta(op.sizes(i), op.dtype(i)) : undefined_meta());
  }
  return outputs;
}

}  // namespace dtensor
