// Losses and softmax. Every mean is over the global count: its factors are handled by a local kernel, forward and
// backward. Classes may be sharded.
#include <ATen/core/Reduction.h>

#include "sharding_prop/rules/metas.h"
#include "sharding_prop/rules/rules.h"

namespace dtensor {
namespace {

Rule softmax(const OpArgs& op, const char* kernel) {
  Rule rule = same(op);
  return op.sizes(0).empty() ? rule : rule.handled_dims({op.dim("dim")}, kernel);
}

void add_softmax(RuleBook& book) {
  const auto add = [&](const char* op, const char* kernel, bool backward) {
    book.rule(op, [kernel, backward](const OpArgs& call) {
      Rule rule = softmax(call, kernel);
      return backward ? rule.linear({0}) : rule;
    });
  };
  add("aten::_softmax", "softmax_sharded", false);
  add("aten::_log_softmax", "log_softmax_sharded", false);
  add("aten::_softmax_backward_data", "softmax_backward_sharded", true);
  add("aten::_log_softmax_backward_data", "log_softmax_backward_sharded", true);
  add("aten::_safe_softmax", "safe_softmax_sharded", false);
}

// All operands broadcast together; the result has their sizes, or is one number.
Rule elementwise_loss(const OpArgs& op) {
  const auto reduction = op.integer("reduction");
  if (reduction == at::Reduction::None) return Rule("...* -> ...");
  Rule rule;
  RuleTerm term;
  for (std::size_t d = 0; d < op.sizes(0).size(); ++d) term.push_back({rule.factor()});
  std::vector<std::int64_t> dims(term.size());
  std::iota(dims.begin(), dims.end(), 0);
  for (int i = 0; i < op.operand_count(); ++i) {
    if (!op.defined(i)) {
      rule.absent_operand();
      continue;
    }
    const std::size_t rank = op.sizes(i).size();
    // Operands that broadcast the input itself: whole, since the count is then not the input's.
    if (rank > term.size()) return Rule();
    rule.operand(RuleTerm(term.end() - static_cast<std::ptrdiff_t>(rank), term.end()));
  }
  rule.result({});
  return reduction == at::Reduction::Mean ? rule.handled_dims(dims, "loss_mean_global") : rule;
}

// grad_output, self, target, ... -> grad_self, of self's sizes.
Rule elementwise_loss_backward(const OpArgs& op) {
  Rule rule("...* -> ...");
  rule.linear({0});
  if (op.integer("reduction") != at::Reduction::Mean) return rule;
  Rule counted;
  RuleTerm term;
  for (std::size_t d = 0; d < op.sizes(1).size(); ++d) term.push_back({counted.factor()});
  for (int i = 0; i < op.operand_count(); ++i) {
    if (!op.defined(i)) {
      counted.absent_operand();
      continue;
    }
    const std::size_t rank = op.sizes(i).size();
    if (rank > term.size()) return Rule();
    counted.operand(RuleTerm(term.end() - static_cast<std::ptrdiff_t>(rank), term.end()));
  }
  counted.result(term).linear({0});
  for (std::size_t f = 0; f < term.size(); ++f) counted.handled_factor(static_cast<int>(f), "loss_backward_global");
  return counted;
}

void add_elementwise(RuleBook& book) {
  for (const char* op : {"aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss", "aten::binary_cross_entropy",
                         "aten::binary_cross_entropy_with_logits", "aten::soft_margin_loss"}) {
    book.rule(op, elementwise_loss);
  }
  for (const char* op : {"aten::mse_loss_backward", "aten::smooth_l1_loss_backward", "aten::huber_loss_backward",
                         "aten::binary_cross_entropy_backward", "aten::soft_margin_loss_backward"}) {
    book.rule(op, elementwise_loss_backward);
  }
}

// Factors of the input of an nll loss: batch, class and places; the target lacks the class.
struct Nll {
  Rule rule;
  RuleTerm self, target, weight;
};

Nll nll(at::IntArrayRef sizes, bool batch_handled, const char* kernel) {
  Nll x;
  const std::size_t class_dim = sizes.size() == 1 ? 0 : 1;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const int factor = x.rule.factor(d == class_dim ? "c" : "");
    x.self.push_back({factor});
    (d == class_dim ? x.weight : x.target).push_back({factor});
    if (d == class_dim || batch_handled) x.rule.handled_factor(factor, kernel);
  }
  return x;
}

void add_weight(const OpArgs& op, int weight, Nll& x) {
  op.defined(weight) ? x.rule.operand(x.weight) : x.rule.absent_operand();
}

Rule nll_forward(const OpArgs& op) {
  const bool each = op.integer("reduction") == at::Reduction::None && op.sizes(0).size() > 1;
  Nll x = nll(op.sizes(0), true, "nll_loss_forward");
  x.rule.operand(x.self).operand(x.target);
  add_weight(op, 2, x);
  return x.rule.result(each ? x.target : RuleTerm()).result({}).handled_replicates(1);
}

// The total weight is that of the whole batch, so a part of the batch needs no exchange.
Rule nll_backward(const OpArgs& op) {
  Nll x = nll(op.sizes(1), false, "nll_loss_backward");
  x.rule.operand(op.sizes(0).empty() ? RuleTerm() : x.target).operand(x.self).operand(x.target);
  add_weight(op, 3, x);
  return x.rule.absent_operand().result(x.self).linear({0});
}

std::vector<OutputMeta> nll2d_outputs(const OpArgs& op) {
  const bool each = op.integer("reduction") == at::Reduction::None;
  return {dense_meta(each ? op.sizes(1) : at::IntArrayRef(), op.dtype(0)), dense_meta({}, op.dtype(0))};
}

// Losses of rows: [N, C] or one row. Means are over the rows of the whole batch.
Rule margin_loss(const OpArgs& op, bool second_result) {
  Rule rule;
  RuleTerm rows, row;
  if (op.sizes(0).size() > 1) {
    row = {RuleDim{rule.factor("n")}};
    rule.handled_factor(0, "margin_loss");
  }
  rows = row;
  rows.push_back({rule.factor("c")});
  rule.whole_factor(rows.back()[0]);
  const bool each = op.integer("reduction") == at::Reduction::None;
  rule.operand(rows).operand(op.sizes(1).size() == rows.size() ? rows : row);
  for (int i = 2; i < op.operand_count(); ++i) rule.absent_operand();
  rule.result(each ? row : RuleTerm());
  if (second_result) rule.result(rows);
  return rule;
}

// grad_output, self, target, weight or is_target
Rule margin_loss_backward(const OpArgs& op) {
  Rule rule;
  RuleTerm rows, row;
  if (op.sizes(1).size() > 1) {
    row = {RuleDim{rule.factor("n")}};
    rule.handled_factor(0, "margin_loss");
  }
  rows = row;
  rows.push_back({rule.factor("c")});
  rule.whole_factor(rows.back()[0]);
  rule.operand(op.sizes(0).empty() ? RuleTerm() : row).operand(rows);
  for (int i = 2; i < op.operand_count(); ++i) {
    const bool per_row = op.defined(i) && !row.empty() && op.sizes(i)[0] == op.sizes(1)[0];
    if (op.operand_arg(i) == "weight" || !per_row)
      rule.absent_operand();
    else
      rule.operand(op.sizes(i).size() == rows.size() ? rows : row);
  }
  return rule.result(rows).linear({0});
}

void add_margin_losses(RuleBook& book) {
  book.rule("aten::multi_margin_loss", [](const OpArgs& op) { return margin_loss(op, false); });
  book.rule("aten::multilabel_margin_loss_forward", [](const OpArgs& op) { return margin_loss(op, true); })
      .outputs([](const OpArgs& op) {
        const bool each = op.integer("reduction") == at::Reduction::None && op.sizes(0).size() > 1;
        return std::vector{dense_meta(each ? op.sizes(0).slice(0, 1) : at::IntArrayRef(), op.dtype(0)),
                           dense_meta(op.sizes(1), op.dtype(0))};
      });
  for (const char* op : {"aten::multi_margin_loss_backward", "aten::multilabel_margin_loss_backward"}) {
    book.rule(op, margin_loss_backward).outputs([](const OpArgs& call) {
      return std::vector{dense_meta(call.sizes(1), call.dtype(1))};
    });
  }
}

// Frames, batch and labels; targets by rows or concatenated.
Rule ctc_loss(const OpArgs& op) {
  return Rule(op.sizes(1).size() == 2 ? "_n_, n_ -> n, n__" : "_n_, ~ -> n, n__").kernel("ctc_loss_batch");
}

Rule ctc_loss_backward(const OpArgs& op) {
  const bool rows = op.sizes(2).size() == 2;
  return Rule(rows ? "n, _n_, n_, n, n__ -> _n_" : "n, _n_, ~, n, n__ -> _n_")
      .linear({0})
      .kernel("ctc_loss_backward_batch");
}

std::vector<OutputMeta> ctc_loss_outputs(const OpArgs& op) {
  const auto lengths = op.integers("target_lengths");
  const auto longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  const auto frames = op.sizes(0)[0], batch = op.sizes(0)[1];
  return {dense_meta({batch}, op.dtype(0)), dense_meta({batch, frames, 2 * longest + 1}, op.dtype(0))};
}

void add_ctc(RuleBook& book) {
  book.rule("aten::_ctc_loss", ctc_loss).outputs(ctc_loss_outputs);
  book.rule("aten::_ctc_loss_backward", ctc_loss_backward).outputs([](const OpArgs& op) {
    const int log_probs = op.operand("log_probs");
    return std::vector{dense_meta(op.sizes(log_probs), op.dtype(log_probs))};
  });
  for (const char* op : {"aten::_ctc_loss.Tensor", "aten::_ctc_loss_backward.Tensor", "aten::_cudnn_ctc_loss"}) {
    book.replicate(op, "sizes and paths depend on the values of tensors of lengths");
  }
}

}  // namespace

void add_loss_rules(RuleBook& book) {
  add_margin_losses(book);
  add_ctc(book);
  add_softmax(book);
  add_elementwise(book);
  book.rule("aten::nll_loss_forward", nll_forward);
  book.rule("aten::nll_loss_backward", nll_backward);
  book.rule("aten::nll_loss2d_forward", nll_forward).outputs(nll2d_outputs);
  book.rule("aten::nll_loss2d_backward", nll_backward).outputs([](const OpArgs& op) {
    return std::vector{dense_meta(op.sizes(1), op.dtype(1))};
  });
}

}  // namespace dtensor
