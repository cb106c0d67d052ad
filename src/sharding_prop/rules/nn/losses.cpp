// Losses and softmax. Means use the global count: a local kernel handles their factors, in forward and backward.
// Classes may be sharded.
#include <ATen/core/Reduction.h>

#include "sharding_prop/rules/rules.h"
#include "sharding_prop/rules/shared_parts.h"

namespace dtensor {
namespace {

void add_softmax(RuleBook& book) {
  const std::pair<const char*, const char*> forward[] = {{"aten::_softmax", "softmax_sharded"},
                                                         {"aten::_log_softmax", "log_softmax_sharded"},
                                                         {"aten::_safe_softmax", "safe_softmax_sharded"}};
  for (const auto& [op, kernel] : forward) book.rule(op, "X[dim] -> X[dim]").sharded_by_kernel("dim", kernel);
  const std::pair<const char*, const char*> backward[] = {
      {"aten::_softmax_backward_data", "softmax_backward_sharded"},
      {"aten::_log_softmax_backward_data", "log_softmax_backward_sharded"}};
  for (const auto& [op, kernel] : backward) {
    book.rule(op, "X[dim], X[dim] -> X[dim]").sharded_by_kernel("dim", kernel).linear({0}).takes_saved_results();
  }
}

// All operands broadcast together. The result has the broadcast sizes, or is a scalar.
Rule elementwise_loss(const OpArgs& op) {
  const auto reduction = op.integer("reduction");
  Rule rule(reduction == at::Reduction::None ? "...* -> ..." : "...* -> ");
  return reduction == at::Reduction::Mean ? rule.sharded_by_kernel("...", "loss_mean_global") : rule;
}

// Operands: grad_output, self, target, ... Result: grad_self with the sizes of self.
Rule elementwise_loss_backward(const OpArgs& op) {
  Rule rule = Rule("...* -> ...").linear({0});
  const bool mean = op.integer("reduction") == at::Reduction::Mean;
  return mean ? rule.sharded_by_kernel("...", "loss_backward_global") : rule;
}

void add_elementwise(RuleBook& book) {
  for (const char* op : {"aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss", "aten::binary_cross_entropy",
                         "aten::binary_cross_entropy_with_logits", "aten::soft_margin_loss"}) {
    book.rule(op, elementwise_loss, "...* -> ... or one number, by reduction");
  }
  for (const char* op : {"aten::mse_loss_backward", "aten::smooth_l1_loss_backward", "aten::huber_loss_backward",
                         "aten::binary_cross_entropy_backward", "aten::soft_margin_loss_backward"}) {
    book.rule(op, elementwise_loss_backward, "...* -> ..., by reduction");
  }
}

std::vector<OutputMeta> nll2d_outputs(const OpArgs& op) {
  const auto self = op.sizes(0);
  const bool fits = self.size() == 4 && op.sizes(1).equals({self[0], self[2], self[3]});
  TORCH_CHECK(fits, "size mismatch (got input: ", self, " , target: ", op.sizes(1));
  const bool each = op.integer("reduction") == at::Reduction::None;
  return {dense_meta(each ? op.sizes(1) : at::IntArrayRef(), op.dtype(0)), dense_meta({}, op.dtype(0))};
}

void add_nll(RuleBook& book) {
  // Batch, classes and spatial dimensions; the target has no class dimension. The loss is a scalar, or one number per
  // target. A scalar is reduced together with the total weight, which backward needs anyway.
  const auto forward = [&](const char* op) -> Rule& {
    return book.rule(op, "ncS, nS, c -> , | ncS, nS, c -> nS, | c, , c -> , ")
        .sharded_by_kernel("ncS", "nll_loss_forward")
        .kernel_gives_replicate_scalars()
        .indexes("1", false, "ignore_index");
  };
  // The total weight is that of the full batch, so a part of the batch needs no communication.
  const auto backward = [&](const char* op) -> Rule& {
    return book.rule(op, ", ncS, nS, c, ~ -> ncS | nS, ncS, nS, c, ~ -> ncS | , c, , c, ~ -> c")
        .sharded_by_kernel("c", "nll_loss_backward")
        .linear({0});
  };
  forward("aten::nll_loss_forward");
  forward("aten::nll_loss2d_forward").outputs(nll2d_outputs);
  backward("aten::nll_loss_backward");
  backward("aten::nll_loss2d_backward").outputs([](const OpArgs& op) { return like_operands(op, {1}); });
}

OutputMeta row_losses(const OpArgs& op) {
  const bool each = op.integer("reduction") == at::Reduction::None && op.sizes(0).size() > 1;
  return dense_meta(each ? op.sizes(0).slice(0, 1) : at::IntArrayRef(), op.dtype(0));
}

// Losses of rows [N, C]. A single row cannot be sharded. Means are over the rows of the full batch.
void add_margin_losses(RuleBook& book) {
  constexpr const char* kKernel = "margin_loss";
  const auto like_self = [](const OpArgs& op) { return like_operands(op, {1}); };
  book.rule("aten::multi_margin_loss", "nc!, n, ~ -> | nc!, n, ~ -> n")
      .sharded_by_kernel("n", kKernel)
      .outputs([](const OpArgs& op) { return std::vector{row_losses(op)}; });
  book.rule("aten::multilabel_margin_loss_forward", "nc!, nc -> , nc | nc!, nc -> n, nc")
      .sharded_by_kernel("n", kKernel)
      .outputs([](const OpArgs& op) {
        return std::vector{row_losses(op), dense_meta(op.sizes(1), op.dtype(0))};
      });
  book.rule("aten::multi_margin_loss_backward", ", nc!, n, ~ -> nc | n, nc!, n, ~ -> nc")
      .sharded_by_kernel("n", kKernel)
      .linear({0})
      .outputs(like_self);
  book.rule("aten::multilabel_margin_loss_backward", ", nc!, nc, nc -> nc | n, nc!, nc, nc -> nc")
      .sharded_by_kernel("n", kKernel)
      .linear({0})
      .outputs(like_self);
}

std::vector<OutputMeta> ctc_loss_outputs(const OpArgs& op) {
  const auto lengths = op.integers("target_lengths");
  const auto longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  const auto frames = op.sizes(0)[0], batch = op.sizes(0)[1];
  return {dense_meta({batch}, op.dtype(0)), dense_meta({batch, frames, 2 * longest + 1}, op.dtype(0))};
}

// Frames, batch and labels. Targets are rows or concatenated.
void add_ctc(RuleBook& book) {
  book.rule("aten::_ctc_loss", "_n_, n_ -> n, n__ | _n_, ~ -> n, n__")
      .kernel("ctc_loss_batch")
      .restricts_values()
      .outputs(ctc_loss_outputs);
  book.rule("aten::_ctc_loss_backward", "n, _n_, n_, n, n__ -> _n_ | n, _n_, ~, n, n__ -> _n_")
      .linear({0})
      .kernel("ctc_loss_backward_batch")
      .takes_saved_results()
      .restricts_values()
      .outputs([](const OpArgs& op) { return like_operands(op, {op.operand("log_probs")}); });
  for (const char* op : {"aten::_ctc_loss.Tensor", "aten::_ctc_loss_backward.Tensor", "aten::_cudnn_ctc_loss"}) {
    book.replicate(op, "sizes and paths depend on the values of tensors of lengths");
  }
}

}  // namespace

void add_losses_rules(RuleBook& book) {
  add_softmax(book);
  add_elementwise(book);
  add_nll(book);
  add_margin_losses(book);
  add_ctc(book);
}

}  // namespace dtensor
